"""Flatten token-wise layers from ``[batch, length, width]`` to matrices ``[batch * length, width]``.

A linear layer with a bias is then one Gemm. ONNX Runtime itself fuses linear layers of larger tensors to Gemms with a
Reshape before and after each; here reshapes are needed only where tokens interact, as in attention.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch

from fxonnx_translations._torch_compat import OpOverload

from .formula import Formula, Matches
from .matching import VIEWS, as_call, dims_of, has_one_user, insert_before
from .terms import Match, Tensor, Term, op

__all__ = ["flatten_token_matmuls"]

aten = torch.ops.aten

_NORMS = frozenset({aten.layer_norm.default, aten.rms_norm.default})
_SPLITS = frozenset({aten.split_with_sizes.default, aten.split.Tensor, aten.chunk.default})
_QUANTIZERS = frozenset({"quantize_per_tensor", "dequantize_per_tensor"})
_RESHAPES = (*VIEWS, aten.flatten.using_ints, aten.unflatten.int)


def flatten_token_matmuls(graph: torch.fx.Graph) -> Matches:
    """Flatten groups of token-wise layers where that saves more reshapes than it adds."""
    found = Matches()
    for group in _groups(graph):
        layers = [node for node in group if _is_biased(node)]
        if 2 * len(layers) > _cost(group):
            _flatten(group)
            found.fused += layers
    return found


def _is_biased(node: torch.fx.Node) -> bool:
    if node.target is aten.linear.default:
        return len(node.args) > 2 and node.args[2] is not None
    return _AFFINE.at(node) is not None


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Term:
    return op(aten.matmul.default)(x, weight).named("product") + bias


def _adds_vector_to_matrix_product(match: Match) -> bool:
    ranks = [len(dims_of(match.node(name)) or ()) for name in ("weight", "bias")]
    return has_one_user(match.node("product")) and ranks == [2, 1]


_AFFINE = Formula(_affine, _adds_vector_to_matrix_product)


def _tokens(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The token inputs of a token-wise node; empty if the node is not token-wise."""
    source: Any = node.args[0] if node.args else None
    if node.op != "call_function" or not isinstance(source, torch.fx.Node):
        return []
    if node.target is operator.getitem:
        return [source] if as_call(source, *_SPLITS) is not None and _tokens(source) else []
    dims = dims_of(source)
    if dims is None:
        return []
    last = len(dims) - 1
    if len(dims) < 3 and node.target is not aten.add.Tensor:
        return []
    if _is_range(node) or _quantized_name(node) in _QUANTIZERS:
        return [source]
    if node.target in (aten.linear.default, aten.matmul.default):
        return [source] if len(dims_of(node.args[1]) or ()) == 2 and not _has_float_weight(node) else []
    if node.target in _NORMS:
        return [source] if len(node.args[1]) == 1 else []  # type: ignore[arg-type]
    if node.target in _SPLITS:
        return [source] if (*node.args[2:], node.kwargs.get("dim", 0))[0] in (-1, last) else []
    return _pointwise_tokens(node)


def _quantized_name(node: torch.fx.Node) -> str:
    """The name of an operator of ``quantized_decomposed``, which need not be registered; empty for others."""
    target = node.target
    return target._opname if isinstance(target, OpOverload) and target.namespace == "quantized_decomposed" else ""


def _has_float_weight(node: torch.fx.Node) -> bool:
    """Whether a layer multiplies dequantized tokens by floats, which ONNX Runtime would quantize in a Gemm."""
    source, weight = node.args[:2]
    return (
        isinstance(source, torch.fx.Node)
        and _quantized_name(source) in _QUANTIZERS
        and isinstance(weight, torch.fx.Node)
        and weight.op != "call_function"
    )


def _is_range(node: torch.fx.Node) -> bool:
    """Whether a node computes one scale and zero point from all tokens: its results do not depend on their shape."""
    return _quantized_name(node) == "choose_qparams"


def _pointwise_tokens(node: torch.fx.Node) -> list[torch.fx.Node]:
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return []
    shape = dims_of(node)
    if shape is None or len(shape) < 3:
        return []
    tokens = []
    for argument in node.all_input_nodes:
        dims = dims_of(argument)
        if dims is None:
            return []
        if len(dims) > 1:
            if list(map(str, dims)) != list(map(str, shape)):
                return []
            tokens.append(argument)
    return tokens


def _leading_dims(node: torch.fx.Node) -> tuple[str, ...]:
    val = node.meta["val"]
    return tuple(map(str, (val[0] if isinstance(val, (list, tuple)) else val).shape[:-1]))


def _groups(graph: torch.fx.Graph) -> list[list[torch.fx.Node]]:
    """Connected groups of token-wise nodes, each in graph order."""
    parent: dict[torch.fx.Node, torch.fx.Node] = {}

    def root(node: torch.fx.Node) -> torch.fx.Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node in graph.nodes:
        sources = _tokens(node)
        if not sources:
            continue
        parent[node] = node
        for source in sources:
            if source in parent and (_is_range(node) or _leading_dims(source) == _leading_dims(node)):
                parent[root(node)] = root(source)
    groups: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in parent:
        groups.setdefault(root(node), []).append(node)
    return list(groups.values())


def _users_outside(node: torch.fx.Node, group: Collection[torch.fx.Node]) -> list[torch.fx.Node]:
    return [user for user in node.users if user not in group]


def _cost(group: list[torch.fx.Node]) -> int:
    """The number of Reshapes needed around the group; one next to an existing reshape costs nothing."""
    members = set(group)
    entries = {source for node in group for source in _tokens(node) if source not in members}
    cost = sum(1 for source in entries if as_call(source, *_RESHAPES) is None or not has_one_user(source))
    exits = (node for node in group if not isinstance(node.meta["val"], (list, tuple)))
    return cost + sum(1 for node in exits if any(as_call(u, *_RESHAPES) is None for u in _users_outside(node, members)))


def _flatten(group: list[torch.fx.Node]) -> None:
    members = set(group)
    matrices: dict[torch.fx.Node, torch.fx.Node] = {}
    sizes: list[Any] = []
    shapes = {node: node.meta["val"] for node in group}
    for node in group:
        for source in _token_inputs(node, members, shapes):
            if source not in matrices:
                dims = source.meta["val"].shape
                if not sizes:
                    sizes = [
                        dim if isinstance(dim, int) else insert_before(node, aten.sym_size.int, source, axis)
                        for axis, dim in enumerate(dims[:-1])
                    ]
                matrices[source] = insert_before(node, aten.reshape.default, source, [-1, dims[-1]])
            node.replace_input_with(source, matrices[source])
        _adapt_arguments(node, shapes[node])
    for node in group:
        users = _users_outside(node, members)
        if isinstance(shapes[node], (list, tuple)) or not users:
            continue
        whole = insert_before(node.next, aten.reshape.default, node, [*sizes, shapes[node].shape[-1]], origin=node)
        whole.meta["val"] = shapes[node]
        for user in users:
            user.replace_input_with(node, whole)


def _token_inputs(
    node: torch.fx.Node, members: Collection[torch.fx.Node], shapes: dict[torch.fx.Node, Any]
) -> list[torch.fx.Node]:
    """The token inputs of a node from outside the group."""
    return [
        source
        for source in node.all_input_nodes
        if source not in members and _has_token_dims(source, shapes[node]) and len(dims_of(source) or ()) > 2
    ]


def _has_token_dims(source: torch.fx.Node, val: Any) -> bool:
    whole = val[0] if isinstance(val, (list, tuple)) else val
    dims = dims_of(source)
    return dims is not None and tuple(map(str, dims[:-1])) == tuple(map(str, whole.shape[:-1]))


def _adapt_arguments(node: torch.fx.Node, val: Any) -> None:
    """Adapt the other arguments of a layer whose input is flattened already."""
    if _is_range(node):
        return
    affine = _AFFINE.at(node)
    if affine is not None:
        node.target, node.args = aten.addmm.default, tuple(affine.node(name) for name in ("bias", "x", "weight"))
    elif node.target in _SPLITS and len(node.args) > 2:
        node.args = (*node.args[:2], -1)
    elif node.target in _SPLITS:
        node.kwargs = {**node.kwargs, "dim": -1}
    node.meta["val"] = [_as_matrix(item) for item in val] if isinstance(val, (list, tuple)) else _as_matrix(val)


def _as_matrix(val: torch.Tensor) -> torch.Tensor:
    rows: Any = 1
    for dim in val.shape[:-1]:
        rows = rows * dim
    return val.new_empty((rows, val.shape[-1]))
