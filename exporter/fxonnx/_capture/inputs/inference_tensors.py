"""Tensors that were created in inference mode, which torch cannot use where it records gradients, as a capture does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from ..patches.patch import one_at_a_time

__all__ = ["normal_inputs", "normal_weights"]

# Other classes may not answer, as parameters of lazy modules do not.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def normal_inputs(given: tuple[Any, Any]) -> tuple[Any, Any]:
    """Inputs with copies of the tensors that were created in inference mode; one copy of each."""
    copies: dict[int, torch.Tensor] = {}

    def normal(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_inference():
            return tensor
        with torch.inference_mode(False):
            return copies.setdefault(id(tensor), tensor.clone())

    leaves = pytree.tree_leaves(given)
    if not any(isinstance(leaf, torch.Tensor) and leaf.is_inference() for leaf in leaves):
        return given
    found: tuple[Any, Any] = pytree.tree_map_only(torch.Tensor, normal, given)
    return found


@contextmanager
def normal_weights(model: Any) -> Iterator[None]:
    """Replace parameters and buffers that were created in inference mode inside the context, in the same memory.

    Args:
        model: The model, without effect if it is not a module. Tied weights remain tied.
    """
    if not _inference_weights(model):
        yield
        return
    # Another thread may export the same model.
    with one_at_a_time():
        before = _inference_weights(model)
        made: dict[int, torch.Tensor] = {}
        for tensors, name, tensor in before:
            if id(tensor) not in made:
                made[id(tensor)] = _in_same_memory(tensor)
            tensors[name] = made[id(tensor)]
        try:
            yield
        finally:
            for tensors, name, tensor in before:
                tensors[name] = tensor


def _inference_weights(model: Any) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    """The tables, names and tensors of the weights that were created in inference mode."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    tables: list[dict[str, Any]] = [table for module in modules for table in (module._parameters, module._buffers)]
    return [
        (table, name, tensor)
        for table in tables
        for name, tensor in table.items()
        if type(tensor) in _PLAIN and tensor.is_inference()
    ]


def _in_same_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the elements and attributes of another one, which is not of inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        if tensor.layout == torch.strided:
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            storage: Any = tensor.untyped_storage()
            found = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        else:
            found = tensor.clone()
        if isinstance(tensor, torch.nn.Parameter):
            found = torch.nn.Parameter(found, tensor.requires_grad)
    vars(found).update(vars(tensor))
    return found
