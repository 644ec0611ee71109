"""Fuse attention with the split of the last axis into heads before it and the merge of the heads after it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import onnx
import torch
import torch.onnx.ops  # defines the operators

from ..._provenance import copy_provenance
from .attention import ROUNDED_SCORES_KEY
from .matches import Matches, Mismatch
from .matching import HALF_FLOATS, VIEWS, as_call, dims_of, dtype_of, has_one_user, insert_before

__all__ = ["fuse_packed_attention", "joined_heads", "merged_heads", "transposed_source"]

aten = torch.ops.aten

_ROTARY = torch.ops.onnx.RotaryEmbedding.opset23
_LAYOUT_ONLY = (*VIEWS, aten.contiguous.default, aten.clone.default)
_DTYPES = (*HALF_FLOATS, torch.float32)


@dataclass(frozen=True)
class _KeyOrValue:
    """Keys or values: the new ones, [batch, heads, length, size], and the cached ones concatenated before them."""

    new: torch.fx.Node
    past: torch.fx.Node | None


def fuse_packed_attention(graph: torch.fx.Graph) -> Matches:
    """Fuse to ONNX's Attention on tensors [batch, length, heads * size], with the cache as its past inputs.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The rewritten attentions and near misses.
    """
    packed: dict[torch.fx.Node, torch.fx.Node] = {}
    found = Matches()
    for node in graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        match = found.attempt(node, _match)
        if match is None:
            continue
        found.fused.append(_rewrite(node, *match, packed))
    return found


def _match(node: torch.fx.Node) -> tuple[torch.fx.Node, tuple[_KeyOrValue, _KeyOrValue]]:
    """Match an attention between a split and a merge of heads; returns the end of the merge, keys and values."""
    if not _is_supported(node):
        raise Mismatch("the operands are not tensors of four axes and one dtype with a static number and size of heads")
    end = merged_heads(node)
    if end is None:
        raise Mismatch("the heads of the result are not merged by a transpose and a reshape only")
    query, key, value = node.args[:3]
    operands = _key_or_value(key), _key_or_value(value)
    has_past = {operand.past is None for operand in operands}
    if len(has_past) > 1:
        raise Mismatch("only one of keys and values is concatenated to a cache")
    if _argument(node, 5, "is_causal", False) and has_past == {False}:
        raise Mismatch("the attention is causal, and has a cache")
    if not all(map(_is_packable, (query, operands[0].new, operands[1].new))):
        raise Mismatch("query, key or value is not a transpose of a tensor whose last axis is split into heads")
    return end, operands


def _argument(node: torch.fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _is_supported(node: torch.fx.Node) -> bool:
    """Whether operands are 4-dim, of one dtype that the operator accepts, with one static head size."""
    shapes = [dims_of(argument) for argument in node.args[:3]]
    if any(shape is None or len(shape) != 4 for shape in shapes) or _argument(node, 4, "dropout_p", 0.0) != 0:
        return False
    if {dtype_of(argument) for argument in node.args[:3]} != {dtype_of(node)} or dtype_of(node) not in _DTYPES:
        return False
    query, key, value = shapes
    sizes = {shape[3] for shape in shapes if isinstance(shape[3], int)}  # type: ignore[index]
    heads = [shape[1] for shape in shapes]  # type: ignore[index]
    if len(sizes) != 1 or not all(isinstance(shape[3], int) for shape in shapes):  # type: ignore[index]
        return False
    known = all(isinstance(count, int) for count in heads) and heads[1] == heads[2] and heads[0] % heads[1] == 0
    same_batch = str(query[0]) == str(key[0]) == str(value[0])  # type: ignore[index]
    return known and same_batch and (heads[0] == heads[1] or bool(node.kwargs.get("enable_gqa")))


def merged_heads(node: torch.fx.Node) -> torch.fx.Node | None:
    """Match the merge of the heads into the last axis, if that is the only use of the result; returns its last node."""
    batch, heads, length, size = dims_of(node) or (0, 0, 0, 0)
    joined = [str(batch), str(length), str(heads * size)]
    is_transposed = False
    while has_one_user(node):
        user = next(iter(node.users))
        if not is_transposed and transposed_source(user) is node:
            is_transposed = True
        elif as_call(user, *_LAYOUT_ONLY, aten.flatten.using_ints) is None:
            return None
        elif is_transposed and list(map(str, dims_of(user) or ())) == joined:
            return user
        elif list(map(str, dims_of(user) or ())) != list(map(str, dims_of(node) or ())):
            return None
        node = user
    return None


def transposed_source(node: Any) -> torch.fx.Node | None:
    """Match a transposition of the second and third of four axes; returns its source."""
    turn = as_call(node, aten.transpose.int, aten.permute.default)
    if turn is None:
        return None
    source: Any = turn.args[0]
    if turn.target is aten.permute.default:
        return source if list(turn.args[1]) == [0, 2, 1, 3] else None  # type: ignore[arg-type]
    axes = {axis % 4 for axis in turn.args[1:]}  # type: ignore[operator]
    return source if len(dims_of(source) or ()) == 4 and axes == {1, 2} else None


def _key_or_value(node: Any) -> _KeyOrValue:
    joined = as_call(node, aten.cat.default)
    if joined is not None and (*joined.args[1:], 0)[0] in (2, -2):
        pieces: Any = joined.args[0]
        if len(pieces) == 2 and all(dtype_of(piece) in _DTYPES for piece in pieces):
            # A cache begins with a tensor of shape [0], which torch.cat ignores.
            return _KeyOrValue(pieces[1], None if len(dims_of(pieces[0]) or ()) == 1 else pieces[0])
    return _KeyOrValue(node, None)


def _is_packable(node: Any) -> bool:
    rotary = as_call(node, _ROTARY)
    if rotary is not None:
        return set(rotary.kwargs) <= {"interleaved"} and len(rotary.args) == 3 and _is_packable(rotary.args[0])
    return transposed_source(node) is not None or _unbound_part(node) is not None


def _unbound_part(node: Any) -> tuple[torch.fx.Node, int] | None:
    """Match ``x.reshape(batch, length, parts, heads, size).permute(2, 0, 3, 1, 4).unbind()[i]``; returns x and i."""
    item = as_call(node, operator.getitem)
    parts = as_call(item.args[0], aten.unbind.int) if item is not None else None
    turn = as_call(parts.args[0], aten.permute.default) if parts is not None else None
    if item is None or parts is None or turn is None or turn.args[1] != [2, 0, 3, 1, 4] or (*parts.args[1:], 0)[0] != 0:
        return None
    view = as_call(turn.args[0], *VIEWS)
    split = dims_of(view)
    whole = dims_of(view.args[0]) if view is not None else None
    if view is None or split is None or whole is None or len(split) != 5 or len(whole) != 3:
        return None
    same = list(map(str, whole)) == [*map(str, split[:2]), str(split[2] * split[3] * split[4])]
    return (view.args[0], item.args[1]) if same else None  # type: ignore[return-value]


def _pack(node: torch.fx.Node, before: torch.fx.Node, packed: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    """The tensor [batch, length, heads * size] from which [batch, heads, length, size] was computed."""
    if node not in packed:
        rotary = as_call(node, _ROTARY)
        part = _unbound_part(node)
        if rotary is not None:
            source = _pack(rotary.args[0], before, packed)  # type: ignore[arg-type]
            with before.graph.inserting_before(before):
                new = before.graph.call_function(
                    _ROTARY, (source, *rotary.args[1:]), {**rotary.kwargs, "num_heads": node.meta["val"].shape[1]}
                )
            new.meta["val"] = source.meta["val"]
            copy_provenance(new, node)
            packed[node] = new
        elif part is not None:
            whole, index = part
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
        if list(map(str, dims_of(origin) or ())) == [str(batch), str(length), str(heads * size)]:
            return origin  # type: ignore[no-any-return]
    return insert_before(before, aten.flatten.using_ints, source, 2, 3)


def _rewrite(
    node: torch.fx.Node,
    end: torch.fx.Node,
    operands: tuple[_KeyOrValue, _KeyOrValue],
    packed: dict[torch.fx.Node, torch.fx.Node],
) -> torch.fx.Node:
    query, key, value = (argument for argument in node.args[:3] if isinstance(argument, torch.fx.Node))
    sources = [_pack(each, node, packed) for each in (query, operands[0].new, operands[1].new)]
    mask = _argument(node, 3, "attn_mask", None)
    heads, groups = query.meta["val"].shape[1], key.meta["val"].shape[1]
    options = {"is_causal": _argument(node, 5, "is_causal", False), "scale": node.kwargs.get("scale")}
    if dtype_of(node) in HALF_FLOATS and not node.meta.get(ROUNDED_SCORES_KEY):
        # torch's kernels compute half-precision scores and their softmax in float32.
        options["softmax_precision"] = int(onnx.TensorProto.FLOAT)
    with node.graph.inserting_before(node):
        whole = node.graph.call_function(
            torch.ops.onnx.Attention.opset23,
            (*sources, mask, operands[0].past, operands[1].past),
            {**options, "q_num_heads": heads, "kv_num_heads": groups},
        )
        scores = query.meta["val"].new_empty((*query.meta["val"].shape[:3], key.meta["val"].shape[2]))
        whole.meta["val"] = (end.meta["val"], key.meta["val"], value.meta["val"], scores)
        copy_provenance(whole, node)
    end.replace_all_uses_with(insert_before(node, operator.getitem, whole, 0, origin=node))
    for index, present in ((1, key), (2, value)):
        others = [user for user in present.users if user is not node and node < user]
        if others:
            item = insert_before(node, operator.getitem, whole, index, origin=present)
            for user in others:
                user.replace_input_with(present, item)
    return whole
