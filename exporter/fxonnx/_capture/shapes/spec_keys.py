"""Specs by name of a graph input, for tensors inside of containers and caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from ...errors import ArgumentError, did_you_mean
from ..inputs.example_inputs import BoundInputs
from ..inputs.input_names import dotted_name, graph_names
from .dynamic_shapes import DynamicShapes, Leaf, checked_shapes, read_shapes_by_parameter, with_spec

__all__ = ["GraphInputs", "read_dynamic_shapes"]


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
        """Compute the names of the leaves.

        Args:
            leaves: All leaves of the inputs.
            input_names: The user's names for the first graph inputs.
            graph: Names of the placeholders of a program that is already captured.
        """
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

    Args:
        inputs: The inputs.
        dynamic_shapes: The argument.
        input_names: The user's names for the first graph inputs.
        graph: Names of the placeholders of a program that is already captured.

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
