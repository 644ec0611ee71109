"""Prove what a mask and the positions of attention with a cache are: index arithmetic, evaluated symbolically.

A value of an index tensor is known if it is the index along one axis plus an offset that is the same for all elements.
A mask is known if it is a conjunction of comparisons of such indices and of the padding mask, an input of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch

from .matching import CASTS, VIEWS, as_call, dims_of, dtype_of, known_number

__all__ = ["CausalMask", "causal_mask", "index_offset", "size_expression"]

aten = torch.ops.aten

_QUERY, _KEY = -2, -1
_CONJUNCTIONS = (aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default, aten.mul.Tensor)
_COMPARISONS = {
    aten.le.Tensor: ("<=", 0),
    aten.lt.Tensor: ("<=", -1),
    aten.ge.Tensor: (">=", 0),
    aten.gt.Tensor: (">=", 1),
}
_LARGEST_BIAS = -1e4
"""Largest number that counts as the bias of a masked score."""


@dataclass(frozen=True)
class CausalMask:
    """Keys that a query attends to: those up to itself, within a window, that are not padding.

    Attributes:
        padding: The graph's padding mask, [batch, keys].
        window: Number of keys in the window, with the query's own; None if it is unlimited.
    """

    padding: torch.fx.Node
    window: int | None


@dataclass(frozen=True)
class _Index:
    """Elements that are the index along ``axis`` (counted from the last, -1; None for constants) plus ``offset``."""

    axis: int | None
    offset: sympy.Expr


@dataclass(frozen=True)
class _Distance:
    """A condition on the key's index minus the query's: ``>= bound`` if ``is_lower``, otherwise ``<= bound``."""

    is_lower: bool
    bound: sympy.Expr


_Condition = _Distance | torch.fx.Node


def size_expression(size: Any) -> sympy.Expr | None:
    """The expression of a size, which is an int, a symbolic int or a node of one."""
    if isinstance(size, torch.fx.Node):
        size = size.meta.get("val")
    if isinstance(size, torch.SymInt):
        return size.node.expr
    return sympy.Integer(size) if isinstance(size, int) and not isinstance(size, bool) else None


def index_offset(node: Any, axis: int) -> sympy.Expr | None:
    """The offset of a tensor whose elements are the index along an axis, counted from the last, plus an offset."""
    index = _index_of(node)
    return index.offset if index is not None and index.axis == axis else None


def causal_mask(node: Any, past: sympy.Expr) -> CausalMask | None:
    """Match the mask of causal attention with a padding mask.

    Args:
        node: The mask: bool, or float with 0 for keys that a query attends to and large negative numbers for others.
        past: The number of keys in the cache.

    Returns:
        The parts of the mask; None if it is not proved to be one.
    """
    conditions = _conditions(node)
    if conditions is None:
        return None
    bounds = {True: set[sympy.Expr](), False: set[sympy.Expr]()}
    padding = set()
    for condition in conditions:
        if isinstance(condition, _Distance):
            bounds[condition.is_lower].add(sympy.simplify(condition.bound - past))
        else:
            padding.add(condition)
    if bounds[False] != {sympy.Integer(0)} or len(bounds[True]) > 1 or len(padding) != 1:
        return None
    first = next(iter(bounds[True]), None)
    if first is None:
        return CausalMask(padding.pop(), None)
    return CausalMask(padding.pop(), 1 - int(first)) if first.is_Integer and first <= 0 else None


def _conditions(node: Any) -> list[_Condition] | None:
    """The conditions whose conjunction a mask is; None if it is not known to be one."""
    call = as_call(node, getattr(node, "target", None))
    if call is None:
        return None
    if call.target in _CONJUNCTIONS and dtype_of(call) == torch.bool and len(call.args) == 2 and not call.kwargs:
        parts = [_conditions(argument) for argument in call.args]
        return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    if call.target in _COMPARISONS:
        return _comparison(call)
    if call.target in (aten.where.ScalarOther, aten.where.self, aten.where.Scalar):
        condition, kept, other = call.args
        is_bias = _constant(kept) == 0 and (_constant(other) or 0.0) <= _LARGEST_BIAS
        return _conditions(condition) if is_bias else None
    if call.target is aten.expand.default or (
        call.target in CASTS and dtype_of(call.args[0]) == torch.bool == dtype_of(call)
    ):
        return _conditions(call.args[0])
    if dtype_of(call) == torch.bool and _constant(call) == 1:
        return []
    padding = _padding(call)
    return None if padding is None else [padding]


def _comparison(call: torch.fx.Node) -> list[_Condition] | None:
    """Match the comparison of a key's and a query's index."""
    left, right = (_index_of(argument) for argument in call.args[:2])
    if left is None or right is None or {left.axis, right.axis} != {_QUERY, _KEY}:
        return None
    sign, strict = _COMPARISONS[call.target]  # type: ignore[index]
    # left - right <= strict, or >= strict
    bound = right.offset - left.offset + strict
    is_lower = sign == ">="
    return [_Distance(is_lower, bound) if left.axis == _KEY else _Distance(not is_lower, -bound)]


def _padding(call: torch.fx.Node) -> torch.fx.Node | None:
    """Match the padding mask at the batch's and the key's index, as bool; returns the input of the graph."""
    picked = as_call(call, aten.index.Tensor)
    if picked is not None:
        indices: Any = picked.args[1]
        axes = [_index_of(index) for index in indices]
        if axes != [_Index(-4, sympy.Integer(0)), _Index(_KEY, sympy.Integer(0))]:
            return None
        return _padding_input(picked.args[0])
    source: Any = call
    while (view := as_call(source, aten.unsqueeze.default, aten.slice.Tensor)) is not None:
        if view.target is aten.slice.Tensor and not _is_whole(view):
            return None
        source = view.args[0]
    dims, wanted = dims_of(call), dims_of(source)
    if dims is None or wanted is None or len(dims) != 4 or len(wanted) != 2:
        return None
    if [str(dim) for dim in dims] != [str(wanted[0]), "1", "1", str(wanted[1])]:
        return None
    return _padding_input(source)


def _padding_input(node: Any) -> torch.fx.Node | None:
    """Match an input of the graph as bool, [batch, keys]."""
    if dtype_of(node) != torch.bool:
        return None
    cast = as_call(node, *CASTS)
    source: Any = node if cast is None else cast.args[0]
    is_input = isinstance(source, torch.fx.Node) and source.op == "placeholder"
    return source if is_input and len(dims_of(source) or ()) == 2 else None


def _is_whole(view: torch.fx.Node) -> bool:
    return list(map(str, dims_of(view) or ())) == list(map(str, dims_of(view.args[0]) or ()))


def _constant(node: Any) -> float | None:
    """The number that all elements of a tensor are."""
    number = float(node) if isinstance(node, bool) else known_number(node)
    if number is not None:
        return number
    full = as_call(node, aten.full.default, aten.full_like.default, aten.new_full.default, aten.scalar_tensor.default)
    if full is not None:
        return known_number(full.args[0 if full.target is aten.scalar_tensor.default else 1])
    if as_call(node, aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default) is not None:
        return 0.0
    ones = as_call(node, aten.ones.default, aten.ones_like.default, aten.new_ones.default)
    return None if ones is None else 1.0


def _index_of(node: Any) -> _Index | None:
    number = size_expression(node)
    if number is not None:
        return _Index(None, number)
    call = as_call(node, getattr(node, "target", None))
    dims = dims_of(call)
    if call is None or dims is None:
        return None
    if call.target in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        return _range(call)
    source = _index_of(call.args[0]) if call.args else None
    if source is None:
        return None
    if call.target is aten.unsqueeze.default:
        place = call.args[1] % len(dims) - len(dims)  # type: ignore[operator]
        moved = source.axis is not None and source.axis <= place
        return _Index(source.axis - 1, source.offset) if moved and source.axis is not None else source
    if call.target in (aten.add.Tensor, aten.sub.Tensor) and not call.kwargs:
        other = _index_of(call.args[1])
        if other is None or (source.axis is not None and other.axis is not None):
            return None
        is_sum = call.target is aten.add.Tensor
        if not is_sum and other.axis is not None:
            return None
        axis = other.axis if source.axis is None else source.axis
        return _Index(axis, source.offset + other.offset if is_sum else source.offset - other.offset)
    keeps = call.target in CASTS and dtype_of(call) in (torch.int64, torch.int32)
    if keeps or call.target is aten.expand.default or (call.target in VIEWS and _is_whole(call)):
        return source
    return None


def _range(call: torch.fx.Node) -> _Index | None:
    arguments = [size_expression(argument) for argument in call.args]
    if len(arguments) == 3 and arguments[2] != 1:
        return None
    start = sympy.Integer(0) if len(arguments) == 1 else arguments[0]
    return None if start is None or dtype_of(call) not in (torch.int64, torch.int32) else _Index(-1, start)
