"""Fuse causal attention with a cache to GroupQueryAttention, whose cache may be a buffer of a fixed length.

The lengths of all sequences come from the padding mask: the shape of the past is the buffer's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.onnx.ops  # defines the operators

from ..graph_utils import insert_call
from .attention import repeated_source
from .cached_masks import CausalMask, causal_mask, size_expression
from .context import PatternContext
from .formula import Formula, Matches
from .matching import (
    CASTS,
    FLOATS,
    VIEWS,
    as_call,
    dims_of,
    dtype_of,
    has_one_user,
    insert_before,
    insert_onnx_op,
    is_same_dtype_cast,
    known_number,
    value_of,
)
from .packed_attention import joined_heads, merged_heads, transposed_source
from .rotary_tables import Rotary, insert_table, is_stored, match_rotary
from .terms import Match, Number, Tensor, Term, Value, either, op, transposed, view_of

__all__ = ["fuse_group_query_attention"]

aten = torch.ops.aten

# ---- attention over a cache


_LAST = either(-1, 3)


@dataclass(frozen=True)
class _CachedAttention:
    """Causal attention over cached keys and values.

    Attributes:
        end: Its result, [batch, heads, length, size].
        query: Queries, [batch, heads, length, size].
        key: New keys, [batch, groups, length, size].
        value: New values.
        presents: The keys and values with the cache before them, as the graph returns them.
        pasts: The cached keys and values, inputs of the graph.
        past_size: The number of cached keys.
        mask: The proved mask.
        scale: Factor of the scores.
        softcap: Limit of the scores' absolute value; 0.0 if there is none.
        sinks: A logit for each head that takes part in the softmax and attends to nothing; None without.
    """

    end: torch.fx.Node
    query: torch.fx.Node
    key: torch.fx.Node
    value: torch.fx.Node
    presents: tuple[torch.fx.Node, torch.fx.Node]
    pasts: tuple[torch.fx.Node, torch.fx.Node]
    past_size: sympy.Expr
    mask: CausalMask
    scale: float
    softcap: float = 0.0
    sinks: torch.fx.Node | None = None

    @property
    def forms(self) -> set[str]:
        """The forms of the kernel that it needs besides causal attention."""
        needed = {"softcap": self.softcap, "window": self.mask.window is not None, "sinks": self.sinks is not None}
        return {form for form, is_needed in needed.items() if is_needed}


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Value, scale: Value) -> Term:
    return op.scaled_dot_product_attention(query, key, value, mask, 0.0, False, scale=scale).loose()


def _decomposed(
    query: Tensor, key: Tensor, value: Tensor, mask: Value, sinks: Tensor,
    scale: Number, divisor: Number, softcap: Number,
) -> Term:  # fmt: skip
    product = query @ either(transposed(key, 2, 3), op.mT(key)).when(lambda node: len(dims_of(node) or ()) == 4)
    scaled = either(product * scale, product / divisor, product)
    scores = either(op.tanh(scaled / softcap) * softcap, scaled) + mask
    wide = view_of(sinks).named("wide sinks")
    joined = op.cat([scores.named("scores"), either(op.expand(wide).loose(), wide)], _LAST)
    maximum = either(op(operator.getitem)(op.max(joined).loose(), 0), op.amax(joined).loose())
    with_sinks = op.softmax(either(joined, joined - maximum), _LAST).loose()
    return either(op.softmax(scores, _LAST).loose(), op.slice(with_sinks, _LAST, 0, -1)) @ value


def _is_float_cast(node: torch.fx.Node) -> bool:
    """Whether a node is a cast between floating-point dtypes, of which attention weights have several."""
    cast = as_call(node, *CASTS)
    return cast is not None and dtype_of(cast) in FLOATS and dtype_of(cast.args[0]) in FLOATS


def _is_scaled(match: Match) -> bool:
    return match.value("scale") != 0 and match.value("divisor") != 0 and (match.value("softcap") or 1) > 0


def _have_heads(match: Match) -> bool:
    """Whether the sinks, if there are any, are a number for each head."""
    if match.value("sinks") is None:
        return True
    heads = str(value_of(match.node("scores")).shape[1])
    shapes = [list(map(str, value_of(match.node(name)).shape)) for name in ("sinks", "wide sinks")]
    return shapes == [[heads], ["1", heads, "1", "1"]]


_FUSED = Formula(_fused)
_DECOMPOSED = Formula(_decomposed, _is_scaled, _have_heads, passes=_is_float_cast)


def _match_attention(node: torch.fx.Node) -> _CachedAttention | None:
    """Match an attention by its last node; None if it has no cache or its mask is not proved."""
    is_fused = node.target is aten.scaled_dot_product_attention.default
    if not is_fused and node.target not in (aten.matmul.default, aten.bmm.default):
        return None
    match = (_FUSED if is_fused else _DECOMPOSED).at(node)
    scale = None if match is None else _scale(match)
    if match is None or scale is None:
        return None
    query, sinks = match.node("query"), None if is_fused else match.value("sinks")
    presents = [repeated_source(match.node(name), query) or match.node(name) for name in ("key", "value")]
    parts = [_with_past(present) for present in presents]
    if parts[0] is None or parts[1] is None:
        return None
    (past_key, key), (past_value, value) = parts[0], parts[1]
    past = size_expression(value_of(past_key).shape[2])
    if past is None or not past.free_symbols or past != size_expression(value_of(past_value).shape[2]):
        return None
    mask = causal_mask(match.value("mask"), past)
    if mask is None:
        return None
    found = _CachedAttention(
        node,
        query,
        key,
        value,
        presents=(presents[0], presents[1]),
        pasts=(past_key, past_value),
        past_size=past,
        mask=mask,
        scale=scale,
        softcap=0.0 if is_fused else float(match.value("softcap") or 0.0),
        sinks=sinks,
    )
    return found if _fits(found) else None


def _scale(match: Match) -> float | None:
    """The factor of the scores; None if the default one is not known."""
    if match.end.target is not aten.scaled_dot_product_attention.default:
        divisor = match.value("divisor")
        return 1 / divisor if divisor is not None else float(match.value("scale") or 1.0)
    dims = dims_of(match.node("query")) or ()
    if len(dims) != 4 or not isinstance(dims[3], int):
        return None
    return known_number(match.value("scale") or 1 / math.sqrt(dims[3]))


def _fits(found: _CachedAttention) -> bool:
    """Whether the operands have 4 axes, static heads and sizes that the kernels accept, and one dtype."""
    query, key, value = (dims_of(operand) for operand in (found.query, found.key, found.value))
    if query is None or key is None or value is None or {len(query), len(key), len(value)} != {4}:
        return False
    static = [query[1], query[3], key[1], key[3]]
    if not all(isinstance(size, int) for size in static) or list(map(str, key)) != list(map(str, value)):
        return False
    if query[1] % key[1] or query[3] != key[3] or query[3] % 8:
        return False
    padding = dims_of(found.mask.padding)
    same = [str(query[0]), str(query[2])] == [str(key[0]), str(key[2])]
    operands = (found.query, found.key, found.value, *found.pasts)
    one_dtype = {dtype_of(operand) for operand in operands} == {dtype_of(found.end)}
    return same and one_dtype and padding is not None and str(padding[0]) == str(query[0])


def _with_past(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """Match new keys or values with an input of the graph concatenated before them; returns the input and them."""
    match = _JOINED.at(node)
    return None if match is None else (match.node("past"), match.node("new"))


def _joined(past: Tensor, new: Tensor) -> Term:
    return op.cat([past, new], either(2, -2))


_JOINED = Formula(
    _joined,
    lambda match: match.node("past").op == "placeholder",
    lambda match: all(len(dims_of(match.node(name)) or ()) == 4 for name in ("past", "new")),
)


# ---- linear layers of one input


_BETWEEN = (*VIEWS, aten.transpose.int, aten.rms_norm.default, aten.flatten.using_ints)


def _linear(x: Tensor, weight: Tensor, bias: Value) -> Term:
    return op.linear(x, weight, bias)


def _is_packable(match: Match) -> bool:
    parameters = (match.node("weight"), match.value("bias"))
    are_stored = all(each is None or (each.op == "placeholder" and has_one_user(each)) for each in parameters)
    return are_stored and has_one_user(match.end) and len(dims_of(match.end) or ()) == 3


_LINEAR = Formula(_linear, _is_packable)


def _split_part(x: Tensor, sizes: Value, axis: Value, index: Value) -> Term:
    return op(operator.getitem)(op.split_with_sizes(x, sizes, axis), index)


def _slice(x: Tensor, axis: Value, start: Value, end: Value) -> Term:
    return op.slice(x, axis, start, end)


_SPLIT_PART, _SLICE = (Formula(form, lambda match: match.value("axis") in (2, -1)) for form in (_split_part, _slice))


def _pack_projections(operands: Sequence[torch.fx.Node]) -> None:
    """Replace three linear layers of one input by one, and a split of its result."""
    layers = [match for operand in operands if (match := _LINEAR.at(_before_layout(operand))) is not None]
    found = [layer.end for layer in layers]
    biases = [layer.value("bias") for layer in layers]
    if len(set(found)) != len(operands) or len({layer.node("x") for layer in layers}) > 1:
        return
    if len({bias is None for bias in biases}) > 1:
        return
    first = min(found)
    joined = [insert_before(first, aten.cat.default, [layer.node("weight") for layer in layers], 0)]
    if biases[0] is not None:
        joined.append(insert_before(first, aten.cat.default, biases, 0))
    whole = insert_before(first, aten.linear.default, layers[0].node("x"), *joined)
    widths = [value_of(layer).shape[-1] for layer in found]
    parts = insert_before(first, aten.split_with_sizes.default, whole, widths, 2)
    for index, layer in enumerate(found):
        layer.replace_all_uses_with(insert_before(first, operator.getitem, parts, index, origin=layer))


def _before_layout(node: Any) -> Any:
    """The tensor before changes of the shape and norms."""
    while as_call(node, *_BETWEEN) is not None or is_same_dtype_cast(node):
        node = node.args[0]
    return node


def _packed_source(operands: Sequence[torch.fx.Node]) -> torch.fx.Node | None:
    """The tensor that queries, keys and values are consecutive parts of, along the last of three axes."""
    start, sources = 0, set()
    for index, operand in enumerate(operands):
        part, piece = _SPLIT_PART.at(operand), _SLICE.at(operand)
        match = part or piece
        if match is None or (match.value("index") if part else match.value("start")) != (index if part else start):
            return None
        sources.add(match.node("x"))
        start += value_of(operand).shape[-1]
    source = sources.pop()
    dims = dims_of(source) or ()
    return source if not sources and len(dims) == 3 and dims[2] == start else None


# ---- the operator


_ROTARY = torch.ops.onnx.RotaryEmbedding.opset23
_MASKED = {torch.float16: -3e4}
"""Bias of padding, finite so that rows of padding have finite results, by dtype; -1e30 for others."""
_MAX_TABLE_ELEMENTS = 2**26


@dataclass(frozen=True)
class _Match:
    """An attention, and the rotary embeddings of queries and keys if the operator computes them.

    Attributes:
        attention: The attention.
        rotary: The rotary embeddings; None if there are none, or none whose tables can be stored.
        positions: The number of rows of their tables.
    """

    attention: _CachedAttention
    rotary: tuple[Rotary, Rotary] | None
    positions: int

    @property
    def inputs(self) -> list[torch.fx.Node]:
        """The nodes that the operator depends on."""
        attention, rotary = self.attention, self.rotary
        query, key = (attention.query, attention.key) if rotary is None else (rotary[0].x, rotary[1].x)
        sinks = () if attention.sinks is None else (attention.sinks,)
        return [query, key, attention.value, attention.mask.padding, *attention.pasts, *sinks]


@dataclass
class _Shared:
    """Nodes that all attentions share.

    Attributes:
        lengths: For each sequence, the index of its last token in the cache.
        total: The number of columns of the padding mask.
        valid: The padding mask, 1 for tokens.
        queries: The number of new tokens.
        biases: Bias of the scores by dtype.
        tables: Table of the tokens of one call to the table of all positions.
    """

    lengths: torch.fx.Node
    total: torch.fx.Node
    valid: torch.fx.Node
    queries: torch.fx.Node
    biases: dict[torch.dtype, torch.fx.Node] = field(default_factory=dict)
    tables: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)


def fuse_group_query_attention(graph: torch.fx.Graph, context: PatternContext) -> Matches:
    """Fuse to ONNX Runtime's GroupQueryAttention, if all attentions with a cache can be fused."""
    found, matches = Matches(), []
    for node in graph.nodes:
        attention = _match_attention(node) if node.op == "call_function" else None
        if attention is not None and dtype_of(node) in context.cached_attention:
            positions = _position_limit(attention, context)
            matches.append(_Match(attention, _stored_rotary(attention, positions), positions))
    padding = {match.attention.mask.padding for match in matches}
    lacking = {form for match in matches for form in match.attention.forms} - context.attention
    if lacking or len(padding) != 1 or _reads_past(graph, matches):
        reason = "an operator outside of the attentions depends on the length of the past"
        if lacking:
            reason = f"the target's kernel has no {' or '.join(sorted(lacking))}"
        elif len(padding) > 1:
            reason = "the attentions have different padding masks"
        found.missed = {match.attention.end: reason for match in matches}
        return found
    first = matches[0].attention
    shared = _insert_shared(padding.pop(), first)
    for match in matches:
        _rewrite(match, shared, context)
    found.fused += [match.attention.end for match in matches]
    return found


def _position_limit(attention: _CachedAttention, context: PatternContext) -> int:
    """The number of positions of the model, or the bound of the padding mask's dim; 0 if neither is known."""
    size = attention.mask.padding.meta["val"].shape[1]
    bound = size.node.shape_env.bound_sympy(size.node.expr).upper if isinstance(size, torch.SymInt) else size
    known = [int(limit) for limit in (bound, context.max_positions) if limit is not None and limit < 2**31]
    return min(known, default=0)


def _stored_rotary(attention: _CachedAttention, limit: int) -> tuple[Rotary, Rotary] | None:
    """The rotary embeddings of queries and keys, if their tables can be stored."""
    query, key = match_rotary(attention.query), match_rotary(attention.key)
    if query is None or key is None or not limit:
        return None
    same = (query.cosine, query.sine, query.interleaved) == (key.cosine, key.sine, key.interleaved)
    past, tables = attention.past_size, (query.cosine, query.sine)
    width = query.cosine.meta["val"].shape[2]
    if not same or limit * width > _MAX_TABLE_ELEMENTS or width % 8:
        return None
    if not all(is_stored(table, past) and dtype_of(table) == dtype_of(attention.query) for table in tables):
        return None
    return query, key


def _reads_past(graph: torch.fx.Graph, matches: Sequence[_Match]) -> bool:
    """Whether nodes that remain after the fusion depend on the length of the past."""
    ends = {match.attention.end: match for match in matches}
    presents = {present: match for match in matches for present in match.attention.presents}
    lengths = {symbol for match in matches for symbol in match.attention.past_size.free_symbols}
    pending = []
    for node in graph.output_node().all_input_nodes:
        pending.extend(presents[node].inputs if node in presents else [node])
    seen: set[torch.fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in seen or node.op == "placeholder":
            continue
        seen.add(node)
        if node in ends:
            pending.extend(ends[node].inputs)
        elif any(lengths & size.free_symbols for size in _sizes(node.meta.get("val"))):
            return True
        else:
            pending.extend(node.all_input_nodes)
    return False


def _sizes(value: Any) -> Iterable[sympy.Expr]:
    """The symbolic sizes of a value."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _sizes(item)
    for size in value.shape if isinstance(value, torch.Tensor) else (value,):
        expression = size_expression(size)
        if expression is not None:
            yield expression


def _insert_shared(padding: torch.fx.Node, attention: _CachedAttention) -> _Shared:
    """Insert the lengths of all sequences before the first attention.

    Sequences may be padded at either end. Positions before a sequence have a place in the cache and are masked; those
    after a prompt are overwritten by the next tokens. The kernels refuse sequences without tokens.
    """
    end = attention.end
    is_bool = dtype_of(padding) == torch.bool
    valid = insert_before(end, aten.to.dtype, padding, torch.int64)
    valid = valid if is_bool else insert_before(end, aten.sign.default, valid)
    leading = insert_before(end, aten.argmax.default, valid, 1)
    occupied = insert_before(end, aten.add.Tensor, insert_before(end, aten.sum.dim_IntList, valid, [1]), leading)
    lengths = insert_before(end, aten.to.dtype, insert_before(end, aten.sub.Tensor, occupied, 1), torch.int32)
    # A tensor of one element: a scalar would be one node more.
    columns = insert_onnx_op(end, "Shape", [padding], {"start": 1}, [valid.meta["val"].new_empty(1)], domain="")
    total = insert_before(end, aten.to.dtype, columns[0], torch.int32)
    return _Shared(lengths, total, valid, insert_before(end, aten.sym_size.int, attention.query, 2))


def _bias(attention: _CachedAttention, shared: _Shared) -> torch.fx.Node:
    """The bias [batch, 1, queries, keys] that masks padding before a sequence."""
    dtype = attention.end.meta["val"].dtype
    if dtype not in shared.biases:
        end = attention.end
        begun = insert_before(end, aten.to.dtype, insert_before(end, aten.cumsum.default, shared.valid, 1), torch.bool)
        wide = insert_before(end, aten.unsqueeze.default, insert_before(end, aten.unsqueeze.default, begun, 1), 1)
        batch, _, _, keys = wide.meta["val"].shape
        query = attention.query.meta["val"]
        column = query.new_empty((query.shape[2], 1))
        zeros = insert_call(end, aten.zeros.default, ([shared.queries, 1],), {"dtype": dtype}, val=column)
        value = query.new_empty((batch, 1, query.shape[2], keys))
        masked = _MASKED.get(dtype, -1e30)
        shared.biases[dtype] = insert_call(end, aten.where.ScalarOther, (wide, zeros, masked), val=value)
    return shared.biases[dtype]


def _rewrite(match: _Match, shared: _Shared, context: PatternContext) -> None:
    attention, end = match.attention, match.attention.end
    query, key = (attention.query, attention.key) if match.rotary is None else (part.x for part in match.rotary)
    tables: list[torch.fx.Node | None] = [None, None]
    if match.rotary is not None:
        tables = [_table(table, match, shared) for table in (match.rotary[0].cosine, match.rotary[0].sine)]
    _pack_projections((query, key, attention.value))
    operands: list[torch.fx.Node | None] = [_packed(operand, end) for operand in (query, key, attention.value)]
    whole = _packed_source(operands)  # type: ignore[arg-type]
    if whole is not None:
        operands = [whole, None, None]
    batch, heads, length, size = query.meta["val"].shape
    inputs = [*operands, *attention.pasts, shared.lengths, shared.total, *tables, None]
    inputs += [_bias(attention, shared) if "bias" in context.attention else None, _sinks(attention)]
    while inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, int | float | str] = {
        "num_heads": heads,
        "kv_num_heads": key.meta["val"].shape[1],
        "scale": attention.scale,
        "do_rotary": int(match.rotary is not None),
        "rotary_interleaved": int(match.rotary is not None and match.rotary[0].interleaved),
    }
    if attention.softcap:
        attributes["softcap"] = attention.softcap
    if attention.mask.window is not None:
        attributes["local_window_size"] = attention.mask.window
    value = query.meta["val"]
    past, keys = attention.pasts[0].meta["val"], attention.mask.padding.meta["val"].shape[1]
    present = value.new_empty((batch, past.shape[1], keys, size))
    results = [value.new_empty((batch, length, heads * size)), present, present]
    output, *presents = insert_onnx_op(end, "GroupQueryAttention", inputs, attributes, results)
    for old, new in zip(attention.presents, presents, strict=True):
        end.graph.output_node().replace_input_with(old, new)
    merged = merged_heads(end)
    if merged is not None:
        merged.replace_all_uses_with(output)
        return
    parts = insert_before(end, aten.unflatten.int, output, 2, [heads, size])
    end.replace_all_uses_with(insert_before(end, aten.transpose.int, parts, 1, 2))


def _table(table: torch.fx.Node, match: _Match, shared: _Shared) -> torch.fx.Node:
    if table not in shared.tables:
        shared.tables[table] = insert_table(table, match.positions, match.attention.end)
    return shared.tables[table]


def _sinks(attention: _CachedAttention) -> torch.fx.Node | None:
    dtype = dtype_of(attention.end)
    if attention.sinks is None or dtype_of(attention.sinks) == dtype:
        return attention.sinks
    return insert_before(attention.end, aten.to.dtype, attention.sinks, dtype)


def _packed(node: torch.fx.Node, before: torch.fx.Node) -> torch.fx.Node:
    """The tensor [batch, length, heads * size] of [batch, heads, length, size]."""
    rotary = as_call(node, _ROTARY)
    if rotary is not None and set(rotary.kwargs) <= {"interleaved"}:
        source = _packed(rotary.args[0], before)  # type: ignore[arg-type]
        heads = node.meta["val"].shape[1]
        args = (source, *rotary.args[1:])
        return insert_call(before, _ROTARY, args, {**rotary.kwargs, "num_heads": heads}, val=source.meta["val"])
    return joined_heads(_untransposed(node, before), before)


def _untransposed(node: torch.fx.Node, before: torch.fx.Node) -> torch.fx.Node:
    """The tensor [batch, length, heads, size] of [batch, heads, length, size]; norms are applied to it instead."""
    while is_same_dtype_cast(node):
        node = node.args[0]  # type: ignore[assignment]
    source = transposed_source(node)
    if source is not None:
        return source
    norm = as_call(node, aten.rms_norm.default)
    if norm is not None and len(norm.args[1]) == 1 and not norm.kwargs:  # type: ignore[arg-type]
        x = _untransposed(norm.args[0], before)  # type: ignore[arg-type]
        return insert_before(before, aten.rms_norm.default, x, *norm.args[1:], origin=norm)
    return insert_before(before, aten.transpose.int, node, 1, 2)
