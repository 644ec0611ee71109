"""Values that depend on the data of tensors: conditions, numbers, their form as operands, and the memory they share.

The operators for branches and loops return new tensors, also where Python returns a variable as it is: lists that are
one object, and tensors that share memory in eager torch, are copies in the captured program. As long as none of them is
written in place, the two are equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, is_concrete_int, statically_known_true

from fxonnx_translations._torch_compat import FakeTensor, functorch, sym_not

from ...._context_values import activated, active
from ...data_dependence.concrete_values import active_values

__all__ = [
    "NUMBER_DEVICE",
    "SYMBOLIC",
    "UNBOUND",
    "Refuse",
    "SharedMemory",
    "as_condition",
    "as_number",
    "copied_back",
    "is_dynamic_size",
    "is_number",
    "is_symbolic",
    "is_traced",
    "is_undecided",
    "merged",
    "number_dtype",
    "number_of",
    "number_tensor",
    "recorded_memory",
    "repeats",
    "same_shape",
    "separate",
    "shares",
    "storage_of",
]


Refuse = Callable[[str, str], NoReturn]
"""Raises the error for a construct that cannot be an operator, with the problem and the hint."""


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
    containers: list[tuple[Any, Any, Refuse]] = field(default_factory=list)
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


def merged(containers: Sequence[Any], refuse: Refuse) -> None:
    """Record lists and dicts that are one object in eager torch: none of them may change later."""
    memory = active(SharedMemory)
    if memory is not None:
        memory.containers += ((container, container.copy(), refuse) for container in containers)


NUMBER_DEVICE = torch.device("cpu")
"""The device of tensors that stand for numbers, whatever the model is on: the same in all branches and iterations."""

_COMPARISONS: Mapping[type[sympy.Basic], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        sympy.StrictGreaterThan: operator.gt,
        sympy.GreaterThan: operator.ge,
        sympy.StrictLessThan: operator.lt,
        sympy.LessThan: operator.le,
        sympy.Equality: operator.eq,
        sympy.Unequality: operator.ne,
    }
)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _Unbound:
    """Marker for a variable without a value."""

    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND = _Unbound()


def is_symbolic(value: Any) -> bool:
    """Whether the truth of a value depends on the data of tensors."""
    if isinstance(value, torch.Tensor):
        values = active_values()
        if not isinstance(value, FakeTensor) or value.constant is not None or value.numel() != 1:
            return False
        return values is None or not values.is_constant(value)
    return isinstance(value, SYMBOLIC) and bool(free_unbacked_symbols(value))


def is_traced(value: Any) -> bool:
    """Whether a value is a tensor or a symbolic number."""
    return isinstance(value, (torch.Tensor, *SYMBOLIC))


def is_dynamic_size(value: Any) -> bool:
    """Whether a size or a number has no fixed value during the capture."""
    return isinstance(value, torch.SymInt) and not is_concrete_int(value)


def is_undecided(value: Any) -> bool:
    """Whether a condition on sizes differs between sizes."""
    if not isinstance(value, torch.SymBool):
        return False
    return not (statically_known_true(value) or statically_known_true(sym_not(value)))


def is_number(value: Any) -> bool:
    """Whether a value is a Python number, or stands for one."""
    return isinstance(value, bool | int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def as_condition(value: Any) -> torch.Tensor:
    """The truth of a value as a 0-dim boolean tensor."""
    if isinstance(value, torch.Tensor):
        return as_number(value.reshape(()) if value.dtype == torch.bool else value.reshape(()) != 0)
    if isinstance(value, torch.SymInt | torch.SymFloat):
        value = value != 0
    if isinstance(value, torch.SymBool) and _is_comparison_of_floats(value):
        expression = value.node.expr
        sides = [value.node.shape_env.create_symfloatnode(side, hint=None) for side in expression.args]
        left, right = (torch.scalar_tensor(side, dtype=torch.float64, device=NUMBER_DEVICE) for side in sides)
        compared: torch.Tensor = _COMPARISONS[type(expression)](left, right)
        return compared
    if isinstance(value, torch.SymBool):
        flag: Any = value
        return torch.scalar_tensor(flag, dtype=torch.bool, device=NUMBER_DEVICE)
    return torch.full((), bool(value), dtype=torch.bool, device=NUMBER_DEVICE)


def _is_comparison_of_floats(value: torch.SymBool) -> bool:
    expression = value.node.expr
    return type(expression) in _COMPARISONS and not all(symbol.is_integer for symbol in expression.free_symbols)


def number_dtype(values: Sequence[Any]) -> torch.dtype:
    """The dtype that represents Python numbers."""
    if all(isinstance(value, bool | torch.SymBool) for value in values):
        return torch.bool
    return torch.float64 if any(isinstance(value, float | torch.SymFloat) for value in values) else torch.int64


def as_number(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor on the device of numbers, or of a tensor that stands for the same variable on another path."""
    device = NUMBER_DEVICE if like is None else like.device
    # Without a copy, which the graph would have, where it is there.
    return tensor if tensor.device == device or tensor.is_meta else tensor.to(device)


def number_tensor(value: Any, dtype: torch.dtype, like: torch.Tensor | None = None) -> torch.Tensor:
    """A number as a 0-dim tensor, on the device of another tensor if one is given."""
    if isinstance(value, torch.Tensor):
        return as_number(value.reshape(()).to(dtype), like)
    if isinstance(value, bool | torch.SymBool):
        return as_number(as_condition(value).to(dtype), like)
    return torch.scalar_tensor(value, dtype=dtype, device=NUMBER_DEVICE if like is None else like.device)


def number_of(tensor: torch.Tensor) -> Any:
    """The number that a 0-dim tensor represents; booleans remain tensors."""
    return tensor if tensor.dtype == torch.bool else tensor.item()


def same_shape(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors always have the same shape."""
    return one.dim() == other.dim() and all(
        statically_known_true(left == right) for left, right in zip(one.shape, other.shape, strict=True)
    )


def separate(values: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Clone the tensors that share memory with an input or an earlier one: bodies must not return aliases."""
    storages = {storage_of(value) for value in inputs if isinstance(value, torch.Tensor)}
    made = []
    for value in values:
        storage = storage_of(value)
        made.append(shares(value.clone(), value) if storage in storages else value)
        storages.add(storage)
    return made
