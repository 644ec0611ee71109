"""Fake quantization of quantization-aware training: with its observers disabled, it has constant scales."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from .._provenance import copy_provenance
from .functionalize.emit import arguments_with_defaults, refuse

__all__ = ["replace_disabled_observers"]

aten = torch.ops.aten

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
            result = _fake_quantized(graph, node, arguments) if is_quantizing else arguments["self"]
            _replace(graph, node, result, arguments)


def _fake_quantized(graph: Graph, node: Node, arguments: dict[str, Any]) -> Node:
    limits = (arguments["quant_min"], arguments["quant_max"])
    inputs = (arguments["self"], arguments["scale"], arguments["zero_point"])
    with graph.inserting_before(node):
        if arguments["per_row_fake_quant"]:
            made = graph.call_function(
                aten.fake_quantize_per_channel_affine.default, (*inputs, arguments["ch_axis"], *limits)
            )
        else:
            made = graph.call_function(aten.fake_quantize_per_tensor_affine.tensor_qparams, (*inputs, *limits))
    made.meta["val"] = arguments["self"].meta["val"]
    copy_provenance(made, node)
    return made


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
