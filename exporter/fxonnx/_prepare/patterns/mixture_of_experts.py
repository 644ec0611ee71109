"""Fuse mixtures of experts to ONNX Runtime's MoE: a router, and a gated layer for each expert that it selects.

Models of transformers sort the tokens by expert and multiply each group by the weight of its expert. The router is part
of the operator if it is a softmax; of other routers (sigmoids, groups of experts, a bias for the choice, scaling) the
operator gets the logarithms of the weights.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import torch

from ..sizes import is_known, same_size
from .context import PatternContext
from .formula import Formula, Matches
from .matching import (
    CASTS,
    VIEWS,
    as_call,
    bounds_of,
    dims_of,
    dtype_of,
    insert_before,
    insert_onnx_op,
    is_same_dtype_cast,
    known_number,
    operand,
    value_of,
)
from .terms import Call, Match, Number, Tensor, Term, Value, cast_of, either, op, view_of

__all__ = ["fuse_mixture_of_experts"]

aten = torch.ops.aten

_NONNEGATIVE = {aten.softmax, aten._softmax, aten.sigmoid, aten.exp, aten.relu, aten.softplus, aten.abs, aten.square}
"""Operators whose results are at least zero."""
_KEEPS = {
    *(aten.gather, aten.index, aten.index_select, aten.select, aten.slice, aten.topk, aten.sort, aten.sum, aten.mean),
    *(aten.unsqueeze, aten.squeeze, aten.expand, aten.permute, aten.transpose, aten.clone, aten.sqrt, aten.detach),
}
"""Operators whose results have no other sign than their first operand."""
_COMBINES = {aten.add, aten.mul, aten.div}


def _is_nonnegative(node: torch.fx.Node) -> bool:
    """Whether the operators that compute a tensor show that none of its elements is below zero, or that it is NaN."""
    pending: list[Any] = [node]
    seen: set[torch.fx.Node] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, torch.fx.Node):
            sources = () if value in seen else _sources(value)
            if sources is None:
                return False
            seen.add(value)
            pending.extend(sources)
        else:
            number = known_number(value)
            if number is None or number < 0:
                return False
    return True


def _sources(node: torch.fx.Node) -> tuple[Any, ...] | None:
    """The operands that a value is nonnegative with; None if its sign is not known."""
    target: Any = node.target
    count = len(node.args)
    family = getattr(target, "overloadpacket", target)
    if family in _NONNEGATIVE:
        return ()
    if family in _KEEPS or target in (*CASTS, *VIEWS) or target is operator.getitem:
        return node.args[:1]
    if family in _COMBINES and count > 1:
        return node.args[:2] if node.kwargs.get("alpha", 1) == 1 else None
    if family in (aten.cat, aten.concat):
        parts: Any = node.args[0]
        return tuple(parts)
    if family is aten.where and count == 3:
        return node.args[1:]
    if family is aten.masked_fill and count == 3:
        return (node.args[0], node.args[2])
    if family in (aten.clamp, aten.clamp_min) and count > 1:
        least = known_number(node.args[1])
        return () if least is not None and least >= 0 else None
    return None


_grouped_product = op("transformers::grouped_mm_fallback", "aten::_grouped_mm")
_item = op(operator.getitem)
_LAST = either(-1, 1)
_LEAST_WEIGHT = 1e-30  # the logarithm of zero would be infinite
_NOT_CHOSEN = -1e4  # below its logarithm, and a number of every floating-point type


def _routed(
    tokens: Tensor, logits: Tensor, k: Number, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor,
    alpha: Number, beta: Number, limit: Number, lower: Number, count: Number, last: Number, length: Value,
) -> Term:  # fmt: skip
    """With the router of the operator: the largest logits, or the largest probabilities, normalized or not."""
    top_logits = op.topk(logits, k, _LAST)
    top = op.topk(op.softmax(logits, _LAST).loose(), k, _LAST)
    values = _item(top, 0).named("scale")
    normalized = values / op.sum(values, either([-1], [1]), True)
    scale = either(op.softmax(_item(top_logits, 0), _LAST).loose(), normalized.named("normalized"), values)
    choice = either(_item(top, 1), _item(top_logits, 1))
    return _experts(
        tokens, choice, scale, k, up, up_bias, down, down_bias, alpha, beta, limit, lower, count, last, length
    )


def _chosen(
    tokens: Tensor, scores: Tensor, scale: Tensor, k: Number, up: Tensor, up_bias: Tensor, down: Tensor,
    down_bias: Tensor, alpha: Number, beta: Number, limit: Number, lower: Number, count: Number, last: Number,
    length: Value,
) -> Term:  # fmt: skip
    """With any other router that selects the largest of some scores, at once or one after the other."""
    largest = _item(op.max(scores, _LAST, True), 1)
    second = _item(op.max(op.scatter(scores, _LAST, largest, -math.inf), _LAST, True), 1)
    both = op(aten.cat, aten.concat)([largest, second], _LAST)
    choice = either(_item(op.topk(scores, k, _LAST).loose(), 1), both).named("choice")
    return _experts(
        tokens, choice, scale, k, up, up_bias, down, down_bias, alpha, beta, limit, lower, count, last, length
    )


def _experts(
    tokens: Term, choice: Term, scale: Term, k: Number, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor,
    alpha: Number, beta: Number, limit: Number, lower: Number, count: Number, last: Number, length: Value,
) -> Term:  # fmt: skip
    # The selected experts of all tokens, sorted.
    sort = op.sort(_flat(choice))
    experts, order = _item(sort, 0), _item(sort, 1)
    ends = op.cumsum(op.histc(cast_of(experts), count, 0, last), 0).loose()
    # The two products of each expert, and the gate between them.
    first = _grouped_product(op.index(tokens, [op.floor_divide(order, k)]), up, ends)
    source = either(first + op.index(up_bias, [experts]), first).named("source")
    second = _grouped_product(_gate(source, alpha, beta, limit, lower), down, ends)
    result = either(second + op.index(down_bias, [experts]), second)
    # The weighted results, in the order of the tokens.
    weighted = result * op.unsqueeze(op.index(_flat(scale), [order]), _LAST)
    positions = op.index_put(op.empty_like().loose(), [order], op(aten.arange.default)(length).loose())
    grouped = view_of(op.index(weighted, [positions])).when(lambda node: len(dims_of(node) or ()) == 3)
    return op.sum(grouped.named("grouped"), [1])


def _scaled(tokens: Tensor, logits: Tensor, k: Number, up: Tensor, down: Tensor, count: Number) -> Term:
    """All experts, with inputs that the router multiplies by 0 for those that it does not select."""
    top = op.topk(logits, k, _LAST)
    scores = op.scatter(op.full_like(logits, -math.inf).loose(), _LAST, _item(top, 1), _item(top, 0).named("selected"))
    rows = op.repeat(tokens, [count, 1]) * view_of(op.transpose(op.sigmoid(scores), 0, 1))
    source = op.bmm(view_of(rows), up).named("source")
    halves = op.chunk(source, 2, _LAST).named("halves")
    result = op.bmm(op.silu(_item(halves, 0)) * _item(halves, 1), down)
    return op.sum(view_of(view_of(result)).named("grouped"), [0])


def _flat(x: Term) -> Term:
    return view_of(x).when(lambda node: len(dims_of(node) or ()) == 1)


def _gate(x: Term, alpha: Number, beta: Number, limit: Number, lower: Number) -> Term:
    """A SiLU or its variants times a linear part, of halves or alternating elements, bounded or not."""
    halves = op.chunk(x, 2, _LAST).named("halves")
    forms = []
    for gate, linear in ((_item(halves, 0), _item(halves, 1)), (_every_second(x, 0), _every_second(x, 1))):
        for g, part in ((op.clamp(gate, None, limit), op.clamp(linear, lower, limit)), (gate, linear)):
            forms += [(part + beta) * (g * op.sigmoid(g * alpha)), op.silu(g) * part]
    return either(*forms)


def _every_second(x: Term, start: int) -> Call:
    return op.slice(x).loose().where(partial(_is_every_second, start), "the slice has other bounds")


def _is_every_second(start: int, node: torch.fx.Node) -> bool:
    return bounds_of(node) == (1, start, (dims_of(node.args[0]) or (0, 0))[1], 2)


def _has_one_dtype(match: Match) -> bool:
    scores = match.value("logits") or match.value("scale")
    return dtype_of(match.node("tokens")) == dtype_of(scores) == dtype_of(match.end)


def _has_consistent_sizes(match: Match) -> bool:
    scores = dims_of(match.value("logits") or match.value("scores")) or ()
    weights = [value_of(match.node(name)) for name in ("up", "down")]
    if len(scores) != 2 or not all(same_size(weight.shape[0], scores[1]) for weight in weights):
        return False
    group = value_of(match.node("grouped")).shape[1]
    return match.number("last") == match.number("count") - 1 and group == match.value("k")


def _has_one_expert(match: Match) -> bool:
    scores = dims_of(match.node("logits")) or ()
    weights = [value_of(match.node(name)) for name in ("up", "down")]
    sizes = {match.number("count"), *(weight.shape[0] for weight in weights)}
    return match.value("k") == 1 and len(scores) == 2 and sizes == {scores[1]}


def _is_gate(match: Match) -> bool:
    is_bounded = match.value("limit") is None or match.number("lower") == -match.number("limit")
    return is_bounded and is_known(value_of(match.node("source")).shape[-1] % 2 == 0)


def _has_usable_scale(match: Match) -> bool:
    scale = match.node("scale")
    if dtype_of(scale) != torch.float32:  # logarithms in half precision would move the weights by more than rounding
        return False
    return dims_of(scale) == dims_of(match.node("choice")) and _is_nonnegative(scale)


_CONDITIONS = (_has_one_dtype, _has_consistent_sizes, _is_gate)
_ROUTED = Formula(_routed, *_CONDITIONS, passes=is_same_dtype_cast)
_CHOSEN = Formula(_chosen, *_CONDITIONS, _has_usable_scale, passes=is_same_dtype_cast)
_SCALED = Formula(
    _scaled,
    _has_one_dtype,
    _has_one_expert,
    _is_gate,
    passes=lambda node: as_call(node, *CASTS) is not None,
)


def fuse_mixture_of_experts(graph: torch.fx.Graph, context: PatternContext) -> Matches:
    """Fuse to MoE where the target has a kernel."""
    found = Matches()
    for node in graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
        if dtype_of(node) not in context.experts:
            continue
        match = _ROUTED.at(node) or _CHOSEN.at(node) or _SCALED.at(node)
        if match is not None:
            _rewrite(match)
            found.fused.append(node)
    return found


def _rewrite(match: Match) -> None:
    node, is_interleaved = match.end, match.value("halves") is None
    up, down, up_bias, logits = match.node("up"), match.node("down"), match.value("up_bias"), match.value("logits")
    tokens, selected = match.node("tokens"), match.value("selected")
    if selected is not None:
        factor = insert_before(node, aten.sigmoid.default, insert_before(node, aten.to.dtype, selected, torch.float32))
        factor = insert_before(node, aten.to.dtype, factor, dtype_of(tokens))
        tokens = insert_before(node, aten.mul.Tensor, tokens, factor)
    inputs = [
        *(tokens, _logits_of(match) if logits is None else logits),
        _interleaved(_outputs_first(up, node), is_interleaved, node),
        None if up_bias is None else _interleaved(up_bias, is_interleaved, node),
        *(_outputs_first(down, node), match.value("down_bias")),
    ]
    attributes: dict[str, int | float | str] = {
        "k": match.value("k"),
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "normalize_routing_weights": 1,
        "activation_alpha": 1.0 if match.value("alpha") is None else match.number("alpha"),
        "activation_beta": 0.0 if match.value("beta") is None else match.number("beta"),
    }
    if match.value("limit") is not None:
        attributes["swiglu_limit"] = match.number("limit")
    (fused,) = insert_onnx_op(node, "MoE", inputs, attributes, [node.meta["val"]])
    scale = match.value("scale") if match.value("normalized") is None else None
    if scale is not None:
        # Without normalization, results of ONNX Runtime 1.31 are wrong where the output has the memory of an input.
        total = insert_before(node, aten.sum.dim_IntList, scale, [-1], True)
        fused = insert_before(node, aten.mul.Tensor, fused, total)
    node.replace_all_uses_with(fused)


def _logits_of(match: Match) -> torch.fx.Node:
    """Logits whose softmax over the chosen experts has the proportions of their weights: the logarithms."""
    node, scale = match.end, match.node("scale")
    logs = insert_before(node, aten.log.default, insert_before(node, aten.clamp_min.default, scale, _LEAST_WEIGHT))
    others = insert_before(node, aten.full_like.default, match.node("scores"), _NOT_CHOSEN)
    return insert_before(node, aten.scatter.src, others, 1, match.node("choice"), logs)


def _outputs_first(weight: torch.fx.Node, before: torch.fx.Node) -> torch.fx.Node:
    """The weights as [experts, out, in]; they become initializers, as all expressions of weights."""
    turned = as_call(weight, aten.transpose.int)
    if turned is not None and tuple(turned.args[1:]) in ((-2, -1), (-1, -2), (1, 2), (2, 1)):
        return operand(turned)
    return insert_before(before, aten.transpose.int, weight, 1, 2)


def _interleaved(weight: torch.fx.Node, is_interleaved: bool, before: torch.fx.Node) -> torch.fx.Node:
    """The weights or biases with alternating gates and linear parts along the second axis."""
    if is_interleaved:
        return weight
    experts, both, *rest = value_of(weight).shape
    halves = insert_before(before, aten.reshape.default, weight, [experts, 2, both // 2, *rest])
    pairs = insert_before(before, aten.transpose.int, halves, 1, 2)
    return insert_before(before, aten.reshape.default, pairs, [experts, both, *rest])
