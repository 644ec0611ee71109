"""Numbers among the inputs: part of the model, unless they are asked to be inputs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fxonnx_translations._torch_compat import pytree

from ...errors import ArgumentError, CaptureError
from ..shapes.dynamic_shapes import Leaf, Shapes, read_shapes, settled
from .example_inputs import Inputs
from .input_names import dotted_name

__all__ = ["explain_branch", "frozen_arguments", "with_dynamic_ints", "with_scalar_inputs"]

_log = logging.getLogger("fxonnx")


def with_scalar_inputs(
    inputs: Inputs, names: Collection[str], model: torch.nn.Module
) -> tuple[Inputs, frozenset[int], frozenset[str]]:
    """Makes tensors of floats and bools, of 0 dims: in arithmetic these promote like Python's numbers.

    Args:
        inputs: The example inputs.
        names: Which numbers: by parameter, or by path, ``options['scale']`` or ``options.scale``.
        model: The model. A float is a float32, or a float64 where its tensors are.

    Returns:
        The inputs; the positions of the new tensors among the leaves; and the labels of ints, which stay ints.

    Raises:
        ArgumentError: If a name is not that of a number, with a list of those that there are.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ArgumentError("dynamic_scalars", f"expected a set of names, got {names!r}", hint='write {"scale"}')
    leaves = read_shapes(inputs, None).leaves
    numbers = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf.value, bool | int | float)}
    found: dict[str, int] = {}
    for name in names:
        index = next((index for index, leaf in numbers.items() if name in (leaf.label, dotted_name(leaf))), None)
        if index is None:
            raise ArgumentError("dynamic_scalars", _problem(name, leaves), hint=_known(list(numbers.values())))
        found[name] = index
    dtype = _float_dtype(leaves, model)
    values = [leaf.value for leaf in leaves]
    tensors = frozenset(index for index in found.values() if not _is_int(values[index]))
    for index in tensors:
        values[index] = torch.tensor(values[index], dtype=None if isinstance(values[index], bool) else dtype)
    structure = pytree.tree_structure((inputs.args, dict(inputs.kwargs)))
    args, kwargs = pytree.tree_unflatten(values, structure)
    ints = frozenset(leaves[index].label for index in found.values() if index not in tensors)
    return replace(inputs, args=args, kwargs=kwargs), tensors, ints


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _problem(name: str, leaves: Sequence[Leaf]) -> str:
    leaf = next((leaf for leaf in leaves if name in (leaf.label, dotted_name(leaf))), None)
    if leaf is not None:
        return f"{name!r} is a {type(leaf.value).__name__}, not an int, a float or a bool"
    return f"there is no number {name!r} among the example inputs"


def _known(numbers: Sequence[Leaf]) -> str:
    return f"the numbers are: {', '.join(leaf.label for leaf in numbers) or 'none'}; pass those with a default, too"


def _float_dtype(leaves: Sequence[Leaf], model: torch.nn.Module) -> torch.dtype:
    tensors = [leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)]
    dtypes = {tensor.dtype for tensor in (*tensors, *model.parameters()) if tensor.is_floating_point()}
    return torch.float64 if dtypes == {torch.float64} else torch.float32


def with_dynamic_ints(shapes: Shapes, labels: Collection[str]) -> Shapes:
    """The shapes with further ints that are inputs."""
    if not labels:
        return shapes
    leaves = [
        replace(leaf, dims={None: Dim.DYNAMIC}) if leaf.label in labels and not leaf.dims else leaf
        for leaf in shapes.leaves
    ]
    return settled(leaves, shapes.inputs)


def explain_branch(error: CaptureError, labels: Sequence[str]) -> None:
    """Raises an error that names the numbers, if the model asked for the value of one of them.

    Args:
        error: What the capture failed with.
        labels: The numbers that were made tensors.
    """
    if labels and isinstance(error.__cause__, GuardOnDataDependentSymNode):
        names = ", ".join(map(repr, labels))
        raise CaptureError(
            f"the model decides by a value that is an input now, {names}:\n{error.message}",
            hint="leave what the model decides by out of dynamic_scalars, and export once for each value",
        ) from error


def frozen_arguments(leaves: Sequence[Leaf]) -> Mapping[str, Any]:
    """The numbers and strings that become part of the model, by label; each is logged."""
    frozen = {
        leaf.label: leaf.value for leaf in leaves if isinstance(leaf.value, bool | int | float | str) and not leaf.dims
    }
    for label, value in frozen.items():
        _log.info("the argument %s becomes part of the model: %r", label, value)
    return frozen
