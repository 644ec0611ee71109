"""Replace norms that update running statistics implicitly by operators whose schemas declare the mutation."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from .._provenance import copy_provenance

__all__ = ["expose_running_statistics"]

aten = torch.ops.aten


def expose_running_statistics(graph: Graph) -> None:
    """Rewrite batch and instance norms in training mode to operators that declare their mutations.

    Args:
        graph: A graph as captured by torch.export; changed in place.
    """
    for node in graph.find_nodes(op="call_function", target=aten.batch_norm.default):
        _batch_norm(graph, node)
    for node in graph.find_nodes(op="call_function", target=aten.instance_norm.default):
        _instance_norm(graph, node)


def _batch_norm(graph: Graph, node: Node) -> None:
    input, weight, bias, mean, variance, training, momentum, eps, _cudnn = node.args
    # An input without channels is not normalized, and torch implements shapes for this operator only.
    if not training or mean is None or _val(input).dim() < 2:
        return
    arguments = (input, weight, bias, mean, variance, True, momentum, eps)
    call = _calls(graph, node)
    normalized = call(operator.getitem, call(aten._native_batch_norm_legit.default, *arguments), 0)
    node.replace_all_uses_with(normalized)
    graph.erase_node(node)


def _instance_norm(graph: Graph, node: Node) -> None:
    """Compute the running statistics as torch does: the mean over the batch of the statistics of each instance."""
    input, _weight, _bias, mean, variance, training, momentum, eps, _cudnn = node.args
    if not training or mean is None:
        return
    call = _calls(graph, node)
    sizes = [call(aten.sym_size.int, input, axis) for axis in range(_val(input).dim())]
    batch, channels = sizes[:2]
    rows = call(aten.reshape.default, input, [1, call(operator.mul, batch, channels), *sizes[2:]])
    running = [call(aten.repeat.default, statistic, [batch]) for statistic in (mean, variance)]
    call(aten._native_batch_norm_legit.default, rows, None, None, *running, True, momentum, eps)
    for statistic, repeated in zip((mean, variance), running, strict=True):
        by_instance = call(aten.reshape.default, repeated, [batch, channels])
        call(aten.copy_.default, statistic, call(aten.mean.dim, by_instance, [0]))
    # Without running statistics the remaining call has no mutation.
    node.args = (*node.args[:3], None, None, *node.args[5:])


def _val(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, Node) else argument


def _calls(graph: Graph, origin: Node) -> Callable[..., Any]:
    """A function that inserts a call before ``origin``; a static size is returned as a number instead."""
    mode = origin.meta["val"].fake_mode

    def call(target: Callable[..., Any], *args: Any) -> Any:
        with mode:
            val = target(*torch.fx.map_arg(args, _val))
        if isinstance(val, int):
            return val
        with graph.inserting_before(origin):
            node = graph.call_function(target, args)
        node.meta["val"] = val
        copy_provenance(node, origin)
        return node

    return call
