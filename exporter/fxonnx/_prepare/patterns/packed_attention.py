"""Fuse attention with the split of the last axis into heads before it and the merge of the heads after it."""

from __future__ import annotations

import math
import operator
from typing import Any

import onnx
import torch
import torch.onnx.ops  # defines the operators

from ..graph_utils import insert_call
from .attention import ROUNDED_SCORES_KEY
from .formula import Formula, Matches, always
from .matching import HALF_FLOATS, VIEWS, as_call, dims_of, dtype_of, insert_before, same_dims
from .terms import Match, Tensor, Term, Value, either, op, transposed, view_of

__all__ = ["fuse_packed_attention", "joined_heads", "merged_heads", "transposed_source"]

aten = torch.ops.aten

_ROTARY = torch.ops.onnx.RotaryEmbedding.opset23
_DTYPES = (*HALF_FLOATS, torch.float32)


def _with_cache(new: Tensor, past: Tensor) -> Term:
    joined = op.cat([past, new], either(2, -2))
    return either(joined.when(lambda node: all(dtype_of(each) in _DTYPES for each in node.args[0])), new)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, past_key: Tensor, past_value: Tensor, mask: Value, dropout: Value,
    is_causal: Value, scale: Value, is_grouped: Value,
) -> Term:  # fmt: skip
    keys, values = _with_cache(key, past_key).named("keys"), _with_cache(value, past_value).named("values")
    return op.scaled_dot_product_attention(
        query, keys, values, mask, dropout, is_causal, scale=scale, enable_gqa=is_grouped
    ).anchor()


def _is_supported(match: Match) -> bool:
    """Whether operands are 4-dim, of one dtype that the operator accepts, with one static head size."""
    operands = [match.node(name) for name in ("query", "keys", "values")]
    shapes = [dims_of(each) or () for each in operands]
    if any(len(shape) != 4 for shape in shapes) or match.value("dropout") != 0:
        return False
    if {*map(dtype_of, operands)} != {dtype_of(match.end)} or dtype_of(match.end) not in _DTYPES:
        return False
    batches, heads, _, sizes = zip(*shapes, strict=True)
    if not all(isinstance(size, int) for size in (*heads, *sizes)) or len(set(sizes)) != 1:
        return False
    fits = heads[1] == heads[2] and heads[0] % heads[1] == 0 and len(set(map(str, batches))) == 1
    return fits and (heads[0] == heads[1] or bool(match.value("is_grouped")))


def _pasts(match: Match) -> list[torch.fx.Node | None]:
    """The cached keys and values. A cache begins with a tensor of shape [0], which torch.cat ignores."""
    pasts = (match.value("past_key"), match.value("past_value"))
    return [None if len(dims_of(past) or ()) == 1 else past for past in pasts]


def _has_packed_operands(match: Match) -> bool:
    return all(_is_packable(match.node(name)) for name in ("query", "key", "value"))


_FORMULA = Formula(
    _attention,
    (
        _is_supported,
        "the operands are not tensors of four axes and one dtype with a static number and size of heads",
    ),
    (
        lambda match: merged_heads(match.end) is not None,
        "the heads of the result are not merged by a transpose and a reshape only",
    ),
    (
        lambda match: len({past is None for past in _pasts(match)}) == 1,
        "only one of keys and values is concatenated to a cache",
    ),
    (
        lambda match: not match.value("is_causal") or _pasts(match) == [None, None],
        "the attention is causal, and has a cache",
    ),
    (
        _has_packed_operands,
        "query, key or value is not a transpose of a tensor whose last axis is split into heads",
    ),
    near=always,
)


def fuse_packed_attention(graph: torch.fx.Graph) -> Matches:
    """Fuse to ONNX's Attention on tensors [batch, length, heads * size], with the cache as its past inputs."""
    packed: dict[torch.fx.Node, torch.fx.Node] = {}
    found = Matches()
    for match in _FORMULA.matches(graph, found):
        found.fused.append(_rewrite(match, packed))
    return found


def _turned(x: Term) -> Term:
    return either(transposed(x, 1, 2), op.permute(x, [0, 2, 1, 3]))


def _source(x: Tensor) -> Term:
    return _turned(x)


def _merged(x: Tensor) -> Term:
    # An alternative, unlike a parameter, also stands for the tensor before a call that keeps the shape.
    return op(*VIEWS, aten.flatten)(_turned(either(x))).loose()


def _joins_last_axes(match: Match) -> bool:
    batch, heads, length, size = dims_of(match.node("x")) or (0, 0, 0, 0)
    return same_dims(match.end, (batch, length, heads * size))


def _keeps_shape(node: torch.fx.Node) -> bool:
    changes_layout = as_call(node, *VIEWS, aten.contiguous.default, aten.clone.default, aten.flatten.using_ints)
    return changes_layout is not None and same_dims(node, dims_of(node.args[0]) or ())


_TURNED = Formula(_source, lambda match: len(dims_of(match.node("x")) or ()) == 4)
_MERGED = Formula(_merged, _joins_last_axes, passes=_keeps_shape)


def merged_heads(node: torch.fx.Node) -> torch.fx.Node | None:
    """Match the merge of the heads into the last axis, if that is the only use of the result; returns its last node."""
    match = _MERGED.after(node)
    return None if match is None else match.end


def transposed_source(node: Any) -> torch.fx.Node | None:
    """Match a transposition of the second and third of four axes; returns its source."""
    match = _TURNED.at(node)
    return None if match is None else match.node("x")


def _is_packable(node: Any) -> bool:
    rotary = as_call(node, _ROTARY)
    if rotary is not None:
        return set(rotary.kwargs) <= {"interleaved"} and len(rotary.args) == 3 and _is_packable(rotary.args[0])
    return transposed_source(node) is not None or _PART.at(node) is not None


def _part(x: Tensor, index: Value) -> Term:
    turned = op.permute(view_of(x).named("split"), [2, 0, 3, 1, 4])
    return op(operator.getitem)(op.unbind(turned), index)


def _splits_heads(match: Match) -> bool:
    split, whole = dims_of(match.node("split")) or (), dims_of(match.node("x")) or ()
    return len(split) == 5 and len(whole) == 3 and same_dims(match.node("x"), (*split[:2], math.prod(split[2:])))


_PART = Formula(_part, _splits_heads)


def _pack(node: torch.fx.Node, before: torch.fx.Node, packed: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    """The tensor [batch, length, heads * size] from which [batch, heads, length, size] was computed."""
    if node not in packed:
        rotary = as_call(node, _ROTARY)
        part = _PART.at(node)
        if rotary is not None:
            source = _pack(rotary.args[0], before, packed)  # type: ignore[arg-type]
            options = {**rotary.kwargs, "num_heads": node.meta["val"].shape[1]}
            args = (source, *rotary.args[1:])
            packed[node] = insert_call(before, _ROTARY, args, options, val=source.meta["val"], origin=node)
        elif part is not None:
            whole, index = part.node("x"), part.value("index")
            width = node.meta["val"].shape[1] * node.meta["val"].shape[3]
            if whole not in packed:
                sizes = [width] * (whole.meta["val"].shape[2] // width)
                packed[whole] = insert_before(before, aten.split_with_sizes.default, whole, sizes, 2)
            packed[node] = insert_before(before, operator.getitem, packed[whole], index)
        else:
            packed[node] = joined_heads(transposed_source(node), before)
    return packed[node]


def joined_heads(source: Any, before: torch.fx.Node) -> torch.fx.Node:
    """[batch, length, heads, size] with the last two axes merged."""
    batch, length, heads, size = source.meta["val"].shape
    view = as_call(source, *VIEWS)
    if view is not None:
        origin: Any = view.args[0]
        if same_dims(origin, (batch, length, heads * size)):
            return origin  # type: ignore[no-any-return]
    return insert_before(before, aten.flatten.using_ints, source, 2, 3)


def _rewrite(match: Match, packed: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    node = match.end
    end = merged_heads(node) or node
    query, key, value = (match.node(name) for name in ("query", "keys", "values"))
    sources = [_pack(match.node(name), node, packed) for name in ("query", "key", "value")]
    heads, groups = query.meta["val"].shape[1], key.meta["val"].shape[1]
    options = {"is_causal": match.value("is_causal"), "scale": match.value("scale")}
    if dtype_of(node) in HALF_FLOATS and not node.meta.get(ROUNDED_SCORES_KEY):
        # torch's kernels compute half-precision scores and their softmax in float32.
        options["softmax_precision"] = int(onnx.TensorProto.FLOAT)
    options |= {"q_num_heads": heads, "kv_num_heads": groups}
    scores = query.meta["val"].new_empty((*query.meta["val"].shape[:3], key.meta["val"].shape[2]))
    vals = (end.meta["val"], key.meta["val"], value.meta["val"], scores)
    args = (*sources, match.value("mask"), *_pasts(match))
    whole = insert_call(node, torch.ops.onnx.Attention.opset23, args, options, val=vals)
    end.replace_all_uses_with(insert_before(node, operator.getitem, whole, 0, origin=node))
    for index, present in ((1, key), (2, value)):
        others = [user for user in present.users if user is not node and node < user]
        if others:
            item = insert_before(node, operator.getitem, whole, index, origin=present)
            for user in others:
                user.replace_input_with(present, item)
    return whole
