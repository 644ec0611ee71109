"""Replacement of the indexing of fake tensors by numbers in tensors, and of masks of bytes.

torch reads the numbers of ``x[rows, [a, b]]`` and ``x[[0, 1], a]`` from memory, except for those that are the only
index of ``Tensor.__getitem__``. Its functions for fake tensors refuse masks and conditions of type uint8, which eager
torch still takes for masks and conditions of type bool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fxonnx_translations._torch_compat import TorchCall, functorch

from .patch import replaced_call

__all__ = ["override_indexing", "with_numbers_as_bounds"]


def override_indexing(
    original: Callable[..., TorchCall], self: Any, func: Callable[..., Any], args: Any, kwargs: Any
) -> TorchCall:
    """``_NonStrictTorchFunctionHandler._override``: another call in place of a call of a torch function."""
    if (call := replaced_call(self, func, args, kwargs)) is not None:
        return call
    name = getattr(func, "__name__", "")
    if name == "where":
        args, kwargs = _with_condition_of_bools(func, args, kwargs)
    if args and isinstance(args[0], Tensor) and name in ("__getitem__", "__setitem__"):
        tensor, index, *value = args
        if _has_mask_of_bytes(index):
            index = tuple(map(_as_mask, index)) if type(index) is tuple else _as_mask(index)
            args = (tensor, index, *value)
        if _has_tensor_bound(index):
            index = with_numbers_as_bounds(index)
            args = (tensor, index, *value)
        if any(map(_is_truth, index if type(index) is tuple else (index,))):
            tensor, index = _with_axes_of_truths(tensor, index if type(index) is tuple else (index,))
            args = (tensor, index, *value)
        parts = index if type(index) is tuple else (index,)
        # Whether a list alone is one index or one per axis depends on the version of torch.
        if type(index) is tuple and any(type(part) in (list, tuple) for part in parts):
            parts = tuple(_stacked(part) for part in parts)
            args = (tensor, parts, *value)
        is_batched = not value and functorch.peek_interpreter_stack() is not None
        if any(map(_is_number, parts)) and (is_batched or value or any(map(_is_advanced, parts))):
            return _index_selected, (func, tensor, parts, *value), {}
    return original(self, func, args, kwargs)


def _with_condition_of_bools(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of ``torch.where`` or ``Tensor.where``, with a condition of type bool."""
    position = 1 if func is Tensor.where else 0
    if len(args) > position:
        return (*args[:position], _as_mask(args[position]), *args[position + 1 :]), kwargs
    if kwargs and "condition" in kwargs:
        return args, {**kwargs, "condition": _as_mask(kwargs["condition"])}
    return args, kwargs


def _has_mask_of_bytes(index: Any) -> bool:
    parts = index if type(index) is tuple else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.uint8 for part in parts)


def _has_tensor_bound(index: Any) -> bool:
    parts = index if type(index) is tuple else (index,)
    return any(type(part) is slice and any(map(_is_bound, _bounds(part))) for part in parts)


def with_numbers_as_bounds(index: Any) -> Any:
    """An index with numbers in place of the tensors of one element that are bounds of slices."""
    if type(index) is tuple:
        return tuple(map(with_numbers_as_bounds, index))
    if type(index) is not slice:
        return index
    return slice(*(bound.item() if _is_bound(bound) else bound for bound in _bounds(index)))


def _bounds(index: slice) -> tuple[Any, Any, Any]:
    return index.start, index.stop, index.step


def _is_bound(value: Any) -> bool:
    """Whether a value is an integer in a tensor, of any rank."""
    return isinstance(value, Tensor) and value.numel() == 1 and _is_integer(value.dtype)


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype == torch.bool or dtype.is_floating_point or dtype.is_complex)


def _as_mask(index: Any) -> Any:
    """A mask of type bool in place of one of type uint8, also of one without axes; other indices unchanged."""
    return index.bool() if isinstance(index, Tensor) and index.dtype == torch.uint8 else index


def _stacked(index: Any) -> Any:
    """A sequence that contains tensors as one tensor; other indices unchanged."""
    if type(index) not in (list, tuple):
        return index
    parts = [_stacked(part) for part in index]
    device = next((part.device for part in parts if isinstance(part, Tensor)), None)
    if device is None:
        return index
    return torch.stack([part if isinstance(part, Tensor) else torch.tensor(part, device=device) for part in parts])


def _is_number(index: Any) -> bool:
    """Whether an index is one integer in a tensor, or a symbolic one, which selects as a Python integer does."""
    return isinstance(index, torch.SymInt) or (
        isinstance(index, Tensor) and index.dim() == 0 and _is_integer(index.dtype)
    )


def _is_truth(index: Any) -> bool:
    """Whether an index is a mask without axes, whose value torch reads."""
    return isinstance(index, Tensor) and index.dim() == 0 and index.dtype == torch.bool


def _with_axes_of_truths(tensor: Tensor, index: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
    """Masks of one axis, and a tensor with the axes that they select from, in place of masks without axes."""
    rest, axis, found = tensor.dim() - sum(map(_axes, index)), 0, []
    for part in index:
        is_truth = _is_truth(part)
        if is_truth:
            tensor = tensor.unsqueeze(axis)
        found.append(part.unsqueeze(0) if is_truth else part)
        axis += rest if part is Ellipsis else 1 if is_truth else _axes(part)
    return tensor, tuple(found)


def _is_advanced(index: Any) -> bool:
    return type(index) in (list, tuple) or (isinstance(index, Tensor) and index.dim() > 0)


def _index_selected(func: Callable[..., Any], tensor: Tensor, index: tuple[Any, ...], *value: Any) -> Any:
    """Apply the integers first, as ``select``, then ``__getitem__`` or ``__setitem__`` to the rest."""
    consumed = sum(map(_axes, index))
    rest, axis = [], 0
    for part in index:
        if _is_number(part):
            tensor = _selected(tensor, axis, part, has_item=bool(value) or functorch.peek_interpreter_stack() is None)
            consumed -= 1
            continue
        rest.append(part)
        axis += tensor.dim() - consumed if part is Ellipsis else _axes(part)
    return func(tensor, tuple(rest), *value)


def _selected(tensor: Tensor, axis: int, index: Any, *, has_item: bool) -> Tensor:
    """``select`` at an integer. Inside of ``vmap``, a tensor has an integer for each element."""
    if isinstance(index, torch.SymInt):
        return torch.select(tensor, axis, index)
    if has_item:
        number: Any = index.item()
        return torch.select(tensor, axis, number)
    return tensor[(slice(None),) * axis + (index.unsqueeze(0),)].squeeze(axis)


def _axes(index: Any) -> int:
    """Number of axes that an index applies to."""
    if index is None or index is Ellipsis or isinstance(index, bool):
        return 0
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        return index.dim()
    return 1
