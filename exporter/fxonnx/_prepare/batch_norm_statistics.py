"""Normalizations that write to running statistics, though their schemas do not say so, become ones whose do."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from .._provenance import copy_provenance

__all__ = ["reveal_statistics"]

aten = torch.ops.aten


def reveal_statistics(graph: Graph) -> None:
    """Rewrites batch and instance norms in training mode such that one sees what they write to.

    Args:
        graph: A graph as torch.export captures it; changed in place.
    """
    for node in graph.find_nodes(op="call_function", target=aten.batch_norm.default):
        _batch_norm(graph, node)
    for node in graph.find_nodes(op="call_function", target=aten.instance_norm.default):
        _instance_norm(graph, node)


def _batch_norm(graph: Graph, node: Node) -> None:
    input, weight, bias, mean, variance, training, momentum, eps, _cudnn = node.args
    # Without channels there is nothing to normalize, and torch knows the shapes of this operator only.
    if not training or mean is None or _val(input).dim() < 2:
        return
    arguments = (input, weight, bias, mean, variance, True, momentum, eps)
    call = _calls(graph, node)
    normalized = call(operator.getitem, call(aten._native_batch_norm_legit.default, *arguments), 0)
    node.replace_all_uses_with(normalized)
    graph.erase_node(node)


def _instance_norm(graph: Graph, node: Node) -> None:
    """Its batch statistics are the means over the batch of those of each instance; torch computes them just so."""
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
    # What is left of it writes nowhere.
    node.args = (*node.args[:3], None, None, *node.args[5:])


def _val(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, Node) else argument


def _calls(graph: Graph, origin: Node) -> Callable[..., Any]:
    """A function that puts calls in front of a node; what is known without one, like a static size, is returned."""
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
