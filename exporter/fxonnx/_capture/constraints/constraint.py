"""Constraints: the sizes for which a captured program is equivalent to the model, in the user's dim names.

torch traces one path through the model, for the example sizes, and specializes on the guards of this path. For
sizes that violate a guard, the program may compute something different from the model.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import sympy
import torch

from fxonnx_translations._builder.empty_tensors import Requirement
from fxonnx_translations._builder.size_values import SizeProgram, UndefinedSizeError
from fxonnx_translations._torch_compat import Max, Min

from ..._display import TableTuple
from ..._public import public
from ..._warnings import warn_user
from ...errors import ArgumentError, CaptureError
from .constraint_solver import Bounds, limits_of, normal_forms
from .relation_forms import text_of

__all__ = [
    "CONSTRAINTS_KEY",
    "Constraint",
    "Constraints",
    "Place",
    "SizeLimits",
    "report_narrowed",
    "share_excluded",
    "shortened",
]

_OTHER_BRANCH_HINT = "the traced branch is not valid for other sizes; export again with an example of that size"

# Sizes at which relations of several dims are tried.
_SMALL_SIZES = (1, 2, 3)
_MAX_DIMS = 3

# Sizes of which constraints exclude a share.
_SIZES = range(1, 129)

# Longer conditions are cut in the warning.
_MOST_CHARACTERS = 160

CONSTRAINTS_KEY = "pkg.fxonnx.constraints"
"""Key of the constraints in the model's metadata."""


@public
@dataclass(frozen=True)
class Constraint:
    """One condition on the sizes of the inputs.

    Attributes:
        text: The condition in Python's notation: ``seq >= 9``, ``batch % 16 == 0``, ``a == b``.
        expression: The condition as a sympy relation of symbols with the names of the dims.
        dims: Names of the constrained dims; ``x.shape[0]`` for a dim without a name.
        line: The user's line that requires it, ``file.py:12 in forward: if x.shape[0] > 8:``, or None.
        code: The code of that line alone, or None.
        narrows: Whether it excludes sizes that the user requested by a name, ``Dim.DYNAMIC`` or a ``Dim``;
            ``Dim.AUTO`` requests none.
        is_range: Whether it is the range of a ``Dim`` of the user.
        reason: The reason why the model is not correct for empty tensors, if that is the cause.
        is_equality: Whether it requires dims with the same name to be equal; the symbols of its expression are then
            labels of dims (``x.shape[0]``).
    """

    text: str
    expression: sympy.Basic
    dims: tuple[str, ...]
    line: str | None = None
    code: str | None = None
    narrows: bool = False
    is_range: bool = False
    reason: str | None = None
    is_equality: bool = False

    def __str__(self) -> str:
        return self.text if self.line is None else f"{self.text} ({self.line})"

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes of all of its dims satisfy it."""
        try:
            return _program_of(self.expression).value(sizes) is True
        except UndefinedSizeError:
            # The model raises the error as well. The graph, whose limit has a reason, divides by 1 instead of 0.
            return self.reason is not None

    def is_about(self, expression: sympy.Basic) -> bool:
        """Whether an expression contains a constrained dim."""
        return any(symbol.name in self.dims for symbol in expression.free_symbols)


@lru_cache(maxsize=256)
def _program_of(expression: sympy.Basic) -> SizeProgram:
    """The condition of a constraint, for the search of sizes that satisfy it."""
    return SizeProgram(expression)


def share_excluded(constraint: Constraint) -> float:
    """The share of some sizes that a constraint excludes."""
    count = len(_SIZES)
    # Each of several dims takes each size once, in another order.
    each = (
        {name: _SIZES[at * (36 * place + 1) % count] for place, name in enumerate(constraint.dims)}
        for at in range(count)
    )
    return sum(not constraint.holds(sizes) for sizes in each) / count


class Constraints(TableTuple[Constraint]):
    """The constraints of a program."""

    __slots__ = ()
    _head = ("constraint", "line", "reason")

    @staticmethod
    def _cells(item: Constraint) -> Sequence[str]:
        return (item.text, item.line or "", item.reason or ("range of a Dim" if item.is_range else ""))

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "none"


@dataclass(frozen=True)
class Place:
    """One occurrence of a symbolic size in the inputs.

    Attributes:
        input: Index among the inputs that are not constants of the program.
        axis: Axis of that input; None for the value of an int.
        label: Name of the place in messages: ``x axis 0``.
        expression: The size, in symbols with the names of the dims.
        is_exact: Whether the program requires this size; False if only the user's name for it is recorded.
    """

    input: int
    axis: int | None
    label: str
    expression: sympy.Expr
    is_exact: bool = True

    @property
    def argument(self) -> str:
        """The input's label."""
        return self.label.partition(" axis ")[0]


@dataclass(frozen=True)
class SizeLimits:
    """The sizes for which a program is valid.

    Attributes:
        constraints: The conditions.
        places: Occurrences of symbolic sizes, in the order of the inputs.
        user_bounds: Dim name to the bounds of the user's ``Dim``.
        shared_names: Unique dim name (``n_1``) to the user's name (``n``), for dims that are not known to be equal.
        nonempty: Conditions that exclude sizes of 0 only. Since torch assumes sizes of at least 1, these do not narrow
            the requested sizes.
        requested: Names of the dims that the user requested to be dynamic, as opposed to ``Dim.AUTO``.
        graph_names: Name of a dim in the graph (``s77``) to its name here (``x.shape[0]``), for dims without a name.
        assumed: The constraints by assumptions of torch, which the example may violate, until they are confirmed.
        ones: Expressions that the constraints keep at 1, such as ``n // 2`` where two shapes are broadcast.
    """

    constraints: tuple[Constraint, ...] = ()
    places: tuple[Place, ...] = ()
    user_bounds: Mapping[str, Bounds] = field(default_factory=lambda: MappingProxyType({}))
    shared_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    nonempty: tuple[Constraint, ...] = ()
    requested: frozenset[str] = frozenset()
    graph_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    assumed: frozenset[Constraint] = frozenset()
    ones: frozenset[sympy.Expr] = frozenset()

    def with_requirements(self, requirements: Iterable[Requirement]) -> SizeLimits:
        """Add the requirements of ONNX operators that some sizes are not 0.

        A requirement that also excludes a size of 1 narrows the requested sizes, as any other constraint.

        Args:
            requirements: The requirements, in the graph's dim names; those on sizes that cannot be computed from the
                inputs are omitted.
        """
        known = {symbol.name for place in self.places for symbol in place.expression.free_symbols}
        reasons: dict[sympy.Basic, str] = {}
        for requirement in requirements:
            # torch's symbols are positive, so that sympy would evaluate a lower limit of 1 to True.
            symbols = {
                symbol: _possibly_empty(self.graph_names.get(symbol.name, symbol.name))
                for symbol in requirement.size.free_symbols
            }
            if {symbol.name for symbol in symbols.values()} <= known:
                for relation in _lower_limits(requirement.size.xreplace(symbols), requirement.least):
                    reasons.setdefault(relation, requirement.reason)
        others = [item.expression for item in self.constraints if not item.is_equality]
        renamed = {symbol: _possibly_empty(symbol.name) for other in others for symbol in other.free_symbols}
        others = [other.xreplace(renamed) for other in others]
        constraints = list(self.constraints)
        nonempty: list[Constraint] = []
        for relation, causes in limits_of(reasons, {}, others).items():
            dims = sorted(symbol.name for symbol in relation.free_symbols)
            found = Constraint(text_of(relation), relation, tuple(dims), reason=reasons[causes[0]])
            if self._is_narrowing(found, others):
                constraints.append(replace(found, narrows=not self.requested.isdisjoint(dims)))
            else:
                nonempty.append(found)
        return replace(self, constraints=tuple(constraints), nonempty=tuple(nonempty))

    def _is_narrowing(self, constraint: Constraint, others: Sequence[sympy.Basic]) -> bool:
        """Whether a constraint excludes sizes other than 0 that satisfy the other constraints."""
        if len(constraint.dims) == 1:
            (symbol,) = constraint.expression.free_symbols
            return bool(limits_of([constraint.expression], {symbol: Bounds(1)}, [*others, sympy.Ge(symbol, 1)]))
        tried = itertools.product(_SMALL_SIZES, repeat=min(len(constraint.dims), _MAX_DIMS))
        small = (dict(zip(constraint.dims, sizes, strict=False)) for sizes in tried)
        return any(self.violated(sizes) is None and _violated([constraint], sizes) is not None for sizes in small)

    def renamed(self, names: Mapping[str, str]) -> SizeLimits:
        """Rename dims.

        Args:
            names: Old to new dim name.
        """

        def new_symbols(symbols: set[sympy.Symbol]) -> dict[sympy.Symbol, sympy.Symbol]:
            return {
                symbol: sympy.Symbol(names[symbol.name], integer=True, positive=symbol.is_positive)
                for symbol in symbols
                if symbol.name in names
            }

        def renamed(constraint: Constraint) -> Constraint:
            dims = tuple(names.get(dim, dim) for dim in constraint.dims)
            if constraint.is_equality:
                return replace(constraint, dims=dims)
            expression = constraint.expression.xreplace(new_symbols(constraint.expression.free_symbols))
            return replace(constraint, text=text_of(expression), expression=expression, dims=dims)

        places = [
            replace(place, expression=place.expression.xreplace(new_symbols(place.expression.free_symbols)))
            for place in self.places
        ]
        user_bounds = {names.get(name, name): bounds for name, bounds in self.user_bounds.items()}
        shared_names = {names.get(name, name): names.get(first, first) for name, first in self.shared_names.items()}
        constraints, nonempty = (tuple(map(renamed, group)) for group in (self.constraints, self.nonempty))
        requested = frozenset(names.get(name, name) for name in self.requested)
        return SizeLimits(constraints, tuple(places), user_bounds, shared_names, nonempty, requested, self.graph_names)

    def sizes(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Dim name to size, for the dims that can be computed from the inputs."""
        found: dict[str, int] = {}
        # A size 2*d determines d, but a place with the size d itself takes precedence.
        for place, size in sorted(self._seen(inputs), key=lambda pair: not pair[0].expression.is_Symbol):
            symbols = place.expression.free_symbols
            if len(symbols) == 1:
                (symbol,) = symbols
                solution = _solve_for(place.expression, symbol, size)
                if solution is not None:
                    found.setdefault(symbol.name, solution)
        return found

    def check(self, inputs: Sequence[Any]) -> None:
        """Check that the program is valid for the sizes of inputs.

        Raises:
            ArgumentError: If not; the error names the constraint, the sizes and the line of code.
        """
        if not self.places:
            return
        sizes = self.sizes(inputs)
        constraint = self.violated(sizes) or _violated(self.nonempty, sizes)
        if constraint is None:
            self._check_equal(inputs, sizes)
            return
        given = ", ".join(f"{name} = {sizes[name]}" for name in constraint.dims)
        places = [place for place in self.places if constraint.is_about(place.expression)]
        at = f"\n  at: {constraint.line}" if constraint.line else ""
        if constraint.reason is not None:
            is_empty = any(sizes[name] == 0 for name in constraint.dims)
            raise ArgumentError(
                ", ".join(dict.fromkeys(place.argument for place in places)),
                f"the model requires {shortened(constraint.text)}, got {given}: {constraint.reason}",
                hint="skip the call for empty inputs" if is_empty else "an intermediate tensor is empty at this size",
            )
        raise ArgumentError(
            ", ".join(dict.fromkeys(place.argument for place in places)),
            f"the model was exported for {shortened(constraint.text)}, got {given}{at}",
            hint="widen the range of the Dim in dynamic_shapes" if constraint.is_range else _OTHER_BRANCH_HINT,
        )

    def check_example(self, inputs: Sequence[Any]) -> None:
        """Check that the program is valid for the sizes of the example, except for sizes of 0 and assumptions.

        Raises:
            CaptureError: If not; the error names the constraint, the sizes, and the line of code or the reason.
        """
        sizes = self.sizes(inputs)
        certain = tuple(constraint for constraint in self.constraints if constraint not in self.assumed)
        constraint = replace(self, constraints=certain).violated(sizes)
        if constraint is None:
            return
        if constraint.reason is not None and not constraint.dims:
            raise CaptureError(
                f"an intermediate tensor is empty at every size: {constraint.reason}",
                hint="skip the call in the model, or change the sizes that it computes",
            )
        given = ", ".join(f"{name} = {sizes[name]}" for name in constraint.dims)
        cause = f"\n  at: {constraint.line}" if constraint.line else ""
        if constraint.reason is not None:
            cause = f": {constraint.reason}, and an intermediate tensor is empty at this size"
        raise CaptureError(
            f"the captured program requires {shortened(constraint.text)}, but the example has {given}{cause}",
            hint="pass an example of a different size, or make the axis static by leaving it out of dynamic_shapes",
        )

    def _seen(self, inputs: Sequence[Any]) -> list[tuple[Place, int]]:
        seen = [(place, _size(inputs, place)) for place in self.places]
        return [(place, size) for place, size in seen if size is not None]

    def _check_equal(self, inputs: Sequence[Any], sizes: Mapping[str, int]) -> None:
        seen = [pair for pair in self._seen(inputs) if pair[0].is_exact]
        for place, size in seen:
            symbols = place.expression.free_symbols
            expected = place.expression.xreplace(
                {symbol: sympy.Integer(sizes[symbol.name]) for symbol in symbols if symbol.name in sizes}
            )
            if expected == size:
                continue
            if not expected.is_Integer:
                if len(symbols) == 1 and sympy.diff(place.expression, *symbols).is_Integer:
                    text = f"the size of {place.label} is {text_of(place.expression)}, which cannot be {size}"
                    raise ArgumentError(place.argument, text, hint="the model was exported with a derived Dim")
                continue
            related = [(other, length) for other, length in seen if other.expression.free_symbols & symbols]
            others = [f"{other.label} has {length}" for other, length in related]
            raise ArgumentError(
                place.argument,
                f"the size of {place.label} is {text_of(place.expression)}, here {expected}: {', '.join(others)}",
                hint="the model was exported with sizes that depend on each other",
            )

    def violated(self, sizes: Mapping[str, int], dim: str | None = None) -> Constraint | None:
        """The first constraint that the sizes violate, among those whose dims all have a size in ``sizes``.

        Args:
            sizes: Dim name to size.
            dim: The dim whose constraints are checked; by default all are.
        """
        # Sizes by dim satisfy equalities of places; check() compares the places.
        checked = (one for one in self.constraints if not one.is_equality and (dim is None or dim in one.dims))
        return _violated(checked, sizes)

    def metadata(self) -> dict[str, str]:
        """The model's metadata: the constraints as JSON, without machine-dependent paths."""
        items = []
        for item in (*self.constraints, *self.nonempty):
            reason = {} if item.reason is None else {"reason": item.reason}
            items.append({"constraint": item.text, "dims": list(item.dims), "code": item.code, **reason})
        return {CONSTRAINTS_KEY: json.dumps(items)} if items else {}


def report_narrowed(constraints: Iterable[Constraint], *, strict: bool) -> None:
    """Warn about the constraints that exclude sizes that the user requested.

    Args:
        constraints: The constraints of the program.
        strict: Raise an error instead of a warning.

    Raises:
        CaptureError: With ``strict``, if a constraint excludes requested sizes.
    """
    by_cause: dict[tuple[str | None, str | None], list[str]] = {}
    for constraint in constraints:
        if constraint.narrows:
            by_cause.setdefault((constraint.line, constraint.reason), []).append(constraint.text)
    if not by_cause:
        return
    lines: list[str] = []
    for (line, reason), texts in by_cause.items():
        lines.extend(f"  {shortened(text)}" for text in texts)
        if line is not None:
            lines.append(f"    at: {line}")
        if reason is not None:
            lines.append(f"    {reason}")
    if any(len(text) > _MOST_CHARACTERS for texts in by_cause.values() for text in texts):
        lines.append("  the whole conditions are in ONNXProgram.record.constraints")
    text = "the model cannot be exported for all requested sizes, only for:\n" + "\n".join(lines)
    if strict:
        raise CaptureError(text, hint="pass strict_shapes=False to export for these sizes only")
    warn_user(text)


def shortened(text: str) -> str:
    """A condition for a message, at most 160 characters."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 4]} ..."


def _violated(constraints: Iterable[Constraint], sizes: Mapping[str, int]) -> Constraint | None:
    for constraint in constraints:
        if all(name in sizes for name in constraint.dims) and not constraint.holds(sizes):
            return constraint
    return None


def _possibly_empty(name: str) -> sympy.Symbol:
    """The symbol of a size that may be 0."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def _lower_limits(size: sympy.Expr, least: int) -> Iterator[sympy.Basic]:
    """Relations that are equivalent to a lower limit of a size; ``a*b >= 1`` becomes ``a >= 1`` and ``b >= 1``."""
    for part in _bounded_parts(size, least):
        if not part.is_number:
            yield from normal_forms(sympy.Ge(part, least))


def _bounded_parts(size: sympy.Expr, least: int) -> Iterator[sympy.Expr]:
    """Split a size into parts that all must be at least ``least``: factors, operands of Min, the operand of a Max."""
    if isinstance(size, Max) and least > 0:
        larger = [part for part in size.args if not (part.is_number and part < least)]
        parts = larger if len(larger) == 1 else []
    else:
        parts = size.args if isinstance(size, Min) or (size.is_Mul and least == 1) else []
    if not parts:
        yield size
    for part in parts:
        yield from _bounded_parts(part, least)


def _size(inputs: Sequence[Any], place: Place) -> int | None:
    value = inputs[place.input] if place.input < len(inputs) else None
    if place.axis is None:
        if isinstance(value, torch.Tensor):
            return int(value) if value.numel() == 1 else None
        return int(value) if isinstance(value, int) else None
    return int(value.shape[place.axis]) if isinstance(value, torch.Tensor) and value.dim() > place.axis else None


def _solve_for(expression: sympy.Expr, symbol: sympy.Symbol, size: int) -> int | None:
    if expression == symbol:
        return size
    slope = sympy.diff(expression, symbol)
    solution = (size - expression.xreplace({symbol: sympy.Integer(0)})) / slope if slope.is_Integer else None
    return int(solution) if solution is not None and solution.is_Integer else None
