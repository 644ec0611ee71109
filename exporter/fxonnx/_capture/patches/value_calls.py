"""Replacements of calls that read values of fake tensors: of indices, of sizes and of truth values.

torch reads the numbers of ``x[rows, [a, b]]`` and ``x[[0, 1], a]`` from memory, except for those that are the only
index of ``Tensor.__getitem__``. Its functions for fake tensors refuse masks and conditions of type uint8, which eager
torch still takes for masks and conditions of type bool. ``torch.equal`` and its relatives read results, and a reshape
to sizes that depend on data asks about their product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor
from torch.fx.experimental.symbolic_shapes import has_guarding_hint, statically_known_true
from torch.nn.functional import one_hot

from fxonnx_translations._torch_compat import TorchCall, functorch, get_proxy_mode, get_proxy_slot, sym_max, sym_min

from ..data_dependence.concrete_values import active_values, is_open, number_of
from ..suspicions.departures import DepartureKind, record_departure
from .patch import is_tracing, replaced_call

__all__ = [
    "extremum",
    "of_tensor",
    "override_indexing",
    "override_value_functions",
    "rounding",
    "with_numbers_as_bounds",
]


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
        if (
            value
            and isinstance(value[0], Tensor)
            and all(map(_is_basic, parts))
            and any(map(_is_slice_of_sizes, parts))
        ):
            return _copied_to_view, (tensor, parts, value[0]), {}
    return original(self, func, args, kwargs)


def _is_basic(part: Any) -> bool:
    return part is None or part is Ellipsis or type(part) in (int, slice)


def _is_slice_of_sizes(part: Any) -> bool:
    return type(part) is slice and any(isinstance(bound, SymInt) for bound in _bounds(part))


def _copied_to_view(tensor: Tensor, index: tuple[Any, ...], value: Tensor) -> None:
    """``tensor[index] = value`` for slices by symbolic numbers.

    torch drops first axes of one element of the value, in the example, unless its sizes are the symbols of the slice.
    """
    target = tensor[index]
    if value.dim() <= target.dim():
        target.copy_(value)
    else:
        tensor[index] = value


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


def override_value_functions(
    original: Callable[..., TorchCall], self: Any, func: Callable[..., Any], args: Any, kwargs: Any
) -> TorchCall:
    """``_NonStrictTorchFunctionHandler._override``, with functions whose results are symbolic."""
    if func in (torch.equal, Tensor.equal):
        return _equal, args, kwargs
    if func in (torch.allclose, Tensor.allclose):
        return _allclose, args, kwargs
    if func is torch.is_nonzero:
        return _is_nonzero, args, kwargs
    if getattr(func, "__name__", "") == one_hot.__name__:
        return _one_hot, args, kwargs
    values = active_values()
    # On trial, a loop over chunks learns by torch's question whether one is empty.
    is_known = values is not None and not values.is_suspended
    if is_known and func in (torch.reshape, Tensor.reshape, Tensor.view) and args:
        args = (args[0], *_with_length(args[0], args[1:]))
        if func is not Tensor.view and _is_length_open(args[1:]):
            return _copied_view, args, kwargs
    return original(self, func, args, kwargs)


def _with_length(tensor: Tensor, sizes: Sequence[Any]) -> Sequence[Any]:
    """The sizes of a reshape, with the one for -1 computed if others depend on data.

    torch asks whether their product is 0, for which it has no result.
    """
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        return [_with_length(tensor, sizes[0])]
    known = [size for size in sizes if not isinstance(size, int) or size != -1]
    if len(known) != len(sizes) - 1 or not all(isinstance(size, int | SymInt) for size in known):
        return sizes
    product: Any = math.prod(known)
    if not isinstance(product, SymInt) or has_guarding_hint(product):
        return sizes
    length = tensor.numel() // product
    if not statically_known_true(length * product == tensor.numel()):
        return sizes
    return [length if isinstance(size, int) and size == -1 else size for size in sizes]


def _is_length_open(sizes: Sequence[Any]) -> bool:
    """Whether the size for -1 depends on data."""
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        return _is_length_open(sizes[0])
    return any(type(size) is int and size == -1 for size in sizes) and any(map(is_open, sizes))


def _copied_view(self: Tensor, *shape: Any) -> Tensor:
    """``reshape``, which torch computes for ``view`` without a question about sizes that depend on data.

    It may share memory with its operand in eager torch, which the proof sees if the model writes to one of them.
    """
    record_departure(DepartureKind.REPLACED, "reshape")
    return self.contiguous().view(*shape)


def _equal(self: Tensor, other: Tensor) -> Any:
    """The value of a tensor of one element, which is symbolic if it depends on inputs."""
    return tuple(self.shape) == tuple(other.shape) and (self == other).all().item()


def _allclose(self: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> Any:
    return torch.isclose(self, other, *args, **kwargs).all().item()


def _is_nonzero(input: Tensor) -> Any:
    return (input.reshape(()) != 0).item()


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """``one_hot`` whose number of classes is in a tensor, or one more than the largest class."""
    number: Any = num_classes
    if isinstance(num_classes, Tensor):
        number = _known_at_least(num_classes)
    elif num_classes == -1 and is_open(tensor):
        number = (tensor.max() + 1).item()
    if not is_open(number):
        return one_hot(tensor, num_classes)
    # As torch computes it: a class that is not below the number is an index out of bounds.
    zeros = torch.zeros((*tensor.shape, number), dtype=torch.int64, device=tensor.device)
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)


def _known_at_least(tensor: Tensor) -> Any:
    """The number in a tensor, which is larger than the size in ``max(tensor, size)`` in all shapes."""
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    node = None if slot is None else slot.proxy.node
    if node is None or node.target is not torch.ops.aten.clamp.default or len(node.args) != 2:
        return tensor.item()
    least = node.args[1].meta["val"] if isinstance(node.args[1], torch.fx.Node) else node.args[1]
    return sym_max(tensor.item(), least)


def extremum(original: Callable[..., Any], *args: Any, real_callable: Any, tensor_callable: Any, **kwargs: Any) -> Any:
    """``max`` or ``min`` of an integer in a tensor and a size, and of a list of quotients of sizes."""
    numbers = args[0] if len(args) == 1 and not kwargs and isinstance(args[0], (list, tuple)) else []
    if any(isinstance(one, SymFloat) for one in numbers) and all(isinstance(one, (SymFloat, float)) for one in numbers):
        return reduce(sym_max if tensor_callable is torch.maximum else sym_min, numbers)
    sizes: list[Any] = [one for one in args if isinstance(one, SymInt)]
    tensors = [one for one in args if isinstance(one, Tensor) and not one.dim() and one.dtype is torch.int64]
    if len(args) == 2 and len(sizes) == len(tensors) == 1:
        is_largest = tensor_callable is torch.maximum
        record_departure(DepartureKind.REPLACED, "max" if is_largest else "min")
        return torch.clamp(tensors[0], **{"min" if is_largest else "max": sizes[0]})
    return original(*args, real_callable=real_callable, tensor_callable=tensor_callable, **kwargs)


def rounding(function: Callable[[Any], int]) -> Callable[[Tensor], int]:
    """The method of tensors that ``math.floor``, or a relative of it, calls."""

    def rounded(self: Tensor) -> int:
        number = number_of(self) if is_tracing() else self
        return function(float(self) if number is self else number)

    return rounded


def of_tensor(name: str) -> Callable[[Any], Any]:
    """A function of symbolic numbers that torch has of tensors only."""
    function: Callable[[Tensor], Tensor] = getattr(torch, name)
    return lambda number: function(torch.scalar_tensor(number, dtype=torch.float64)).item()
