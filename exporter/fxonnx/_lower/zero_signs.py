"""Nodes whose zeros must have torch's signs, because an operator after them sees these: ``atan2`` of a sum of -0.0.

ONNX leaves the signs of zeros to the runtime, and the results of most operators hardly depend on them. Those that jump
between the sides of zero are rare in models; the nodes before them are translated with exact zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fxonnx_translations._torch_compat import OpOverload

from .._nodes import schema_of
from .._prepare.graph_utils import subgraphs_of
from .control_flow import CONTROL_FLOW, leaves_of

__all__ = ["nodes_before_sign_readers"]

_READERS = frozenset({"arctan2", "atan2", "copysign", "hash_tensor", "signbit"})
_COMPLEX_READERS = frozenset(
    {
        "acos",
        "acosh",
        "angle",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "log",
        "log10",
        "log1p",
        "log2",
        "pow",
        "rsqrt",
        "sqrt",
    }
)
"""Functions with a branch cut: the side is the sign of a zero."""

# Operators whose result does not depend on the signs of zeros: sums begin with 0.0, others are even or positive.
_INDEPENDENT = frozenset(
    {
        *("_fft_c2c", "_fft_c2r", "_fft_r2c", "abs", "addbmm", "addmm", "addmv", "baddbmm", "bmm", "convolution"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cos", "cosh"),
        *("cumsum", "dot", "einsum", "exp", "exp2", "gru", "layer_norm", "linalg_vector_norm", "linear", "log_softmax"),
        *("logsumexp", "lstm", "matmul", "mean", "mm", "mv", "nansum", "scaled_dot_product_attention", "sigmoid"),
        *("softmax", "softplus", "square", "std", "stft", "sum", "trace", "var"),
    }
)


def nodes_before_sign_readers(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """The nodes, in this graph and its subgraphs, whose zeros' signs reach an operator that sees them."""
    calls: dict[torch.fx.Graph, list[torch.fx.Node]] = {}
    bodies: dict[torch.fx.Node, list[torch.fx.Graph]] = {}
    pending = [
        argument for node in _all_nodes(graph, calls, bodies) if _reads(node) for argument in node.all_input_nodes
    ]
    found: set[torch.fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in found or not _holds_floats(node):
            continue
        found.add(node)
        if node.op == "placeholder":
            pending += calls.get(node.graph, ())
        elif node.op == "call_function" and _name(node) not in _INDEPENDENT:
            pending += node.all_input_nodes
            pending += (each for body in bodies.get(node, ()) for each in body.output_node().all_input_nodes)
    return frozenset(found)


def _all_nodes(
    graph: torch.fx.Graph,
    calls: dict[torch.fx.Graph, list[torch.fx.Node]],
    bodies: dict[torch.fx.Node, list[torch.fx.Graph]],
) -> Iterator[torch.fx.Node]:
    """The calls of a graph and of its subgraphs; collect which node runs which subgraph."""
    owner = graph.owning_module
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        yield node
        if node.target in CONTROL_FLOW and owner is not None:
            inner = dict(subgraphs_of(owner))
            for body in (inner[each].graph for each in node.all_input_nodes if each in inner):
                bodies.setdefault(node, []).append(body)
                calls.setdefault(body, []).append(node)
                yield from _all_nodes(body, calls, bodies)


def _name(node: torch.fx.Node) -> str:
    """The operator without namespace and overload; "" for other functions."""
    return schema_of(node).name.partition("::")[2] if isinstance(node.target, OpOverload) else ""


def _reads(node: torch.fx.Node) -> bool:
    name = _name(node)
    if name in _READERS:
        return True
    if name in _COMPLEX_READERS:
        return any(value.dtype.is_complex for each in node.all_input_nodes for value in _tensors(each))
    return name in ("view", "view_copy") and schema_of(node).overload_name == "dtype"


def _holds_floats(node: torch.fx.Node) -> bool:
    return any(value.dtype.is_floating_point or value.dtype.is_complex for value in _tensors(node))


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return [value for value in leaves_of(node.meta.get("val")) if isinstance(value, torch.Tensor)]
