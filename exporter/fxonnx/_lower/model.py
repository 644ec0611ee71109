"""The model around its nodes: header, graph inputs, initializers and graph outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch.export.graph_signature import InputKind, OutputKind

from fxonnx_translations._builder import dtypes
from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor, has_content, storage_key
from fxonnx_translations._builder.op import Op
from fxonnx_translations._builder.op_schema import schema_info
from fxonnx_translations._builder.sub_byte import FLOAT4_PAIRS, PER_BYTE, check_codes, onnx_sizes
from fxonnx_translations._builder.value_ranges import INDICES_KEY

from .._capture import Capture
from .._capture.inputs.example_inputs import user_input_names
from .._export_signature import InputRecord
from .._prepare import DerivedWeight, Prepared, Update, same_shape, same_size
from .._request import Request
from .._warnings import warn_user
from ..errors import ArgumentError, StateError, TranslationError
from .sequence_values import joined, split
from .versions import NEWEST_OPSET

__all__ = [
    "NO_ELEMENT_TYPE_HINT",
    "NUMERICS_KEY",
    "OUTPUT_DIMS_KEY",
    "STATE_KEY",
    "IOSpec",
    "add_inputs",
    "add_outputs",
    "constant_value",
    "move_interface_metadata",
    "new_model",
]

_INPUT = "pkg.torch.export.graph_signature.InputSpec."
_OUTPUT = "pkg.torch.export.graph_signature.OutputSpec."
_ORIGINAL = "pkg.torch.onnx.original_node_name"
_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.CUSTOM_OBJ: "object",
}
NO_ELEMENT_TYPE_HINT = (
    "use a dtype that ONNX has for such tensors, uint8 for packed numbers, inside and outside the model"
)
_LARGEST_LITERAL = 1024
"""Maximum number of elements of a tensor constant of the model that is treated like a translation's literal."""
NUMERICS_KEY = "pkg.fxonnx.numerics"
"""Metadata key of the model: ``"exact"`` if it was exported with exact numerics."""
OUTPUT_DIMS_KEY = "pkg.fxonnx.output_dims"
"""Metadata key of the model: JSON, output to axis to the size of a dim that has the caller's name instead."""
STATE_KEY = "pkg.fxonnx.state"
"""Metadata key of the model: JSON, a list of dicts with the name of a mutated tensor, its input and its output."""


@dataclass(frozen=True)
class IOSpec:
    """Names of graph inputs and outputs, and state passed as inputs and outputs.

    Attributes:
        capture: Paths of inputs and outputs, names of output dims, and the request.
        updates: Mutated tensors to return as ``<name>.out`` after the other outputs.
    """

    capture: Capture
    updates: Sequence[Update] = ()

    @property
    def options(self) -> Request:
        """Names of the first graph inputs and outputs, and ``state``."""
        return self.capture.request

    @property
    def state_inputs(self) -> bool:
        """Whether updated parameters and buffers are also inputs ``<name>.in``, with initializers as default values."""
        return self.options.state == "io"

    @property
    def list_inputs(self) -> frozenset[str]:
        """Placeholders of the inputs that are lists of tensors."""
        names = user_input_names(self.capture.exported_program) if self.capture.inputs.lists else []
        return frozenset(names[index] for index in self.capture.inputs.lists)

    @property
    def states(self) -> frozenset[str]:
        """Placeholders of the parameters and buffers that become graph inputs."""
        return frozenset(update.placeholder for update in self.updates if self.state_inputs and not update.is_input)


def new_model(prepared: Prepared, opset: int, ir_version: int) -> ir.Model:
    """An empty model with the header and graph metadata that torch.onnx writes."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main_graph")
    graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"] = prepared.signature.text
    graph.metadata_props["pkg.torch.export.ExportedProgram.range_constraints"] = str(
        prepared.exported_program.range_constraints
    )
    return ir.Model(graph, ir_version=ir_version, producer_name="pytorch", producer_version=torch.__version__)


def report_renamed_parameters(prepared: Prepared, options: Request) -> None:
    """Warn if some parameters, and not all, get names of the user: the names may have been meant for inputs.

    Args:
        prepared: The prepared program.
        options: The options with ``input_names``, which name the parameters after the inputs, as in torch.onnx.
    """
    records = prepared.signature.inputs
    names = options.input_names[sum(record.is_user_input for record in records) :]
    if 0 < len(names) < sum(record.kind == InputKind.PARAMETER for record in records):
        shown = ", ".join(map(repr, names))
        warn_user(f"input_names has more names than the model has inputs: parameters are renamed to {shown}")


def add_inputs(
    prepared: Prepared,
    builder: Builder,
    env: dict[torch.fx.Node, Any],
    io_spec: IOSpec,
) -> tuple[frozenset[ir.Value], Mapping[int, str]]:
    """Create graph inputs and initializers for the placeholders.

    Names are reserved in order of their importance to users: inputs, outputs, weights, then everything else.

    Returns:
        The initializers with more than one use; and the names reserved for outputs, by position.
    """
    placeholders = [node for node in prepared.graph.nodes if node.op == "placeholder"]
    records = list(zip(prepared.signature.inputs, placeholders, strict=True))
    lists: list[tuple[torch.fx.Node, ir.Value]] = []
    wanted = iter(io_spec.options.input_names)
    for record, node in records:
        if record.is_user_input:
            wanted_name = next(wanted, io_spec.capture.inputs.paths.get(record.name))
            if record.name in io_spec.list_inputs:
                lists.append((node, _list_input(record, node, builder, wanted_name)))
                continue
            value = _graph_input(record, node, builder, wanted_name)
            val = node.meta["val"]
            # A number is lowered as its symbolic expression; the graph input only defines the symbol.
            env[node] = value if isinstance(val, torch.Tensor) else builder.symbols.dim(val)
        elif record.is_constant:
            env[node] = record.constant
    for name in io_spec.options.output_names:
        builder.names.unique(name)
    paths = {position: builder.names.unique(path) for position, path in io_spec.capture.output_paths.items()}
    for node, sequence in lists:
        env[node] = _stacked_input(node, sequence, builder)
    weights: dict[Any, ir.Value] = {}
    readers: dict[ir.Value, int] = {}
    states = io_spec.states
    adapters: list[ir.Value] = []
    needed = {source for derived in prepared.derived.values() for source in derived.sources}
    for record, node in records:
        is_state = record.name in states
        is_adapter = record.name in prepared.adapters
        if record.is_weight and (node.users or node in needed or is_state):
            wanted_name = next(wanted, None) if record.kind == InputKind.PARAMETER else None
            if is_state and is_adapter:
                raise ArgumentError(
                    "adapters",
                    f'forward writes to {record.target!r}, which state="io" makes an input already',
                    hint="select other parameters, or pass another state",
                )
            if is_state:
                wanted_name = f"{wanted_name or record.target}.in"
            tensor = prepared.tensor(record)
            other = None if node in needed or is_state else _tied_transpose(tensor, weights)
            if other is not None:
                env[node] = builder.value_of("Transpose", other, perm=[1, 0])
                # Counted as two uses: storing the transpose as well is not worthwhile.
                readers[other] = readers.get(other, 0) + 2
                continue
            value = _initializer(record, tensor, builder, weights, wanted_name, is_state=is_state)
            if (
                value.dtype is not None
                and value.dtype in dtypes.SINCE
                and (is_state or any(user not in prepared.derived for user in node.users))
            ):
                _check_opset(f"the {_KINDS[record.kind]} {value.name!r}", value.dtype, builder.opset_version)
            if is_adapter and value not in adapters:
                adapters.append(value)
            if is_state and value not in builder.graph.inputs:
                _define_dims(value, node.meta["val"], builder)
                builder.graph.inputs.append(value)
            env[node] = value
            readers[value] = readers.get(value, 0) + len(node.users)
    # After the states, which a stateful session passes by position.
    builder.graph.inputs.extend(adapters)
    unused_name = next(wanted, None)
    if unused_name is not None:
        raise ArgumentError(
            "input_names",
            f"{unused_name!r} is not used: {len(io_spec.options.input_names)} names, "
            "but the model has fewer inputs and parameters",
        )
    for node, derived in prepared.derived.items():
        value = _derived_initializer(derived, env, builder)
        env[node] = value
        readers[value] = len(node.users)
    return frozenset(value for value, count in readers.items() if count > 1), paths


def _graph_input(record: InputRecord, node: torch.fx.Node, builder: Builder, wanted: str | None) -> ir.Value:
    name = builder.names.unique(wanted or record.name)
    val = node.meta["val"]
    if isinstance(val, torch.Tensor):
        dims = builder.symbols.dims(val.shape)
        dtype = _element_type(f"the input {name!r}", val.dtype, builder.opset_version)
        shape = _sizes(f"the input {name!r}", dims, val.dtype)
        value = ir.Value(name=name, type=ir.TensorType(dtype))
        builder.set_dims(value, shape)
        builder.write_shape(value, shape)
        builder.symbols.define(value, dims)
    else:
        dtype = ir.DataType.FLOAT if isinstance(val, torch.SymFloat) else ir.DataType.INT64
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]))
        builder.set_dims(value, ())
        builder.symbols.define_scalar(value, builder.symbols.dim(val))
    builder.graph.inputs.append(value)
    _add_input_metadata(value, record, name)
    return value


def _define_dims(value: ir.Value, val: torch.Tensor, builder: Builder) -> None:
    """Give an input with a default value the dims of a buffer that grows."""
    dims = (*builder.symbols.dims(val.shape), *([2] if val.is_complex() else ()))
    if any(not isinstance(dim, int) for dim in dims):
        builder.set_dims(value, dims)
        builder.write_shape(value, dims)
        builder.symbols.define(value, dims)


def _list_input(record: InputRecord, node: torch.fx.Node, builder: Builder, wanted: str | None) -> ir.Value:
    """The graph input for a list of tensors."""
    name = builder.names.unique(wanted or record.name)
    val = node.meta["val"]
    dtype = _element_type(f"the input {name!r}", val.dtype, builder.opset_version)
    shape = _sizes(f"the input {name!r}", builder.symbols.dims(val.shape[1:]), val.dtype)
    value = ir.Value(name=name, type=ir.SequenceType(ir.TensorType(dtype)))
    builder.set_dims(value, shape)
    builder.write_shape(value, shape)
    builder.graph.inputs.append(value)
    _add_input_metadata(value, record, name)
    return value


def _stacked_input(node: torch.fx.Node, sequence: ir.Value, builder: Builder) -> ir.Value:
    """The stacked tensors of a list."""
    dims = builder.symbols.dims(node.meta["val"].shape)
    stacked = joined(sequence, builder, builder.names.unique(f"{sequence.name}_stacked"), dims[0])
    builder.symbols.define(stacked, dims)
    return stacked


def _element_type(what: str, dtype: torch.dtype, opset: int) -> ir.DataType:
    """The element type of an input or weight."""
    try:
        found = dtypes.from_torch(dtype)
    except dtypes.NoElementTypeError as error:
        raise TranslationError(f"{what}: {error}", hint=NO_ELEMENT_TYPE_HINT) from error
    _check_opset(what, found, opset)
    return found


def _check_opset(what: str, dtype: ir.DataType, opset: int) -> None:
    since = dtypes.SINCE.get(dtype, 0)
    if opset < since:
        problem = f"{what} is {dtype.name}, which ONNX does not have at opset {opset}"
        raise ArgumentError("opset_version", problem, hint=f"pass opset_version={since}")


def _sizes(what: str, sizes: Sequence[Any], dtype: torch.dtype) -> tuple[Any, ...]:
    try:
        shape = onnx_sizes(sizes, dtype)
    except ValueError as error:
        raise TranslationError(f"{what}: {error}", hint=NO_ELEMENT_TYPE_HINT) from error
    if dtype == FLOAT4_PAIRS and not isinstance(sizes[-1], int):
        raise TranslationError(f"{what}: the last dim of a tensor of dtype {dtype} must be static")
    return shape


def _check_weight(what: str, tensor: torch.Tensor) -> None:
    """Check that ONNX has the dtype of a weight, and that a sub-byte dtype has all of its elements."""
    _element_type(what, tensor.dtype, NEWEST_OPSET)
    _sizes(what, tensor.shape, tensor.dtype)
    if tensor.dtype in PER_BYTE and has_content(tensor):
        try:
            check_codes(tensor)
        except ValueError as error:
            raise TranslationError(f"{what}: {error}") from error


def constant_value(name: str, constant: torch.Tensor, builder: Builder) -> ir.Value:
    """Return the initializer of a constant of the graph, which equal literals share."""
    real = torch.view_as_real(constant.resolve_conj()) if constant.is_complex() else constant
    what = f"the constant {name!r}"
    _check_weight(what, real)
    _element_type(what, real.dtype, builder.opset_version)
    return builder.constant(real)


def _add_input_metadata(value: ir.Value, record: InputRecord, name: str) -> None:
    value.metadata_props[_INPUT + "kind"] = record.kind.name
    value.metadata_props[_INPUT + "persistent"] = str(record.persistent)
    if name != record.name:
        value.metadata_props[_ORIGINAL] = record.name


def _initializer(
    record: InputRecord,
    tensor: torch.Tensor,
    builder: Builder,
    weights: dict[Any, ir.Value],
    wanted: str | None,
    *,
    is_state: bool,
) -> ir.Value:
    """Create an initializer, one for each storage: tied weights are stored once, under the first name."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor
    key = storage_key(real, str(record.target))
    known = weights.get(key)
    if known is not None:
        return known
    name = builder.names.unique(wanted or record.target or record.name)
    _check_weight(f"the {_KINDS[record.kind]} {name!r}", real)
    # A state is the default value of an input, not a constant that equal literals could share.
    is_constant = record.kind == InputKind.CONSTANT_TENSOR and not is_state
    is_literal = is_constant and type(real) is torch.Tensor and not real.is_meta
    if is_literal and real.numel() <= _LARGEST_LITERAL:
        value = builder.register_literal(name, real.cpu())
    else:
        value = builder.register_weight(name, TorchTensor(real, name=name))
    _add_input_metadata(value, record, name)
    weights[key] = value
    return value


def _tied_transpose(tensor: torch.Tensor, weights: Mapping[Any, ir.Value]) -> ir.Value | None:
    """The initializer of the weight that a matrix is a transposed view of, if there is one."""
    if tensor.dim() != 2 or tensor.is_complex():
        return None
    return weights.get(storage_key(tensor.t(), ""))


def _derived_initializer(derived: DerivedWeight, env: dict[torch.fx.Node, Any], builder: Builder) -> ir.Value:
    """The initializer of a derived weight, named after its first source."""
    sources = [env[node] for node in derived.sources]
    tensors = [source.const_value for source in sources]
    name = builder.names.unique(f"{sources[0].name}::{derived.suffix}")
    are_complex = [node.meta["val"].dtype.is_complex for node in derived.sources]
    recipe, shape = derived.recipe, derived.shape
    if derived.dtype.is_complex or any(are_complex):
        recipe = _as_real_pairs(recipe, are_complex)
        shape = (*shape, 2) if derived.dtype.is_complex else shape
    dtype = _element_type(f"the weight {name!r}", derived.dtype, builder.opset_version)
    shape = onnx_sizes(shape, derived.dtype.to_real() if derived.dtype.is_complex else derived.dtype)
    tensor = DerivedTensor(name, tensors, recipe, dtype, shape)
    value = builder.register_weight(name, tensor)
    value.metadata_props["pkg.fxonnx.derived_from"] = ", ".join(str(source.name) for source in sources)
    value.metadata_props["pkg.fxonnx.recipe"] = derived.suffix
    value.meta[INDICES_KEY] = {str(env[node].name) for node in derived.indices}
    return value


def _as_real_pairs(recipe: Callable[..., torch.Tensor], are_complex: Sequence[bool]) -> Callable[..., torch.Tensor]:
    """Wrap a recipe for complex tensors so that it takes and returns real tensors with a last axis of 2."""

    def recipe_of_pairs(*sources: torch.Tensor) -> torch.Tensor:
        given = [
            torch.view_as_complex(source.contiguous()) if is_complex else source
            for source, is_complex in zip(sources, are_complex, strict=True)
        ]
        result = recipe(*given)
        return torch.view_as_real(result.resolve_conj()) if result.is_complex() else result

    return recipe_of_pairs


def add_outputs(
    prepared: Prepared, builder: Builder, env: dict[torch.fx.Node, Any], io_spec: IOSpec, paths: Mapping[int, str]
) -> list[dict[str, str | None]]:
    """Add graph outputs for the user outputs, in order; None outputs have no ONNX counterpart.

    Args:
        prepared: The prepared program.
        builder: Builder of the graph.
        env: FX node to lowered value.
        io_spec: The user's names of the first outputs, and the mutated tensors returned after them.
        paths: Position to name for the other outputs.

    Returns:
        The metadata of the mutated tensors: name, input, output and initial value of each.
    """
    graph = builder.graph
    (output_node,) = [node for node in prepared.graph.nodes if node.op == "output"]
    wanted = iter(io_spec.options.output_names)
    user_outputs = [
        (record, argument)
        for record, argument in zip(prepared.signature.outputs, output_node.args[0], strict=False)
        if record.kind == OutputKind.USER_OUTPUT
    ]
    op = Op(builder)
    for position, (record, argument) in enumerate(user_outputs):
        if argument is None:
            continue
        found = env[argument] if isinstance(argument, torch.fx.Node) else argument
        if found is None or isinstance(found, str):
            continue
        if isinstance(found, float):
            # In double precision, like a float computed from sizes.
            value = op.const(found, ir.DataType.DOUBLE)
        else:
            value = found if isinstance(found, ir.Value) else op.scalar(found)
        wanted_name = next(wanted, paths.get(position))
        dims = io_spec.capture.output_dims.get(position, {})
        if position in io_spec.capture.output_lists:
            value, wanted_name = _split_output(value, builder, wanted_name, record.name or "output"), None
            # The length of a sequence is not in its type.
            dims = {axis - 1: dim for axis, dim in dims.items() if axis}
        _add_output(value, builder, wanted_name, record.name or "output", record.kind)
        for axis, dim in dims.items():
            _name_dim(graph.outputs[-1], builder, axis, dim)
    unused_name = next(wanted, None)
    if unused_name is not None:
        raise ArgumentError(
            "output_names",
            f"{unused_name!r} is not used: {len(io_spec.options.output_names)} names for {len(graph.outputs)} outputs",
        )
    return _return_updates(prepared, builder, env, io_spec)


def move_interface_metadata(model: ir.Model) -> None:
    """Keep the metadata of graph inputs and outputs out of files: tools that merge models compare these entries.

    The sizes of dims that have the caller's names become metadata of the model.
    """
    for value in (*model.graph.inputs, *model.graph.outputs):
        if not value.is_initializer():
            value.meta.update(value.metadata_props)
            value.metadata_props.clear()
    sizes = {value.name: value.meta[OUTPUT_DIMS_KEY] for value in model.graph.outputs if OUTPUT_DIMS_KEY in value.meta}
    if sizes:
        model.metadata_props[OUTPUT_DIMS_KEY] = json.dumps(sizes)


def _add_output(value: ir.Value, builder: Builder, name: str | None, fallback: str, kind: OutputKind) -> None:
    if value.producer() is None or value in builder.graph.outputs:
        # An output needs its own Identity if it is an input, a weight or already an output, whose names stay.
        value = _identity(value, builder, name or builder.names.unique(fallback))
    elif name is not None:
        value.metadata_props[_ORIGINAL] = str(value.name)
        value.name = name
    value.metadata_props[_OUTPUT + "kind"] = kind.name
    builder.graph.outputs.append(value)


def _split_output(stacked: ir.Value, builder: Builder, name: str | None, fallback: str) -> ir.Value:
    """The sequence of the rows of an output, under the name that the tensor would have as an output."""
    if name is None:
        is_own = stacked.producer() is not None and stacked not in builder.graph.outputs
        name = str(stacked.name) if is_own else builder.names.unique(fallback)
        if is_own:
            stacked.name = builder.names.unique(f"{name}_stacked")
    return split(stacked, builder, name)


def _name_dim(value: ir.Value, builder: Builder, axis: int, name: str) -> None:
    """Record a name for a dim of an output instead of its symbolic expression."""
    if value.shape is None:
        builder.write_shape(value, builder.dims(value))
    shape: Any = value.shape
    size = str(shape[axis])
    if size != name:
        value.meta.setdefault(OUTPUT_DIMS_KEY, {})[str(axis)] = size
    value.shape = ir.Shape([*shape[:axis], name, *shape[axis + 1 :]])


def _return_updates(
    prepared: Prepared, builder: Builder, env: Mapping[torch.fx.Node, Any], io_spec: IOSpec
) -> list[dict[str, str | None]]:
    inputs = {node.name: node for node in prepared.graph.nodes if node.op == "placeholder"}
    pairs: list[dict[str, str | None]] = []
    for update in io_spec.updates:
        if update.placeholder in io_spec.list_inputs:
            raise StateError(
                f"forward writes to a tensor of the list {update.name!r}, which cannot be an output",
                hint='write to clones of the tensors, or pass state="warn" to drop the updates',
            )
        is_given = update.is_input or io_spec.state_inputs
        if is_given and not _may_follow(
            update.value.meta["val"], inputs[update.placeholder].meta["val"], update.is_input
        ):
            raise StateError(
                f"forward resizes {update.name!r}, and an input of an ONNX model has one shape",
                hint="create the tensor in forward, or give it the shape of its content before the export",
            )
        given = str(env[inputs[update.placeholder]].name) if is_given else None
        label = given if update.is_input else update.name
        name = builder.names.unique(f"{label}.out")
        kind = OutputKind.USER_INPUT_MUTATION if update.is_input else OutputKind.BUFFER_MUTATION
        _add_output(env[update.value], builder, name, name, kind)
        pairs.append(
            {
                "name": update.name,
                "input": given,
                "output": name,
                "initial": None if update.is_input else given,
            }
        )
    return pairs


def _may_follow(new: torch.Tensor, old: torch.Tensor, is_input: bool) -> bool:
    """Whether a tensor may be passed as the input that it was: a buffer's dynamic dims may have any size."""
    if is_input or new.dim() != old.dim():
        return same_shape(new, old)
    pairs = zip(new.shape, old.shape, strict=True)
    return all(not isinstance(size, int) or same_size(other, size) for other, size in pairs)


def _identity(value: ir.Value, builder: Builder, name: str) -> ir.Value:
    _check_identity(value, builder, name)
    copy = ir.Value(name=name, type=value.type)
    # ONNX Runtime lacks kernels of Identity for these types, but has kernels of a Cast to the same type.
    op_type, attributes = "Identity", []
    if value.dtype is not None and value.dtype in builder.missing_kernels.get("Identity", ()):
        op_type, attributes = "Cast", [ir.AttrInt64("to", int(value.dtype))]
    metadata = {"namespace": f"{name}: {op_type}"}
    node = ir.Node("", op_type, [value], attributes, outputs=[copy], metadata_props=metadata)
    builder.graph.append(node)
    builder.created.append(node)
    if value in builder.unranked:
        builder.unranked.add(copy)
    builder.set_dims(copy, builder.dims(value))
    builder.write_shape(copy, builder.dims(value))
    return copy


def _check_identity(value: ir.Value, builder: Builder, name: str) -> None:
    """Raise for an output whose element type does not exist at the opset, unless an operator rejected it before."""
    known = [
        opset
        for opset in range(builder.opset_version, NEWEST_OPSET + 1)
        if value.dtype is None
        or ((schema := schema_info("Identity", opset)) is not None and schema.can_return(value.dtype))
    ]
    if value.dtype is not None and builder.opset_version not in known:
        problem = (
            f"the output {name!r} is {value.dtype.name}, which ONNX does not have at opset {builder.opset_version}"
        )
        raise ArgumentError("opset_version", problem, hint=f"pass opset_version={known[0]}" if known else None)
