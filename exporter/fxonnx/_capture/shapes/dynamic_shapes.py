"""Parsing of ``dynamic_shapes`` against the structure of the example inputs.

The input at the same place decides whether a tuple lists the axes of a tensor or the elements of a container. The
result is flat: one record per leaf of the inputs.

The spec of a dim is a name, a ``Dim`` or a dim hint; messages have its label.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from inspect import Parameter
from typing import Any, NamedTuple

import torch
from torch.export import Dim

from fxonnx_translations._torch_compat import pytree

from ...errors import ArgumentError, did_you_mean, kind_of
from ..inputs.example_inputs import BoundInputs
from ..inputs.pytree_objects import COUNTERS

__all__ = [
    "DimHint",
    "DimSpec",
    "DynamicShapes",
    "Leaf",
    "SharedDim",
    "check_example",
    "checked_shapes",
    "dim_expression",
    "dim_label",
    "is_auto",
    "is_counter",
    "name_of_spec",
    "read_shapes_by_parameter",
    "root_name",
    "specs_like",
    "with_spec",
]


_EXAMPLE = 'for example {0: "batch"}'


@dataclass(frozen=True)
class Leaf:
    """One leaf of the inputs with its specs.

    Attributes:
        parameter: The parameter of ``forward``, or the keyword, that it belongs to.
        path: Pytree path inside of the parameter: ``""``, ``[0]``, ``['mask']``.
        value: The example (a fake tensor for an ExportedProgram), which has no part in comparisons.
        dims: Specs of the dynamic axes, in the order of the axes; the key None is the value of an int.
        fixed: Axes that the user declared static.
    """

    parameter: str
    path: str
    value: Any = field(compare=False)
    dims: Mapping[int | None, DimSpec]
    fixed: frozenset[int | None] = frozenset()

    @property
    def label(self) -> str:
        """Name of the leaf in messages: ``x['mask']``."""
        return self.parameter + self.path


@dataclass(frozen=True)
class SharedDim:
    """Dims with the same name and, in every example, the same size.

    Attributes:
        name: The name.
        sizes: The size in each example.
        places: Leaf index and axis of each dim; the axis None is the value of an int.
    """

    name: str
    sizes: tuple[int, ...]
    places: tuple[tuple[int, int | None], ...]


@dataclass(frozen=True)
class DynamicShapes:
    """The user's dynamic shape specification, by leaf.

    Attributes:
        leaves: One per leaf of ``(args, kwargs)``, in the order of the graph inputs.
        inputs: The inputs that the leaves belong to.
        shared: Groups of dims with the same name and the same size in every example.
    """

    leaves: tuple[Leaf, ...]
    inputs: BoundInputs
    shared: tuple[SharedDim, ...] = ()

    @property
    def is_static(self) -> bool:
        """Whether no dim is dynamic."""
        return not any(leaf.dims for leaf in self.leaves)

    def for_torch(self, dim_of: Callable[[DimSpec], Any]) -> dict[str, Any] | None:
        """Convert to the ``dynamic_shapes`` argument of torch.export.

        Args:
            dim_of: Conversion of a spec to torch.export's.
        """
        if self.is_static:
            return None
        specs = iter(
            dim_of(leaf.dims[None])
            if None in leaf.dims
            else {axis: dim_of(spec) for axis, spec in leaf.dims.items()} or None
            for leaf in self.leaves
        )
        args = [specs_like(value, specs) for value in self.inputs.args]
        kwargs = {key: specs_like(value, specs) for key, value in self.inputs.kwargs.items()}
        return dict(self.inputs.signature.bind(*args, **kwargs).arguments)


class _Node(NamedTuple):
    """One level of a pytree: the keys and values of its children, and a function that builds a like node of specs."""

    keys: list[str]
    values: list[Any]
    rebuild: Callable[[list[Any]], Any]


def _children(value: Any) -> _Node | None:
    """One level of a pytree, or None for a leaf. ``rebuild`` returns the container of specs for torch.export."""
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
    # torch.export takes the flattened form of other classes, since they may only accept tensors.
    return _Node(keys, values, list)


def specs_like(value: Any, specs: Iterator[Any]) -> Any:
    """Arrange specs in the structure of ``value``, one per leaf, in the form that torch.export expects."""
    node = _children(value)
    if node is None:
        return next(specs)
    return node.rebuild([specs_like(child, specs) for child in node.values])


def read_shapes_by_parameter(inputs: BoundInputs, dynamic_shapes: Any) -> DynamicShapes:
    """Parse ``dynamic_shapes`` with specs by parameter of ``forward``.

    Raises:
        ArgumentError: If the specs do not match the structure of the inputs.
    """
    reader = _LeafCollector(inputs.flattened_object_ids())
    arg_specs, kwarg_specs = _by_parameter(inputs, dynamic_shapes)
    for name, value, spec in zip(inputs.names(), inputs.args, arg_specs, strict=True):
        parameter, bracket, rest = name.partition("[")
        reader.read(value, spec, parameter, bracket + rest)
    for name, value in inputs.kwargs.items():
        reader.read(value, kwarg_specs[name], name, "")
    return checked_shapes(reader.leaves, inputs)


def checked_shapes(leaves: Sequence[Leaf], inputs: BoundInputs) -> DynamicShapes:
    """Build DynamicShapes from leaves with their specs, and check Dims that several axes share.

    Raises:
        ArgumentError: If axes that share a Dim have different sizes.
    """
    _check_shared(leaves)
    return DynamicShapes(_with_counters(leaves), inputs)


def _with_counters(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Make the token counters of a cache dynamic if a tensor of the same cache layer is."""

    def place(leaf: Leaf) -> tuple[str, str]:
        return leaf.parameter, leaf.path.rpartition(".")[0]

    dynamic = {place(leaf) for leaf in leaves if leaf.dims}
    return tuple(
        replace(leaf, dims={None: Dim.AUTO}) if place(leaf) in dynamic and is_counter(leaf) and not leaf.dims else leaf
        for leaf in leaves
    )


def is_counter(leaf: Leaf) -> bool:
    """Whether a leaf is the token counter of a cache."""
    name = leaf.path.rpartition(".")[2].removesuffix("']")
    return name in COUNTERS and isinstance(leaf.value, int)


def _check_shared(leaves: Sequence[Leaf]) -> None:
    """Check that axes with the same Dim have the same size in the example."""
    first: dict[str, tuple[str, int]] = {}
    for leaf in leaves:
        for axis, spec in leaf.dims.items():
            if not isinstance(spec, Dim) or not isinstance(size := leaf.value.shape[axis], int):
                continue
            place = f"axis {axis} of {leaf.label}"
            other, expected = first.setdefault(spec.__name__, (place, size))
            if size != expected:
                raise _spec_error(
                    f"Dim {spec.__name__!r} is {expected} on {other}, but {size} on {place}",
                    hint="axes with the same Dim must have the same size; use two Dims, or names as strings",
                )


def _spec_error(problem: str, hint: str | None = None) -> ArgumentError:
    return ArgumentError("dynamic_shapes", problem, hint=hint)


def _by_parameter(inputs: BoundInputs, shapes: Any) -> tuple[list[Any], dict[str, Any]]:
    """The specs of the positional inputs and of the keyword inputs."""
    if shapes is None or (isinstance(shapes, Mapping | Sequence) and len(shapes) == 0):
        return [None] * len(inputs.args), dict.fromkeys(inputs.kwargs)
    if isinstance(shapes, Mapping):
        return _from_mapping(inputs, shapes)
    if isinstance(shapes, tuple | list):
        return _from_sequence(inputs, list(shapes))
    raise _spec_error(f"expected a dict, a tuple or a list, got {shapes!r}", 'write {"x": {0: "batch"}}')


def _from_mapping(inputs: BoundInputs, shapes: Mapping[Any, Any]) -> tuple[list[Any], dict[str, Any]]:
    shapes = dict(shapes)
    variable = inputs.var_keyword
    if variable is not None and variable not in inputs.kwargs and isinstance(shapes.get(variable), Mapping):
        shapes |= shapes.pop(variable)
    arguments = inputs.signature.bind(*inputs.args, **inputs.kwargs).arguments
    unknown = [key for key in shapes if key not in arguments]
    if unknown:
        known = ", ".join(inputs.signature.parameters)
        problem = "is not a parameter of forward"
        if unknown[0] in inputs.signature.parameters:
            problem = "is not among the example inputs"
        raise _spec_error(
            f"{unknown[0]!r} {problem}",
            hint=did_you_mean(
                unknown[0],
                arguments,
                f"the keys are names of forward's parameters: {known}; "
                f"the example has: {', '.join(arguments) or 'none'}",
            ),
        )
    specs: list[Any] = []
    for parameter in inputs.signature.parameters.values():
        if len(specs) == len(inputs.args):
            break
        spec = shapes.get(parameter.name)
        if parameter.kind == Parameter.VAR_POSITIONAL:
            specs.extend(_var_positional_specs(parameter.name, spec, len(inputs.args) - len(specs)))
        else:
            specs.append(spec)
    return specs, {name: shapes.get(name) for name in inputs.kwargs}


def _var_positional_specs(name: str, spec: Any, count: int) -> list[Any]:
    if spec is None:
        return [None] * count
    if not isinstance(spec, tuple | list) or len(spec) != count:
        raise _spec_error(
            f"*{name} has {count} inputs, but its spec is {spec!r}", hint=f"pass a tuple of {count} specs"
        )
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
    raise _spec_error(
        f"it has {len(shapes)} elements, but there are {len(names)} inputs: {', '.join(names)}",
        hint="pass one spec per input, None where all sizes are static, or a dict by parameter name",
    )


class _LeafCollector:
    """Traversal of inputs and specs in parallel that collects the leaves."""

    def __init__(self, flattened_object_ids: Collection[int]) -> None:
        self.leaves: list[Leaf] = []
        self._object_ids = flattened_object_ids

    def read(self, value: Any, spec: Any, parameter: str, path: str) -> None:
        node = _children(value)
        if node is None:
            self.leaves.append(with_spec(Leaf(parameter, path, value, {}), spec))
            return
        if id(value) in self._object_ids:
            specs = _object_part_specs(value, spec, parameter + path)
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
            hint = did_you_mean(unknown[0], value, f"its keys are: {', '.join(map(repr, value))}")
            raise _spec_error(f"{label} has no key {unknown[0]!r}", hint)
        return [by_key.get(key) for key in value]
    if isinstance(spec, Mapping) and all(isinstance(key, str) for key in spec):
        fields = [key.lstrip(".") for key in node.keys]
        unknown = [key for key in spec if key not in fields]
        if unknown:
            hint = did_you_mean(unknown[0], fields, f"a {kind} has: {', '.join(fields)}")
            raise _spec_error(f"{label} has no field {unknown[0]!r}", hint)
        return [spec.get(name) for name in fields]
    if type(spec) is type(value) and not isinstance(spec, tuple | list):
        own = _children(spec)
        if own is not None and own.keys == node.keys:
            return own.values
    # torch.export takes a list for an output of transformers, which is a dict and a node of its own.
    if isinstance(spec, tuple | list) and (not isinstance(value, Mapping) or type(value) not in pytree.BUILTIN_TYPES):
        if len(spec) == count:
            return list(spec)
        hint = f"pass {count} specs, None for a static element"
        raise _spec_error(f"{label} has {count} elements, but its spec has {len(spec)}: {spec!r}", hint)
    raise _spec_error(
        f"{label} is a {kind}, but its spec is {spec!r}",
        hint=f"pass a spec of the same structure, with one entry for each of: {', '.join(node.keys)}",
    )


def with_spec(leaf: Leaf, spec: Any) -> Leaf:
    """Apply a spec to a leaf.

    Raises:
        ArgumentError: If the spec does not match the leaf.
    """
    dims = _leaf_dims(leaf.value, spec, leaf.label)
    dynamic = _dynamic_only(dims)
    fixed = frozenset(axis for axis, dim in dims.items() if axis not in dynamic and dim is not None)
    return replace(leaf, dims=dynamic, fixed=fixed)


def check_example(leaves: Sequence[Leaf], values: Sequence[Any]) -> None:
    """Check the sizes of an additional example against the specs.

    Raises:
        ArgumentError: If a spec excludes a size of the example.
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
            raise _spec_error(
                f"{label} is an int, whose spec cannot be a Dim", hint=f"pass its name, {spec.__name__!r}"
            )
        if isinstance(spec, str | DimHint):
            return {None: spec}
        if isinstance(value, int) and spec == value:
            return {}
        raise _spec_error(f"{label} is the int {value}, but its spec is {spec!r}", hint="pass a name or Dim.DYNAMIC")
    kind = "None or frozen" if value is None else kind_of(value)
    raise _spec_error(
        f"{label} is {kind}, which has no dims, but its spec is {spec!r}",
        hint="pass None as its spec: the value becomes a constant of the program",
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
                raise _spec_error(
                    f"{label} is a tensor, but its spec has the key {axis!r}", hint=f"the keys are axes: {_EXAMPLE}"
                )
            if not -rank <= axis < rank:
                raise _spec_error(
                    f"{shape}, so it has no axis {axis}", hint=f"its axes are 0 to {rank - 1}" if rank else None
                )
            if axis % rank in by_axis:
                raise _spec_error(f"axis {axis % rank} of {label} is given twice")
            by_axis[axis % rank] = dim
    elif isinstance(spec, tuple | list):
        if len(spec) != rank:
            raise _spec_error(
                f"{shape}, but its spec has {len(spec)} entries: {spec!r}",
                hint=f"name only the dynamic axes: {_EXAMPLE}",
            )
        by_axis = dict(enumerate(spec))
    else:
        raise _spec_error(
            f"{label} is a tensor, but its spec is {spec!r}", hint=f"pass a dim for each dynamic axis: {_EXAMPLE}"
        )
    for axis, dim in by_axis.items():
        _check_dim(tensor, axis, dim, label)
    return {axis: by_axis[axis] for axis in sorted(by_axis)}


def _check_dim(tensor: torch.Tensor, axis: int, dim: Any, label: str) -> None:
    size = tensor.shape[axis]
    if isinstance(dim, str):
        if not dim:
            raise _spec_error(f"the name of axis {axis} of {label} is empty", f"pass a name: {_EXAMPLE}")
    elif isinstance(dim, int) and not isinstance(dim, bool):
        if isinstance(size, int) and size != dim:
            hint = f"an int keeps the axis static: pass {size}, or a name to make it dynamic"
            raise _spec_error(f"the spec of axis {axis} of {label} is {dim}, but the example has {size}", hint)
    elif isinstance(dim, Dim | DimHint):
        low, high = dim.min, dim.max
        if isinstance(size, int) and ((low is not None and size < low) or (high is not None and size > high)):
            hint = "pass an example within the range of the Dim"
            raise _spec_error(f"the spec of axis {axis} of {label} is {dim!r}, but the example has {size}", hint)
    elif dim is not None:
        raise _spec_error(
            f"the spec of axis {axis} of {label} is {dim!r}",
            hint="pass a name, a torch.export.Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, an int or None",
        )


def _dynamic_only(dims: Mapping[int | None, Any]) -> dict[int | None, DimSpec]:
    """Drop ints, None and ``Dim.STATIC``: dims are static by default."""
    return {
        axis: dim
        for axis, dim in dims.items()
        if isinstance(dim, str | Dim) or (isinstance(dim, DimHint) and dim.type != Dim.STATIC.type)
    }


def _object_part_specs(parts: Mapping[str, Any], spec: Any, label: str) -> list[Any]:
    """Distribute the spec of an object to its tensors, by path (``0.key``, ``0.value``, ``1.key``).

    It is a mapping by path or pattern, ``{"*.key": {2: "past"}}``; or ``{axis: dim}`` for all tensors; or one spec per
    tensor, in pairs by layer or as a list of all keys and a list of all values, torch's form for caches.
    A pattern, or one spec for all tensors, does not apply to numbers and 0-dim tensors.

    Raises:
        ArgumentError: If the spec has a different form, or the order of a list is ambiguous.
    """
    keys = list(parts)
    has_axes = {key: isinstance(part, torch.Tensor) and part.dim() > 0 for key, part in parts.items()}
    if not spec:
        return [None] * len(keys)
    if isinstance(spec, Mapping) and all(isinstance(key, int) for key in spec):
        return [spec if has_axes[key] else None for key in keys]
    if isinstance(spec, Mapping):
        return _by_path(has_axes, spec, label)
    if isinstance(spec, list | tuple):
        tensors = [key for key in keys if key.rpartition(".")[2] not in COUNTERS]
        specs = dict(zip(tensors, _in_order(tensors, spec, label), strict=True))
        return [specs.get(key) for key in keys]
    raise _object_error(keys, label, f"its spec is {spec!r}")


def _object_error(keys: Sequence[str], label: str, problem: str, path: object = None) -> ArgumentError:
    hint = "pass {axis: dim} for all of them, or a dict by path or pattern, such as "
    hint += f"{{'*': {{0: 'batch'}}}}; the paths are: {', '.join(keys)}"
    return ArgumentError(
        "dynamic_shapes",
        f"{label} is an object with {len(keys)} tensors, but {problem}",
        hint=did_you_mean(path, keys, hint),
    )


def _by_path(has_axes: Mapping[str, bool], spec: Mapping[Any, Any], label: str) -> list[Any]:
    keys = list(has_axes)
    unknown = [path for path in spec if not any(fnmatchcase(key, str(path)) for key in keys)]
    if unknown:
        raise _object_error(keys, label, f"no path matches {unknown[0]!r}", unknown[0])
    found: list[Any] = []
    for key in keys:
        patterns = [path for path in spec if has_axes[key] and fnmatchcase(key, str(path))]
        found.append(spec[key] if key in spec else spec[patterns[0]] if patterns else None)
    return found


def _in_order(keys: Sequence[str], spec: Sequence[Any], label: str) -> list[Any]:
    if not all(isinstance(part, list | tuple) and len(part) == len(spec[0]) for part in spec):
        rows: list[list[Any]] = [list(spec)]
    else:
        rows = [list(part) for part in spec]
    direct = [one for row in rows for one in row]
    if len(direct) != len(keys):
        raise _object_error(keys, label, f"its spec has {len(direct)}")
    if all(one == direct[0] for one in direct):
        return direct
    transposed = [one for column in zip(*rows, strict=True) for one in column]
    layers = len(keys) // 2
    if len(rows) == layers and len(rows[0]) == 2 and (layers != 2 or direct == transposed):
        return direct
    if len(rows) == 2 and len(rows[0]) == layers:
        if layers == 2 and direct != transposed:
            raise _object_error(keys, label, "its spec is ambiguous: by layer, or keys before values")
        return transposed
    raise _object_error(keys, label, f"its spec is {spec!r}")


DimHint = type(Dim.DYNAMIC)
"""The type of ``Dim.AUTO``, ``Dim.DYNAMIC`` and ``Dim.STATIC``, which has no public name in torch."""

DimSpec = Any
"""A name (str), a ``Dim`` or a ``DimHint``."""


def is_auto(spec: DimSpec) -> bool:
    """Whether a spec is ``Dim.AUTO``, which allows a dim to be dynamic without requesting it."""
    return isinstance(spec, DimHint) and spec.type == Dim.AUTO.type


def name_of_spec(spec: DimSpec) -> str | None:
    """The dim name of a spec; None for hints and for derived Dims, whose name is an expression."""
    if isinstance(spec, str):
        return spec
    return str(spec.__name__) if isinstance(spec, Dim) and getattr(spec, "root", None) is None else None


def root_name(spec: DimSpec) -> str | None:
    """The name of a Dim, or of the Dim that it is derived from; None for other specs."""
    return str(getattr(spec, "root", spec).__name__) if isinstance(spec, Dim) else None


def dim_label(label: str, axis: int | None) -> str:
    """Label of a dim in messages: ``x axis 0``; the label of the input itself for the value of an int."""
    return label if axis is None else f"{label} axis {axis}"


def dim_expression(label: str, axis: int | None) -> str:
    """Name of a dim without a user's name: ``x.shape[0]``."""
    return label if axis is None else f"{label}.shape[{axis}]"
