"""Whether a model or a graph has anything quantized."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from .._capture.user_code import codes_of, reachable_functions

__all__ = ["UNPACKING", "applies_to_graph", "applies_to_model"]

_QUANTIZING = frozenset({"quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"})
"""Names in the code of a model that creates quantized tensors."""

UNPACKING = frozenset({"__and__", "__rshift__", "bitwise_and", "bitwise_right_shift"})
"""Operators that unpack integers."""

_CODES = frozenset({torch.int8, torch.uint8})


def applies_to_model(model: Any) -> bool:
    """Whether a model has quantized modules or tensors, packed parameters, or code that quantizes tensors.

    Args:
        model: A module, or a scripted function, whose code is not known.
    """
    if not isinstance(model, torch.nn.Module):
        return True
    modules = list(model.modules())
    for module in modules:
        if isinstance(module, torch.jit.ScriptModule) or type(module).__module__.startswith("torch.ao.nn."):
            return True
        for values in (vars(module), module._parameters, module._buffers):
            for value in values.values():
                if type(value) is torch.ScriptObject or (isinstance(value, torch.Tensor) and value.is_quantized):
                    return True
    return any(
        not _QUANTIZING.isdisjoint(code.co_names)
        for function in reachable_functions(modules)
        for code in codes_of(function.__code__)
    )


def applies_to_graph(graph: Graph, weights: Collection[Node]) -> bool:
    """Whether a graph may compute weights from low-precision integers: it has such weights, shifts, masks or roundings.

    Args:
        graph: The graph.
        weights: The placeholders of parameters and buffers.
    """
    if any(getattr(node.meta["val"], "dtype", None) in _CODES for node in weights):
        return True
    for node in graph.nodes:
        name = getattr(node.target, "_opname", "")
        if name == "round" or name in UNPACKING:
            return True
    return False
