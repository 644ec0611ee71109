"""Frozen inputs: tensors whose example values become constants of the program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from ...errors import ArgumentError, did_you_mean
from ..shapes.dynamic_shapes import read_shapes_by_parameter
from ..shapes.spec_keys import GraphInputs
from .example_inputs import BoundInputs

__all__ = ["freeze_inputs", "restore_frozen"]


def freeze_inputs(inputs: BoundInputs, patterns: Collection[str], input_names: Sequence[str]) -> BoundInputs:
    """Replace the tensors to freeze by None, which torch.export treats as a constant, and keep their values apart.

    Args:
        inputs: The example inputs.
        patterns: Names of inputs or glob patterns for them, as the keys of ``dynamic_shapes``.
        input_names: The user's names for the first graph inputs.

    Raises:
        ArgumentError: If a pattern matches no tensor, or a tensor has no values.
    """
    if not patterns:
        return inputs
    leaves = read_shapes_by_parameter(inputs, None).leaves
    known = GraphInputs.from_leaves(leaves, input_names)
    found: dict[int, torch.Tensor] = {}
    for pattern in patterns:
        exact = known.find(pattern)
        places = list(known.match(pattern)) if exact is None else [exact]
        tensors = [index for index in places if isinstance(leaves[index].value, torch.Tensor)]
        if not tensors:
            names = [name for table in known.names for name in table]
            hint = did_you_mean(pattern, names, f"the graph inputs are: {known.known()}")
            raise ArgumentError("frozen", f"{pattern!r} matches no tensor of the example inputs", hint=hint)
        if not inputs.table.lists.isdisjoint(tensors):
            raise ArgumentError(
                "frozen",
                f"{pattern!r} matches a list whose number of tensors is dynamic",
                hint="leave its TensorList out of dynamic_shapes",
            )
        for index in tensors:
            value: torch.Tensor = leaves[index].value
            if value.is_meta or type(value) is not torch.Tensor:
                raise ArgumentError(
                    "frozen", f"{leaves[index].label} has no values", hint="pass a tensor on the CPU as its example"
                )
            found[index] = value.detach().clone()
    remaining = inputs.with_leaves(None if index in found else value for index, value in enumerate(inputs.leaves))
    return replace(remaining, table=replace(inputs.table, frozen=found))


def restore_frozen(frozen: Mapping[int, torch.Tensor], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Positional and keyword arguments with the frozen tensors in the place of None."""
    if not frozen:
        return args, kwargs
    leaves, structure = pytree.tree_flatten((args, kwargs))
    leaves = [frozen.get(index, leaf) for index, leaf in enumerate(leaves)]
    restored: tuple[Any, Any] = pytree.tree_unflatten(leaves, structure)
    return restored
