"""Translation of torch's guards, ranges and assertions to constraints in the user's dim names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxonnx_translations._torch_compat import int_oo

from ..shapes.dynamic_shapes import (
    DimHint,
    DimSpec,
    DynamicShapes,
    Leaf,
    SharedDim,
    dim_expression,
    dim_label,
    is_auto,
    name_of_spec,
)
from .constraint import Constraint, Place, SizeLimits
from .constraint_solver import Bounds, bounds_of, cancelled, is_implied, limits_of, normal_forms
from .guard_recorder import Guard, GuardLog, SourceLine
from .guard_sources import GuardedProgram, guards_of
from .relation_forms import text_of

__all__ = ["translate_guards"]

_SOURCE = re.compile(r"L\['(\w+)'\](.*?)(?:\.size\(\)\[(\d+)\])?")


def translate_guards(
    program: ExportedProgram,
    shapes: DynamicShapes | None,
    dim_names: Mapping[sympy.Symbol, str],
    log: GuardLog | None,
) -> SizeLimits:
    """Determine the sizes for which a captured program is valid.

    Args:
        program: The program.
        shapes: The user's shapes, or None.
        dim_names: torch's symbols to the user's names.
        log: The guards of its capture; None for a program that was captured outside of fxonnx.
    """
    leaves = () if shapes is None else shapes.leaves
    translator = _GuardTranslator(program, leaves, dim_names, log)
    if not translator.places:
        return SizeLimits()
    captured = GuardedProgram(program, translator.environment, log)
    required = guards_of(captured, is_assumed=False)
    certain = list(translator.constraints(required))
    assumed = list(translator.constraints(guards_of(captured, is_assumed=True), certain))
    constraints = [*certain, *assumed]
    if log is not None:
        constraints.extend(translator.nonzero_constraints(log.nonzero, constraints))
    return SizeLimits(
        (
            *constraints,
            *translator.ranges(constraints),
            *translator.equalities(() if shapes is None else shapes.shared, leaves),
        ),
        tuple(translator.places),
        {symbol.name: bounds for symbol, bounds in translator.user_bounds.items()},
        translator.shared_names,
        requested=translator.requested,
        graph_names=translator.graph_names(dim_names),
        assumed=frozenset(() if log is None else assumed),
        ones=frozenset(translator.sizes_of_one(required)),
    )


def _shape_env(program: ExportedProgram) -> ShapeEnv | None:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for number in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(number, torch.SymInt):
                found: ShapeEnv = number.node.shape_env
                return found
    return None


class _GuardTranslator:
    """Translator of expressions in torch's symbols to the user's names, with the user's bounds.

    Attributes:
        places: Occurrences of symbolic sizes in the inputs.
        environment: torch's record of the symbols; None without symbolic sizes.
        user_bounds: Named symbol to the bounds of the user's ``Dim``.
        shared_names: Unique dim name (``n_1``) to the user's name (``n``), which another dim has.
    """

    def __init__(
        self,
        program: ExportedProgram,
        leaves: Sequence[Leaf],
        dim_names: Mapping[sympy.Symbol, str],
        log: GuardLog | None,
    ) -> None:
        self.places: list[Place] = []
        self.user_bounds: dict[sympy.Symbol, Bounds] = {}
        self.shared_names: dict[str, str] = {}
        self.environment = _shape_env(program)
        self._requested: set[sympy.Symbol] = set()
        self._ranges: dict[sympy.Symbol, Bounds] = {}
        self._symbols: dict[str, sympy.Symbol] = {}
        self._named: dict[sympy.Symbol, sympy.Symbol] = {}
        # Symbol to the user's name of the dim that torch created it for, even if torch has replaced the symbol.
        self._own_names: dict[sympy.Symbol, sympy.Symbol] = {}
        sizes = list(_symbolic_sizes(program, leaves))
        for _, axis, label, size, spec in sizes:
            if size.is_Symbol:
                name = dim_names.get(size) or dim_expression(label, axis)
                self._name_symbol(size, name, spec, is_size=axis is not None)
                if isinstance(spec, str) and name != spec and spec in dim_names.values():
                    self.shared_names[name] = spec
        for index, axis, label, size, spec in sizes:
            root = getattr(spec, "root", None)
            for symbol in sorted(size.free_symbols, key=str):
                name = dim_names.get(symbol, symbol.name)
                if symbol not in self._named or (root is not None and root.__name__ == name):
                    self._name_symbol(symbol, name, root, is_size=True)
            self.places.append(Place(index, axis, dim_label(label, axis), size.xreplace(self._named)))
        if log is not None:
            self._name_replaced_symbols(log, sizes)
        else:
            self._add_ranges(program)

    def _add_ranges(self, program: ExportedProgram) -> None:
        """Add the ranges of a program that was captured outside of fxonnx: those of its guards, or else the user's."""
        for symbol, interval in program.range_constraints.items():
            # torch.export uses the lower limit 2 for every dynamic dim, since it may specialize 0 and 1.
            low = int(interval.lower) if interval.lower > 2 else None
            high = int(interval.upper) if interval.upper < int_oo else None
            if symbol in self._named and (low, high) != (None, None):
                self._ranges[self._named[symbol]] = Bounds(low, high)

    def _name_symbol(self, symbol: sympy.Symbol, name: str, spec: DimSpec, *, is_size: bool) -> None:
        if name not in self._symbols:
            # Positive as torch's symbols for sizes are, so that comparisons with 0 add no constraint.
            self._symbols[name] = sympy.Symbol(name, integer=True, positive=True if is_size else None)
        named = self._named.setdefault(symbol, self._symbols[name])
        bounds = Bounds(1) if is_size else Bounds()
        if isinstance(spec, Dim) and getattr(spec, "root", None) is None:
            bounds = bounds.within(_declared_bounds(spec))
            self._ranges[named] = bounds
        self.user_bounds[named] = self.user_bounds.get(named, bounds).within(bounds)
        if isinstance(spec, str | Dim | DimHint) and not is_auto(spec):
            self._requested.add(named)

    def _name_replaced_symbols(
        self, log: GuardLog, sizes: Sequence[tuple[int, int | None, str, sympy.Expr, DimSpec]]
    ) -> None:
        """Name the symbols that the capture replaced by others, since the user may have named their dims."""
        by_place = {(label, axis): (index, spec) for index, axis, label, _, spec in sizes}
        for symbol, source in log.sources.items():
            match = _SOURCE.fullmatch(source)
            if match is None:
                continue
            label, axis = match[1] + match[2], None if match[3] is None else int(match[3])
            index, spec = by_place.get((label, axis), (-1, None))
            if index < 0 or (isinstance(spec, Dim) and getattr(spec, "root", None) is not None):
                continue
            name = name_of_spec(spec)
            if name is None and symbol in self._named:
                continue
            name = name or dim_expression(label, axis)
            # If unequal dims have this name, use the unique name of the dim that this one is equal to.
            now = self._named.get(symbol if self.environment is None else self.environment.replace(symbol))
            if now is not None and self.shared_names.get(now.name) == name:
                name = now.name
            if name not in self._symbols:
                self._name_symbol(sympy.Dummy(), name, spec, is_size=axis is not None)
                place = Place(index, axis, dim_label(label, axis), self._symbols[name], is_exact=False)
                self.places.append(place)
            self._own_names[symbol] = self._symbols[name]
            self._named.setdefault(symbol, self._symbols[name])

    def _to_dim_names(self, expression: sympy.Basic) -> sympy.Basic | None:
        """Replace torch's symbols by the user's names; None if the expression has unbacked symbols."""
        if isinstance(expression, sympy.Eq) and all(side in self._own_names for side in expression.args):
            return expression.xreplace(self._own_names)
        unknown = expression.free_symbols - self._named.keys()
        if unknown and self.environment is not None:
            expression = expression.xreplace({symbol: self.environment.replace(symbol) for symbol in unknown})
        if expression.free_symbols - self._named.keys():
            return None
        return expression.xreplace(self._named)

    def constraints(self, guards: Sequence[Guard], certain: Sequence[Constraint] | None = None) -> Iterator[Constraint]:
        """Constraints for the guards that the user's bounds do not imply; each on its own if others are certain."""
        lines: dict[sympy.Basic, Any] = {}
        for guard in guards:
            expression = self._to_dim_names(guard.expression)
            if expression is None:
                continue
            for relation in normal_forms(expression):
                if lines.get(relation) is None and not is_implied(relation, self.user_bounds):
                    lines[relation] = guard.line
        known = [one.expression for one in certain or ()]
        groups = [lines] if certain is None else [[relation] for relation in lines]
        found = [item for group in groups for item in limits_of(group, self.user_bounds, known).items()]
        for relation, causes in dict(found).items():
            symbols = sorted(relation.free_symbols, key=str)
            places = dict.fromkeys(lines[cause] for cause in causes if lines[cause] is not None)
            yield Constraint(
                text_of(relation),
                relation,
                tuple(symbol.name for symbol in symbols),
                "; ".join(map(str, places)) or None,
                "; ".join(place.code for place in places) if places else None,
                narrows=any(symbol in self._requested for symbol in symbols),
            )

    def sizes_of_one(self, guards: Iterable[Guard]) -> Iterator[sympy.Expr]:
        """The expressions that guards keep at 1, such as ``n // 2`` where two shapes are broadcast."""
        for guard in guards:
            expression = self._to_dim_names(guard.expression)
            equation = cancelled(expression) if isinstance(expression, sympy.Eq) else None
            if isinstance(equation, sympy.Eq) and equation.rhs == 1 and not equation.lhs.is_Symbol:
                yield equation.lhs

    @property
    def requested(self) -> frozenset[str]:
        """Names of the dims that the user requested to be dynamic, as opposed to ``Dim.AUTO``."""
        return frozenset(symbol.name for symbol in self._requested)

    def graph_names(self, dim_names: Mapping[sympy.Symbol, str]) -> dict[str, str]:
        """Name of a dim in the graph to its name in the constraints, where they differ.

        Args:
            dim_names: torch's symbols to the user's names; the graph has torch's name of other symbols.
        """
        return {
            symbol.name: named.name
            for symbol, named in self._named.items()
            if symbol not in dim_names and symbol.name != named.name
        }

    def nonzero_constraints(
        self, nonzero: Mapping[sympy.Expr, SourceLine | None], constraints: Sequence[Constraint]
    ) -> Iterator[Constraint]:
        """Constraints ``n >= 1`` for the sizes that the model's code compares with 0.

        Other sizes are assumed to be positive, because torch itself compares sizes with 0 in many checks.
        """
        limits = [limit for limit in (bounds_of(constraint.expression) for constraint in constraints) if limit]
        known = {symbol.name for symbol, bounds in limits if bounds.low is not None}
        for expression, line in nonzero.items():
            named = self._to_dim_names(expression)
            symbols = set() if named is None else named.free_symbols
            if named is None or not symbols or any(symbol.name in known for symbol in symbols):
                continue
            # sympy would evaluate ``n >= 1`` to True for a positive symbol.
            relation = sympy.Ge(named.xreplace({symbol: _nonnegative(symbol) for symbol in symbols}), 1)
            dims = tuple(sorted(symbol.name for symbol in symbols))
            known.update(dims if len(dims) == 1 else ())
            place, code = (None, None) if line is None else (str(line), line.code)
            narrows = any(symbol in self._requested for symbol in symbols)
            yield Constraint(text_of(relation), relation, dims, place, code, narrows=narrows)

    def ranges(self, constraints: Sequence[Constraint]) -> Iterator[Constraint]:
        """Constraints for the user's ranges that the other constraints do not narrow."""
        narrowed = [limit for limit in (bounds_of(constraint.expression) for constraint in constraints) if limit]
        for symbol, declared in self._ranges.items():
            found = [bounds for bounded, bounds in narrowed if bounded == symbol]
            if declared.low is not None and declared.low > 1 and not any(bounds.low is not None for bounds in found):
                yield _range_constraint(sympy.Ge(symbol, declared.low), symbol)
            if declared.high is not None and not any(bounds.high is not None for bounds in found):
                yield _range_constraint(sympy.Le(symbol, declared.high), symbol)

    def equalities(self, shared: Sequence[SharedDim], leaves: Sequence[Leaf]) -> Iterator[Constraint]:
        """Constraints that dynamic dims with the same name are equal."""
        sizes = {place.label: place.expression for place in self.places if place.is_exact}
        for group in shared:
            places = [(leaves[index].label, axis) for index, axis in group.places]
            dynamic = [place for place in places if dim_label(*place) in sizes]
            if len(dynamic) > 1:
                names = [dim_expression(*place) for place in dynamic]
                first, *others = [sympy.Symbol(name, integer=True) for name in names]
                expression = sympy.And(*(sympy.Eq(first, other) for other in others))
                symbols = {symbol.name for place in dynamic for symbol in sizes[dim_label(*place)].free_symbols}
                yield Constraint(" == ".join(names), expression, tuple(sorted(symbols)), is_equality=True)


def _nonnegative(symbol: sympy.Symbol) -> sympy.Symbol:
    """A symbol of the same name that may be 0."""
    return sympy.Symbol(symbol.name, integer=True, nonnegative=True)


def _range_constraint(relation: sympy.Basic, symbol: sympy.Symbol) -> Constraint:
    return Constraint(text_of(relation), relation, (symbol.name,), is_range=True)


def _symbolic_sizes(
    program: ExportedProgram, leaves: Sequence[Leaf]
) -> Iterator[tuple[int, int | None, str, sympy.Expr, DimSpec]]:
    """Input index, axis, label of the input, size and the user's spec of each symbolic size."""
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


def _declared_bounds(dim: Any) -> Bounds:
    high = dim.max
    return Bounds(int(dim.min), None if high is int_oo or high == int_oo or high >= 2**62 else int(high))
