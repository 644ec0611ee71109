"""Example inputs that the program takes in another form than the model, or not at all.

Lists of a dynamic number of tensors are stacked; ``dynamic_scalars`` become tensors, and other numbers constants, as do
the tensors in ``frozen``.

The program takes and returns a list of a dynamic number of tensors as one stacked tensor.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fxonnx_translations._torch_compat import pytree

from ..._context_values import activated, active
from ..._public import public
from ...errors import ArgumentError, CaptureError, are_names, did_you_mean, kind_of
from ..rewriting.operators.sequences import StackedList
from ..shapes.dynamic_shapes import DimHint, DimSpec, DynamicShapes, Leaf, checked_shapes, read_shapes_by_parameter
from ..shapes.spec_keys import GraphInputs, dotted_name
from .example_inputs import BoundInputs
from .pytree_objects import flatten_objects, is_object

__all__ = [
    "ListResults",
    "TensorList",
    "freeze_inputs",
    "frozen_arguments",
    "recorded_list_results",
    "reject_tensor_lists",
    "restore_frozen",
    "scalars_to_tensors",
    "stack_lists",
    "stacked",
    "stacked_results",
    "with_dynamic_ints",
    "with_pieces",
    "with_scalar_branch",
]


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


def freeze_inputs(inputs: BoundInputs, patterns: Collection[str], input_names: Sequence[str]) -> BoundInputs:
    """Replace the tensors to freeze by None, which torch.export treats as a constant, and keep their values apart.

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
    if not are_names(names):
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
    """The failure of a capture; if it is a branch on a data-dependent value, with the names of the numbers."""
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


@dataclass
class ListResults:
    """The lists among the results of the current capture.

    Attributes:
        positions: Their indices among the leaves of the results.
    """

    positions: frozenset[int] = frozenset()


def recorded_list_results() -> AbstractContextManager[ListResults]:
    """Record the results that are lists of a dynamic number of tensors inside the context.

    Yields:
        The record; filled while the context is active.
    """
    return activated(ListResults())


def with_pieces(tree: Any, positions: Collection[int]) -> Any:
    """Replace the stacked tensors at the given leaf positions by lists of their pieces."""
    if not positions:
        return tree
    leaves, structure = pytree.tree_flatten(tree)
    return pytree.tree_unflatten(
        [StackedList([leaf]) if index in positions else leaf for index, leaf in enumerate(leaves)], structure
    )


def stacked_results(outputs: Any) -> Any:
    """The results as a pytree of tensors: objects are flattened, and lists of dynamic length stacked and recorded."""
    found: list[Any] = []

    def stack(leaf: Any) -> Any:
        if not isinstance(leaf, StackedList):
            return leaf
        found.append(leaf.stacked)
        return found[-1]

    stacked = flatten_objects(pytree.tree_map(stack, outputs, is_leaf=_is_leaf))
    results = active(ListResults)
    if results is not None:
        leaves = pytree.tree_leaves(stacked)
        results.positions = frozenset(
            index for index, leaf in enumerate(leaves) if any(leaf is tensor for tensor in found)
        )
    return stacked


def _is_leaf(value: Any) -> bool:
    # In this order: the search for tensors in an object would iterate over a list, which fixes its length.
    return isinstance(value, StackedList) or is_object(value)
