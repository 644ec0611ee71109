"""Scalar inputs: constants of the program, unless ``dynamic_scalars`` makes them graph inputs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ...errors import ArgumentError, CaptureError, did_you_mean, kind_of
from ..shapes.dynamic_shapes import DynamicShapes, Leaf, checked_shapes, read_shapes_by_parameter
from .example_inputs import BoundInputs
from .input_names import dotted_name

__all__ = ["frozen_arguments", "scalars_to_tensors", "with_dynamic_ints", "with_scalar_branch"]

_log = logging.getLogger("fxonnx")


def scalars_to_tensors(
    inputs: BoundInputs, names: Collection[str], model: torch.nn.Module
) -> tuple[BoundInputs, frozenset[str]]:
    """Convert floats and bools to 0-dim tensors, which follow the type promotion of Python numbers.

    Args:
        inputs: The example inputs.
        names: The numbers, by parameter or by path: ``options['scale']`` or ``options.scale``.
        model: The model. Floats become float32, or float64 if the model and its inputs are float64.

    Returns:
        The inputs, and the labels of ints, which remain ints.

    Raises:
        ArgumentError: If a name does not match a number; the error lists the numbers.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ArgumentError("dynamic_scalars", f"expected a set of names, got {names!r}", hint='write {"scale"}')
    leaves = read_shapes_by_parameter(inputs, None).leaves
    numbers = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf.value, bool | int | float)}
    found: dict[str, int] = {}
    for name in names:
        index = next((index for index, leaf in numbers.items() if name in (leaf.label, dotted_name(leaf))), None)
        if index is None:
            hint = did_you_mean(name, [leaf.label for leaf in numbers.values()], _number_list(list(numbers.values())))
            raise ArgumentError("dynamic_scalars", _name_problem(name, leaves), hint=hint)
        found[name] = index
    dtype = _float_dtype(leaves, model)
    values = [leaf.value for leaf in leaves]
    tensors = frozenset(index for index in found.values() if not _is_int(values[index]))
    for index in tensors:
        number = values[index]
        # Numbers are on the CPU in eager torch too.
        values[index] = torch.tensor(number, dtype=None if isinstance(number, bool) else dtype, device="cpu")
    ints = frozenset(leaves[index].label for index in found.values() if index not in tensors)
    return replace(inputs.with_leaves(values), table=replace(inputs.table, numbers=tensors)), ints


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _name_problem(name: str, leaves: Sequence[Leaf]) -> str:
    leaf = next((leaf for leaf in leaves if name in (leaf.label, dotted_name(leaf))), None)
    if leaf is not None:
        return f"{name!r} is {kind_of(leaf.value)}, not an int, a float or a bool"
    return f"the example inputs have no number {name!r}"


def _number_list(numbers: Sequence[Leaf]) -> str:
    known = ", ".join(leaf.label for leaf in numbers) or "none"
    return f"the numbers are: {known}; pass parameters with a default explicitly"


def _float_dtype(leaves: Sequence[Leaf], model: torch.nn.Module) -> torch.dtype:
    tensors = [leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)]
    dtypes = {tensor.dtype for tensor in (*tensors, *model.parameters()) if tensor.is_floating_point()}
    return torch.float64 if dtypes == {torch.float64} else torch.float32


def with_dynamic_ints(shapes: DynamicShapes, labels: Collection[str]) -> DynamicShapes:
    """Mark the ints with the given labels as dynamic."""
    if not labels:
        return shapes
    leaves = [
        replace(leaf, dims={None: Dim.DYNAMIC}) if leaf.label in labels and not leaf.dims else leaf
        for leaf in shapes.leaves
    ]
    return checked_shapes(leaves, shapes.inputs)


def with_scalar_branch(error: CaptureError, labels: Sequence[str]) -> CaptureError:
    """The failure of a capture; if it is a branch on a data-dependent value, with the names of the numbers.

    Args:
        error: The failure of the capture.
        labels: The numbers that were converted to tensors.
    """
    if not labels or not isinstance(error.__cause__, GuardOnDataDependentSymNode):
        return error
    names = ", ".join(map(repr, labels))
    explained = CaptureError(
        f"the model branches on the value of a dynamic scalar, {names}:\n{error.message}",
        hint="remove it from dynamic_scalars and export once for each value",
    )
    explained.__cause__ = error
    return explained


def with_scalars_as_tensors(error: CaptureError | None, labels: Sequence[str]) -> CaptureError | None:
    """The model's own error on the example, in which numbers were converted to tensors, with their names."""
    if error is None or not labels:
        return error
    names = ", ".join(map(repr, labels))
    explained = CaptureError(
        error.message.replace(
            "example inputs:", f"example inputs, with tensors in place of dynamic scalars, {names}:", 1
        ),
        hint=f"remove a number that Python reads from dynamic_scalars, and export once for each value; or {error.hint}",
    )
    explained.__cause__ = error.__cause__
    return explained


def frozen_arguments(leaves: Sequence[Leaf]) -> Mapping[str, Any]:
    """Label to value of the numbers and strings that become constants of the program; log each of them."""
    frozen = {
        leaf.label: leaf.value for leaf in leaves if isinstance(leaf.value, bool | int | float | str) and not leaf.dims
    }
    for label, value in frozen.items():
        _log.info("the argument %s becomes a constant of the program: %r", label, value)
    return frozen
