"""``dynamic_shapes``, read against the inputs it is about.

What a tuple means, axes of a tensor or elements of a tuple of tensors, is decided by the input it stands for. The
result is flat: one record per leaf of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any, NamedTuple

import torch
from torch.export import Dim

from fxonnx_translations._torch_compat import pytree

from ...errors import ArgumentError
from ..inputs.example_inputs import BoundInputs
from ..inputs.pytree_objects import COUNTERS
from .object_specs import object_part_specs

__all__ = [
    "DimSpec",
    "DynamicShapes",
    "Leaf",
    "SharedDim",
    "check_example",
    "fill",
    "is_counter",
    "read_shapes_by_parameter",
    "settled",
    "with_spec",
]

DimHint = type(Dim.DYNAMIC)
"""The type of ``Dim.AUTO``, ``Dim.DYNAMIC`` and ``Dim.STATIC``; torch gives it no public name."""

DimSpec = Any
"""A name (str), a ``Dim`` or a ``DimHint``."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of the inputs.

    Attributes:
        parameter: The parameter of ``forward``, or the keyword, that it belongs to.
        path: Where in it: ``""``, ``[0]``, ``['mask']``.
        value: The example (a fake tensor for an ExportedProgram).
        dims: Specs by axis, in the order of the axes; the key None stands for the value of an int.
        fixed: DynamicAxes of which the user said that they are static.
    """

    parameter: str
    path: str
    value: Any
    dims: Mapping[int | None, DimSpec]
    fixed: frozenset[int | None] = frozenset()

    @property
    def label(self) -> str:
        """What to call it in messages."""
        return self.parameter + self.path


@dataclass(frozen=True)
class SharedDim:
    """Several dims with one name and, in every example, one size.

    Attributes:
        name: The name.
        sizes: The size in each example.
        places: Position among the leaves of the inputs, and axis; None is the value of an int.
    """

    name: str
    sizes: tuple[int, ...]
    places: tuple[tuple[int, int | None], ...]


@dataclass(frozen=True)
class DynamicShapes:
    """What the user wants of the sizes.

    Attributes:
        leaves: One per leaf of ``(args, kwargs)``, in that order, which is the order of the graph inputs.
        inputs: The inputs they belong to.
        shared: Dims that have one name, and one size in every example.
    """

    leaves: tuple[Leaf, ...]
    inputs: BoundInputs
    shared: tuple[SharedDim, ...] = ()

    @property
    def is_static(self) -> bool:
        """Whether every size stays as in the examples."""
        return not any(leaf.dims for leaf in self.leaves)

    def for_torch(self, dim_of: Callable[[DimSpec], Any]) -> dict[str, Any] | None:
        """``dynamic_shapes`` as torch.export takes it.

        Args:
            dim_of: What to pass to torch for a spec.
        """
        if self.is_static:
            return None
        specs = iter(
            dim_of(leaf.dims[None])
            if None in leaf.dims
            else {axis: dim_of(spec) for axis, spec in leaf.dims.items()} or None
            for leaf in self.leaves
        )
        args = [fill(value, specs) for value in self.inputs.args]
        kwargs = {key: fill(value, specs) for key, value in self.inputs.kwargs.items()}
        return dict(self.inputs.signature.bind(*args, **kwargs).arguments)


class _Node(NamedTuple):
    keys: list[str]
    values: list[Any]
    rebuild: Callable[[list[Any]], Any]


def _children(value: Any) -> _Node | None:
    """One level of a pytree, or None for a leaf. ``rebuild`` makes what torch.export expects in the place of it."""
    kind = pytree._get_node_type(value)
    definition = pytree.SUPPORTED_NODES.get(kind)
    if definition is None:
        return None
    values, context = definition.flatten_fn(value)
    values = list(values)
    keys = [f"[{index}]" for index in range(len(values))]
    if definition.flatten_with_keys_fn is not None:
        keys = [pytree.keystr((key,)) for key, _ in definition.flatten_with_keys_fn(value)[0]]
    if kind in pytree.BUILTIN_TYPES:
        return _Node(keys, values, lambda specs: definition.unflatten_fn(specs, context))
    # torch.export wants the flattened form of other classes: they may not be able to hold anything but tensors.
    return _Node(keys, values, list)


def fill(value: Any, specs: Iterator[Any]) -> Any:
    """One spec after the other in the places of the leaves of ``value``, in the form torch.export expects."""
    node = _children(value)
    if node is None:
        return next(specs)
    return node.rebuild([fill(child, specs) for child in node.values])


def read_shapes_by_parameter(inputs: BoundInputs, dynamic_shapes: Any) -> DynamicShapes:
    """Reads ``dynamic_shapes``.

    Raises:
        ArgumentError: If it does not fit the inputs; it lists what there is.
    """
    reader = _Reader(inputs.flattened_object_ids())
    arg_specs, kwarg_specs = _by_parameter(inputs, dynamic_shapes)
    for name, value, spec in zip(inputs.names(), inputs.args, arg_specs, strict=True):
        parameter, bracket, rest = name.partition("[")
        reader.read(value, spec, parameter, bracket + rest)
    for name, value in inputs.kwargs.items():
        reader.read(value, kwarg_specs[name], name, "")
    return settled(reader.leaves, inputs)


def settled(leaves: Sequence[Leaf], inputs: BoundInputs) -> DynamicShapes:
    """The shapes, once every spec has been read.

    Raises:
        ArgumentError: If axes that share a Dim have several sizes.
    """
    _check_shared(leaves)
    return DynamicShapes(_with_counters(leaves), inputs)


def _with_counters(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """A cache's counter of tokens is as dynamic as the tensors beside it."""

    def place(leaf: Leaf) -> tuple[str, str]:
        return leaf.parameter, leaf.path.rpartition(".")[0]

    dynamic = {place(leaf) for leaf in leaves if leaf.dims}
    return tuple(
        replace(leaf, dims={None: Dim.AUTO}) if place(leaf) in dynamic and is_counter(leaf) and not leaf.dims else leaf
        for leaf in leaves
    )


def is_counter(leaf: Leaf) -> bool:
    """Whether a leaf is the number of tokens in a cache."""
    name = leaf.path.rpartition(".")[2].removesuffix("']")
    return name in COUNTERS and isinstance(leaf.value, int)


def _check_shared(leaves: Sequence[Leaf]) -> None:
    """One Dim on two axes says that they are always equal; the examples have to be, then."""
    first: dict[str, tuple[str, int]] = {}
    for leaf in leaves:
        for axis, spec in leaf.dims.items():
            if not isinstance(spec, Dim) or not isinstance(size := leaf.value.shape[axis], int):
                continue
            place = f"axis {axis} of {leaf.label}"
            other, expected = first.setdefault(spec.__name__, (place, size))
            if size != expected:
                raise _wrong(
                    f"Dim {spec.__name__!r} is {expected} on {other}, but {size} on {place}",
                    hint="one Dim means one size; use two Dims, or names as strings",
                )


def _wrong(problem: str, hint: str | None = None) -> ArgumentError:
    return ArgumentError("dynamic_shapes", problem, hint=hint)


def _by_parameter(inputs: BoundInputs, shapes: Any) -> tuple[list[Any], dict[str, Any]]:
    """The specs of the positional inputs and of the keyword inputs."""
    if shapes is None or (isinstance(shapes, Mapping | Sequence) and len(shapes) == 0):
        return [None] * len(inputs.args), dict.fromkeys(inputs.kwargs)
    if isinstance(shapes, Mapping):
        return _from_mapping(inputs, shapes)
    if isinstance(shapes, tuple | list):
        return _from_sequence(inputs, list(shapes))
    raise _wrong(f"expected a dict, a tuple or a list, got {shapes!r}")


def _from_mapping(inputs: BoundInputs, shapes: Mapping[Any, Any]) -> tuple[list[Any], dict[str, Any]]:
    shapes = dict(shapes)
    variable = inputs.var_keyword
    if variable is not None and variable not in inputs.kwargs and isinstance(shapes.get(variable), Mapping):
        shapes |= shapes.pop(variable)
    arguments = inputs.signature.bind(*inputs.args, **inputs.kwargs).arguments
    unknown = [key for key in shapes if key not in arguments]
    if unknown:
        known = ", ".join(inputs.signature.parameters)
        what = "is no parameter of forward"
        if unknown[0] in inputs.signature.parameters:
            what = "is not among the example inputs"
        raise _wrong(
            f"{unknown[0]!r} {what}",
            hint=f"the keys are names of forward's parameters: {known}; given are: {', '.join(arguments) or 'none'}",
        )
    specs: list[Any] = []
    for parameter in inputs.signature.parameters.values():
        if len(specs) == len(inputs.args):
            break
        spec = shapes.get(parameter.name)
        if parameter.kind == Parameter.VAR_POSITIONAL:
            specs.extend(_elements(parameter.name, spec, len(inputs.args) - len(specs)))
        else:
            specs.append(spec)
    return specs, {name: shapes.get(name) for name in inputs.kwargs}


def _elements(name: str, spec: Any, count: int) -> list[Any]:
    if spec is None:
        return [None] * count
    if not isinstance(spec, tuple | list) or len(spec) != count:
        raise _wrong(f"*{name} has {count} inputs, but its spec is {spec!r}", hint=f"pass a tuple of {count} specs")
    return list(spec)


def _from_sequence(inputs: BoundInputs, shapes: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    arguments = inputs.signature.bind(*inputs.args, **inputs.kwargs).arguments
    names = list(arguments)
    if len(shapes) == len(names):
        variable = next(
            (p.name for p in inputs.signature.parameters.values() if p.kind == Parameter.VAR_POSITIONAL), None
        )
        if variable not in names or isinstance(shapes[names.index(variable)], tuple | list | None):
            return _from_mapping(inputs, dict(zip(names, shapes, strict=True)))
    count = len(inputs.args)
    if len(shapes) == count:
        return shapes, dict.fromkeys(inputs.kwargs)
    if len(shapes) == count + len(inputs.kwargs):
        return shapes[:count], dict(zip(inputs.kwargs, shapes[count:], strict=True))
    raise _wrong(
        f"it has {len(shapes)} elements, but there are {len(names)} inputs: {', '.join(names)}",
        hint="pass one spec per input, None where all sizes are static, or a dict by parameter name",
    )


class _Reader:
    """Walks inputs and specs together and collects the leaves."""

    def __init__(self, flattened_object_ids: Collection[int]) -> None:
        self.leaves: list[Leaf] = []
        self._stand_ins = flattened_object_ids

    def read(self, value: Any, spec: Any, parameter: str, path: str) -> None:
        node = _children(value)
        if node is None:
            self.leaves.append(with_spec(Leaf(parameter, path, value, {}), spec))
            return
        if id(value) in self._stand_ins:
            specs = object_part_specs(value, spec, parameter + path)
        else:
            specs = _child_specs(value, node, spec, parameter + path)
        for key, child, child_spec in zip(node.keys, node.values, specs, strict=True):
            self.read(child, child_spec, parameter, path + key)


def _child_specs(value: Any, node: _Node, spec: Any, label: str) -> list[Any]:
    """One spec for each child of a container."""
    count = len(node.values)
    if spec is None or (isinstance(spec, Mapping) and not spec):
        return [None] * count
    kind = type(value).__name__
    if isinstance(spec, Mapping) and isinstance(value, Mapping):
        by_key: dict[Any, Any] = dict(spec)
        unknown = [key for key in by_key if key not in value]
        if unknown:
            raise _wrong(f"{label} has no key {unknown[0]!r}", hint=f"its keys are: {', '.join(map(repr, value))}")
        return [by_key.get(key) for key in value]
    if isinstance(spec, Mapping) and all(isinstance(key, str) for key in spec):
        fields = [key.lstrip(".") for key in node.keys]
        unknown = [key for key in spec if key not in fields]
        if unknown:
            raise _wrong(f"{label} has no field {unknown[0]!r}", hint=f"a {kind} has: {', '.join(fields)}")
        return [spec.get(name) for name in fields]
    if type(spec) is type(value) and not isinstance(spec, tuple | list):
        own = _children(spec)
        if own is not None and own.keys == node.keys:
            return own.values
    if isinstance(spec, tuple | list) and not isinstance(value, Mapping):
        if len(spec) == count:
            return list(spec)
        raise _wrong(f"{label} has {count} elements, but its spec has {len(spec)}: {spec!r}")
    raise _wrong(
        f"{label} is a {kind}, but its spec is {spec!r}",
        hint=f"pass a spec of the same structure, with one entry for each of: {', '.join(node.keys)}",
    )


def with_spec(leaf: Leaf, spec: Any) -> Leaf:
    """The leaf with the dims that a spec gives to it.

    Raises:
        ArgumentError: If the spec does not fit the leaf.
    """
    dims = _leaf_dims(leaf.value, spec, leaf.label)
    dynamic = _only_dynamic(dims)
    fixed = frozenset(axis for axis, dim in dims.items() if axis not in dynamic and dim is not None)
    return replace(leaf, dims=dynamic, fixed=fixed)


def check_example(leaves: Sequence[Leaf], values: Sequence[Any]) -> None:
    """Checks the sizes of another example against the specs.

    Args:
        leaves: The leaves of the inputs.
        values: Their values in the other example; None where it does not give one.

    Raises:
        ArgumentError: If a size is not one that the spec allows.
    """
    others = [
        replace(leaf, value=value)
        for leaf, value in zip(leaves, values, strict=True)
        if isinstance(value, torch.Tensor)
    ]
    for leaf in others:
        for axis, spec in leaf.dims.items():
            if axis is not None:
                _check_dim(leaf.value, axis, spec, leaf.label)
    _check_shared(others)


def _leaf_dims(value: Any, spec: Any, label: str) -> dict[int | None, DimSpec]:
    if isinstance(value, torch.Tensor):
        return _tensor_dims(value, spec, label)
    if spec is None or (isinstance(spec, Mapping | tuple | list) and not spec):
        return {}
    if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        if isinstance(spec, Dim):
            raise _wrong(f"{label} is an int, which can not be a Dim", hint=f"pass its name, {spec.__name__!r}")
        if isinstance(spec, str | DimHint):
            return {None: spec}
        if isinstance(value, int) and spec == value:
            return {}
        raise _wrong(f"{label} is the int {value}, but its spec is {spec!r}", hint="pass a name or Dim.DYNAMIC")
    raise _wrong(
        f"{label} is a {type(value).__name__}, which has no dims, but its spec is {spec!r}",
        hint="pass None for it: its value becomes part of the model",
    )


def _tensor_dims(tensor: torch.Tensor, spec: Any, label: str) -> dict[int | None, DimSpec]:
    rank = tensor.dim()
    shape = f"{label} has shape {tuple(tensor.shape)}"
    if spec is None:
        return {}
    by_axis: dict[int, Any] = {}
    if isinstance(spec, Mapping):
        for axis, dim in spec.items():
            if isinstance(axis, bool) or not isinstance(axis, int):
                raise _wrong(f"{label} is a tensor, but its spec has the key {axis!r}", hint="the keys are axes")
            if not -rank <= axis < rank:
                raise _wrong(
                    f"{shape}, so it has no axis {axis}", hint=f"its axes are 0 to {rank - 1}" if rank else None
                )
            if axis % rank in by_axis:
                raise _wrong(f"axis {axis % rank} of {label} is given twice")
            by_axis[axis % rank] = dim
    elif isinstance(spec, tuple | list):
        if len(spec) != rank:
            raise _wrong(f"{shape}, but its spec has {len(spec)} entries: {spec!r}", hint="pass {axis: dim} instead")
        by_axis = dict(enumerate(spec))
    else:
        raise _wrong(f"{label} is a tensor, but its spec is {spec!r}", hint="pass {axis: dim}")
    for axis, dim in by_axis.items():
        _check_dim(tensor, axis, dim, label)
    return {axis: by_axis[axis] for axis in sorted(by_axis)}


def _check_dim(tensor: torch.Tensor, axis: int, dim: Any, label: str) -> None:
    size = tensor.shape[axis]
    if isinstance(dim, str):
        if not dim:
            raise _wrong(f"the name of axis {axis} of {label} is empty")
    elif isinstance(dim, int) and not isinstance(dim, bool):
        if isinstance(size, int) and size != dim:
            raise _wrong(f"axis {axis} of {label} is to be {dim}, but the example has {size}")
    elif isinstance(dim, Dim | DimHint):
        low, high = dim.min, dim.max
        if isinstance(size, int) and ((low is not None and size < low) or (high is not None and size > high)):
            raise _wrong(f"axis {axis} of {label} is to be in the range of {dim!r}, but the example has {size}")
    elif dim is not None:
        raise _wrong(
            f"axis {axis} of {label} is given as {dim!r}",
            hint="pass a name, a torch.export.Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, an int or None",
        )


def _only_dynamic(dims: Mapping[int | None, Any]) -> dict[int | None, DimSpec]:
    """Without the specs that say what is so anyway: a size not asked to be dynamic is static."""
    return {
        axis: dim
        for axis, dim in dims.items()
        if isinstance(dim, str | Dim) or (isinstance(dim, DimHint) and dim.type != Dim.STATIC.type)
    }
