"""Fuse causal attention with a cache to GroupQueryAttention, whose cache may be a buffer of a fixed length.

The lengths of all sequences come from the padding mask: the shape of the past is the buffer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.onnx.ops  # defines the operators

from ..._provenance import copy_provenance
from .cached_attention import CachedAttention, match_attention
from .cached_masks import size_expression
from .context import PatternContext
from .matches import Matches
from .matching import as_call, dtype_of, insert_before, is_same_dtype_cast
from .onnx_nodes import insert_onnx_op
from .packed_attention import joined_heads, merged_heads, transposed_source
from .packed_projections import pack_projections, packed_source
from .rotary_tables import Rotary, insert_table, is_stored, match_rotary

__all__ = ["fuse_group_query_attention"]

aten = torch.ops.aten

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

    attention: CachedAttention
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
        attention = match_attention(node) if node.op == "call_function" else None
        if attention is not None and dtype_of(node) in context.cached_attention:
            positions = _position_limit(attention, context)
            matches.append(_Match(attention, _stored_rotary(attention, positions), positions))
    padding = {match.attention.mask.padding for match in matches}
    if len(padding) != 1 or _reads_past(graph, matches):
        reason = "an operator outside of the attentions depends on the length of the past"
        if len(padding) > 1:
            reason = "the attentions have different padding masks"
        found.missed = {match.attention.end: reason for match in matches}
        return found
    first = matches[0].attention
    shared = _insert_shared(padding.pop(), first)
    for match in matches:
        _rewrite(match, shared, context)
    found.fused += [match.attention.end for match in matches]
    return found


def _position_limit(attention: CachedAttention, context: PatternContext) -> int:
    """The number of positions of the model, or the bound of the padding mask's dim; 0 if neither is known."""
    size = attention.mask.padding.meta["val"].shape[1]
    bound = size.node.shape_env.bound_sympy(size.node.expr).upper if isinstance(size, torch.SymInt) else size
    known = [int(limit) for limit in (bound, context.max_positions) if limit is not None and limit < 2**31]
    return min(known, default=0)


def _stored_rotary(attention: CachedAttention, limit: int) -> tuple[Rotary, Rotary] | None:
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


def _insert(
    before: torch.fx.Node, target: Any, args: tuple[Any, ...], value: torch.Tensor, **kwargs: Any
) -> torch.fx.Node:
    """Insert a call with a given value, for operators whose fake kernels would guard on symbolic sizes."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    node.meta["val"] = value
    copy_provenance(node, before)
    return node


def _insert_shared(padding: torch.fx.Node, attention: CachedAttention) -> _Shared:
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


def _bias(attention: CachedAttention, shared: _Shared) -> torch.fx.Node:
    """The bias [batch, 1, queries, keys] that masks padding before a sequence."""
    dtype = attention.end.meta["val"].dtype
    if dtype not in shared.biases:
        end = attention.end
        begun = insert_before(end, aten.to.dtype, insert_before(end, aten.cumsum.default, shared.valid, 1), torch.bool)
        wide = insert_before(end, aten.unsqueeze.default, insert_before(end, aten.unsqueeze.default, begun, 1), 1)
        batch, _, _, keys = wide.meta["val"].shape
        query = attention.query.meta["val"]
        column = query.new_empty((query.shape[2], 1))
        zeros = _insert(end, aten.zeros.default, ([shared.queries, 1],), column, dtype=dtype)
        value = query.new_empty((batch, 1, query.shape[2], keys))
        masked = _MASKED.get(dtype, -1e30)
        shared.biases[dtype] = _insert(end, aten.where.ScalarOther, (wide, zeros, masked), value)
    return shared.biases[dtype]


def _rewrite(match: _Match, shared: _Shared, context: PatternContext) -> None:
    attention, end = match.attention, match.attention.end
    query, key = (attention.query, attention.key) if match.rotary is None else (part.x for part in match.rotary)
    tables: list[torch.fx.Node | None] = [None, None]
    if match.rotary is not None:
        tables = [_table(table, match, shared) for table in (match.rotary[0].cosine, match.rotary[0].sine)]
    pack_projections((query, key, attention.value))
    operands: list[torch.fx.Node | None] = [_packed(operand, end) for operand in (query, key, attention.value)]
    whole = packed_source(operands)  # type: ignore[arg-type]
    if whole is not None:
        operands = [whole, None, None]
    batch, heads, length, size = query.meta["val"].shape
    inputs = [*operands, *attention.pasts, shared.lengths, shared.total, *tables, None]
    inputs += [_bias(attention, shared) if context.masks_scores else None, _sinks(attention)]
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


def _sinks(attention: CachedAttention) -> torch.fx.Node | None:
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
        return _insert(before, _ROTARY, args, source.meta["val"], **rotary.kwargs, num_heads=heads)
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
