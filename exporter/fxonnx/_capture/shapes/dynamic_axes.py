"""``dynamic_axes``, the form of the older exporter: by the names of graph inputs and outputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from ...errors import ArgumentError
from ..inputs.example_inputs import BoundInputs
from .dynamic_shapes import DynamicShapes, Leaf, read_shapes_by_parameter, settled, with_spec
from .spec_keys import GraphInputs

__all__ = ["AxisNames", "DynamicAxes", "name_computed_dims", "name_output_dims", "read_dynamic_axes"]

_ARGUMENT = "dynamic_axes"

AxisNames = dict[int, str]


@dataclass(frozen=True)
class DynamicAxes:
    """What ``dynamic_axes`` says.

    Attributes:
        shapes: Of the inputs.
        outputs: Of the names that are no input, and therefore have to be outputs.
        inputs: The names of the graph inputs, for messages.
    """

    shapes: DynamicShapes
    outputs: Mapping[str, AxisNames]
    inputs: str


def read_dynamic_axes(
    inputs: BoundInputs, dynamic_axes: Any, input_names: Sequence[str], graph: Sequence[str] | None = None
) -> DynamicAxes:
    """Reads ``dynamic_axes``: ``{name: {axis: name of the dim}}`` or ``{name: [axis, ...]}``.

    Args:
        inputs: The inputs.
        dynamic_axes: The argument.
        input_names: The user's names for the first graph inputs; the others are called as torch.export calls them.
        graph: Names of the placeholders, if the model is captured already.

    Raises:
        ArgumentError: If it has another form, or an input does not have an axis.
    """
    if not isinstance(dynamic_axes, Mapping):
        raise _wrong(f"expected a dict by names of inputs and outputs, got {dynamic_axes!r}")
    leaves = list(read_shapes_by_parameter(inputs, None).leaves)
    found = GraphInputs.of(leaves, input_names, graph)
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
    return DynamicAxes(settled(leaves, inputs), outputs, found.known())


def _wrong(problem: str, hint: str | None = None) -> ArgumentError:
    return ArgumentError(_ARGUMENT, problem, hint=hint)


def _axis_names(name: Any, spec: Any) -> AxisNames:
    if not isinstance(name, str):
        raise _wrong(f"the key {name!r} is not the name of an input or output")
    if spec is None:
        return {}
    # The older exporter's names, which is what those who list axes count on.
    named = {axis: f"{name}_dynamic_axes_{i + 1}" for i, axis in enumerate(spec)} if _is_list(spec) else spec
    if not isinstance(named, Mapping):
        raise _wrong(f"{name!r} has {spec!r}", hint="pass {axis: name} or [axis, ...]")
    for axis, dim in named.items():
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise _wrong(f"{name!r} has {axis!r} for an axis", hint="pass {axis: name} or [axis, ...]")
        if not isinstance(dim, str) or not dim:
            raise _wrong(f"axis {axis} of {name!r} is called {dim!r}", hint="pass a non-empty string")
    return dict(named)


def _is_list(spec: Any) -> bool:
    return isinstance(spec, list | tuple)


def _axis(name: str, value: Any, axis: int) -> int:
    rank = value.dim() if isinstance(value, torch.Tensor) else 0
    if not -rank <= axis < rank:
        shape = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else "no shape"
        raise _wrong(f"{name!r} has {shape}, so it has no axis {axis}")
    return axis % rank


def name_output_dims(
    program: ExportedProgram,
    axes: DynamicAxes,
    output_names: Sequence[str],
    names: tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]],
) -> tuple[dict[sympy.Symbol, str], dict[str, tuple[str, ...]]]:
    """Names the dims of outputs that are sizes of their own, such as the number of found objects.

    Args:
        program: The captured program.
        axes: What the user said; names of no output are left out here, ``name_computed_dims`` reports them.
        output_names: The user's names for the first outputs; the others are called as torch.export calls them.
        names: The dims that have a name already, and the names' aliases.

    Raises:
        ArgumentError: If an output does not have an axis.
    """
    dim_names, aliases = dict(names[0]), dict(names[1])
    outputs = _outputs(program, output_names)
    for name, (_, value) in outputs.items():
        for axis, dim in axes.outputs.get(name, {}).items():
            symbol = _size(name, value, axis)
            if symbol is None or not symbol.is_symbol:
                # Fixed by the model, or computed from other sizes.
                continue
            if symbol not in dim_names:
                dim_names[symbol] = _unused(dim, dim_names)
            elif (known := dim_names[symbol]) != dim and dim not in aliases.get(known, ()):
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
    """Names the dims of outputs whose sizes are computed from other sizes, such as the number of anchors.

    Args:
        program: The captured program.
        axes: What the user said, if anything.
        output_names: The user's names for the first outputs; the others are called as torch.export calls them.
        names: The names of dims and their aliases. A size that is computed from these is called none of them.
        strict: Whether a name in ``axes`` that belongs to neither an input nor an output is an error, not a warning.

    Returns:
        Position among the user's outputs to axis to name.

    Raises:
        ArgumentError: With ``strict``, if a name belongs to neither an input nor an output.
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
            if is_computed and dim not in taken and meaning.setdefault(dim, size) == size:
                named.setdefault(position, {})[axis % value.dim()] = dim
    return named


def _check_known(axes: DynamicAxes, outputs: Mapping[str, Any], strict: bool) -> None:
    unknown = [name for name in axes.outputs if name not in outputs]
    if not unknown:
        return
    problem = f"{', '.join(map(repr, unknown))} is neither an input nor an output"
    hint = f"the inputs are: {axes.inputs}; the outputs are: {', '.join(outputs) or 'none'}"
    if strict:
        raise _wrong(problem, hint)
    # Scripts for torch.onnx name outputs that not all of their models have.
    warnings.warn(f"{_ARGUMENT}: {problem}, and is left out\nhint: {hint}", UserWarning, stacklevel=6)


def _size(name: str, value: Any, axis: int) -> sympy.Expr | None:
    """The expression of an output's size along an axis; None if it is a number."""
    size = value.shape[_axis(name, value, axis)] if isinstance(value, torch.Tensor) else None
    return size.node.expr if isinstance(size, torch.SymInt) else None


def _outputs(program: ExportedProgram, output_names: Sequence[str]) -> dict[str, tuple[int, Any]]:
    """Name to position among the user's outputs, and to value, of those that are not None."""
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
