"""Dynamic dims for which the constraints together leave one size: ``n >= 29``, ``n <= 56`` and ``n % 32 == 0``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import sympy

from fxonnx_translations._torch_compat import ValueRangeError, ValueRanges, bound_sympy, int_oo

from ..shapes.dim_specs import dim_label
from ..shapes.dynamic_shapes import Leaf
from .constraint import Constraint, Limits
from .constraint_solver import Bounds, bounds_of
from .guard_recorder import GuardLog, SourceLine
from .specialized_dims import SpecializedDimsError, specialized_dims_error

__all__ = ["check_specialized", "single_sizes"]

# Limits of the search. Usually one interval shows that no size is too large, or two sizes are found at once.
_LARGEST = 1 << 20
_MOST_TRIES = 20_000


def check_specialized(limits: Limits, leaves: Sequence[Leaf], log: GuardLog) -> None:
    """Check that no constraints leave one size for a dynamic dim whose symbol torch keeps.

    ONNX Runtime does not know the constraints, and would compute wrong values at any other size.

    Raises:
        SpecializedDimsError: If they do.
    """
    found = single_sizes(limits)
    if not found:
        return
    by_label = {place.label: found[str(place.expression)] for place in limits.places if str(place.expression) in found}
    specialized = []
    lines: dict[str, tuple[SourceLine, ...]] = {}
    for leaf in leaves:
        for axis in leaf.dims:
            label = dim_label(leaf.label, axis)
            example = leaf.value if axis is None else leaf.value.shape[axis]
            # Constraints that exclude the example are an error of their own.
            if label in by_label and by_label[label][0] == example:
                specialized.append((leaf, axis, int(example)))
                lines[label] = _lines(by_label[label][1])
    if specialized:
        dims = specialized_dims_error(specialized, log).specialized
        raise SpecializedDimsError(
            # torch's own line is that of one guard.
            [
                replace(dim, lines=lines[dim.label] if len(lines[dim.label]) > 1 else dim.lines or lines[dim.label])
                for dim in dims
            ]
        )


def _lines(constraints: Iterable[Constraint]) -> tuple[SourceLine, ...]:
    lines = []
    for constraint in constraints:
        if constraint.line is not None:
            code = constraint.code or ""
            lines.append(SourceLine(constraint.line.removesuffix(f": {code}"), code))
    return tuple(dict.fromkeys(lines))


def single_sizes(limits: Limits) -> dict[str, tuple[int, list[Constraint]]]:
    """Name to size of the dims with one valid size, and the constraints that leave it.

    Args:
        limits: The sizes for which a program is valid.
    """
    known = [constraint for constraint in limits.constraints if not constraint.is_equality]
    found: dict[str, tuple[int, list[Constraint]]] = {}
    for name in dict.fromkeys(name for constraint in known for name in constraint.dims):
        about = [constraint for constraint in known if name in constraint.dims]
        size = _single_size(name, about, limits.user_bounds)
        # A range of one size in dynamic_shapes is the user's own request.
        if size is None or all(constraint.is_range for constraint in about):
            continue
        for constraint in list(about):
            fewer = [other for other in about if other is not constraint]
            if _single_size(name, fewer, limits.user_bounds) == size:
                about = fewer
        found[name] = size, about
    return found


def _single_size(name: str, constraints: Sequence[Constraint], bounds: Mapping[str, Bounds]) -> int | None:
    """The only size of a dim that the constraints do not exclude; None if there are several, or it is not known."""
    relations = [constraint.expression for constraint in constraints]
    limits = [limit[1] for limit in map(bounds_of, relations) if limit is not None]
    low = max([1, *(limit.low for limit in limits if limit.low is not None)])
    highs = [limit.high for limit in limits if limit.high is not None]
    high = min(highs) if highs else _upper_limit(name, low, relations, bounds)
    if high is None:
        return None
    ranges = {other: limit.range() for other, limit in bounds.items()}
    size: int | None = None
    for tries, candidate in enumerate(range(low, high + 1), 1):
        if any(_is_refuted(_at(relation, name, candidate), ranges) for relation in relations):
            if tries * len(relations) > _MOST_TRIES:
                return None
            continue
        if size is not None:
            return None
        size = candidate
    return size


def _upper_limit(name: str, low: int, relations: Sequence[sympy.Basic], bounds: Mapping[str, Bounds]) -> int | None:
    """A size such that a relation excludes all larger ones."""
    ranges = {other: limit.range() for other, limit in bounds.items()}
    size = low
    while size <= _LARGEST:
        ranges[name] = ValueRanges(sympy.Integer(size + 1), int_oo)
        if any(_is_refuted(relation, ranges) for relation in relations):
            return size
        size *= 2
    return None


def _at(relation: sympy.Basic, name: str, size: int) -> sympy.Basic:
    return relation.xreplace({symbol: sympy.Integer(size) for symbol in relation.free_symbols if symbol.name == name})


def _is_refuted(relation: sympy.Basic, ranges: Mapping[str, ValueRanges[sympy.Expr]]) -> bool:
    """Whether a relation is proved to be false for all sizes in the ranges."""
    if relation in (sympy.true, sympy.false):
        return bool(relation == sympy.false)
    unlimited = Bounds().range()
    try:
        found = bound_sympy(relation, {symbol: ranges.get(symbol.name, unlimited) for symbol in relation.free_symbols})
    except (ValueRangeError, NotImplementedError, TypeError, AttributeError, KeyError, ZeroDivisionError):
        # torch's interval arithmetic has no rule for an operation, or the ranges contradict the relation.
        return False
    return bool(found == ValueRanges.wrap(sympy.false))
