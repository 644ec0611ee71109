"""Streaming serialization of a model: the layout of its protobuf message, with tensors copied only when written.

The wire format is assembled by hand at two levels only: ``graph`` is appended to the other fields of the ModelProto,
and the initializers to the other fields of the GraphProto. Protobuf allows fields in any order, so the result is
equivalent to the message that ``onnx.save`` writes, without a second copy of the weights in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import onnx
import onnx_ir as ir

from fxonnx_translations._builder.initializers import DerivedTensor

from .._lower.metadata import FX_VALUE_KEY, LEVELS, PROVENANCE_KEYS, TRACE_KEYS, MetadataLevel
from .._progress import Counter
from ..errors import ArgumentError, SaveError, did_you_mean
from .checkpoints import FileTensor
from .external_data import ExternalDataFile, ExternalDataFormat, lay_out_external_data

__all__ = [
    "INLINE_BYTES",
    "PROTOBUF_LIMIT",
    "ModelLayout",
    "check_level",
    "external_tensors",
    "is_weight",
    "lay_out_model",
    "serialize",
    "tensor_bytes",
    "write_external_data",
    "write_model",
]

INLINE_BYTES = 256  # tensors up to this size are never external
PROTOBUF_LIMIT = 2**31 - 1  # parsers reject longer messages
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_PERSISTENT = "pkg.torch.export.graph_signature.InputSpec.persistent"

Piece = bytes | ir.TensorProtocol


@dataclass(frozen=True)
class ModelLayout:
    """The layout of a model file and its external data.

    Attributes:
        pieces: The model file in order: bytes, and tensors to be written in place.
        size: Length of the model file.
        external: The layout of the external data file.
        referenced: Existing files that the model references as external data.
    """

    pieces: tuple[Piece, ...]
    size: int
    external: ExternalDataFile
    referenced: frozenset[Path] = frozenset()

    def written_bytes(self) -> Counter:
        """A count of the bytes that are written, of the model and its external data."""
        return Counter("bytes", self.size + self.external.size)


def tensor_bytes(model: ir.Model) -> int:
    """Return the total size in bytes of the tensors of a model, without alignment."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None and _is_streamed(tensor))


def external_tensors(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Return the initializers that are stored as external data if it is enabled."""
    return {
        name: tensor
        for name, value in model.graph.initializers.items()
        if (tensor := value.const_value) is not None and _is_streamed(tensor) and tensor.nbytes > INLINE_BYTES
    }


def serialize(model: ir.Model) -> onnx.ModelProto:
    """Convert the model to a protobuf message without ``value_info`` entries for initializers.

    Tools that replace initializers, such as ONNX Runtime's quantization, do not update such entries and would write an
    inconsistent model. The metadata of the entries moves to the tensors.
    """
    proto = ir.serde.serialize_model(model)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    count = 0
    for value in proto.graph.value_info:
        # onnx_ir writes the entries of initializers first.
        if value.name not in tensors:
            break
        count += 1
        known = {entry.key for entry in tensors[value.name].metadata_props}
        tensors[value.name].metadata_props.extend(entry for entry in value.metadata_props if entry.key not in known)
    del proto.graph.value_info[:count]
    return proto


def lay_out_model(
    model: ir.Model,
    *,
    include_initializers: bool = True,
    keep_initializers_as_inputs: bool = False,
    location: str | None = None,
    format: ExternalDataFormat = "raw",
    base: Path | None = None,
    offsets: Mapping[str, int] | None = None,
    metadata: MetadataLevel | None = None,
) -> ModelLayout:
    """Compute the layout of a model file; the model is not modified and no tensor is evaluated.

    Args:
        model: The model.
        include_initializers: Whether the weights are stored; they are graph inputs otherwise. Constants that are not
            weights are always stored.
        keep_initializers_as_inputs: Whether initializers are also graph inputs.
        location: Name of the external data file for tensors above ``INLINE_BYTES``; None for a single file.
        format: Format of the external data file.
        base: Directory of the model file, if tensors of safetensors files in it are to be referenced instead of copied.
        offsets: Offsets of the ``external_tensors`` in an external data file shared by several models.
        metadata: The level of the metadata that is stored; None for the model's.

    Raises:
        SaveError: If an initializer has no value, or a referenced file is not in ``base`` or below.
    """
    graph = model.graph
    stored = {name for name, value in graph.initializers.items() if include_initializers or not is_weight(value)}
    large = {name: tensor for name, tensor in external_tensors(model).items() if name in stored}
    references = (
        {} if base is None else {name: tensor.stored for name, tensor in large.items() if _is_referenceable(tensor)}
    )
    written = {name: tensor for name, tensor in large.items() if name not in references}
    external = (
        lay_out_external_data(written if location is not None else {}, format)
        if offsets is None
        else ExternalDataFile(offsets, b"", ())
    )
    stand_ins = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            raise SaveError(f"initializer {name!r} has no value")
        placeholder = tensor
        if name in references and base is not None:
            placeholder = _external(tensor, name, _relative_path(base, references[name].path), references[name].offset)
        elif name in external.offsets and location is not None:
            placeholder = _external(tensor, name, location, external.offsets[name])
        elif _is_streamed(tensor):
            placeholder = _without_bytes(tensor, name)
        stand_ins[name] = _stand_in(value, placeholder)
    inputs = [stand_ins.get(str(value.name), value) for value in graph.inputs]
    inputs += [
        stand_in
        for name, stand_in in stand_ins.items()
        if (keep_initializers_as_inputs or name not in stored) and graph.initializers[name] not in graph.inputs
    ]
    tensors = {name: value.const_value for name, value in graph.initializers.items() if name in stored}
    proto = serialize(_shallow_copy(model, inputs, list(stand_ins.values())))
    _reduce_metadata(proto, metadata or "full")
    headers = [header for header in proto.graph.initializer if header.name in tensors]
    pieces = _pieces(proto, headers, tensors)
    referenced = frozenset(stored.path.resolve() for stored in references.values())
    return ModelLayout(tuple(pieces), sum(map(_size, pieces)), external, referenced)


def _is_referenceable(tensor: ir.TensorProtocol) -> TypeGuard[FileTensor]:
    """Whether a tensor is stored in a file at an aligned offset, so that it can be referenced there."""
    return isinstance(tensor, FileTensor) and tensor.stored.offset % tensor.dtype.itemsize == 0


def _relative_path(base: Path, path: Path) -> str:
    """Return the path of a file relative to the directory of the model; runtimes reject other paths and symlinks."""
    try:
        return path.resolve().relative_to(base.resolve()).as_posix()
    except ValueError:
        raise SaveError(
            f"{path} is not in {base.resolve()}; external data must be in the directory of the model or below",
            hint="save the model into the directory of the checkpoint",
        ) from None


def _is_streamed(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor has raw bytes that can be streamed; string tensors have none."""
    return tensor.dtype != ir.DataType.STRING


def is_weight(value: ir.Value) -> bool:
    """Whether an initializer comes from the state_dict, unlike shapes, scalars and lifted constants."""
    if isinstance(value.const_value, DerivedTensor):
        return True
    kind = value.metadata_props.get(_KIND)
    return kind == "PARAMETER" or (kind == "BUFFER" and value.metadata_props.get(_PERSISTENT) != "False")


def _stand_in(value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    stand_in = ir.Value(
        name=value.name,
        shape=value.shape,
        type=value.type,
        doc_string=value.doc_string,
        const_value=tensor,
        metadata_props=dict(value.metadata_props),
    )
    # onnx_ir keeps quantization annotations in ``meta``.
    stand_in.meta.update(value.meta)
    return stand_in


def _without_bytes(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return ir.LazyTensor(
        _empty,
        tensor.dtype,
        ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _empty() -> ir.TensorProtocol:
    return ir.tensor([], dtype=ir.DataType.UINT8)


def _external(tensor: ir.TensorProtocol, name: str, location: str, offset: int) -> ir.TensorProtocol:
    return ir.ExternalTensor(
        location,
        offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _shallow_copy(model: ir.Model, inputs: Sequence[ir.Value], initializers: Sequence[ir.Value]) -> ir.Model:
    """Copy a model with other inputs and initializers; nodes and outputs are shared."""
    graph = model.graph
    graph_view = ir.GraphView(
        inputs,
        graph.outputs,
        nodes=graph,
        initializers=initializers,
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )
    return ir.Model(
        graph_view,  # type: ignore[arg-type]  # documented for GraphView, typed for Graph
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=tuple(model.functions.values()),
        metadata_props=dict(model.metadata_props),
        device_configurations=model.device_configurations,
    )


def _pieces(
    proto: onnx.ModelProto,
    headers: Iterable[onnx.TensorProto],
    tensors: dict[str, ir.TensorProtocol | None],
) -> list[Piece]:
    initializers: list[Piece] = []
    for header in headers:
        tensor = tensors[header.name]
        # raw_data is set, and empty, only for the tensors of _without_bytes.
        if tensor is not None and header.HasField("raw_data"):
            header.ClearField("raw_data")
            message = header.SerializeToString() + _prefix(_TENSOR_RAW_DATA, tensor.nbytes)
            initializers.append(_prefix(_GRAPH_INITIALIZER, len(message) + tensor.nbytes) + message)
            initializers.append(tensor)
        else:
            message = header.SerializeToString()
            initializers.append(_prefix(_GRAPH_INITIALIZER, len(message)) + message)
    proto.graph.ClearField("initializer")
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    length = len(graph) + sum(map(_size, initializers))
    return [proto.SerializeToString() + _prefix(_MODEL_GRAPH, length) + graph, *initializers]


def _size(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.nbytes


def _prefix(field: int, length: int) -> bytes:
    """Encode tag and length of a length-delimited protobuf field."""
    return _varint(field << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def write_model(file: BinaryIO, layout: ModelLayout, written: Counter) -> None:
    """Write a model file, one tensor at a time.

    Args:
        file: The file.
        layout: The pieces of the model.
        written: Counts the bytes.

    Raises:
        SaveError: If a tensor cannot be evaluated.
    """
    for piece in layout.pieces:
        if isinstance(piece, bytes):
            file.write(piece)
        else:
            write_tensor(file, piece)
        written.add(_size(piece))


def write_external_data(file: BinaryIO, external: ExternalDataFile, written: Counter) -> None:
    """Write an external data file, one tensor at a time.

    Args:
        file: The file.
        external: Its layout.
        written: Counts the bytes.

    Raises:
        SaveError: If a tensor cannot be evaluated.
    """
    file.write(external.header)
    for offset, tensor in external.tensors:
        file.seek(offset)
        write_tensor(file, tensor)
        written.add(tensor.nbytes)


def write_tensor(file: BinaryIO, tensor: ir.TensorProtocol) -> None:
    """Write the bytes of one tensor.

    Raises:
        SaveError: If it cannot be evaluated, or its length does not match its dtype and shape.
    """
    start = file.tell()
    try:
        # TensorProtocol requires tobytes only; tofile avoids the copy.
        tofile = getattr(tensor, "tofile", None)
        if tofile is None:
            file.write(tensor.tobytes())
        else:
            tofile(file)
    except OSError:
        raise
    except Exception as error:
        raise SaveError(f"initializer {tensor.name!r} cannot be written: {error}") from error
    written = file.tell() - start
    if written != tensor.nbytes:
        # The enclosing lengths are already written: the file would be unreadable.
        raise SaveError(
            f"initializer {tensor.name!r} has {written} bytes, but its dtype and shape require {tensor.nbytes}"
        )


def check_level(level: Any, exported: MetadataLevel) -> None:
    """Check a level of metadata for a file.

    Args:
        level: The level; None for the model's.
        exported: The level of the export.

    Raises:
        ArgumentError: If it is not a level, or the model does not have the metadata.
    """
    if level is None:
        return
    if level not in LEVELS:
        expected = ", ".join(map(repr, LEVELS))
        raise ArgumentError("metadata", f"expected {expected}, got {level!r}", hint=did_you_mean(level, LEVELS))
    if LEVELS.index(level) > LEVELS.index(exported):
        hint = f"export with metadata={level!r}"
        raise ArgumentError("metadata", f"the program was exported with metadata={exported!r}", hint=hint)


def _reduce_metadata(proto: onnx.ModelProto, level: MetadataLevel) -> None:
    """Remove metadata of nodes and values in place, in functions and subgraphs as well."""
    if level == "full":
        return
    keys = TRACE_KEYS if level == "names" else PROVENANCE_KEYS
    _reduce(proto.graph, keys.__contains__)
    for function in proto.functions:
        _reduce(function, keys.__contains__)


def _reduce(owner: Any, is_removed: Callable[[str], bool]) -> None:
    """Remove entries from the nodes and values of a graph or function."""
    for node in owner.node:
        _remove(node.metadata_props, is_removed)
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _reduce(body, is_removed)
    if is_removed(FX_VALUE_KEY):
        values: Iterable[Any] = owner.value_info
        if isinstance(owner, onnx.GraphProto):
            values = (*values, *owner.input, *owner.output, *owner.initializer)
        for value in values:
            _remove(value.metadata_props, is_removed)


def _remove(entries: Any, is_removed: Callable[[str], bool]) -> None:
    kept = [entry for entry in entries if not is_removed(entry.key)]
    if len(kept) < len(entries):
        del entries[:]
        entries.extend(kept)
