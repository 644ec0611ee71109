"""A model as the bytes of its file, with the tensors left where they are until they are written.

A ModelProto is put together by hand on two levels only: ``graph`` is appended to the other fields of the model,
and the initializers to the other fields of the graph. Protobuf allows fields in any order, so this is the
message that ``onnx.save`` would write, without ever holding the weights a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeGuard

import onnx
import onnx_ir as ir

from fxonnx_translations._builder.initializers import DerivedTensor

from ..errors import SaveError
from .checkpoints import FileTensor
from .external_data import Form, Side, arrange

__all__ = [
    "INLINE_BYTES",
    "PROTOBUF_LIMIT",
    "Layout",
    "external_bytes",
    "is_weight",
    "layout",
    "serialize",
    "write_layout",
    "write_side",
]

INLINE_BYTES = 256  # tensors up to this size stay in the model file
PROTOBUF_LIMIT = 2**31 - 1  # no parser reads a longer message
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_PERSISTENT = "pkg.torch.export.graph_signature.InputSpec.persistent"

Piece = bytes | ir.TensorProtocol


@dataclass(frozen=True)
class Layout:
    """What goes where.

    Attributes:
        pieces: The model file in order: bytes, and tensors whose bytes come at that place.
        size: Length of the model file.
        side: What is in the side file.
        elsewhere: The files of others that the model points into.
    """

    pieces: tuple[Piece, ...]
    size: int
    side: Side
    elsewhere: frozenset[Path] = frozenset()


def external_bytes(model: ir.Model) -> int:
    """How many bytes a side file of this model would hold, alignment left out."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None and _is_streamed(tensor))


def outside(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The initializers that are in a side file, if there is one."""
    return {
        name: tensor
        for name, value in model.graph.initializers.items()
        if (tensor := value.const_value) is not None and _is_streamed(tensor) and tensor.nbytes > INLINE_BYTES
    }


def serialize(model: ir.Model) -> onnx.ModelProto:
    """The model as a protobuf message, without a ``value_info`` of initializers, whose types are their own.

    Tools that replace initializers, ONNX Runtime's quantization among them, do not know that those would have to be
    replaced with them, and the model that they write contradicts itself. The metadata is that of the tensors instead.
    """
    proto = ir.serde.serialize_model(model)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    count = 0
    for value in proto.graph.value_info:
        # onnx_ir writes them before the others.
        if value.name not in tensors:
            break
        count += 1
        known = {entry.key for entry in tensors[value.name].metadata_props}
        tensors[value.name].metadata_props.extend(entry for entry in value.metadata_props if entry.key not in known)
    del proto.graph.value_info[:count]
    return proto


def layout(
    model: ir.Model,
    *,
    include_initializers: bool = True,
    keep_initializers_as_inputs: bool = False,
    location: str | None = None,
    form: Form = "raw",
    base: Path | None = None,
    offsets: Mapping[str, int] | None = None,
) -> Layout:
    """Lays out the file of a model; the model is only read, and no tensor is computed.

    Args:
        model: The model.
        include_initializers: Whether the weights are in the file, or graph inputs; constants that are no weights always
            are in it.
        keep_initializers_as_inputs: Whether initializers are graph inputs, too.
        location: Name of the side file for tensors above ``INLINE_BYTES``, or None to have all in one file.
        form: Of the side file.
        base: Directory of the model file, if tensors of safetensors files there are to stay where they are.
        offsets: Name of each initializer that ``outside`` tells to where its bytes begin in a file of several models.

    Raises:
        SaveError: If an initializer has no value, or a tensor is to stay where it is in a file outside of ``base``.
    """
    graph = model.graph
    stored = {name for name, value in graph.initializers.items() if include_initializers or not is_weight(value)}
    large = {name: tensor for name, tensor in outside(model).items() if name in stored}
    references = {} if base is None else {name: tensor.stored for name, tensor in large.items() if _is_file(tensor)}
    written = {name: tensor for name, tensor in large.items() if name not in references}
    side = arrange(written if location is not None else {}, form) if offsets is None else Side(offsets, b"", ())
    stand_ins = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            raise SaveError(f"initializer {name!r} has no value")
        placeholder = tensor
        if name in references and base is not None:
            placeholder = _external(tensor, name, _within(base, references[name].path), references[name].offset)
        elif name in side.offsets and location is not None:
            placeholder = _external(tensor, name, location, side.offsets[name])
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
    proto = serialize(_view(model, inputs, list(stand_ins.values())))
    headers = [header for header in proto.graph.initializer if header.name in tensors]
    pieces = _pieces(proto, headers, tensors)
    elsewhere = frozenset(where.path.resolve() for where in references.values())
    return Layout(tuple(pieces), sum(map(_size, pieces)), side, elsewhere)


def _is_file(tensor: ir.TensorProtocol) -> TypeGuard[FileTensor]:
    """Whether a tensor can be read from where it is."""
    return isinstance(tensor, FileTensor) and tensor.stored.offset % tensor.dtype.itemsize == 0


def _within(base: Path, path: Path) -> str:
    """The path of a file from a directory that it is in: runtimes follow no others, and no symbolic links.

    Raises:
        SaveError: If it is not in it.
    """
    try:
        return path.resolve().relative_to(base.resolve()).as_posix()
    except ValueError:
        raise SaveError(
            f"{path} is not in {base.resolve()}, and ONNX files point only to files beside or below them",
            hint="save the model into the directory of the checkpoint",
        ) from None


def _is_streamed(tensor: ir.TensorProtocol) -> bool:
    """Everything but strings, which have no raw bytes, is written from where it is."""
    return tensor.dtype != ir.DataType.STRING


def is_weight(value: ir.Value) -> bool:
    """Whether a state_dict brings the value back; shapes, scalars and lifted constants are part of the graph."""
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
    # Quantization annotations are kept here by onnx_ir.
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


def _view(model: ir.Model, inputs: Sequence[ir.Value], initializers: Sequence[ir.Value]) -> ir.Model:
    """The same model with other inputs and initializers; nodes and outputs are shared."""
    graph = model.graph
    view = ir.GraphView(
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
        view,  # type: ignore[arg-type]  # documented for GraphView, typed for Graph
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
        # raw_data is set, and empty, exactly where _without_bytes stood in.
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
    """Tag and length of a length-delimited protobuf field."""
    return _varint(field << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def write_layout(file: BinaryIO, laid_out: Layout) -> None:
    """Writes the model file, one tensor after the other.

    Raises:
        SaveError: If a tensor can not be computed.
    """
    for piece in laid_out.pieces:
        if isinstance(piece, bytes):
            file.write(piece)
        else:
            write_tensor(file, piece)


def write_side(file: BinaryIO, side: Side) -> None:
    """Writes a side file, one tensor after the other.

    Raises:
        SaveError: If a tensor can not be computed.
    """
    file.write(side.head)
    for offset, tensor in side.tensors:
        file.seek(offset)
        write_tensor(file, tensor)


def write_tensor(file: BinaryIO, tensor: ir.TensorProtocol) -> None:
    """Writes the bytes of one tensor.

    Raises:
        SaveError: If it can not be computed, or is not as long as its dtype and shape say.
    """
    start = file.tell()
    try:
        # The protocol asks for tobytes only; tofile does without the copy.
        tofile = getattr(tensor, "tofile", None)
        if tofile is None:
            file.write(tensor.tobytes())
        else:
            tofile(file)
    except OSError:
        raise
    except Exception as error:
        raise SaveError(f"initializer {tensor.name!r} can not be written: {error}") from error
    written = file.tell() - start
    if written != tensor.nbytes:
        # The lengths around it are already in the file: going on would write a file nobody can read.
        raise SaveError(f"initializer {tensor.name!r} has {written} bytes, its dtype and shape say {tensor.nbytes}")
