"""A model as the bytes of its file, with the tensors left where they are until they are written.

A ModelProto is put together by hand on two levels only: ``graph`` is appended to the other fields of the model,
and the initializers to the other fields of the graph. Protobuf allows fields in any order, so this is the
message that ``onnx.save`` would write, without ever holding the weights a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import onnx
import onnx_ir as ir

from fxonnx_translations.weights import DerivedTensor

from ..errors import SaveError

__all__ = ["INLINE_BYTES", "PROTOBUF_LIMIT", "Layout", "external_bytes", "layout", "write_layout", "write_tensor"]

INLINE_BYTES = 256  # tensors up to this size stay in the model file
PROTOBUF_LIMIT = 2**31 - 1  # no parser reads a longer message
ALIGNMENT = 4096  # the ONNX specification asks for page-aligned offsets, so that the file can be mapped
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
        side: Offset and tensor of everything in the side file, in order.
    """

    pieces: tuple[Piece, ...]
    size: int
    side: tuple[tuple[int, ir.TensorProtocol], ...]


def external_bytes(model: ir.Model) -> int:
    """How many bytes a side file of this model would hold, alignment left out."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None and _is_streamed(tensor))


def layout(
    model: ir.Model,
    *,
    include_initializers: bool = True,
    keep_initializers_as_inputs: bool = False,
    location: str | None = None,
) -> Layout:
    """Lays out the file of a model; the model is only read, and no tensor is computed.

    Args:
        model: The model.
        include_initializers: Whether the weights are in the file; constants that are no weights always are.
        keep_initializers_as_inputs: Whether initializers are graph inputs, too.
        location: Name of the side file for tensors above ``INLINE_BYTES``, or None to have all in one file.

    Raises:
        SaveError: If an initializer has no value.
    """
    graph = model.graph
    stored = {name for name, value in graph.initializers.items() if include_initializers or not _is_weight(value)}
    side: list[tuple[int, ir.TensorProtocol]] = []
    stand_ins = {}
    end = 0
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            raise SaveError(f"initializer {name!r} has no value")
        placeholder = tensor
        if name in stored and location is not None and _is_streamed(tensor) and tensor.nbytes > INLINE_BYTES:
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            side.append((offset, tensor))
            end = offset + tensor.nbytes
            placeholder = _external(tensor, name, location, offset)
        elif _is_streamed(tensor):
            placeholder = _without_bytes(tensor, name)
        stand_ins[name] = _stand_in(value, placeholder)
    inputs = [stand_ins.get(str(value.name), value) for value in graph.inputs]
    if keep_initializers_as_inputs:
        inputs += [stand_in for name, stand_in in stand_ins.items() if graph.initializers[name] not in graph.inputs]
    proto = ir.serde.serialize_model(_view(model, inputs, list(stand_ins.values())))
    headers = [header for header in proto.graph.initializer if header.name in stored]
    pieces = _pieces(proto, headers, {name: graph.initializers[name].const_value for name in stored})
    return Layout(tuple(pieces), sum(map(_size, pieces)), tuple(side))


def _is_streamed(tensor: ir.TensorProtocol) -> bool:
    """Everything but strings, which have no raw bytes, is written from where it is."""
    return tensor.dtype != ir.DataType.STRING


def _is_weight(value: ir.Value) -> bool:
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
