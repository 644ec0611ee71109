"""Arguments that are lists of a dynamic number of tensors: the captured program takes the stacked tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.export import Dim

from fxonnx_translations._torch_compat import pytree

from ..._public import public
from ...errors import ArgumentError, kind_of
from ..shapes.dim_specs import DimHint, DimSpec
from .example_inputs import BoundInputs
from .pytree_objects import is_object

__all__ = ["TensorList", "reject_tensor_lists", "stack_lists", "stacked"]


@public
@dataclass(frozen=True)
class TensorList:
    """Spec in ``dynamic_shapes`` for an argument that is a list of a dynamic number of tensors, of one shape and dtype.

    The list becomes one graph input, a sequence; it has at least one tensor. Messages refer to the number of tensors as
    axis 0 of the argument, and to the axes of the tensors as the following ones.

    Attributes:
        length: The number of tensors: a name, a ``torch.export.Dim`` or ``Dim.DYNAMIC``.
        dims: Axis of the tensors to spec, as for a single tensor: ``{0: "height"}``.

    Raises:
        ArgumentError: If ``length`` is not such a spec, or ``dims`` is not a dict by axis.
    """

    length: DimSpec
    dims: Mapping[int, DimSpec] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if not self.length or not isinstance(self.length, str | Dim | DimHint) or self.length == Dim.STATIC:
            raise ArgumentError(
                "dynamic_shapes",
                f"the length of a TensorList is {self.length!r}",
                hint="pass a name, a torch.export.Dim or Dim.DYNAMIC; a constant number of tensors needs no TensorList",
            )
        if not isinstance(self.dims, Mapping) or not all(type(axis) is int for axis in self.dims):
            raise ArgumentError(
                "dynamic_shapes",
                f"the dims of a TensorList are {self.dims!r}",
                hint='pass a dict from axis of the tensors to name: TensorList("n", {0: "height"})',
            )

    def stacked_dims(self, tensor: torch.Tensor, label: str) -> dict[int, DimSpec]:
        """The specs of the stacked tensor.

        Raises:
            ArgumentError: If the tensors do not have an axis.
        """
        rank = tensor.dim() - 1
        for axis in self.dims:
            if not -rank <= axis < rank:
                shape = tuple(tensor.shape[1:])
                raise ArgumentError(
                    "dynamic_shapes", f"the tensors of {label} have shape {shape}, so they have no axis {axis}"
                )
        return {0: self.length, **{axis % rank + 1: dim for axis, dim in self.dims.items()}}


def stack_lists(inputs: BoundInputs, dynamic_shapes: Any) -> tuple[BoundInputs, Any]:
    """Replace the lists that have a ``TensorList`` in ``dynamic_shapes`` by stacked tensors, and these by dicts.

    Args:
        inputs: The example inputs.
        dynamic_shapes: The user's specs by name of the parameters, or in their order.

    Raises:
        ArgumentError: If a ``TensorList`` is not in the place of a list, or the tensors of the list cannot be stacked.
    """
    if not _has_tensor_list(dynamic_shapes):
        return inputs, dynamic_shapes
    arguments = inputs.signature.bind(*inputs.args, **inputs.kwargs).arguments
    reader = _SpecReader()
    if isinstance(dynamic_shapes, Mapping):
        specs = reader.read(arguments, dynamic_shapes, "")
    else:
        values = list(arguments.values())
        if len(values) != len(dynamic_shapes):
            values = [*inputs.args, *inputs.kwargs.values()]
        names = list(arguments) if len(values) == len(arguments) else [*inputs.names(), *inputs.kwargs]
        specs = [
            reader.read(value, spec, name) for value, spec, name in zip(values, dynamic_shapes, names, strict=False)
        ]
        specs += dynamic_shapes[len(specs) :]
    reject_tensor_lists(specs)
    leaves, structure = pytree.tree_flatten((inputs.args, dict(inputs.kwargs)), is_leaf=reader.is_list)
    positions = frozenset(index for index, leaf in enumerate(leaves) if reader.is_list(leaf))
    if len(positions) != reader.specs_read:
        raise ArgumentError(
            "dynamic_shapes",
            "a list with a TensorList is passed in several places, of which some have another spec",
            hint="pass copies of the list, or a TensorList for each of its places",
        )
    args, kwargs = pytree.tree_unflatten([reader.stacked_or_same(leaf) for leaf in leaves], structure)
    objects = inputs.table.objects
    if objects is not None:
        objects = pytree.tree_map(
            reader.stacked_or_same, objects, is_leaf=lambda value: reader.is_list(value) or is_object(value)
        )
    table = replace(inputs.table, objects=objects, lists=positions)
    return replace(inputs, args=args, kwargs=kwargs, table=table), specs


def reject_tensor_lists(dynamic_shapes: Any) -> None:
    """Reject specs for lists in other places.

    Raises:
        ArgumentError: If there is one.
    """
    if _has_tensor_list(dynamic_shapes):
        raise ArgumentError(
            "dynamic_shapes",
            "a TensorList is not in the place of a list among the arguments of forward",
            hint="use it as the spec of a parameter of an nn.Module, or of a list inside of dicts, lists and tuples",
        )


def stacked(items: Any, argument: str) -> torch.Tensor:
    """Stack the tensors of an argument.

    Raises:
        ArgumentError: If it is not a list of tensors of one shape and dtype, or empty.
    """
    if not isinstance(items, list):
        raise ArgumentError(
            argument,
            f"expected a list of tensors, got {kind_of(items)}",
            hint="pass [x] for a single tensor x, and list(xs) for the items of a tuple or the rows of a tensor",
        )
    tensors = [torch.as_tensor(item) if isinstance(item, np.ndarray) else item for item in items]
    wrong = [type(item).__name__ for item in tensors if not isinstance(item, torch.Tensor)]
    if wrong:
        raise ArgumentError(argument, f"expected a list of tensors, got a list of {wrong[0]}")
    if not tensors:
        raise ArgumentError(
            argument,
            "the list is empty, but ONNX Runtime requires at least one tensor",
            hint="skip the call for an empty list",
        )
    kinds = [f"{str(item.dtype).removeprefix('torch.')} of shape {list(item.shape)}" for item in tensors]
    other = next((index for index, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise ArgumentError(
            argument,
            "the tensors of a list must have one shape and dtype: "
            f"tensor 0 is {kinds[0]}, tensor {other} is {kinds[other]}",
            hint="pad them to one shape, and pass their sizes as another argument",
        )
    return torch.stack([item.detach() for item in tensors])


def _has_tensor_list(dynamic_shapes: Any) -> bool:
    return any(isinstance(leaf, TensorList) for leaf in pytree.tree_leaves(dynamic_shapes))


class _SpecReader:
    """Traversal of arguments and specs in parallel that stacks the lists with a ``TensorList``.

    Attributes:
        specs_read: The number of ``TensorList`` specs.
    """

    def __init__(self) -> None:
        self.specs_read = 0
        self._lists: dict[int, tuple[Any, torch.Tensor]] = {}

    def is_list(self, value: Any) -> bool:
        """Whether a value is one of the lists."""
        return id(value) in self._lists

    def stacked_or_same(self, value: Any) -> Any:
        """The stacked tensor of a list; other values themselves."""
        return self._lists[id(value)][1] if self.is_list(value) else value

    def read(self, value: Any, spec: Any, label: str) -> Any:
        """The spec with the specs of stacked tensors."""
        if isinstance(spec, TensorList):
            self.specs_read += 1
            # The list is kept, so that no other object gets its id.
            self._lists[id(value)] = (value, stacked(value, label))
            return spec.stacked_dims(self._lists[id(value)][1], label)
        if isinstance(spec, Mapping) and isinstance(value, Mapping):
            path = "{}" if not label else f"{label}[{{!r}}]"
            return {
                key: self.read(value[key], one, path.format(key)) if key in value else one for key, one in spec.items()
            }
        if isinstance(spec, list | tuple) and isinstance(value, list | tuple) and len(spec) == len(value):
            return [
                self.read(item, one, f"{label}[{at}]") for at, (item, one) in enumerate(zip(value, spec, strict=True))
            ]
        return spec
