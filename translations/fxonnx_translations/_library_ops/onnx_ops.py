"""``torch.onnx.ops``: symbolic calls of any ONNX operator, and the two operators with torch kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from .._aten.attention import attention_mask, attention_type, simplest_mask
from .._aten.view import swapped
from .._builder.constants import END
from .._builder.dtypes import BOOL, FLOAT
from .._builder.op import Op, Unsupported
from .._builder.op_schema import missing_operator_message, since_version
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .._torch_compat import FloorDiv

# ---- symbolic operators


@translates("onnx_symbolic::_symbolic")
def symbolic(
    op: Op,
    inputs: Sequence[ir.Value | None],
    op_type: str,
    onnx_dtype: int,
    *,
    shape: Sequence[Dim],
    attr_keys: Sequence[str],
    attr_types: Sequence[str],
    attr_pos: Sequence[Sequence[int]],
    attr_ints: Sequence[int],
    attr_floats: Sequence[float],
    attr_strs: Sequence[str],
    metadata_props_keys: Sequence[str],
    metadata_props_values: Sequence[str],
    domain: str = "",
    version: int | None = None,
) -> ir.Value:
    """onnx_symbolic::_symbolic(Tensor?[] inputs, str op_type, int onnx_dtype, *, SymInt[] shape, str[] attr_keys, str[] attr_types, int[][] attr_pos, int[] attr_ints, float[] attr_floats, str[] attr_strs, str[] metadata_props_keys, str[] metadata_props_values, str domain="", int? version=None) -> Tensor"""
    attributes = _attributes(attr_keys, attr_types, attr_pos, attr_ints, attr_floats, attr_strs)
    metadata = dict(zip(metadata_props_keys, metadata_props_values, strict=True))
    return _verbatim(op, op_type, inputs, attributes, [onnx_dtype], metadata, domain, version)[0]


@translates("onnx_symbolic::_symbolic_multi_out")
def symbolic_multi_out(
    op: Op,
    inputs: Sequence[ir.Value | None],
    op_type: str,
    onnx_dtypes: Sequence[int],
    *,
    shapes: Sequence[Sequence[Dim]],
    attr_keys: Sequence[str],
    attr_types: Sequence[str],
    attr_pos: Sequence[Sequence[int]],
    attr_ints: Sequence[int],
    attr_floats: Sequence[float],
    attr_strs: Sequence[str],
    metadata_props_keys: Sequence[str],
    metadata_props_values: Sequence[str],
    domain: str = "",
    version: int | None = None,
) -> Sequence[ir.Value]:
    """onnx_symbolic::_symbolic_multi_out(Tensor?[] inputs, str op_type, int[] onnx_dtypes, *, SymInt[][] shapes, str[] attr_keys, str[] attr_types, int[][] attr_pos, int[] attr_ints, float[] attr_floats, str[] attr_strs, str[] metadata_props_keys, str[] metadata_props_values, str domain="", int? version=None) -> Tensor[]"""
    attributes = _attributes(attr_keys, attr_types, attr_pos, attr_ints, attr_floats, attr_strs)
    metadata = dict(zip(metadata_props_keys, metadata_props_values, strict=True))
    return _verbatim(op, op_type, inputs, attributes, onnx_dtypes, metadata, domain, version)


def _attributes(
    keys: Sequence[str],
    types: Sequence[str],
    positions: Sequence[Sequence[int]],
    ints: Sequence[int],
    floats: Sequence[float],
    strings: Sequence[str],
) -> dict[str, Any]:
    """Decode torch's attributes: one list per type, and the start and end of each attribute in it."""
    sources: dict[str, Sequence[Any]] = {"i": ints, "f": floats, "s": strings}
    attributes = {}
    for key, kind, (start, end) in zip(keys, types, positions, strict=True):
        items = list(sources[kind[0]][start:end])
        attributes[key] = items if kind.endswith("s") and len(kind) == 2 else items[0]
    return attributes


def _verbatim(
    op: Op,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: dict[str, Any],
    onnx_dtypes: Sequence[int],
    metadata: dict[str, str],
    domain: str,
    version: int | None,
) -> tuple[ir.Value, ...]:
    if domain in ("", "ai.onnx"):
        domain = ""
        _check_version(op, op_type, version)
    elif version is not None and op.graph.opset_imports.get(domain, version) != version:
        raise Unsupported(
            f"{domain}::{op_type} is requested at version {version}, and another operator of the domain at version "
            f"{op.graph.opset_imports[domain]}; a model has one version per domain"
        )
    dtypes = [ir.DataType(dtype) for dtype in onnx_dtypes]
    return op.verbatim(op_type, inputs, attributes, dtypes, domain=domain, version=version, metadata=metadata)


def _check_version(op: Op, op_type: str, version: int | None) -> None:
    here = since_version(op_type, op.opset)
    if here is None:
        raise Unsupported(missing_operator_message(op_type, op.opset))
    if version is not None and since_version(op_type, version) != here:
        raise Unsupported(f"{op_type} is requested as of opset {version}, whose version differs in opset {op.opset}")


# ---- rotary_embedding


@translates("onnx::RotaryEmbedding.opset23")
def rotary_embedding(
    op: Op,
    x: ir.Value,
    cos_cache: ir.Value,
    sin_cache: ir.Value,
    position_ids: ir.Value | None = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> ir.Value:
    """onnx::RotaryEmbedding.opset23(Tensor x, Tensor cos_cache, Tensor sin_cache, Tensor? position_ids=None, *, bool interleaved=False, SymInt num_heads=0, SymInt rotary_embedding_dim=0) -> Tensor"""
    if not isinstance(num_heads, int) or not isinstance(rotary_embedding_dim, int):
        raise Unsupported("num_heads and rotary_embedding_dim are attributes and must be static")
    if op.opset >= 23:
        return op.RotaryEmbedding(
            x,
            cos_cache,
            sin_cache,
            position_ids,
            interleaved=int(interleaved),
            num_heads=num_heads,
            rotary_embedding_dim=rotary_embedding_dim,
        )
    dims = op.dims(x)
    if len(dims) == 3:
        x = op.Reshape(x, [0, 0, num_heads, -1])
    # The heads are axis 2 after the reshape of a tensor of rank 3, axis 1 of a tensor of rank 4.
    heads = 2 if len(dims) == 3 else 1
    width = op.dims(x)[-1] if len(dims) == 4 or not isinstance(dims[-1], int) else dims[-1] // num_heads
    turned = rotary_embedding_dim or width
    if not isinstance(turned, int):
        raise Unsupported("rotary_embedding of a symbolic head size below opset 23")
    if position_ids is not None:
        cos_cache, sin_cache = (op.Gather(cache, position_ids, axis=0) for cache in (cos_cache, sin_cache))
    cos, sin = (op.Unsqueeze(cache, [heads]) for cache in (cos_cache, sin_cache))
    rotated, rest = x, None
    if turned != width:
        rotated, rest = op.Slice(x, [0], [turned], [3]), op.Slice(x, [turned], [END], [3])
    result = _rotated(op, rotated, cos, sin, turned, interleaved)
    if rest is not None:
        result = op.Concat(result, rest, axis=3)
    return op.reshape(result, dims) if len(dims) == 3 else result


def _rotated(op: Op, x: ir.Value, cos: ir.Value, sin: ir.Value, width: int, interleaved: bool) -> ir.Value:
    if interleaved:
        first, second = (op.Slice(x, [start], [END], [3], [2]) for start in (0, 1))
    else:
        first = op.Slice(x, [0], [width // 2], [3])
        second = op.Slice(x, [width // 2], [END], [3])
    real = op.Sub(op.Mul(cos, first), op.Mul(sin, second))
    imaginary = op.Add(op.Mul(sin, first), op.Mul(cos, second))
    if not interleaved:
        return op.Concat(real, imaginary, axis=3)
    pairs = op.Concat(op.Unsqueeze(real, [4]), op.Unsqueeze(imaginary, [4]), axis=4)
    return op.Reshape(pairs, [0, 0, 0, width])


# ---- attention


@translates("onnx::Attention.opset23", exact="half-precision scores are computed in float32")
def attention(
    op: Op,
    Q: ir.Value,  # the schema's names
    K: ir.Value,
    V: ir.Value,
    attn_mask: ir.Value | None = None,
    past_key: ir.Value | None = None,
    past_value: ir.Value | None = None,
    *,
    is_causal: bool = False,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[ir.Value, ...]:
    """onnx::Attention.opset23(Tensor Q, Tensor K, Tensor V, Tensor? attn_mask=None, Tensor? past_key=None, Tensor? past_value=None, *, bool is_causal=False, SymInt kv_num_heads=0, SymInt q_num_heads=0, SymInt qk_matmul_output_mode=0, float? scale=None, float softcap=0., SymInt? softmax_precision=None) -> (Tensor, Tensor, Tensor, Tensor)"""
    if not all(isinstance(number, int) for number in (kv_num_heads, q_num_heads, qk_matmul_output_mode)):
        raise Unsupported("numbers of heads and qk_matmul_output_mode are attributes and must be static")
    _check_value_heads(op, K, V)
    attn_mask = simplest_mask(op, attn_mask)
    # Newer versions of ONNX apply softcap before the mask and offset the causal mask by the past; torch does neither.
    other_order = softcap > 0 and (attn_mask is not None or is_causal)
    other_mask = is_causal and past_key is not None
    # ONNX Runtime rejects other scales.
    is_plain = qk_matmul_output_mode == 0 and (scale is None or scale > 0)
    has_kernel = op.opset >= 23 and op.has_kernel("Attention", FLOAT)
    if has_kernel and is_plain and not other_order and not other_mask:
        dtype = op.dtype_of(Q)
        wide = dtype if op.has_kernel("Attention", dtype) else FLOAT
        if softmax_precision == FLOAT:
            wide = attention_type(op, dtype, attn_mask)
        attn_mask = _expand_mask(op, attn_mask, wide, Q, K, past_key)
        past = [None if operand is None else op.widened(operand, wide) for operand in (past_key, past_value)]
        results = op.multi(
            "Attention",
            *(op.widened(operand, wide) for operand in (Q, K, V)),
            attn_mask,
            *past,
            outputs=4,
            is_causal=int(is_causal),
            kv_num_heads=kv_num_heads or None,
            q_num_heads=q_num_heads or None,
            scale=scale,
            softcap=softcap or None,
            softmax_precision=None if softmax_precision == wide else softmax_precision,
        )
        return tuple(op.rounded(result, dtype) for result in results)
    flat = op.rank_of(Q) == 3
    if flat:
        Q, K, V = (
            _with_heads(op, value, heads) for value, heads in ((Q, q_num_heads), (K, kv_num_heads), (V, kv_num_heads))
        )
    present_key = K if past_key is None else op.Concat(past_key, K, axis=2)
    present_value = V if past_value is None else op.Concat(past_value, V, axis=2)
    like_sdpa = softcap == 0 and softmax_precision is None and (attn_mask is None or op.dtype_of(attn_mask) == BOOL)
    stages = _scores(op, Q, present_key, attn_mask, is_causal, scale, softcap)
    weights = _weights(op, stages[2], softmax_precision, like_sdpa and attn_mask is not None)
    dtype = op.dtype_of(Q)
    values = _repeat_heads(op, op.cast(present_value, op.dtype_of(weights)), Q)
    output = op.cast(op.MatMul(weights, values), dtype)
    if flat:
        output = op.reshape(op.Transpose(output, perm=[0, 2, 1, 3]), op.result.shape)
    seen = op.cast((*stages, weights)[qk_matmul_output_mode], dtype)
    return output, present_key, present_value, seen


def _check_value_heads(op: Op, key: ir.Value, value: ir.Value) -> None:
    key_width, value_width = op.dims(key)[-1], op.dims(value)[-1]
    if isinstance(key_width, int) and isinstance(value_width, int) and key_width != value_width:
        raise Unsupported("torch's shapes of attention are wrong if the head sizes of V and K differ")


def _expand_mask(
    op: Op,
    attn_mask: ir.Value | None,
    dtype: ir.DataType,
    query: ir.Value,
    key: ir.Value,
    past_key: ir.Value | None,
) -> ir.Value | None:
    """Cast the mask and expand its last two axes, which ONNX Runtime's kernel does not broadcast."""
    if attn_mask is None:
        return None
    attn_mask = attention_mask(op, attn_mask, dtype)
    length, present = op.dims(query)[-2], op.dims(key)[-2]
    total = present if past_key is None else present + op.dims(past_key)[-2]
    return op.expand(attn_mask, [*op.dims(attn_mask)[:-2], length, total])


def _with_heads(op: Op, value: ir.Value, heads: int) -> ir.Value:
    return op.Transpose(op.Reshape(value, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def _scores(
    op: Op,
    query: ir.Value,
    key: ir.Value,
    attn_mask: ir.Value | None,
    is_causal: bool,
    scale: float | None,
    softcap: float,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the scores (products of queries and keys): plain, with the mask added, and with softcap applied as well."""
    dtype = _wide(op.dtype_of(query))
    width = op.dims(query)[-1]
    if scale is None and not isinstance(width, int):
        raise Unsupported("attention over heads of symbolic size without a scale")
    # The square root of the scale on each operand keeps the products small.
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(float(width)))
    keys = op.Mul(_repeat_heads(op, op.cast(key, dtype), query), root)
    products = op.MatMul(op.Mul(op.cast(query, dtype), root), swapped(op, keys, -2, -1))
    lowest = op.const(-math.inf, dtype)
    masked = products
    if is_causal:
        rows, columns = (op.Range(0, op.scalar(op.dims(value)[2]), 1) for value in (query, key))
        seen = op.LessOrEqual(op.Unsqueeze(columns, [0]), op.Unsqueeze(rows, [1]))
        masked = op.Where(seen, masked, lowest)
    if attn_mask is not None and op.dtype_of(attn_mask) == BOOL:
        masked = op.Where(attn_mask, masked, lowest)
    elif attn_mask is not None:
        masked = op.Add(masked, op.cast(attn_mask, dtype))
    capped = op.Mul(op.Tanh(op.Div(masked, softcap)), softcap) if softcap > 0 else masked
    return products, masked, capped


def _wide(dtype: ir.DataType) -> ir.DataType:
    return ir.DataType.FLOAT if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else dtype


def _weights(op: Op, scores: ir.Value, precision: int | None, empty_is_zero: bool) -> ir.Value:
    dtype = op.dtype_of(scores)
    if precision is not None:
        scores = op.cast(scores, ir.DataType(precision))
    weights = op.cast(op.Softmax(scores, axis=3), dtype)
    if not empty_is_zero:
        return weights
    # The softmax of a fully masked row is NaN; torch's kernel gives zeros for boolean masks.
    return op.Where(op.IsNaN(weights), op.const(0.0, dtype), weights)


def _repeat_heads(op: Op, value: ir.Value, query: ir.Value) -> ir.Value:
    """Repeat the heads of keys or values that several query heads share."""
    (batch, heads, length, width), wanted = op.dims(value), op.dims(query)[1]
    if heads == wanted:
        return value
    group = wanted // heads if isinstance(heads, int) and isinstance(wanted, int) else FloorDiv(wanted, heads)
    repeated = op.Expand(op.Unsqueeze(value, [2]), op.sizes([1, 1, group, 1, 1]))
    return op.reshape(repeated, [batch, wanted, length, width])
