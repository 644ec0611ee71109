"""Operators of training mode: norms that update running statistics, and fake quantization with observers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from .functionalize.emit import arguments_with_defaults, refuse
from .graph_utils import insert_call

__all__ = ["expose_running_statistics", "replace_disabled_observers"]

aten = torch.ops.aten


def expose_running_statistics(graph: Graph) -> None:
    """Rewrite batch and instance norms in training mode to operators that declare their mutations.

    Args:
        graph: A graph as captured by torch.export; changed in place.
    """
    for node in graph.find_nodes(op="call_function", target=aten.batch_norm.default):
        _batch_norm(graph, node)
    for node in graph.find_nodes(op="call_function", target=aten.instance_norm.default):
        _instance_norm(node)


def _batch_norm(graph: Graph, node: Node) -> None:
    input, weight, bias, mean, variance, training, momentum, eps, _cudnn = node.args
    # An input without channels is not normalized, and torch implements shapes for this operator only.
    if not training or mean is None or _val(input).dim() < 2:
        return
    arguments = (input, weight, bias, mean, variance, True, momentum, eps)
    call = _calls(node)
    normalized = call(operator.getitem, call(aten._native_batch_norm_legit.default, *arguments), 0)
    node.replace_all_uses_with(normalized)
    graph.erase_node(node)


def _instance_norm(node: Node) -> None:
    """Compute the running statistics as torch does: the mean over the batch of the statistics of each instance."""
    input, _weight, _bias, mean, variance, training, momentum, eps, _cudnn = node.args
    if not training or mean is None:
        return
    call = _calls(node)
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


def _calls(origin: Node) -> Callable[..., Any]:
    """A function that inserts a call before ``origin``; a static size is returned as a number instead."""
    mode = origin.meta["val"].fake_mode

    def call(target: Callable[..., Any], *args: Any) -> Any:
        with mode:
            val = target(*torch.fx.map_arg(args, _val))
        return val if isinstance(val, int) else insert_call(origin, target, args, val=val)

    return call


_FUSED = aten.fused_moving_avg_obs_fake_quant.default
_WITH_MASK = aten._fused_moving_avg_obs_fq_helper.default
_FUNCTIONAL = aten._fused_moving_avg_obs_fq_helper_functional.default
_STATES = ("running_min", "running_max", "scale", "zero_point")


def replace_disabled_observers(graph: Graph, value_of: Callable[[Node], torch.Tensor | None]) -> None:
    """Replace fused observers and fake quantization by fake quantization with their scales and zero points.

    Args:
        graph: A graph as captured by torch.export; changed in place.
        value_of: Returns the tensor of the placeholder of a parameter, buffer or constant.

    Raises:
        PrepareError: If an observer is enabled.
    """
    for target in (_FUSED, _WITH_MASK, _FUNCTIONAL):
        for node in graph.find_nodes(op="call_function", target=target):
            arguments = arguments_with_defaults(node)
            flags = [value_of(arguments[name]) for name in ("observer_on", "fake_quant_on")]
            if any(flag is None or flag.numel() != 1 for flag in flags):
                continue
            is_observing, is_quantizing = (bool(flag.item()) for flag in flags if flag is not None)
            if is_observing:
                refuse(
                    node,
                    "it updates its scale and zero point, since its observer is enabled",
                    hint="before the capture, disable the observers: "
                    "model.apply(torch.ao.quantization.disable_observer)",
                )
            result = _fake_quantized(node, arguments) if is_quantizing else arguments["self"]
            _replace(graph, node, result, arguments)


def _fake_quantized(node: Node, arguments: dict[str, Any]) -> Node:
    limits = (arguments["quant_min"], arguments["quant_max"])
    inputs: tuple[Any, ...] = (arguments["self"], arguments["scale"], arguments["zero_point"])
    target: Any = aten.fake_quantize_per_tensor_affine.tensor_qparams
    if arguments["per_row_fake_quant"]:
        target, inputs = aten.fake_quantize_per_channel_affine.default, (*inputs, arguments["ch_axis"])
    return insert_call(node, target, (*inputs, *limits), val=arguments["self"].meta["val"])


def _replace(graph: Graph, node: Node, result: Node, arguments: dict[str, Any]) -> None:
    """Replace the uses of a node: its result, or each of several results, of which the states are unchanged."""
    if node.target is _FUSED:
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        return
    unchanged = [result, None, *(arguments[name] for name in _STATES)]
    for user in list(node.users):
        index: Any = user.args[1] if user.target is operator.getitem else 1
        other = unchanged[index]
        if other is not None:
            user.replace_all_uses_with(other)
            graph.erase_node(user)
    if not node.users:
        graph.erase_node(node)
