"""Matrix products of quantized operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir
import torch

from .._aten.linalg.matmul import rows_times_matrices
from .._aten.view import swapped
from .._builder.dtypes import FLOAT, FLOAT8, INT32, UINT8
from .._builder.op import Op, Unsupported
from .._builder.stored_codes import derive_stored, is_stored
from .._registry import translates
from .stored_weights import dequantize_stored, storable_dtype

# ---- integers


@translates("aten::_int_mm")
def _int_mm(op: Op, self: ir.Value, mat2: ir.Value) -> ir.Value:
    """aten::_int_mm(Tensor self, Tensor mat2) -> Tensor

    ONNX Runtime computes with an unsigned left operand and its zero point 128 up to 46 times as fast as with a signed one.
    """
    if op.dtype_of(self) == UINT8:
        return op.MatMulInteger(self, mat2)
    return op.MatMulInteger(_plus_128(op, self), mat2, op.const(128, UINT8))


def _plus_128(op: Op, value: ir.Value) -> ir.Value:
    """Return INT8 numbers plus 128 as UINT8."""
    producer = value.producer()
    source = None if producer is None else producer.inputs[0]
    if producer is not None and source is not None and producer.op_type == "QuantizeLinear":
        zero_point = producer.inputs[2] if len(producer.inputs) > 2 else None
        if zero_point is not None and op.is_zero(zero_point) and not op.rank_of(zero_point):
            return op.QuantizeLinear(source, producer.inputs[1], op.const(128, UINT8))
    return op.cast(op.Add(op.cast(value, INT32), op.const(128, INT32)), UINT8)


# ---- integer weights


@translates("aten::_weight_int8pack_mm")
def _weight_int8pack_mm(op: Op, self: ir.Value, mat2: ir.Value, scales: ir.Value) -> ir.Value:
    """aten::_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor"""
    weight = dequantize_stored(op, mat2, scales, axis=0, result=op.dtype_of(self))
    if weight is not None:
        return op.MatMul(self, swapped(op, weight, -2, -1))
    columns = swapped(op, op.cast(mat2, op.dtype_of(self)), -2, -1)
    return op.Mul(op.MatMul(self, columns), op.cast(scales, op.dtype_of(self)))


@translates("aten::_weight_int4pack_mm_for_cpu")
def _weight_int4pack_mm_for_cpu(
    op: Op, self: ir.Value, mat2: ir.Value, qGroupSize: int, qScaleAndZeros: ir.Value
) -> ir.Value:
    """aten::_weight_int4pack_mm_for_cpu(Tensor self, Tensor mat2, int qGroupSize, Tensor qScaleAndZeros) -> Tensor

    The weight is ``(code - 8) * scale + zero``. The zeros, one for each group, are multiplied by the sums of the groups of
    ``self``, so that the codes and scales alone are a matrix that runtimes do not dequantize.
    """
    if not is_stored(mat2) or not is_stored(qScaleAndZeros):
        raise Unsupported("a packed weight that is computed in the model")
    rows = int(op.dims(mat2)[0])
    groups = int(op.dims(qScaleAndZeros)[0])
    codes = derive_stored(op.builder, [mat2], "codes", partial(_unpacked_for_cpu, shape=(rows, groups * qGroupSize)))

    def parameter(name: str, recipe: Callable[[torch.Tensor], torch.Tensor]) -> ir.Value:
        return derive_stored(op.builder, [qScaleAndZeros], name, recipe)

    scale = parameter("scale", lambda both: both[..., 0].float())
    zeros = parameter("zeros", lambda both: both[..., 1].float())
    narrowest = storable_dtype(op, -8, 7)
    weight = dequantize_stored(op, _transposed(op, codes), scale, dtype=narrowest, block_size=qGroupSize)
    if weight is None:
        raise Unsupported("groups that do not divide the input features")
    x = op.cast(self, FLOAT)
    sums = op.ReduceSum(op.reshape(x, [op.dims(x)[0], groups, qGroupSize]), [2], keepdims=0)
    return op.cast(op.Add(op.MatMul(x, weight), op.MatMul(sums, zeros)), op.result.dtype)


def _transposed(op: Op, codes: ir.Value) -> ir.Value:
    """Return the transpose of a stored matrix as an initializer."""
    return derive_stored(op.builder, [codes], "transposed", torch.t)


def _unpacked_for_cpu(packed: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return the codes of ``_convert_weight_to_int4pack_for_cpu`` minus 8, int8 of the given shape.

    The layout depends on the instruction set. It is a permutation of nibbles: packing the digits of positions shows it.
    """
    if packed.is_meta:
        return torch.empty(shape, dtype=torch.int8, device="meta")
    count = shape[0] * shape[1]
    position = torch.zeros(count, dtype=torch.int64)
    for digit in range((max(count - 1, 1).bit_length() + 3) // 4):
        digits = (torch.arange(count) >> 4 * digit & 15).to(torch.int32).reshape(shape)
        position |= _nibbles(torch.ops.aten._convert_weight_to_int4pack_for_cpu(digits, 1)).long() << 4 * digit
    codes = torch.empty(count, dtype=torch.int8)
    codes[position] = _nibbles(packed) - 8
    return codes.reshape(shape)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    flat = packed.reshape(-1).view(torch.uint8)
    return torch.stack([flat & 15, flat >> 4], 1).reshape(-1).to(torch.int8)


@translates("aten::_dyn_quant_matmul_4bit")
def _dyn_quant_matmul_4bit(
    op: Op, inp: ir.Value, packed_weights: ir.Value, block_size: int, in_features: int, out_features: int
) -> ir.Value:
    """aten::_dyn_quant_matmul_4bit(Tensor inp, Tensor packed_weights, int block_size, int in_features, int out_features) -> Tensor

    Rows of the input are rounded to 8 bits. The packed weight is the one of torch's portable kernel, a vector of float32:
    bytes of two codes, scales, biases.
    """
    blocks, codes_end = in_features // block_size, in_features * out_features // 2
    scales_end = codes_end + out_features * blocks
    size = op.dims(packed_weights)[-1]
    if (
        not is_stored(packed_weights)
        or op.rank_of(packed_weights) != 1
        or size
        not in (
            scales_end,
            scales_end + out_features,
        )
    ):
        raise Unsupported("a weight packed for another kernel than torch's portable one, or computed in the model")

    def part(name: str, recipe: Callable[[torch.Tensor], torch.Tensor]) -> ir.Value:
        return derive_stored(op.builder, [packed_weights], name, recipe, key=(block_size, in_features))

    def codes_of(packed: torch.Tensor) -> torch.Tensor:
        return (_nibbles(packed[:codes_end].to(torch.uint8)) - 8).reshape(out_features, in_features).t()

    codes = part("codes", codes_of)
    scale = part("scale", lambda packed: packed[codes_end:scales_end].reshape(out_features, blocks).t())
    weight = dequantize_stored(op, codes, scale, dtype=storable_dtype(op, -8, 7))
    if weight is None:
        raise Unsupported("blocks that do not divide the input features")
    product = op.MatMul(_rounded_rows(op, inp), weight)
    return op.Add(product, part("bias", lambda packed: packed[scales_end:])) if size > scales_end else product


def _rounded_rows(op: Op, x: ir.Value) -> ir.Value:
    """Quantize each row to 8 bits with a zero point of its own, ties away from zero, and dequantize it."""
    low = op.Min(op.ReduceMin(x, [-1], keepdims=1), 0.0)
    high = op.Max(op.ReduceMax(x, [-1], keepdims=1), 0.0)
    span = op.Sub(high, low)
    scale = op.Where(op.Equal(span, 0.0), op.const(1.0, FLOAT), op.Div(op.const(255.0, FLOAT), span))
    least, most = op.Mul(low, scale), op.Mul(high, scale)
    error = op.Add(op.Add(least, -128.0), op.Add(most, 127.0))
    shift = op.Where(
        op.Greater(error, 0.0), op.Sub(op.const(-128.0, FLOAT), least), op.Sub(op.const(127.0, FLOAT), most)
    )
    zero = op.Round(op.Clip(shift, -128.0, 127.0))
    quotient = op.Mul(x, scale)
    nearest = op.Round(quotient)
    is_tie = op.Equal(op.Abs(op.Sub(quotient, nearest)), 0.5)
    away = op.Where(is_tie, op.Add(quotient, op.Mul(op.Sign(quotient), 0.5)), nearest)
    codes = op.Clip(op.Add(away, zero), -128.0, 127.0)
    return op.Mul(op.Sub(codes, zero), op.Reciprocal(scale))


# ---- float8


@translates("aten::_scaled_mm")
def _scaled_mm(
    op: Op,
    self: ir.Value,
    mat2: ir.Value,
    scale_a: ir.Value,
    scale_b: ir.Value,
    bias: ir.Value | None = None,
    scale_result: ir.Value | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> ir.Value:
    """aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor

    ONNX Runtime folds the casts of weights; a DequantizeLinear of float8 it would compute in every run.
    """
    if scale_result is not None:
        raise Unsupported("_scaled_mm with scale_result")
    rows, columns = op.dims(self)[0], op.dims(mat2)[1]
    left = _scaled_float8(op, self, scale_a, ((), (1,), (1, 1), (rows, 1)))
    product = op.MatMul(left, _scaled_float8(op, mat2, scale_b, ((), (1,), (1, 1), (1, columns))))
    return op.cast(product if bias is None else op.Add(product, op.cast(bias, FLOAT)), op.result.dtype)


def _scaled_float8(op: Op, value: ir.Value, scale: ir.Value, shapes: tuple[tuple[object, ...], ...]) -> ir.Value:
    """Return a float8 matrix in FLOAT, times its scales, which have one of the given shapes."""
    if op.dtype_of(value) not in FLOAT8 or op.dtype_of(scale) != FLOAT or op.dims(scale) not in shapes:
        raise Unsupported("scales of blocks, which torch computes on GPUs only")
    return op.Mul(op.cast(value, FLOAT), scale)


@translates("aten::_scaled_grouped_mm")
def _scaled_grouped_mm(
    op: Op,
    self: ir.Value,
    mat2: ir.Value,
    scale_a: ir.Value,
    scale_b: ir.Value,
    offs: ir.Value | None = None,
    bias: ir.Value | None = None,
    scale_result: ir.Value | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> ir.Value:
    """aten::_scaled_grouped_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? offs=None, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor

    Groups of rows, each times its matrix, with a scale for each row and for each column of a matrix.
    """
    if bias is not None or scale_result is not None or offs is None:
        raise Unsupported("_scaled_grouped_mm with a bias or scale_result, or without offsets")
    if op.rank_of(self) != 2 or op.rank_of(mat2) != 3:
        raise Unsupported("_scaled_grouped_mm of other operands than rows and matrices")
    groups, _, columns = op.dims(mat2)
    if op.dims(scale_a) != op.dims(self)[:1] or op.dims(scale_b) != (groups, columns):
        raise Unsupported("_scaled_grouped_mm with other scales than one for each row and column")
    left = op.Mul(op.cast(self, FLOAT), op.Unsqueeze(scale_a, [1]))
    right = op.Mul(op.cast(mat2, FLOAT), op.Unsqueeze(scale_b, [1]))
    return op.cast(rows_times_matrices(op, left, right, offs), op.result.dtype)
