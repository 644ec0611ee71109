"""Fuse mixtures of experts to ONNX Runtime's MoE: a router, and a gated layer for each expert that it selects.

Models of transformers sort the tokens by expert and multiply each group by the weight of its expert.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from .context import PatternContext
from .matches import Matches
from .matching import VIEWS, as_call, dims_of, dtype_of, insert_before, is_same_dtype_cast, known_number
from .onnx_nodes import insert_onnx_op

__all__ = ["fuse_mixture_of_experts"]

aten = torch.ops.aten

_GROUPED_PRODUCTS = frozenset({"transformers::grouped_mm_fallback", "aten::_grouped_mm"})
_WHOLE_AXIS = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class _Groups:
    """The assignment of tokens to experts.

    Attributes:
        tokens: The tokens [count, hidden].
        order: The positions in the flat list of all selected experts, sorted by expert.
        experts: The sorted experts.
        selected: The experts of each token [count, k].
        k: The number of experts for each token.
    """

    tokens: torch.fx.Node
    order: torch.fx.Node
    experts: torch.fx.Node
    selected: torch.fx.Node
    k: int


@dataclass(frozen=True)
class _Product:
    """A product of the tokens in groups with the weights of their experts.

    Attributes:
        x: The tokens, sorted by expert.
        weight: The weights [experts, in, out].
        bias: The biases [experts, out]; None if there are none.
    """

    x: torch.fx.Node
    weight: torch.fx.Node
    bias: torch.fx.Node | None


@dataclass(frozen=True)
class _Gate:
    """The activation between the two products of an expert.

    Attributes:
        source: Its input, gates and linear parts.
        is_interleaved: Whether these alternate; otherwise all gates come first.
        attributes: Attributes of MoE.
    """

    source: torch.fx.Node
    is_interleaved: bool
    attributes: dict[str, float]


def fuse_mixture_of_experts(graph: torch.fx.Graph, context: PatternContext) -> Matches:
    """Fuse to MoE where the target has a kernel.

    Args:
        graph: A functional graph; changed in place.
        context: The model and the target.

    Returns:
        The rewritten mixtures.
    """
    nodes = graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
    found = Matches()
    found.fused += [node for node in nodes if dtype_of(node) in context.experts and _fuse(node)]
    return found


def _fuse(node: torch.fx.Node) -> bool:
    """Fuse the mixture whose last operator is the sum over the experts of each token."""
    weighted = _in_order_of_tokens(node)
    if weighted is None:
        return False
    product, scale, order = weighted
    down = _product(product, order)
    gate = None if down is None else _gate(down.x)
    up = None if gate is None else _product(gate.source, order)
    groups = None if up is None else _groups(up.x, order)
    if down is None or gate is None or up is None or groups is None:
        return False
    router = _router(scale, groups)
    if router is None or dtype_of(groups.tokens) != dtype_of(node) or dtype_of(router[0]) != dtype_of(node):
        return False
    logits, values = router
    sizes = dims_of(up.weight), dims_of(down.weight), dims_of(logits)
    if any(size is None for size in sizes) or len({size[0] for size in sizes[:2]} | {sizes[2][1]}) != 1:  # type: ignore[index]
        return False
    if _group_size(node) != groups.k or not _has_consistent_groups((product, gate.source), groups):
        return False
    inputs = [
        *(groups.tokens, logits),
        _interleaved(_outputs_first(up.weight, node), gate, node),
        None if up.bias is None else _interleaved(up.bias, gate, node),
        *(_outputs_first(down.weight, node), down.bias),
    ]
    attributes: dict[str, int | float | str] = {
        "k": groups.k,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "normalize_routing_weights": 1,
        **gate.attributes,
    }
    (fused,) = insert_onnx_op(node, "MoE", inputs, attributes, [node.meta["val"]])
    if values is not None:
        # Without normalization, results of ONNX Runtime 1.31 are wrong where the output has the memory of an input.
        total = insert_before(node, aten.sum.dim_IntList, values, [-1], True)
        fused = insert_before(node, aten.mul.Tensor, fused, total)
    node.replace_all_uses_with(fused)
    return True


def _plain(node: Any) -> Any:
    """The value before casts to its own dtype."""
    while isinstance(node, torch.fx.Node) and is_same_dtype_cast(node):
        node = node.args[0]
    return node


def _item(node: Any, target: Any, index: int) -> torch.fx.Node | None:
    """The call of an operator that a node is a result of."""
    item = as_call(_plain(node), operator.getitem)
    return None if item is None or item.args[1] != index else as_call(item.args[0], target)


def _rows(node: Any) -> tuple[Any, Any] | None:
    """The table and the positions of a gather of rows."""
    gather = as_call(_plain(node), aten.index.Tensor)
    if gather is None or len(gather.args[1]) != 1:  # type: ignore[arg-type]
        return None
    return gather.args[0], gather.args[1][0]  # type: ignore[index]


def _flat_source(node: Any) -> Any:
    """The matrix that a vector is a view of."""
    view = as_call(_plain(node), *VIEWS)
    return None if view is None or len(dims_of(view) or ()) != 1 else _plain(view.args[0])


def _in_order_of_tokens(node: torch.fx.Node) -> tuple[torch.fx.Node, Any, torch.fx.Node] | None:
    """The weighted results of all experts, brought back to the order of the tokens: product, weights and the order."""
    view = as_call(_plain(node.args[0]), *VIEWS)
    if node.args[1:] != ([1],) or node.kwargs or view is None or len(dims_of(view) or ()) != 3:
        return None
    rows = _rows(view.args[0])
    put = None if rows is None else as_call(rows[1], aten.index_put.default)
    if rows is None or put is None or as_call(put.args[0], aten.empty_like.default) is None:
        return None
    order = put.args[1][0]  # type: ignore[index]
    positions = as_call(put.args[2], aten.arange.default)
    scaled = as_call(_plain(rows[0]), aten.mul.Tensor)
    if len(put.args) != 3 or positions is None or len(positions.args) != 1 or scaled is None:
        return None
    product, scale = scaled.args
    column = as_call(_plain(scale), aten.unsqueeze.default)
    if column is None or column.args[1] not in (-1, 1) or not isinstance(product, torch.fx.Node):
        return None
    weights = _rows(column.args[0])
    if weights is None or weights[1] is not order or not isinstance(order, torch.fx.Node):
        return None
    return _plain(product), _flat_source(weights[0]), order


def _group_size(node: torch.fx.Node) -> Any:
    dims = dims_of(node.args[0])
    return None if dims is None else dims[1]


def _product(node: Any, order: torch.fx.Node) -> _Product | None:
    """The product that a node is, with the bias of each token's expert."""
    bias = None
    added = as_call(_plain(node), aten.add.Tensor)
    if added is not None:
        rows = _rows(added.args[1])
        sort = None if rows is None else _item(rows[1], aten.sort.default, 0)
        if rows is None or sort is None or sort is not _sort_of(order) or added.kwargs:
            return None
        node, bias = added.args[0], rows[0]
    call = _plain(node)
    if not isinstance(call, torch.fx.Node) or not _is_grouped_product(call) or call.kwargs:
        return None
    x, weight = call.args[:2]
    if any(argument is not None for argument in call.args[3:]):
        return None
    return _Product(_plain(x), weight, bias)  # type: ignore[arg-type]


def _is_grouped_product(node: torch.fx.Node) -> bool:
    target: Any = node.target
    return node.op == "call_function" and getattr(target, "name", str)() in _GROUPED_PRODUCTS


def _sort_of(order: torch.fx.Node) -> torch.fx.Node | None:
    return _item(order, aten.sort.default, 1)


def _groups(x: torch.fx.Node, order: torch.fx.Node) -> _Groups | None:
    """The tokens in the order of their experts."""
    rows, sort = _rows(x), _sort_of(order)
    divided = None if rows is None else as_call(rows[1], aten.floor_divide.default)
    if rows is None or sort is None or divided is None or divided.args[0] is not order:
        return None
    selected, k = _flat_source(sort.args[0]), divided.args[1]
    if len(sort.args) != 1 or sort.kwargs or selected is None or not isinstance(k, int):
        return None
    experts = next((user for user in sort.users if user.args[1] == 0), None)
    return None if experts is None else _Groups(rows[0], order, experts, selected, k)


def _has_consistent_groups(products: tuple[torch.fx.Node, torch.fx.Node], groups: _Groups) -> bool:
    """Whether the ends of the groups of both products are those of the sorted experts."""
    ends = set()
    for product in products:
        added = as_call(_plain(product), aten.add.Tensor)
        call = _plain(added.args[0] if added is not None else product)
        ends.add(call.args[2])
    if len(ends) != 1:
        return False
    total = as_call(_plain(ends.pop()), aten.cumsum.default)
    counts = None if total is None or total.args[1] != 0 else as_call(_plain(total.args[0]), aten.histc.default)
    if counts is None:
        return False
    experts = as_call(counts.args[0], aten.to.dtype)
    count = products[1].meta["val"].shape and counts.meta["val"].shape[0]
    if experts is None or experts.args[0] is not groups.experts:
        return False
    return tuple(counts.args[1:]) == (count, 0, count - 1)


def _gate(node: torch.fx.Node) -> _Gate | None:
    """The activation, ``silu(gate) * linear`` or that of GPT-OSS."""
    product = as_call(node, aten.mul.Tensor)
    if product is None:
        return None
    for first, second in (product.args, product.args[::-1]):
        silu = as_call(_plain(first), aten.silu.default)
        if silu is not None:
            return _concatenated_gate(silu.args[0], second)
        linear, gate = as_call(_plain(first), aten.add.Tensor), as_call(_plain(second), aten.mul.Tensor)
        if linear is not None and gate is not None:
            return _limited_gate(linear, gate)
    return None


def _concatenated_gate(gate: Any, linear: Any) -> _Gate | None:
    chunks = _item(gate, aten.chunk.default, 0)
    if chunks is None or _item(linear, aten.chunk.default, 1) is not chunks or chunks.args[1:] not in ((2, -1), (2, 1)):
        return None
    if not isinstance(chunks.args[0], torch.fx.Node) or chunks.args[0].meta["val"].shape[1] % 2:
        return None
    return _Gate(chunks.args[0], False, {"activation_alpha": 1.0, "activation_beta": 0.0})


def _limited_gate(linear: torch.fx.Node, product: torch.fx.Node) -> _Gate | None:
    """Match ``(clamp(linear, -limit, limit) + beta) * gate * sigmoid(alpha * gate)`` with a clamped gate."""
    gate, sigmoid = product.args
    probability = as_call(_plain(sigmoid), aten.sigmoid.default)
    scaled = None if probability is None else as_call(_plain(probability.args[0]), aten.mul.Tensor)
    clamped, bounded = as_call(_plain(gate), aten.clamp.default), as_call(_plain(linear.args[0]), aten.clamp.default)
    if scaled is None or scaled.args[0] is not gate or clamped is None or bounded is None or linear.kwargs:
        return None
    alpha, beta = known_number(scaled.args[1]), known_number(linear.args[1])
    limit = known_number(clamped.args[2]) if len(clamped.args) == 3 and clamped.args[1] is None else None
    if alpha is None or beta is None or limit is None or tuple(bounded.args[1:]) != (-limit, limit):
        return None
    source, other = _every_second(clamped.args[0], 0), _every_second(bounded.args[0], 1)
    if source is None or source is not other:
        return None
    return _Gate(source, True, {"activation_alpha": alpha, "activation_beta": beta, "swiglu_limit": limit})


def _every_second(node: Any, start: int) -> torch.fx.Node | None:
    part = as_call(_plain(node), aten.slice.Tensor)
    if part is None or tuple(part.args[1:]) not in ((1, start, _WHOLE_AXIS, 2), (-1, start, _WHOLE_AXIS, 2)):
        return None
    source: torch.fx.Node = part.args[0]  # type: ignore[assignment]
    return None if source.meta["val"].shape[1] % 2 else source


def _router(scale: Any, groups: _Groups) -> tuple[torch.fx.Node, torch.fx.Node | None] | None:
    """The logits [count, experts] of the router, and the weights of each token's experts if these do not sum to 1."""
    top = _item(groups.selected, aten.topk.default, 1)
    if top is None or top.args[1] != groups.k or top.kwargs or tuple(top.args[2:]) not in ((), (-1,), (1,)):
        return None
    quotient, softmax = as_call(scale, aten.div.Tensor), as_call(scale, aten.softmax.int)
    if softmax is not None:
        # The softmax of the largest logits.
        is_of_values = _item(softmax.args[0], aten.topk.default, 0) is top
        return (top.args[0], None) if is_of_values and _is_over_last_axis(softmax) else None  # type: ignore[return-value]
    values = scale
    if quotient is not None:
        values = quotient.args[0]
        total = as_call(_plain(quotient.args[1]), aten.sum.dim_IntList)
        if total is None or total.kwargs or tuple(total.args) not in ((values, [-1], True), (values, [1], True)):
            return None
    probabilities = as_call(_plain(top.args[0]), aten.softmax.int)
    if _item(values, aten.topk.default, 0) is not top or probabilities is None:
        return None
    if not _is_over_last_axis(probabilities):
        return None
    return _plain(probabilities.args[0]), scale if quotient is None else None


def _is_over_last_axis(softmax: torch.fx.Node) -> bool:
    return softmax.args[1] in (-1, 1) and len(dims_of(softmax) or ()) == 2


# ---- weights


def _outputs_first(weight: torch.fx.Node, before: torch.fx.Node) -> torch.fx.Node:
    """The weights as [experts, out, in]; they become initializers, as all expressions of weights."""
    turned = as_call(weight, aten.transpose.int)
    if turned is not None and tuple(turned.args[1:]) in ((-2, -1), (-1, -2), (1, 2), (2, 1)):
        return turned.args[0]  # type: ignore[return-value]
    return insert_before(before, aten.transpose.int, weight, 1, 2)


def _interleaved(weight: torch.fx.Node, gate: _Gate, before: torch.fx.Node) -> torch.fx.Node:
    """The weights or biases with alternating gates and linear parts along the second axis."""
    if gate.is_interleaved:
        return weight
    experts, both, *rest = weight.meta["val"].shape
    halves = insert_before(before, aten.reshape.default, weight, [experts, 2, both // 2, *rest])
    pairs = insert_before(before, aten.transpose.int, halves, 1, 2)
    return insert_before(before, aten.reshape.default, pairs, [experts, both, *rest])
