"""``Constraint``: for which sizes a captured program stands for the model, in the user's names for the dims.

While it captures, torch follows one way through the model: that of the example sizes. What it assumes about them on
the way holds for other sizes or does not. Where it does not, the program computes something else than the model.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import sympy
import torch

from fxonnx_translations._builder.empty_tensors import Requirement
from fxonnx_translations._torch_compat import Max, Min

from ..._public import public
from ..._warnings import warn_user
from ...errors import ArgumentError, CaptureError
from .constraint_solver import Bounds, bounds_of, divisor_of, normal_forms, text_of

__all__ = ["CONSTRAINTS_KEY", "Constraint", "Limits", "Place", "report_narrowed"]

_OTHERWISE = "the traced branch is not valid for other sizes; export again with an example of that size"

# Sizes at which relations of several dims are tried.
_SMALL_SIZES = (1, 2, 3)
_MOST_DIMS = 3

CONSTRAINTS_KEY = "pkg.fxonnx.constraints"
"""Where the constraints are among the model's metadata."""


@public
@dataclass(frozen=True)
class Constraint:
    """One condition on the sizes of the inputs.

    Attributes:
        text: It in Python's notation: ``seq >= 9``, ``batch % 16 == 0``, ``a == b``.
        expression: The same as a sympy relation of symbols with the names of the dims.
        dims: The dims it is about, as the user called them; ``x.shape[0]`` if they have no name.
        line: The user's line of code that makes it necessary, ``file.py:12 in forward: if x.shape[0] > 8:``, or None.
        code: The code of that line alone, or None.
        narrows: Whether the user asked for more: a name, ``Dim.DYNAMIC`` or a ``Dim``; ``Dim.AUTO`` asks for nothing.
        is_range: Whether it is the range of a ``Dim`` that the user gave.
        reason: Why the model is not right for empty tensors, if that is the cause.
        is_equality: Whether it states that dims to which the user gave one name are equal; the symbols of its
            expression are the places where they are.
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

    def is_about(self, expression: sympy.Basic) -> bool:
        """Whether an expression contains one of the constrained dims."""
        return any(symbol.name in self.dims for symbol in expression.free_symbols)


@dataclass(frozen=True)
class Place:
    """Where the size of a dim is seen.

    Attributes:
        input: Position among the inputs that are not built into the program.
        axis: Axis of that input; None for the value of an int.
        label: What to call it: ``x axis 0``.
        expression: The size there, in symbols with the names of the dims.
        is_exact: Whether the program relies on it; not where the user has a name of his own for the size.
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
class Limits:
    """For which sizes a program may be used.

    Attributes:
        constraints: The conditions.
        places: Where sizes are seen, in the order of the inputs.
        asked: The limits the user gave with the dims.
        twins: A dim to the first one that the user gave the same name, where nothing proves them equal.
        nonempty: The sizes that must not be 0. torch asks for models from size 1 on, so this narrows nothing.
        demanded: The dims that the user asked to be dynamic, not only allowed to be by ``Dim.AUTO``.
    """

    constraints: tuple[Constraint, ...] = ()
    places: tuple[Place, ...] = ()
    asked: Mapping[str, Bounds] = field(default_factory=lambda: MappingProxyType({}))
    twins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    nonempty: tuple[Constraint, ...] = ()
    demanded: frozenset[str] = frozenset()

    def requiring(self, requirements: Iterable[Requirement]) -> Limits:
        """The same for a model that needs some sizes not to be 0.

        A requirement that excludes a size of 1 as well narrows the model, as any other constraint.

        Args:
            requirements: What the model needs; those about sizes that no input tells are left out.
        """
        known = {symbol.name for place in self.places for symbol in place.expression.free_symbols}
        lowest: dict[sympy.Symbol, int] = {}
        relations: dict[sympy.Basic, str] = {}
        for requirement in requirements:
            if not {symbol.name for symbol in requirement.size.free_symbols} <= known:
                continue
            for relation in _lower_limits(requirement):
                limit = bounds_of(relation)
                if limit is not None and limit[1].low is not None:
                    lowest[limit[0]] = max(limit[1].low, lowest.get(limit[0], limit[1].low))
                relations.setdefault(relation, requirement.reason)
        constraints = list(self.constraints)
        nonempty: list[Constraint] = []
        for relation, reason in relations.items():
            limit = bounds_of(relation)
            if limit is None or limit[1].low is None or lowest[limit[0]] == limit[1].low:
                dims = sorted(symbol.name for symbol in relation.free_symbols)
                found = Constraint(text_of(relation), relation, tuple(dims), reason=reason)
                if self._is_narrowed_by(found):
                    constraints.append(replace(found, narrows=not self.demanded.isdisjoint(dims)))
                else:
                    nonempty.append(found)
        return replace(self, constraints=tuple(constraints), nonempty=tuple(nonempty))

    def _is_narrowed_by(self, constraint: Constraint) -> bool:
        """Whether a constraint excludes some sizes other than 0 that the constraints leave."""
        limit = bounds_of(constraint.expression)
        if limit is not None and limit[1].low is not None:
            return limit[1].low > self._least(limit[0].name)
        tried = itertools.product(_SMALL_SIZES, repeat=min(len(constraint.dims), _MOST_DIMS))
        small = (dict(zip(constraint.dims, sizes, strict=False)) for sizes in tried)
        return any(self.violated(sizes) is None and _violated([constraint], sizes) is not None for sizes in small)

    def _least(self, name: str) -> int:
        """The smallest size of a dim that the constraints leave, as far as they limit it alone; at least 1."""
        least = 1
        for constraint in self.constraints:
            if constraint.dims == (name,):
                limit = bounds_of(constraint.expression)
                number = divisor_of(constraint.expression) if limit is None else limit[1].low
                least = max(least, number or 1)
        return least

    def ones(self) -> frozenset[sympy.Expr]:
        """The sizes that the constraints keep at 1, such as ``n // 2`` where two shapes are broadcast."""
        equalities = [item.expression for item in self.constraints if isinstance(item.expression, sympy.Eq)]
        return frozenset(one.lhs for one in equalities if one.rhs == 1 and not one.lhs.is_Symbol)

    def renamed(self, names: Mapping[str, str]) -> Limits:
        """The same for dims of other names."""

        def to(symbols: set[sympy.Symbol]) -> dict[sympy.Symbol, sympy.Symbol]:
            return {
                symbol: sympy.Symbol(names[symbol.name], integer=True, positive=symbol.is_positive)
                for symbol in symbols
                if symbol.name in names
            }

        def renamed(constraint: Constraint) -> Constraint:
            dims = tuple(names.get(dim, dim) for dim in constraint.dims)
            if constraint.is_equality:
                return replace(constraint, dims=dims)
            expression = constraint.expression.xreplace(to(constraint.expression.free_symbols))
            return replace(constraint, text=text_of(expression), expression=expression, dims=dims)

        places = [
            replace(place, expression=place.expression.xreplace(to(place.expression.free_symbols)))
            for place in self.places
        ]
        asked = {names.get(name, name): bounds for name, bounds in self.asked.items()}
        twins = {names.get(name, name): names.get(first, first) for name, first in self.twins.items()}
        constraints, nonempty = (tuple(map(renamed, group)) for group in (self.constraints, self.nonempty))
        demanded = frozenset(names.get(name, name) for name in self.demanded)
        return Limits(constraints, tuple(places), asked, twins, nonempty, demanded)

    def sizes(self, inputs: Sequence[Any]) -> dict[str, int]:
        """The size of every dim, by name, as far as it can be told from the inputs."""
        found: dict[str, int] = {}
        # A dim that is only seen as 2*d is told from that, but only if it is seen nowhere else.
        for place, size in sorted(self._seen(inputs), key=lambda pair: not pair[0].expression.is_Symbol):
            symbols = place.expression.free_symbols
            if len(symbols) == 1:
                (symbol,) = symbols
                solution = _solve(place.expression, symbol, size)
                if solution is not None:
                    found.setdefault(symbol.name, solution)
        return found

    def check(self, inputs: Sequence[Any]) -> None:
        """Checks that the program may be used for inputs of these sizes.

        Raises:
            ArgumentError: If not; it names the constraint, the sizes and the line of code.
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
                f"the model needs {constraint.text}, got {given}: {constraint.reason}",
                hint="skip the call for empty inputs" if is_empty else "an intermediate tensor is empty at this size",
            )
        raise ArgumentError(
            ", ".join(dict.fromkeys(place.argument for place in places)),
            f"the model was exported for {constraint.text}, got {given}{at}",
            hint="the range was given in dynamic_shapes; widen it there" if constraint.is_range else _OTHERWISE,
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
                    text = f"the size of {place.label} is {text_of(place.expression)}, which can not be {size}"
                    raise ArgumentError(place.argument, text, hint="the model was exported with a dim like that")
                continue
            related = [(other, length) for other, length in seen if other.expression.free_symbols & symbols]
            others = [f"{other.label} has {length}" for other, length in related]
            raise ArgumentError(
                place.argument,
                f"the size of {place.label} is {text_of(place.expression)}, here {expected}: {', '.join(others)}",
                hint="the model was exported with sizes that belong together",
            )

    def violated(self, sizes: Mapping[str, int]) -> Constraint | None:
        """The first constraint that sizes do not satisfy; one that is about other dims, too, is left out."""
        # Sizes by dim satisfy equalities of places; check() compares the places.
        return _violated([constraint for constraint in self.constraints if not constraint.is_equality], sizes)

    def metadata(self) -> dict[str, str]:
        """The metadata of the model: all conditions as JSON, without anything that differs between machines."""
        items = []
        for item in (*self.constraints, *self.nonempty):
            reason = {} if item.reason is None else {"reason": item.reason}
            items.append({"constraint": item.text, "dims": list(item.dims), "code": item.code, **reason})
        return {CONSTRAINTS_KEY: json.dumps(items)} if items else {}


def report_narrowed(constraints: Iterable[Constraint], *, strict: bool) -> None:
    """Warns of the constraints that leave fewer sizes than the user asked for.

    Args:
        constraints: Those of the program; others than narrowing ones are left out.
        strict: Whether to raise instead.

    Raises:
        CaptureError: With ``strict``, if there are any.
    """
    lines = []
    for constraint in constraints:
        if constraint.narrows:
            lines.append(f"  {constraint.text}")
            if constraint.line is not None:
                lines.append(f"    at: {constraint.line}")
            if constraint.reason is not None:
                lines.append(f"    {constraint.reason}")
    if not lines:
        return
    text = "the model can not be exported for all sizes that were asked for, only for:\n" + "\n".join(lines)
    if strict:
        raise CaptureError(text, hint="pass strict_shapes=False to export for these sizes only")
    warn_user(text)


def _violated(constraints: Iterable[Constraint], sizes: Mapping[str, int]) -> Constraint | None:
    for constraint in constraints:
        if all(name in sizes for name in constraint.dims) and not _holds(constraint.expression, sizes):
            return constraint
    return None


def _lower_limits(requirement: Requirement) -> Iterator[sympy.Basic]:
    """The relations that a requirement consists of; a product is not 0 if no factor is."""
    # torch's symbols are positive: with them, a lower limit of 1 would be true.
    plain = {symbol: sympy.Symbol(symbol.name, integer=True) for symbol in requirement.size.free_symbols}
    size = requirement.size.xreplace(plain)
    for part in _bounded_parts(size, requirement.least):
        if not part.is_number:
            yield from normal_forms(sympy.Ge(part, requirement.least))


def _bounded_parts(size: sympy.Expr, least: int) -> Iterator[sympy.Expr]:
    """The parts that have to be at least ``least`` for the whole to be: factors, operands of Min, the rest of a Max."""
    if isinstance(size, Max) and least > 0:
        larger = [part for part in size.args if not (part.is_number and part < least)]
        parts = larger if len(larger) == 1 else []
    else:
        parts = size.args if isinstance(size, Min) or (size.is_Mul and least == 1) else []
    if not parts:
        yield size
    for part in parts:
        yield from _bounded_parts(part, least)


def _holds(expression: sympy.Basic, sizes: Mapping[str, int]) -> bool:
    values = {symbol: sympy.Integer(sizes[symbol.name]) for symbol in expression.free_symbols}
    try:
        return bool(expression.xreplace(values) == sympy.true)
    except ZeroDivisionError:
        # A remainder of a division by zero: the model fails there.
        return False


def _size(inputs: Sequence[Any], place: Place) -> int | None:
    value = inputs[place.input] if place.input < len(inputs) else None
    if place.axis is None:
        if isinstance(value, torch.Tensor):
            return int(value) if value.numel() == 1 else None
        return int(value) if isinstance(value, int) else None
    return int(value.shape[place.axis]) if isinstance(value, torch.Tensor) and value.dim() > place.axis else None


def _solve(expression: sympy.Expr, symbol: sympy.Symbol, size: int) -> int | None:
    if expression == symbol:
        return size
    slope = sympy.diff(expression, symbol)
    solution = (size - expression.xreplace({symbol: sympy.Integer(0)})) / slope if slope.is_Integer else None
    return int(solution) if solution is not None and solution.is_Integer else None
