"""``more_inputs``: inference of dynamic dims from additional examples of different sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..._request import Examples
from ...errors import ArgumentError, kind_of
from ..shapes.dim_specs import name_of_spec
from ..shapes.dynamic_dims import AlignedCalls, ExampleCall, align_more_inputs
from ..shapes.dynamic_shapes import DynamicShapes, Leaf, check_example, checked_shapes

__all__ = ["add_examples"]

_ARGUMENT = "more_inputs"


def add_examples(shapes: DynamicShapes, more_inputs: Examples) -> tuple[DynamicShapes, tuple[ExampleCall, ...]]:
    """Mark the dims that differ between the examples as dynamic, under the user's names if they have any.

    Args:
        shapes: The first example with its ``dynamic_shapes``.
        more_inputs: The additional examples.

    Returns:
        The extended shapes, and the additional examples in the form that the exported program takes.

    Raises:
        ArgumentError: If an example does not match the first one, or contradicts ``dynamic_shapes``.
    """
    if not isinstance(more_inputs, Sequence):
        raise ArgumentError(
            _ARGUMENT, f"expected a list of examples, got {kind_of(more_inputs)}", hint="write [((x, y), {}), ...]"
        )
    calls = [_call(example) for example in more_inputs]
    aligned = align_more_inputs(shapes.inputs, shapes.leaves, calls, _ARGUMENT)
    for values in aligned.calls:
        check_example(shapes.leaves, [values.get(leaf.label) for leaf in shapes.leaves])
    dims = aligned.dims()
    users: dict[str, str] = {}
    for leaf, found in zip(shapes.leaves, dims, strict=True):
        for axis, name in found.items():
            own = name_of_spec(leaf.dims.get(axis))
            if own is not None:
                users.setdefault(name, own)
    leaves = []
    for leaf, found in zip(shapes.leaves, dims, strict=True):
        for axis in found:
            if axis in leaf.fixed:
                raise _contradiction(leaf, axis, aligned)
        named = {axis: users.get(name, name) for axis, name in found.items()}
        both = named | dict(leaf.dims)
        leaves.append(replace(leaf, dims={axis: both[axis] for axis in sorted(both, key=lambda axis: axis or 0)}))
    others = tuple(aligned.arguments(aligned.complete(values, dims)[0]) for values in aligned.calls[1:])
    return checked_shapes(leaves, shapes.inputs), others


def _call(example: Any) -> ExampleCall:
    if not isinstance(example, tuple | list) or len(example) != 2:
        kind = type(example).__name__
        raise ArgumentError(
            _ARGUMENT, f"expected pairs of args and kwargs, got a {kind}", hint="write [((x, y), {}), ...]"
        )
    args, kwargs = example
    args = (args,) if isinstance(args, torch.Tensor) else args
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(args, tuple) or not isinstance(kwargs, Mapping):
        raise ArgumentError(
            _ARGUMENT,
            f"expected pairs of a tuple and a dict, got {kind_of(args)} and {kind_of(kwargs)}",
            hint="write [((x, y), {}), ...]",
        )
    return args, kwargs


def _contradiction(leaf: Leaf, axis: int | None, aligned: AlignedCalls) -> ArgumentError:
    values = [values[leaf.label] for values in aligned.calls if leaf.label in values]
    sizes = dict.fromkeys(value if axis is None else int(value.shape[axis]) for value in values)
    place = leaf.label if axis is None else f"axis {axis} of {leaf.label}"
    return ArgumentError(
        _ARGUMENT,
        f"{place} is static in dynamic_shapes, but the examples have {', '.join(map(str, sizes))}",
        hint="name it in dynamic_shapes, or remove its spec",
    )
