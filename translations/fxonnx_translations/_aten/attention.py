"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import sympy
import torch

from .._builder.constants import array_of
from .._builder.dtypes import BOOL, DOUBLE, FLOAT, FLOAT16, HALF_FLOATS, to_torch_dtype
from .._builder.op import Op, Unsupported
from .._builder.value_ranges import every_row_unmasked, is_computed_from_weights
from .._registry import translates
from .._torch_compat import FloorDiv, Max
from .view import swapped

__all__ = ["attention_mask", "attention_type", "simplest_mask"]

_SMALL_MASK = 256 * 256
"""Constant masks of at most this many elements are stored as floats, which take four times the memory of booleans."""


@translates("aten::scaled_dot_product_attention", exact="half-precision scores are computed in float32")
def scaled_dot_product_attention(
    op: Op,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    attn_mask: ir.Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> ir.Value:
    """aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"""
    attn_mask = simplest_mask(op, attn_mask)
    whole = _attention(op, query, key, value, attn_mask, is_causal, scale) if dropout_p == 0 else None
    if whole is not None:
        return whole
    if not op.has_kernel("MatMul", op.dtype_of(query)) or not _keeps_query(op, query, scale):
        # torch rounds once, the result.
        query, key, value = (op.widened(operand, FLOAT) for operand in (query, key, value))
    if enable_gqa:
        key, value = (_repeated_heads(op, operand, query) for operand in (key, value))
    scores = op.MatMul(_scale_query(op, query, scale), swapped(op, key, -2, -1))
    masked = _masked(op, scores, query, key, attn_mask, is_causal)
    weights = op.Softmax(masked, axis=op.rank_of(scores) - 1)
    if dropout_p > 0:
        weights = op.Dropout(weights, op.const(float(dropout_p)), op.const(True))
    result = op.MatMul(weights, value)
    if attn_mask is not None and not every_row_unmasked(op.builder, attn_mask):
        result = _without_nan(op, result, attn_mask)
    return op.rounded(result, op.result.dtype)


@translates("aten::_scaled_dot_product_flash_attention_for_cpu", exact="half-precision scores are computed in float32")
def _scaled_dot_product_flash_attention_for_cpu(
    op: Op,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: ir.Value | None = None,
    scale: float | None = None,
) -> tuple[ir.Value, ir.Value]:
    """aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"""
    output = scaled_dot_product_attention(
        op, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa=True
    )
    # torch's kernel computes the scores of half-precision inputs in float32.
    dtype = op.results[1].dtype
    key = _repeated_heads(op, key, query)
    query, key = (op.cast(operand, dtype) for operand in (query, key))
    scores = op.MatMul(_scale_query(op, query, scale), swapped(op, key, -2, -1))
    masked = _masked(op, scores, query, key, simplest_mask(op, attn_mask), is_causal)
    logsumexp = op.ReduceLogSumExp(masked, [-1], keepdims=0)
    # torch's kernel returns 0 for a fully masked row.
    hidden = op.Equal(logsumexp, op.const(-math.inf, dtype))
    return output, op.Where(hidden, op.const(0.0, dtype), logsumexp)


def simplest_mask(op: Op, attn_mask: ir.Value | None) -> ir.Value | None:
    """Return the mask without a redundant Expand, or None if it is known to mask nothing."""
    if attn_mask is None:
        return None
    node = attn_mask.producer()
    source = node.inputs[0] if node is not None and node.op_type == "Expand" and node.domain == "" else None
    known = array_of(attn_mask if source is None else source)
    if known is not None and bool((known if known.dtype == bool else known == 0).all()):
        return None
    return attn_mask if source is None or op.rank_of(source) != op.rank_of(attn_mask) else source


def _attention(
    op: Op,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    attn_mask: ir.Value | None,
    is_causal: bool,
    scale: float | None,
) -> ir.Value | None:
    """Emit ONNX's Attention where the opset has it and the runtime has a kernel."""
    dtype, dims = op.dtype_of(query), op.dims(query)
    if op.opset < 23 or len(dims) != 4 or dtype == DOUBLE or not op.has_kernel("Attention", FLOAT):
        return None
    if scale is not None and scale <= 0:
        # ONNX Runtime rejects it.
        return None
    others = op.dims(key), op.dims(value)
    if any(len(other) != 4 or other[0] != dims[0] or other[1] != others[0][1] for other in others):
        return None
    heads, groups = dims[1], others[0][1]
    if heads != groups and not (isinstance(heads, int) and isinstance(groups, int) and heads % groups == 0):
        return None
    if attn_mask is not None:
        if is_causal:
            return None
        # ONNX Runtime broadcasts the batch and the heads only.
        lead, last = op.dims(attn_mask)[:-2], (dims[2], others[0][2])
        attn_mask = op.expand(attn_mask, (*lead, *last))
    wide = attention_type(op, dtype, attn_mask) if _keeps_query(op, query, scale) else FLOAT
    operands = (op.widened(operand, wide) for operand in (query, key, value))
    result = op.Attention(
        *operands,
        None if attn_mask is None else attention_mask(op, attn_mask, wide),
        is_causal=int(is_causal) or None,
        scale=scale,
        # torch's kernels compute the softmax of half-precision scores in float32.
        softmax_precision=None if wide == FLOAT else int(FLOAT),
    )
    return op.rounded(result, dtype)


def attention_type(op: Op, dtype: ir.DataType, attn_mask: ir.Value | None) -> ir.DataType:
    """Return the element type in which ONNX's Attention gives torch's results: the operands', or FLOAT.

    torch's kernels of half-precision types compute scores in float32, ONNX Runtime's round them. This is a matter
    of precision, except for a row of the mask whose elements are all large: the scores vanish in the sum.
    """
    if dtype not in HALF_FLOATS:
        return dtype
    if not op.has_kernel("Attention", dtype) or op.exact_numerics:
        return FLOAT
    return dtype if attn_mask is None or op.dtype_of(attn_mask) == BOOL or _keeps_scores(attn_mask) else FLOAT


_SMALL_BIAS = 16.0
"""Half-precision scores of this size have an absolute error of 1/128 in float16."""


def _keeps_scores(attn_mask: ir.Value) -> bool:
    """Whether each row of a float mask has an element that is added to a score without loss."""
    known = array_of(attn_mask)
    if known is None:
        return is_computed_from_weights(attn_mask)
    return bool((np.abs(known.astype(np.float32)).min(axis=-1, initial=math.inf) <= _SMALL_BIAS).all())


def attention_mask(op: Op, attn_mask: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return a mask in the element type of ONNX's Attention; boolean masks stay as they are."""
    given = op.dtype_of(attn_mask)
    if given == BOOL:
        return attn_mask
    attn_mask = op.widened(attn_mask, dtype)
    return _above_lowest(op, attn_mask) if given == dtype and dtype in _LOWEST else attn_mask


def _keeps_query(op: Op, query: ir.Value, scale: float | None) -> bool:
    """Whether a query of a half type can be scaled before the product: torch's kernels scale the scores, in float32."""
    dtype = op.dtype_of(query)
    return dtype not in HALF_FLOATS or scale is None or (abs(scale) <= 1 and op.holds(scale, dtype))


def _scale_query(op: Op, query: ir.Value, scale: float | None) -> ir.Value:
    """Scale the query, which has fewer elements than the scores."""
    width = op.dims(query)[-1]
    if scale is None:
        if not isinstance(width, int):
            root = op.Sqrt(op.scalar(width, op.dtype_of(query)))
            return op.Div(query, root)
        scale = 1.0 / math.sqrt(width) if width else math.inf
    if op.dtype_of(query) == DOUBLE and isinstance(width, int) and float(np.float32(scale)) != scale:
        # ONNX Runtime fuses a single number into the product, as an attribute in float32.
        return op.Mul(query, op.const([float(scale)] * width, DOUBLE))
    return op.Mul(query, float(scale))


def _masked(
    op: Op, scores: ir.Value, query: ir.Value, key: ir.Value, attn_mask: ir.Value | None, is_causal: bool
) -> ir.Value:
    dtype = op.dtype_of(scores)
    if is_causal:
        if attn_mask is not None:
            raise Unsupported("is_causal together with attn_mask, which torch rejects as well")
        scores = op.Add(scores, _causal(op, query, key, dtype))
    elif attn_mask is not None:
        if op.dtype_of(attn_mask) == ir.DataType.BOOL:
            known = array_of(attn_mask)
            if known is not None and known.size <= _SMALL_MASK:
                added = torch.zeros(known.shape).masked_fill(~torch.from_numpy(known.copy()), -math.inf)
                return op.Add(scores, op.const(added.to(to_torch_dtype(dtype))))
            # As torch does. CSE computes this mask once for all layers.
            scores = op.Add(scores, op.Where(attn_mask, op.const(0.0, dtype), op.const(-math.inf, dtype)))
        else:
            scores = op.Add(scores, op.cast(attn_mask, dtype))
    return scores


def _causal(op: Op, query: ir.Value, key: ir.Value, dtype: ir.DataType) -> ir.Value:
    """-inf above the diagonal, 0 elsewhere."""
    rows, columns = op.dims(query)[-2], op.dims(key)[-2]
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns <= 64 * 64:
        return op.const(
            [[0.0 if column <= row else -math.inf for column in range(columns)] for row in range(rows)], dtype
        )
    below = op.GreaterOrEqual(op.Unsqueeze(op.Range(0, op.scalar(rows), 1), [1]), op.Range(0, op.scalar(columns), 1))
    return op.Where(below, op.const(0.0, dtype), op.const(-math.inf, dtype))


def _without_nan(op: Op, result: ir.Value, attn_mask: ir.Value) -> ir.Value:
    """Zero the rows of queries whose keys are all masked: there Softmax gives NaN, and torch gives zero."""
    if op.dtype_of(attn_mask) != ir.DataType.BOOL:
        attn_mask = op.Greater(attn_mask, op.const(-math.inf, op.dtype_of(attn_mask)))
    # A sum, not a maximum: ONNX Runtime's symbolic shape inference, which quantization uses, lacks the ReduceMax of
    # opset 18.
    shown = op.cast(op.ReduceSum(op.cast(attn_mask, ir.DataType.INT32), [-1], keepdims=1), ir.DataType.BOOL)
    return op.Where(shown, result, op.const(0.0, op.dtype_of(result)))


_LOWEST = {FLOAT: (float(np.finfo(np.float32).min), -1e38), FLOAT16: (-65504.0, -65472.0)}
"""Element type to its lowest number, and one above it to which a score of ordinary size adds nothing."""


def _above_lowest(op: Op, attn_mask: ir.Value) -> ir.Value:
    """Return a float mask for ONNX's Attention without the lowest number, which ONNX Runtime treats as -inf."""
    known, dtype = array_of(attn_mask), op.dtype_of(attn_mask)
    lowest, almost = _LOWEST[dtype]
    if known is not None:
        raised = np.where(known == lowest, almost, known).astype(known.dtype)
        return attn_mask if np.array_equal(raised, known) else op.const(torch.from_numpy(raised))
    if is_computed_from_weights(attn_mask):
        return attn_mask
    where = attn_mask.producer()
    if where is not None and where.op_type == "Where" and all(array_of(each) is not None for each in where.inputs[1:]):
        # Of two numbers, as masks usually are.
        return op.Where(where.inputs[0], *(_above_lowest(op, each) for each in where.inputs[1:] if each is not None))
    return op.Where(op.Equal(attn_mask, op.const(lowest, dtype)), op.const(almost, dtype), attn_mask)


def _repeated_heads(op: Op, operand: ir.Value, query: ir.Value) -> ir.Value:
    """Repeat each key/value head for its group of query heads (grouped-query attention)."""
    dims, heads = op.dims(operand), op.dims(query)[-3]
    own = dims[-3]
    if own == heads:
        return operand
    lead = dims[:-3]
    if isinstance(own, int) and isinstance(heads, int):
        groups = heads // own
    else:
        # The number of heads may be 0 at run time, and ONNX Runtime crashes on an integer division by 0.
        divisor = Max(sympy.Integer(1), sympy.sympify(own))
        groups = FloorDiv(sympy.sympify(heads), divisor)
    wide = op.expand(op.Unsqueeze(operand, [len(dims) - 2]), (*lead, own, groups, *dims[-2:]))
    return op.reshape(wide, (*lead, heads, *dims[-2:]))
