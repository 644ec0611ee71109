"""Specs by name of a graph input or output: keys of ``dynamic_shapes``, and ``dynamic_axes``.

The names are derived from pytree paths in the arguments and results of ``forward``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind

from fxonnx_translations._torch_compat import pytree

from ..._warnings import warn_user
from ...errors import ArgumentError, did_you_mean
from ..inputs.example_inputs import BoundInputs, user_input_names
from ..inputs.pytree_objects import is_object
from .dynamic_shapes import DynamicShapes, Leaf, checked_shapes, read_shapes_by_parameter, with_spec

__all__ = [
    "AxisNames",
    "DynamicAxes",
    "GraphInputs",
    "dotted_name",
    "graph_names",
    "input_paths",
    "name_computed_dims",
    "name_output_dims",
    "output_paths",
    "read_dynamic_axes",
    "read_dynamic_shapes",
]


@dataclass(frozen=True)
class GraphInputs:
    """The names by which specs may refer to leaves.

    Attributes:
        leaves: All leaves of the inputs.
        names: Mappings from name to leaf index, by precedence: ``input_names``, torch.export's placeholder names,
            dotted paths, and paths in Python's notation.
    """

    leaves: Sequence[Leaf]
    names: tuple[Mapping[str, int], ...]

    @classmethod
    def from_leaves(
        cls, leaves: Sequence[Leaf], input_names: Sequence[str], graph: Sequence[str] | None = None
    ) -> GraphInputs:
        """Compute the names of the leaves."""
        inputs = [index for index, leaf in enumerate(leaves) if _is_graph_input(leaf)]
        in_graph = graph_names(leaves) if graph is None else graph
        return cls(
            leaves,
            (
                dict(zip(input_names, inputs, strict=False)),
                {in_graph[index]: index for index in inputs},
                {dotted_name(leaves[index]): index for index in inputs},
                {leaves[index].label: index for index in inputs},
            ),
        )

    def find(self, key: Any) -> int | None:
        """Index of the leaf with this name, or None."""
        return next((names[key] for names in self.names if key in names), None)

    def match(self, pattern: str) -> Iterator[int]:
        """Indices of the tensors of rank 1 or more whose name matches a pattern with ``*``, ``?`` or ``[...]``."""
        for index, leaf in enumerate(self.leaves):
            called = [name for names in self.names for name, position in names.items() if position == index]
            has_axes = isinstance(leaf.value, torch.Tensor) and leaf.value.dim() > 0
            if has_axes and any(fnmatchcase(name, pattern) for name in called):
                yield index

    def known(self) -> str:
        """List of the names of the graph inputs, for messages."""
        own, in_graph = ({index: name for name, index in names.items()} for names in self.names[:2])
        return ", ".join(own.get(index, name) for index, name in in_graph.items()) or "none"


def _is_graph_input(leaf: Leaf) -> bool:
    """Whether a leaf becomes a graph input: a tensor or a dynamic int; other values are constants."""
    is_size = isinstance(leaf.value, torch.SymInt) or (isinstance(leaf.value, int) and None in leaf.dims)
    return isinstance(leaf.value, torch.Tensor) or is_size


def read_dynamic_shapes(
    inputs: BoundInputs, dynamic_shapes: Any, input_names: Sequence[str], graph: Sequence[str] | None = None
) -> DynamicShapes:
    """Parse ``dynamic_shapes`` with keys that are parameters, names of graph inputs, or patterns for these names.

    If several keys specify the same axis, a parameter takes precedence over a name, a name over a pattern, and an
    earlier pattern over a later one.

    Raises:
        ArgumentError: If a key matches nothing (the error lists the valid keys), or a spec does not match its input.
    """
    if not isinstance(dynamic_shapes, Mapping):
        return read_shapes_by_parameter(inputs, dynamic_shapes)
    parameters = {*inputs.signature.parameters, inputs.var_keyword}
    keyed = {key: spec for key, spec in dynamic_shapes.items() if key not in parameters}
    shapes = read_shapes_by_parameter(inputs, {key: spec for key, spec in dynamic_shapes.items() if key in parameters})
    if not keyed:
        return shapes
    found = GraphInputs.from_leaves(shapes.leaves, input_names, graph)
    exact = {key: [index] for key in keyed if (index := found.find(key)) is not None}
    patterns = {key: list(found.match(key)) for key in keyed if key not in exact and isinstance(key, str)}
    unknown = [key for key in keyed if not exact.get(key) and not patterns.get(key)]
    if unknown:
        raise _unknown_keys_error(unknown, inputs, found)
    leaves = list(shapes.leaves)
    for key, places in (exact | patterns).items():
        for index in places:
            leaves[index] = _add_spec(leaves[index], keyed[key])
    return checked_shapes(leaves, inputs)


def _add_spec(leaf: Leaf, spec: Any) -> Leaf:
    """Apply a spec to a leaf, for the axes without a spec."""
    other = with_spec(leaf, spec)
    dims = {axis: dim for axis, dim in other.dims.items() if axis not in leaf.fixed} | dict(leaf.dims)
    fixed = leaf.fixed | (other.fixed - leaf.dims.keys())
    return replace(leaf, dims={axis: dims[axis] for axis in sorted(dims, key=lambda axis: axis or 0)}, fixed=fixed)


def _unknown_keys_error(keys: Sequence[Any], inputs: BoundInputs, found: GraphInputs) -> ArgumentError:
    arguments = inputs.signature.bind(*inputs.args, **inputs.kwargs).arguments
    known = f"the keys are names of forward's parameters: {', '.join(inputs.signature.parameters)}; "
    known += f"the example has: {', '.join(arguments) or 'none'}; the graph inputs are: {found.known()}"
    names = [*inputs.signature.parameters, *(name for names in found.names for name in names)]
    return ArgumentError(
        "dynamic_shapes",
        f"{', '.join(map(repr, keys))} is not a parameter of forward and matches no graph input",
        hint=did_you_mean(keys[0], names, known),
    )


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


# Caches that a language model takes and returns: the output is renamed, as in optimum. From transformers 5.24 on, the
# field of the result is "cache", also where the model takes "past_key_values".
_CACHES = {
    "past_key_values": ("past_key_values",),
    "cache_params": ("cache_params",),
    "cache": ("past_key_values", "cache_params"),
}
_KEYS_OF_CACHE = re.compile(r"cache_\d+_key")


def input_paths(program: ExportedProgram, inputs: BoundInputs, leaves: tuple[Leaf, ...]) -> dict[str, str]:
    """Placeholder to path (``past_key_values.0.key``) for inputs in objects; other inputs keep torch's names."""
    if inputs.table.objects is None:
        return {}
    args, kwargs = inputs.table.objects
    given = {**dict(zip(inputs.names(), args, strict=True)), **kwargs}
    with_objects = {
        name for name, value in given.items() if any(map(is_object, pytree.tree_leaves(value, is_leaf=is_object)))
    }
    return {
        placeholder: _dotted(leaf.label)
        for placeholder, leaf in zip(user_input_names(program), leaves, strict=True)
        if leaf.parameter in with_objects
    }


def _dotted(label: str) -> str:
    """Convert a label to a dotted path: ``caches[0]['1.key']`` to ``caches.0.1.key``."""
    return label.replace("['", ".").replace("[", ".").replace("']", "").replace("]", "")


def output_paths(program: ExportedProgram) -> Mapping[int, str]:
    """Index of the user output to dotted path, for outputs in a dict, a dataclass or an object.

    A path of list and tuple indices only is omitted: the name of the operator is more informative.
    """
    structure = program.call_spec.out_spec
    if structure is None:
        return {}
    vals = {node.name: node.meta.get("val") for node in program.graph.nodes}
    values = [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else vals[spec.arg.name]
        for spec in program.graph_signature.output_specs
        if spec.kind == OutputKind.USER_OUTPUT
    ]
    taken = user_input_names(program)
    returned = {name for name, given in _CACHES.items() if any(_is_input(one, taken) for one in given)}
    if any(map(_KEYS_OF_CACHE.fullmatch, taken)):
        returned.add("cache")
    found: dict[int, str] = {}
    for position, names in enumerate(_leaf_paths(pytree.tree_unflatten(values, structure))):
        if not any(isinstance(name, str) for name in names):
            continue
        if names[0] in returned:
            names[0] = "present"
        found[position] = ".".join(map(str, names))
    return found


def _is_input(parameter: str, placeholders: Iterable[str]) -> bool:
    """Whether a parameter of forward, or a part of it, is an input."""
    return any(name == parameter or name.startswith(f"{parameter}_") for name in placeholders)


def _leaf_paths(tree: Any) -> Iterator[list[str | int]]:
    """Path of every leaf. pytree's own function rejects containers that are registered without keys."""
    node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(tree))
    if node is None:
        yield []
        return
    if node.flatten_with_keys_fn is not None:
        parts = [(_path_step(entry), child) for entry, child in node.flatten_with_keys_fn(tree)[0]]
    else:
        children, _ = node.flatten_fn(tree)
        is_named = isinstance(tree, Mapping) and len(tree) == len(children)
        parts = list(zip(map(str, tree) if is_named else range(len(children)), children, strict=True))
    for name, child in parts:
        for path in _leaf_paths(child):
            yield [name, *path]


def _path_step(entry: Any) -> str | int:
    if isinstance(entry, pytree.SequenceKey):
        return int(entry.idx)
    return str(entry.key if isinstance(entry, pytree.MappingKey) else getattr(entry, "name", entry))


# One step of the output of pytree.keystr: the repr of a key in brackets, or an attribute.
_PATH_STEP = re.compile(r"""\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]]*)\]|\.(\w+)""")


def graph_names(leaves: Sequence[Leaf]) -> list[str]:
    """Placeholder names as torch.export assigns them: ``x_a_0`` for ``x['a'][0]``, ``x_a_0_1`` if that is taken."""
    names: list[str] = []
    for leaf in leaves:
        wanted = dotted_name(leaf, "_", other="_").lower()
        name, number = wanted, 0
        while name in names:
            number += 1
            name = f"{wanted}_{number}"
        names.append(name)
    return names


def dotted_name(leaf: Leaf, separator: str = ".", other: str | None = None) -> str:
    """Join the parameter and the path of a leaf: ``x.a.0`` for ``x['a'][0]``.

    Args:
        leaf: The leaf.
        separator: Separator between the steps of the path.
        other: Replacement for characters other than letters and digits; None keeps them.
    """
    steps = [leaf.parameter]
    for key, field in _PATH_STEP.findall(leaf.path):
        steps.append(key[1:-1] if key[:1] in ("'", '"') else key or field)
    if other is not None:
        steps = [re.sub(r"[^a-zA-Z0-9]", other, step) for step in steps]
    return separator.join(steps)
