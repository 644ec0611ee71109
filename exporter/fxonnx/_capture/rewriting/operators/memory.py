"""Tensors that share memory in eager torch, and lists that are one object, and that are copies in the captured program.

The operators for branches and loops return new tensors, also where Python returns a variable as it is. As long as none
of them is written in place, the two are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from fxonnx_translations._torch_compat import functorch

from ...._context_values import activated, active

__all__ = ["SharedMemory", "copied_back", "merged", "recorded_memory", "repeats", "shares", "storage_of"]


@dataclass
class SharedMemory:
    """The copies of one capture, by the ids of their storages.

    Attributes:
        copies: Storage of a copy to the storages whose memory it shares in eager torch.
        repeated: Storages that hold several copies of the same memory.
        copied_back: Storages of results that are copied to the tensor that they are a copy of.
        containers: Lists and dicts with their items, and with the function that raises the error for their construct.
    """

    copies: dict[int, set[int]] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)
    copied_back: set[int] = field(default_factory=set)
    containers: list[tuple[Any, Any, Callable[[str, str], NoReturn]]] = field(default_factory=list)
    # Their ids are valid as long as the storages exist.
    _tensors: list[torch.Tensor] = field(default_factory=list)

    def keep(self, *tensors: torch.Tensor) -> list[int]:
        """The ids of the tensors' storages, which remain valid."""
        self._tensors.extend(tensors)
        return [storage_of(tensor) for tensor in tensors]


def recorded_memory() -> AbstractContextManager[SharedMemory]:
    """Record copies inside the context."""
    return activated(SharedMemory())


def storage_of(tensor: torch.Tensor) -> int:
    """The id of a tensor's storage; inside vmap, the whole batch's."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def shares(copy: torch.Tensor, *originals: torch.Tensor) -> torch.Tensor:
    """Record that a tensor is a copy of tensors whose memory it shares in eager torch; return it."""
    memory = active(SharedMemory)
    if memory is not None:
        key, *others = memory.keep(copy, *originals)
        memory.copies.setdefault(key, set()).update(others)
    return copy


def repeats(copy: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Record that all items of a tensor share their memory with another one; return it."""
    memory = active(SharedMemory)
    if memory is not None:
        memory.repeated.update(memory.keep(copy))
    return shares(copy, original)


def copied_back(result: torch.Tensor, original: torch.Tensor) -> None:
    """Copy the result of an operator to the tensor that the operator's body writes."""
    memory = active(SharedMemory)
    if memory is not None:
        memory.copied_back.update(memory.keep(result))
    # A parameter is written without gradients only.
    target = original.detach() if original.requires_grad and original.is_leaf else original
    target.copy_(result)


def merged(containers: Sequence[Any], refuse: Callable[[str, str], NoReturn]) -> None:
    """Record lists and dicts that are one object in eager torch: none of them may change later.

    Args:
        containers: The result of a construct, and the objects in its place.
        refuse: Raises the error for the construct.
    """
    memory = active(SharedMemory)
    if memory is not None:
        memory.containers += ((container, container.copy(), refuse) for container in containers)
