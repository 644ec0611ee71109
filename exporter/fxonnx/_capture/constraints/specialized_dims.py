"""Dynamic dims that the model specializes to one size: made static with a warning, or an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import sympy
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from ...errors import CaptureError
from ..shapes.dim_specs import DimSpec, dim_expression, dim_label, is_auto, name_of_spec, root_name
from ..shapes.dynamic_shapes import DynamicShapes, Leaf
from .constraint import Constraint, Limits, Place
from .constraint_solver import text_of
from .guard_recorder import GuardLog, SourceLine

__all__ = [
    "SpecializedDim",
    "SpecializedDimsError",
    "capture_with_fallback_to_static",
    "input_source",
    "specialized_dims_error",
    "with_specialized_dims",
]

_Result = TypeVar("_Result")


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
        super().__init__(
            f"the model specializes {noun} that should be dynamic:\n" + "\n".join(lines),
            hint=("" if refusal is None or refusal.hint is None else f"{refusal.hint}; or ")
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


def capture_with_fallback_to_static(
    attempt: Callable[[DynamicShapes], _Result], shapes: DynamicShapes, *, strict: bool
) -> tuple[_Result, DynamicShapes, tuple[SpecializedDim, ...]]:
    """Capture a model, and capture it again with specialized dims made static, as long as a dynamic dim remains.

    Args:
        attempt: Function that captures the model with the given shapes.
        shapes: The user's shapes.
        strict: Raise an error for every specialized dim.

    Returns:
        The result, the shapes it was captured with, and the specialized dims.

    Raises:
        SpecializedDimsError: If no dynamic dim remains, or with ``strict``.
    """
    specialized: tuple[SpecializedDim, ...] = ()
    while True:
        try:
            return attempt(shapes), shapes, specialized
        except SpecializedDimsError as error:  # noqa: PERF203 - every attempt captures the model
            is_requested = any(not is_auto(dim.spec) for dim in error.specialized)
            reduced = _make_static(shapes, error.specialized)
            known = {dim.label for dim in specialized}
            specialized += tuple(dim for dim in error.specialized if dim.label not in known)
            fails = strict or not any(_has_requested_dims(leaf) for leaf in reduced.leaves)
            # Dim.AUTO requests no sizes.
            if reduced == shapes or (fails and is_requested):
                raise SpecializedDimsError(specialized, error.refusal) from error.__cause__
            specialized += _static_by_name(shapes, reduced, specialized)
            shapes = reduced


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
    limits: Limits, specialized: Sequence[SpecializedDim], program: ExportedProgram, leaves: Sequence[Leaf]
) -> Limits:
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
