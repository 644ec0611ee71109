"""Products of stored integer codes and their scales, as weight-only quantization writes them out."""

from __future__ import annotations

import onnx_ir as ir

from .._builder.dtypes import FLOAT, FLOAT8
from .._builder.op import Op
from .._builder.stored_codes import is_stored
from .stored_weights import dequantize_stored, is_code

__all__ = ["scaled_codes"]


def scaled_codes(op: Op, product: ir.Value, scale: ir.Value) -> ir.Value | None:
    """Return a product of codes and scales as DequantizeLinear, or None if it is another product.

    ``x @ codes * scale`` becomes ``x @ (codes * scale)``, which runtimes compute without a copy of the weight in floating
    point.

    Args:
        op: The op object.
        product: One factor: ``codes``, or ``x @ codes``, in FLOAT.
        scale: The other factor.
    """
    producer = product.producer()
    if producer is None or not is_stored(scale) or op.dtype_of(product) != FLOAT or op.opset < 13:
        return None
    codes = _codes(op, product)
    if codes is not None:
        axis = op.rank_of(codes) - 1
        shape = op.dims(scale)
        fits = len(shape) in (0, 1, axis + 1)
        return dequantize_stored(op, codes, scale, axis=axis) if fits else None
    if producer.op_type != "MatMul" or len(producer.inputs) != 2 or producer.inputs[1] is None:
        return None
    codes = _codes(op, producer.inputs[1])
    if codes is None or op.rank_of(codes) != 2 or not _scales_columns(op, scale, op.dims(codes)[1]):
        return None
    weight = dequantize_stored(op, codes, scale, axis=1)
    return None if weight is None else op.MatMul(producer.inputs[0], weight)


def _codes(op: Op, value: ir.Value) -> ir.Value | None:
    """Return the stored integers that a value was cast from; ONNX Runtime multiplies by float8 numbers faster as they are."""
    producer = value.producer()
    source = producer.inputs[0] if producer is not None and producer.op_type == "Cast" else None
    if source is None or not is_code(op, source) or op.dtype_of(source) in FLOAT8:
        return None
    return source


def _scales_columns(op: Op, scale: ir.Value, columns: object) -> bool:
    shape = op.dims(scale)
    return all(size == 1 for size in shape[:-1]) and (not shape or shape[-1] in (1, columns)) and len(shape) <= 2
