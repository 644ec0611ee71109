"""Dynamic dims that the model specializes to one size: made static with a warning, or an error.

The constraints together may leave one size as well: ``n >= 29``, ``n <= 56`` and ``n % 32 == 0``.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from fxonnx_translations._builder.size_values import EVALUATION_ERRORS
from fxonnx_translations._torch_compat import ValueRanges, int_oo

from ...errors import CaptureError
from ..shapes.dynamic_shapes import (
    DimSpec,
    DynamicShapes,
    Leaf,
    dim_expression,
    dim_label,
    is_auto,
    name_of_spec,
    root_name,
)
from .constraint import Constraint, Place, SizeLimits
from .constraint_solver import Bounds, range_of
from .guard_recorder import GuardLog, SourceLine
from .relation_forms import text_of
from .size_sets import SizeSet

__all__ = [
    "SpecializedDim",
    "SpecializedDimsError",
    "check_specialized",
    "input_source",
    "specialized_dims_error",
    "with_specialized_dims",
    "without_specialized",
]

# Limits of the search. Usually one interval shows that no size is too large, or two sizes are found at once.
_LARGEST = 1 << 20
_MOST_TRIES = 1_000
# Of the example, tried before the search.
_FACTORS = (2, 3, 4)


@dataclass(frozen=True)
class SpecializedDim:
    """A dynamic dim that the model specializes to one size.

    Attributes:
        leaf: The leaf of the inputs.
        axis: The axis; None is the value of an int.
        size: The only valid size.
        lines: The user's lines that specialize it, as far as they are known.
    """

    leaf: Leaf
    axis: int | None
    size: int
    lines: tuple[SourceLine, ...] = ()

    @property
    def spec(self) -> DimSpec:
        """The user's spec for the dim."""
        return self.leaf.dims[self.axis]

    @property
    def label(self) -> str:
        """Name of the dim's place in messages: ``x axis 0``."""
        return dim_label(self.leaf.label, self.axis)


class SpecializedDimsError(CaptureError):
    """The model specializes dynamic dims to one size.

    Args:
        specialized: The specialized dims.
        refusal: Why a loop over them cannot be an operator.

    Attributes:
        specialized: The specialized dims.
        refusal: Why a loop over them cannot be an operator.
    """

    def __init__(self, specialized: Sequence[SpecializedDim], refusal: CaptureError | None = None) -> None:
        self.specialized = tuple(specialized)
        self.refusal = refusal
        lines = []
        for dim in specialized:
            lines.append(f"  {dim.label}, {_describe(dim.spec)}, is always {dim.size}")
            lines.extend(f"    at: {line}" for line in dim.lines)
        ones = any(dim.size == 1 for dim in specialized)
        noun = "a dim" if len(specialized) == 1 else "dims"
        if refusal is not None and refusal.hint is not None:
            lines.append(f"  {refusal.message}")
        places = [line for dim in specialized for line in dim.lines]
        in_lambda = any(line.place.endswith("<lambda>") and " for " in line.code for line in places)
        super().__init__(
            f"the model specializes {noun} that should be dynamic:\n" + "\n".join(lines),
            hint=("" if refusal is None or refusal.hint is None else f"{refusal.hint}; or ")
            + ("write the loop in a function with def, and not in a lambda; or " if in_lambda else "")
            + "look for sizes that are literal numbers or converted to Python ints (view, reshape, int(), range), "
            "or leave the axis out of dynamic_shapes to make it static"
            + ("; if the model treats a size of 1 as a special case, pass a larger example" if ones else ""),
        )


def specialized_dims_error(
    specialized: Sequence[tuple[Leaf, int | None, int]], log: GuardLog | None
) -> SpecializedDimsError:
    """Build the error for specialized dims (leaf, axis, size), with the lines that specialize them."""
    found = []
    for leaf, axis, size in specialized:
        line = None if log is None else log.specializing_line(input_source(leaf, axis))
        found.append(SpecializedDim(leaf, axis, size, () if line is None else (line,)))
    return SpecializedDimsError(found)


def input_source(leaf: Leaf, axis: int | None) -> str:
    """torch's name of the source of a dim: ``L['x'].size()[0]``."""
    return f"L['{leaf.parameter}']{leaf.path}" + ("" if axis is None else f".size()[{axis}]")


def without_specialized(
    shapes: DynamicShapes, specialized: tuple[SpecializedDim, ...], error: SpecializedDimsError, *, strict: bool
) -> tuple[DynamicShapes, tuple[SpecializedDim, ...]]:
    """Make specialized dims static, as long as a dynamic dim remains.

    Args:
        shapes: The shapes of the attempt that failed.
        specialized: The dims that are static already because they are specialized.
        error: The failure.
        strict: Raise an error for every specialized dim.

    Returns:
        The shapes for the next attempt, and all specialized dims.

    Raises:
        SpecializedDimsError: If no dynamic dim remains, or with ``strict``.
    """
    is_requested = any(not is_auto(dim.spec) for dim in error.specialized)
    reduced = _make_static(shapes, error.specialized)
    known = {dim.label for dim in specialized}
    specialized += tuple(dim for dim in error.specialized if dim.label not in known)
    fails = strict or not any(_has_requested_dims(leaf) for leaf in reduced.leaves)
    # Dim.AUTO requests no sizes.
    if reduced == shapes or (fails and is_requested):
        raise SpecializedDimsError(specialized, error.refusal) from error.__cause__
    return reduced, (*specialized, *_static_by_name(shapes, reduced, specialized))


def _make_static(shapes: DynamicShapes, specialized: Sequence[SpecializedDim]) -> DynamicShapes:
    """Make specialized dims, and the dims with the same name or Dim, static."""
    labels = {(dim.leaf.label, dim.axis) for dim in specialized}
    places = {
        (index, axis) for index, leaf in enumerate(shapes.leaves) for axis in leaf.dims if (leaf.label, axis) in labels
    }
    for group in shapes.shared:
        if places.intersection(group.places):
            places.update(group.places)
    roots = {root_name(shapes.leaves[index].dims[axis]) for index, axis in places} - {None}
    leaves = tuple(
        replace(
            leaf,
            dims={
                axis: spec
                for axis, spec in leaf.dims.items()
                if (index, axis) not in places and root_name(spec) not in roots
            },
        )
        for index, leaf in enumerate(shapes.leaves)
    )
    shared = tuple(group for group in shapes.shared if not places.intersection(group.places))
    return replace(shapes, leaves=leaves, shared=shared)


def _static_by_name(
    before: DynamicShapes, after: DynamicShapes, known: Sequence[SpecializedDim]
) -> tuple[SpecializedDim, ...]:
    """Dims that were made static because they have the same name as a specialized dim."""
    labels = {dim.label for dim in known}
    lines = {dim.spec: dim.lines for dim in known if isinstance(dim.spec, str)}
    removed = []
    for leaf, left in zip(before.leaves, after.leaves, strict=True):
        for axis in leaf.dims.keys() - left.dims.keys():
            size = leaf.value if axis is None else leaf.value.shape[axis]
            spec = leaf.dims[axis]
            removed.append(SpecializedDim(leaf, axis, size, lines.get(spec, ()) if isinstance(spec, str) else ()))
    return tuple(dim for dim in removed if dim.label not in labels)


def with_specialized_dims(
    limits: SizeLimits, specialized: Sequence[SpecializedDim], program: ExportedProgram, leaves: Sequence[Leaf]
) -> SizeLimits:
    """Add constraints that specialized dims have their only valid size.

    Args:
        limits: The limits of the program in which these dims are static.
        specialized: The specialized dims.
        program: The program.
        leaves: The leaves of its inputs.
    """
    taken = {symbol.name for place in limits.places for symbol in place.expression.free_symbols}
    positions = _input_positions(program, leaves)
    constraints: dict[str, Constraint] = {}
    places = []
    for dim in specialized:
        name = _constraint_name(dim, taken)
        symbol = sympy.Symbol(name, integer=True, positive=True)
        if name not in constraints:
            relation = sympy.Eq(symbol, dim.size)
            line = "; ".join(map(str, dim.lines)) or None
            code = "; ".join(line.code for line in dim.lines) or None
            narrows = not is_auto(dim.spec)
            constraints[name] = Constraint(text_of(relation), relation, (name,), line, code, narrows=narrows)
        if dim.leaf.label in positions:
            # The program has no symbol for the static dim; only the user's name for it is recorded.
            places.append(Place(positions[dim.leaf.label], dim.axis, dim.label, symbol, is_exact=False))
    return replace(limits, constraints=(*limits.constraints, *constraints.values()), places=(*limits.places, *places))


def _input_positions(program: ExportedProgram, leaves: Sequence[Leaf]) -> dict[str, int]:
    """Label of a leaf to its index among the inputs that are not constants of the program."""
    given = iter(leaves)
    positions: dict[str, int] = {}
    inputs = 0
    for spec in program.graph_signature.input_specs:
        if spec.kind not in (InputKind.USER_INPUT, InputKind.CUSTOM_OBJ):
            continue
        leaf = next(given, None) if spec.kind == InputKind.USER_INPUT else None
        if not isinstance(spec.arg, ConstantArgument):
            if leaf is not None:
                positions[leaf.label] = inputs
            inputs += 1
    return positions


def _constraint_name(dim: SpecializedDim, taken: Collection[str]) -> str:
    """The user's name of a dim, or ``x.shape[0]`` if there is none or another dim has the same name."""
    name = name_of_spec(dim.spec)
    return dim_expression(dim.leaf.label, dim.axis) if name is None or name in taken else name


def _has_requested_dims(leaf: Leaf) -> bool:
    return any(not is_auto(spec) for spec in leaf.dims.values())


def _describe(spec: DimSpec) -> str:
    if isinstance(spec, str):
        return repr(spec)
    return repr(spec.__name__) if isinstance(spec, Dim) else f"Dim.{spec.type.name}"


def check_specialized(limits: SizeLimits, leaves: Sequence[Leaf], log: GuardLog) -> None:
    """Check that no constraints leave one size for a dynamic dim whose symbol torch keeps.

    ONNX Runtime does not know the constraints, and would compute wrong values at any other size.

    Raises:
        SpecializedDimsError: If they do.
    """
    examples = {
        dim_label(leaf.label, axis): int(leaf.value if axis is None else leaf.value.shape[axis])
        for leaf in leaves
        for axis in leaf.dims
    }
    found = _single_sizes(limits, {str(place.expression): examples.get(place.label, 0) for place in limits.places})
    if not found:
        return
    by_label = {place.label: found[str(place.expression)] for place in limits.places if str(place.expression) in found}
    specialized = []
    lines: dict[str, tuple[SourceLine, ...]] = {}
    for leaf in leaves:
        for axis in leaf.dims:
            label = dim_label(leaf.label, axis)
            # Constraints that exclude the example are an error of their own.
            if label in by_label and by_label[label][0] == examples[label]:
                specialized.append((leaf, axis, examples[label]))
                lines[label] = _lines(by_label[label][1])
    if specialized:
        dims = specialized_dims_error(specialized, log).specialized
        raise SpecializedDimsError(
            # torch names the line of one guard.
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


def _single_sizes(limits: SizeLimits, examples: Mapping[str, int]) -> dict[str, tuple[int, list[Constraint]]]:
    """Name to size of the dims with one valid size, and the constraints that leave it."""
    known = [constraint for constraint in limits.constraints if not constraint.is_equality]
    found: dict[str, tuple[int, list[Constraint]]] = {}
    for name in dict.fromkeys(name for constraint in known for name in constraint.dims):
        about = [constraint for constraint in known if name in constraint.dims]
        if _has_other_size(name, about, examples):
            continue
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


def _has_other_size(name: str, constraints: Sequence[Constraint], examples: Mapping[str, int]) -> bool:
    """Whether the constraints hold for a multiple of a dim in the example, alone or with all others.

    It is sufficient for several sizes, and faster than a search with intervals.
    """
    for factor, others in itertools.product(_FACTORS, (1, 0)):
        sizes = {other: size * (1 if others and other != name else factor) for other, size in examples.items()}
        if sizes.get(name) and all(one.holds(sizes) for one in constraints if sizes.keys() >= {*one.dims}):
            return True
    return False


def _single_size(name: str, constraints: Sequence[Constraint], bounds: Mapping[str, Bounds]) -> int | None:
    """The only size of a dim that the constraints do not exclude; None if there are several, or it is not known."""
    relations = [constraint.expression for constraint in constraints if constraint.dims != (name,)]
    alone = [constraint.expression for constraint in constraints if constraint.dims == (name,)]
    symbol = next((one for relation in [*alone, *relations] for one in relation.free_symbols if one.name == name), None)
    if symbol is None:
        return None
    sets = [SizeSet.of(relation.xreplace(dict.fromkeys(relation.free_symbols, symbol)), symbol) for relation in alone]
    sizes = SizeSet.common(found for found in [SizeSet.of(sympy.true, symbol), *sets] if found is not None)
    if sizes is None:
        return None
    low, high = max(sizes.bounds().low or 1, 1), sizes.bounds().high
    high = _upper_limit(name, low, relations, bounds) if high is None and relations else high
    if high is None:
        return None
    ranges = {other: limit.range() for other, limit in bounds.items()}
    left: list[int] = []
    for size in sizes.members(Bounds(low, high), high + 1, 1, 1)[:_MOST_TRIES]:
        if not any(_is_refuted(_at(relation, {name: int(size)}), ranges) for relation in relations):
            left.append(int(size))
        if len(left) > 1:
            return None
    return left[0] if left else None


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


def _at(relation: sympy.Basic, sizes: Mapping[str, int]) -> sympy.Basic:
    known = (symbol for symbol in relation.free_symbols if symbol.name in sizes)
    try:
        return relation.xreplace({symbol: sympy.Integer(sizes[symbol.name]) for symbol in known})
    except EVALUATION_ERRORS:
        return sympy.true


def _is_refuted(relation: sympy.Basic, ranges: Mapping[str, ValueRanges[sympy.Expr]]) -> bool:
    """Whether a relation is proved to be false for all sizes in the ranges."""
    if relation in (sympy.true, sympy.false):
        return bool(relation == sympy.false)
    unlimited = Bounds().range()
    found = range_of(relation, {symbol: ranges.get(symbol.name, unlimited) for symbol in relation.free_symbols})
    return bool(found == ValueRanges.wrap(sympy.false))
