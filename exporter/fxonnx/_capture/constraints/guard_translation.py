"""From torch's guards, ranges and assertions to constraints in the user's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxonnx_translations._torch_compat import Mod, PythonMod, int_oo

from ..shapes.dynamic_shapes import DimHint, DimSpec, DynamicShapes, Leaf, SharedDim
from .constraint import Constraint, Limits, Place
from .constraint_solver import Bounds, bounds_of, follows, multiple, normal_forms, text_of
from .guard_recorder import Guard, GuardLog, SourceLine, guards_of_environment, line_of_node

__all__ = ["read_limits"]

_SQUEEZES = (
    torch.ops.aten.squeeze.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze.dims,
    torch.ops.aten.squeeze_.default,
    torch.ops.aten.squeeze_.dim,
    torch.ops.aten.squeeze_.dims,
)
_SOURCE = re.compile(r"L\['(\w+)'\](.*?)(?:\.size\(\)\[(\d+)\])?")


def read_limits(
    program: ExportedProgram,
    shapes: DynamicShapes | None,
    dim_names: Mapping[sympy.Symbol, str],
    log: GuardLog | None,
) -> Limits:
    """Reads for which sizes a captured program may be used.

    Args:
        program: The program.
        shapes: What the user asked of its inputs; None if nothing was asked.
        dim_names: torch's symbols to the user's names.
        log: The guards of its capture; None for a program that was captured elsewhere.
    """
    leaves = () if shapes is None else shapes.leaves
    reader = _Reader(program, leaves, dim_names, log)
    if not reader.places:
        return Limits()
    guards = [*(log.guards if log is not None else _guards_of_program(program)), *_guards_of_squeezes(program)]
    constraints = list(reader.constraints(guards))
    if log is not None:
        constraints.extend(reader.nonzero_constraints(log.nonzero, constraints))
    return Limits(
        (
            *constraints,
            *reader.ranges(constraints),
            *reader.equalities(() if shapes is None else shapes.shared, leaves),
        ),
        tuple(reader.places),
        {symbol.name: bounds for symbol, bounds in reader.asked.items()},
        reader.twins,
        demanded=reader.demanded,
    )


def _guards_of_program(program: ExportedProgram) -> Iterator[Guard]:
    """What is left of the guards of a program that was captured elsewhere."""
    environment = _environment(program)
    if environment is not None:
        yield from guards_of_environment(environment)
    for symbol, interval in program.range_constraints.items():
        # torch.export writes 2 where it means "not 0 or 1 for certain".
        if interval.lower > 2:
            yield Guard(sympy.Ge(symbol, interval.lower), None)
        if interval.upper < int_oo:
            yield Guard(sympy.Le(symbol, interval.upper), None)
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        condition = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else None
        if isinstance(condition, torch.SymBool):
            yield Guard(condition.node.expr, line_of_node(node))


def _environment(program: ExportedProgram) -> ShapeEnv | None:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for number in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(number, torch.SymInt):
                return number.node.shape_env  # type: ignore[no-any-return]
    return None


def _guards_of_squeezes(program: ExportedProgram) -> Iterator[Guard]:
    """``squeeze`` leaves a dynamic axis where it is: torch takes for granted that the size is not 1."""
    for target in _SQUEEZES:
        for node in program.graph.find_nodes(op="call_function", target=target):
            source = node.args[0]
            value = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
            if not isinstance(value, torch.Tensor):
                continue
            axes = node.args[1] if len(node.args) > 1 else range(value.dim())
            for axis in axes if isinstance(axes, Sequence) else [axes]:
                size = value.shape[axis] if value.dim() else 1
                if isinstance(size, torch.SymInt):
                    yield Guard(sympy.Ne(size.node.expr, 1), line_of_node(node))


class _Reader:
    """Knows the names of torch's symbols, and what the user asked of the sizes.

    Attributes:
        places: Where sizes are seen.
        asked: Named symbol to the limits the user gave.
        twins: Name to the first name that the user wrote in the same way.
    """

    def __init__(
        self,
        program: ExportedProgram,
        leaves: Sequence[Leaf],
        dim_names: Mapping[sympy.Symbol, str],
        log: GuardLog | None,
    ) -> None:
        self.places: list[Place] = []
        self.asked: dict[sympy.Symbol, Bounds] = {}
        self.twins: dict[str, str] = {}
        self._environment = _environment(program)
        self._demanded: set[sympy.Symbol] = set()
        self._ranges: dict[sympy.Symbol, Bounds] = {}
        self._symbols: dict[str, sympy.Symbol] = {}
        self._named: dict[sympy.Symbol, sympy.Symbol] = {}
        # What the user calls the dim that torch made the symbol for; the dim may have another symbol by now.
        self._own_names: dict[sympy.Symbol, sympy.Symbol] = {}
        sizes = list(_symbolic_sizes(program, leaves))
        for _, axis, label, size, spec in sizes:
            if size.is_Symbol:
                name = dim_names.get(size) or _place_name(label, axis)
                self._name(size, name, spec, is_size=axis is not None)
                if isinstance(spec, str) and name != spec and spec in dim_names.values():
                    self.twins[name] = spec
        for index, axis, label, size, spec in sizes:
            root = getattr(spec, "root", None)
            for symbol in sorted(size.free_symbols, key=str):
                name = dim_names.get(symbol, symbol.name)
                if symbol not in self._named or (root is not None and root.__name__ == name):
                    self._name(symbol, name, root, is_size=True)
            self.places.append(Place(index, axis, _place_label(label, axis), size.xreplace(self._named)))
        if log is not None:
            self._name_replaced(log, sizes)

    def _name(self, symbol: sympy.Symbol, name: str, spec: DimSpec, *, is_size: bool) -> None:
        if name not in self._symbols:
            # torch's sizes are not 0, either: a comparison with 0 leaves no guard.
            self._symbols[name] = sympy.Symbol(name, integer=True, positive=True if is_size else None)
        named = self._named.setdefault(symbol, self._symbols[name])
        bounds = Bounds(1) if is_size else Bounds()
        if isinstance(spec, Dim) and getattr(spec, "root", None) is None:
            bounds = bounds.within(_bounds_of_dim(spec))
            self._ranges[named] = bounds
        self.asked[named] = self.asked.get(named, bounds).within(bounds)
        if isinstance(spec, str | Dim) or (isinstance(spec, DimHint) and spec.type != Dim.AUTO.type):
            self._demanded.add(named)

    def _name_replaced(self, log: GuardLog, sizes: Sequence[tuple[int, int | None, str, sympy.Expr, DimSpec]]) -> None:
        """Names the symbols that the capture replaced by others; the user may have a name for them all the same."""
        by_place = {(label, axis): (index, spec) for index, axis, label, _, spec in sizes}
        for symbol, source in log.sources.items():
            match = _SOURCE.fullmatch(source)
            if match is None:
                continue
            label, axis = match[1] + match[2], None if match[3] is None else int(match[3])
            index, spec = by_place.get((label, axis), (-1, None))
            if index < 0 or (isinstance(spec, Dim) and getattr(spec, "root", None) is not None):
                continue
            name = spec if isinstance(spec, str) else spec.__name__ if isinstance(spec, Dim) else None
            if name is None and symbol in self._named:
                continue
            name = name or _place_name(label, axis)
            # The same name on dims that are not equal belongs to the dim that this one is equal to.
            now = self._named.get(symbol if self._environment is None else self._environment.replace(symbol))
            if now is not None and self.twins.get(now.name) == name:
                name = now.name
            if name not in self._symbols:
                self._name(sympy.Dummy(), name, spec, is_size=axis is not None)
                place = Place(index, axis, _place_label(label, axis), self._symbols[name], is_exact=False)
                self.places.append(place)
            self._own_names[symbol] = self._symbols[name]
            self._named.setdefault(symbol, self._symbols[name])

    def _express(self, expression: sympy.Basic) -> sympy.Basic | None:
        """The expression in the user's names; None if it is about sizes that are known only at run time."""
        if isinstance(expression, sympy.Eq) and all(side in self._own_names for side in expression.args):
            return expression.xreplace(self._own_names)
        unknown = expression.free_symbols - self._named.keys()
        if unknown and self._environment is not None:
            expression = expression.xreplace({symbol: self._environment.replace(symbol) for symbol in unknown})
        if expression.free_symbols - self._named.keys():
            return None
        return expression.xreplace(self._named)

    def constraints(self, guards: Sequence[Guard]) -> Iterator[Constraint]:
        """The guards that say more than what the user asked for, each once."""
        lines: dict[sympy.Basic, Any] = {}
        for guard in guards:
            expression = self._express(guard.expression)
            if expression is None:
                continue
            for relation in normal_forms(expression):
                if lines.get(relation) is None and not follows(relation, self.asked):
                    lines[relation] = guard.line
        _join_multiples(lines)
        for relation in _without_implied(list(lines), self.asked):
            line = lines[relation]
            symbols = sorted(relation.free_symbols, key=str)
            yield Constraint(
                text_of(relation),
                relation,
                tuple(symbol.name for symbol in symbols),
                None if line is None else str(line),
                None if line is None else line.code,
                narrows=any(symbol in self._demanded for symbol in symbols),
            )

    @property
    def demanded(self) -> frozenset[str]:
        """The dims that the user asked for, not only allowed by ``Dim.AUTO``."""
        return frozenset(symbol.name for symbol in self._demanded)

    def nonzero_constraints(
        self, nonzero: Mapping[sympy.Expr, SourceLine | None], constraints: Sequence[Constraint]
    ) -> Iterator[Constraint]:
        """``n >= 1`` for the sizes that the model's code compares with 0.

        Elsewhere sizes count as positive, because torch compares sizes with 0 for its own checks all the time.
        """
        limits = [limit for limit in (bounds_of(constraint.expression) for constraint in constraints) if limit]
        known = {symbol.name for symbol, bounds in limits if bounds.low is not None}
        for expression, line in nonzero.items():
            named = self._express(expression)
            symbols = set() if named is None else named.free_symbols
            if named is None or not symbols or any(symbol.name in known for symbol in symbols):
                continue
            # Of a positive symbol sympy takes ``n >= 1`` for granted.
            relation = sympy.Ge(named.xreplace({symbol: _nonnegative(symbol) for symbol in symbols}), 1)
            dims = tuple(sorted(symbol.name for symbol in symbols))
            known.update(dims if len(dims) == 1 else ())
            place, code = (None, None) if line is None else (str(line), line.code)
            narrows = any(symbol in self._demanded for symbol in symbols)
            yield Constraint(text_of(relation), relation, dims, place, code, narrows=narrows)

    def ranges(self, constraints: Sequence[Constraint]) -> Iterator[Constraint]:
        """The ranges that the user gave, as far as the constraints do not narrow them."""
        narrowed = [limit for limit in (bounds_of(constraint.expression) for constraint in constraints) if limit]
        for symbol, asked in self._ranges.items():
            found = [bounds for bounded, bounds in narrowed if bounded == symbol]
            if asked.low is not None and asked.low > 1 and not any(bounds.low is not None for bounds in found):
                yield _range(sympy.Ge(symbol, asked.low), symbol)
            if asked.high is not None and not any(bounds.high is not None for bounds in found):
                yield _range(sympy.Le(symbol, asked.high), symbol)

    def equalities(self, shared: Sequence[SharedDim], leaves: Sequence[Leaf]) -> Iterator[Constraint]:
        """That dims with one name are equal, for those that are dynamic in the program."""
        sizes = {place.label: place.expression for place in self.places if place.is_exact}
        for group in shared:
            places = [(leaves[index].label, axis) for index, axis in group.places]
            dynamic = [place for place in places if _place_label(*place) in sizes]
            if len(dynamic) > 1:
                names = [_place_name(*place) for place in dynamic]
                first, *others = [sympy.Symbol(name, integer=True) for name in names]
                expression = sympy.And(*(sympy.Eq(first, other) for other in others))
                symbols = {symbol.name for place in dynamic for symbol in sizes[_place_label(*place)].free_symbols}
                yield Constraint(" == ".join(names), expression, tuple(sorted(symbols)), is_equality=True)


def _nonnegative(symbol: sympy.Symbol) -> sympy.Symbol:
    """The symbol of the same name that may be 0; of a positive one sympy takes ``n >= 1`` for granted."""
    return sympy.Symbol(symbol.name, integer=True, nonnegative=True)


def _range(relation: sympy.Basic, symbol: sympy.Symbol) -> Constraint:
    return Constraint(text_of(relation), relation, (symbol.name,), is_range=True)


def _symbolic_sizes(
    program: ExportedProgram, leaves: Sequence[Leaf]
) -> Iterator[tuple[int, int | None, str, sympy.Expr, DimSpec]]:
    """Position among the inputs, axis, label of the input, size and what was asked, for each dynamic size."""
    placeholders = program.graph.find_nodes(op="placeholder")
    given = iter(leaves)
    index = 0
    for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
        if spec.kind not in (InputKind.USER_INPUT, InputKind.CUSTOM_OBJ):
            continue
        leaf = next(given, None) if spec.kind == InputKind.USER_INPUT else None
        if isinstance(spec.arg, ConstantArgument):
            continue
        value = node.meta.get("val")
        label = node.name if leaf is None else leaf.label
        dims = {} if leaf is None else leaf.dims
        numbers: Sequence[tuple[int | None, Any]] = [(None, value)]
        if isinstance(value, torch.Tensor):
            numbers = list(enumerate(value.shape))
        for axis, number in numbers:
            if isinstance(number, torch.SymInt) and number.node.expr.free_symbols:
                yield index, axis, label, number.node.expr, dims.get(axis)
        index += 1


def _place_label(label: str, axis: int | None) -> str:
    return label if axis is None else f"{label} axis {axis}"


def _place_name(label: str, axis: int | None) -> str:
    return label if axis is None else f"{label}.shape[{axis}]"


def _bounds_of_dim(dim: Any) -> Bounds:
    high = dim.max
    return Bounds(int(dim.min), None if high is int_oo or high == int_oo or high >= 2**62 else int(high))


def _join_multiples(lines: dict[sympy.Basic, Any]) -> None:
    """``h % 2 == 0`` and ``h // 2 == 2*(h // 4)`` are ``h % 4 == 0``."""
    equations: dict[sympy.Symbol, list[sympy.Basic]] = {}
    for relation in lines:
        if isinstance(relation, sympy.Eq) and len(relation.free_symbols) == 1 and bounds_of(relation) is None:
            (symbol,) = relation.free_symbols
            equations.setdefault(symbol, []).append(relation)
    for symbol, relations in equations.items():
        joined = multiple(relations, symbol) if len(relations) > 1 else None
        if joined is not None:
            asked = [lines.pop(relation) for relation in relations]
            lines[joined] = next((line for line in asked if line is not None), None)


def _without_implied(relations: Sequence[sympy.Basic], asked: Mapping[sympy.Symbol, Bounds]) -> Iterator[sympy.Basic]:
    """The relations that do not follow from the others."""
    known = dict(asked)
    strongest: dict[tuple[sympy.Symbol, str], sympy.Basic] = {}
    divisors: dict[sympy.Basic, int] = {}
    for relation in relations:
        limit = bounds_of(relation)
        if limit is not None:
            symbol, bounds = limit
            before = known.get(symbol, Bounds())
            known[symbol] = before.within(bounds)
            if known[symbol].low != before.low:
                strongest[symbol, "low"] = relation
            if known[symbol].high != before.high:
                strongest[symbol, "high"] = relation
        divided = _divisor(relation)
        if divided is not None:
            divisors[divided[0]] = max(divisors.get(divided[0], 1), divided[1])
            if divided[0].is_Symbol:
                known[divided[0]] = known.get(divided[0], Bounds()).within(Bounds(divided[1]))
                strongest = {key: kept for key, kept in strongest.items() if not _is_weaker(key, kept, divided)}
    kept = set(strongest.values())
    for relation in relations:
        divided = _divisor(relation)
        if bounds_of(relation) is not None:
            if relation in kept:
                yield relation
        elif divided is not None:
            most = divisors[divided[0]]
            if divided[1] == most or most % divided[1]:
                yield relation
        elif not follows(relation, known):
            yield relation


def _is_weaker(key: tuple[sympy.Symbol, str], limit: sympy.Basic, divided: tuple[sympy.Basic, int]) -> bool:
    """Whether a limit says less than that the size is a multiple of a number."""
    found = bounds_of(limit)
    return key == (divided[0], "low") and found is not None and (found[1].low or 0) <= divided[1]


def _divisor(relation: sympy.Basic) -> tuple[sympy.Basic, int] | None:
    if not isinstance(relation, sympy.Eq):
        return None
    for remainder, zero in (relation.args, relation.args[::-1]):
        if zero == 0 and isinstance(remainder, Mod | PythonMod) and remainder.args[1].is_Integer:
            return remainder.args[0], int(remainder.args[1])
    return None
