"""``dynamic_axes`` of torch.onnx: dynamic axes by name of graph input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from ..._warnings import warn_user
from ...errors import ArgumentError, did_you_mean
from ..inputs.example_inputs import BoundInputs
from .dynamic_shapes import DynamicShapes, Leaf, checked_shapes, read_shapes_by_parameter, with_spec
from .spec_keys import GraphInputs

__all__ = ["AxisNames", "DynamicAxes", "name_computed_dims", "name_output_dims", "read_dynamic_axes"]

_ARGUMENT = "dynamic_axes"

AxisNames = dict[int, str]


@dataclass(frozen=True)
class DynamicAxes:
    """The parsed ``dynamic_axes``.

    Attributes:
        shapes: Dynamic shapes of the inputs.
        outputs: Axis names of the names that do not match an input and are expected to be outputs.
        inputs: Names of the graph inputs, for messages.
        legacy: Whether names are labels, as for the TorchScript exporter of torch.onnx: dims with the same name need
            not be equal.
    """

    shapes: DynamicShapes
    outputs: Mapping[str, AxisNames]
    inputs: str
    legacy: bool


def read_dynamic_axes(
    inputs: BoundInputs,
    dynamic_axes: Any,
    input_names: Sequence[str],
    graph: Sequence[str] | None = None,
    *,
    legacy: bool = False,
) -> DynamicAxes:
    """Parse ``dynamic_axes``: ``{name: {axis: dim name}}`` or ``{name: [axis, ...]}``.

    Args:
        inputs: The inputs.
        dynamic_axes: The argument.
        input_names: The user's names for the first graph inputs; the others keep torch.export's names.
        graph: Names of the placeholders of a program that is already captured.
        legacy: Whether names are labels only; see ``DynamicAxes``.

    Raises:
        ArgumentError: If it has a different form, or an axis does not exist.
    """
    if not isinstance(dynamic_axes, Mapping):
        raise _spec_error(
            f"expected a dict by names of inputs and outputs, got {dynamic_axes!r}", 'write {"x": {0: "batch"}}'
        )
    leaves = list(read_shapes_by_parameter(inputs, None).leaves)
    found = GraphInputs.from_leaves(leaves, input_names, graph)
    outputs: dict[str, AxisNames] = {}
    for name, spec in dynamic_axes.items():
        axes = _axis_names(name, spec)
        index = found.find(name)
        if index is None:
            outputs[name] = axes
            continue
        leaf = leaves[index]
        named = {_axis(name, leaf.value, axis): dim for axis, dim in axes.items()}
        leaves[index] = with_spec(Leaf(leaf.parameter, leaf.path, leaf.value, {}), named)
    return DynamicAxes(checked_shapes(leaves, inputs), outputs, found.known(), legacy)


def _spec_error(problem: str, hint: str | None = None) -> ArgumentError:
    return ArgumentError(_ARGUMENT, problem, hint=hint)


def _axis_names(name: Any, spec: Any) -> AxisNames:
    if not isinstance(name, str):
        raise _spec_error(f"the key {name!r} is not the name of an input or output")
    if spec is None:
        return {}
    # Listed axes get the dim names of the TorchScript exporter of torch.onnx.
    named = {axis: f"{name}_dynamic_axes_{i + 1}" for i, axis in enumerate(spec)} if _is_list(spec) else spec
    if not isinstance(named, Mapping):
        raise _spec_error(f"the spec of {name!r} is {spec!r}", hint="pass {axis: name} or [axis, ...]")
    for axis, dim in named.items():
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise _spec_error(f"the spec of {name!r} has the axis {axis!r}", hint="pass {axis: name} or [axis, ...]")
        if not isinstance(dim, str) or not dim:
            raise _spec_error(f"the name of axis {axis} of {name!r} is {dim!r}", hint="pass a non-empty string")
    return dict(named)


def _is_list(spec: Any) -> bool:
    return isinstance(spec, list | tuple)


def _axis(name: str, value: Any, axis: int) -> int:
    rank = value.dim() if isinstance(value, torch.Tensor) else 0
    if not -rank <= axis < rank:
        shape = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else "no shape"
        raise _spec_error(
            f"{name!r} has {shape}, so it has no axis {axis}", f"its axes are 0 to {rank - 1}" if rank else None
        )
    return axis % rank


def name_output_dims(
    program: ExportedProgram,
    axes: DynamicAxes,
    output_names: Sequence[str],
    names: tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]],
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    """Name the output dims that are symbols, such as the unbacked number of detected objects.

    Args:
        program: The captured program.
        axes: The parsed ``dynamic_axes``; ``name_computed_dims`` reports names that do not match an output.
        output_names: The user's names for the first outputs; the others keep torch.export's names.
        names: The named symbols, and the aliases of their names.

    Raises:
        ArgumentError: If an axis does not exist.
    """
    dim_names, aliases = dict(names[0]), dict(names[1])
    outputs = _outputs(program, output_names)
    for name, (_, value) in outputs.items():
        for axis, dim in axes.outputs.get(name, {}).items():
            symbol = _size(name, value, axis)
            if symbol is None or not symbol.is_symbol:
                # Static, or computed from other sizes.
                continue
            if symbol not in dim_names:
                dim_names[symbol] = _unused(dim, dim_names)
            elif not axes.legacy and (known := dim_names[symbol]) != dim and dim not in aliases.get(known, ()):
                aliases[known] = (*aliases.get(known, ()), dim)
    return dim_names, aliases


def name_computed_dims(
    program: ExportedProgram,
    axes: DynamicAxes | None,
    output_names: Sequence[str],
    names: tuple[Mapping[sympy.Symbol, str], Mapping[str, tuple[str, ...]]],
    *,
    strict: bool,
) -> dict[int, AxisNames]:
    """Name the output dims whose sizes are expressions of other sizes, such as the number of anchors.

    If names are labels only, every dynamic dim of an output gets the name that was asked for.

    Args:
        program: The captured program.
        axes: The parsed ``dynamic_axes``, or None.
        output_names: The user's names for the first outputs; the others keep torch.export's names.
        names: The names of symbols and their aliases, which a computed size cannot use.
        strict: Raise an error instead of a warning for a name that is neither an input nor an output.

    Returns:
        Index of the user output to axis to name.

    Raises:
        ArgumentError: With ``strict``, if a name is neither an input nor an output.
    """
    if axes is None:
        return {}
    outputs = _outputs(program, output_names)
    _check_known(axes, outputs, strict)
    meaning: dict[str, sympy.Expr] = {}
    taken = {*names[0].values(), *(alias for aliases in names[1].values() for alias in aliases)}
    named: dict[int, AxisNames] = {}
    for name, (position, value) in outputs.items():
        for axis, dim in axes.outputs.get(name, {}).items():
            size = _size(name, value, axis)
            is_computed = size is not None and not size.is_symbol
            is_free = is_computed and dim not in taken and meaning.setdefault(dim, size) == size
            if is_free or (axes.legacy and size is not None):
                named.setdefault(position, {})[axis % value.dim()] = dim
    return named


def _check_known(axes: DynamicAxes, outputs: Mapping[str, Any], strict: bool) -> None:
    unknown = [name for name in axes.outputs if name not in outputs]
    if not unknown:
        return
    problem = f"{', '.join(map(repr, unknown))} is neither an input nor an output"
    hint = f"the inputs are: {axes.inputs}; the outputs are: {', '.join(outputs) or 'none'}"
    hint = did_you_mean(unknown[0], [*axes.inputs.split(", "), *outputs], hint) or hint
    if strict:
        raise _spec_error(problem, hint)
    # Scripts for torch.onnx name outputs that some of their models do not have.
    warn_user(f"{_ARGUMENT}: {problem} and is ignored\nhint: {hint}")


def _size(name: str, value: Any, axis: int) -> sympy.Expr | None:
    """The expression of an output's size along an axis; None if it is a constant."""
    size = value.shape[_axis(name, value, axis)] if isinstance(value, torch.Tensor) else None
    return size.node.expr if isinstance(size, torch.SymInt) else None


def _outputs(program: ExportedProgram, output_names: Sequence[str]) -> dict[str, tuple[int, Any]]:
    """Name to index and value of the user's outputs that are not None."""
    (node,) = program.graph.find_nodes(op="output")
    own = [
        argument
        for spec, argument in zip(program.graph_signature.output_specs, node.args[0], strict=True)
        if spec.kind == OutputKind.USER_OUTPUT
    ]
    results = [(position, argument) for position, argument in enumerate(own) if argument is not None]
    names = [getattr(result, "name", f"output_{index}") for index, (_, result) in enumerate(results)]
    names[: len(output_names)] = output_names[: len(results)]
    values = [(position, getattr(result, "meta", {}).get("val")) for position, result in results]
    return dict(zip(names, values, strict=True))


def _unused(name: str, names: Mapping[sympy.Symbol, str]) -> str:
    taken, unused, number = set(names.values()), name, 0
    while unused in taken:
        number += 1
        unused = f"{name}_{number}"
    return unused
