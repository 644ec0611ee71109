"""Estimates of the time of a forward and of an export, from the captured graph: the same on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.export import ExportedProgram

__all__ = ["bytes_of", "export_seconds", "forward_seconds"]

# Rough figures of one core, for the decision whether a forward is short beside an export.
_SECONDS_PER_PRODUCT = 1e-10
_SECONDS_PER_ELEMENT = 1e-9
_SECONDS_PER_NODE = 1e-3
_FIXED_SECONDS = 0.1

_CONVOLUTIONS = ("convolution", *(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)))
_PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention", "einsum")


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The number of bytes of tensors, of sparse ones in their dense form: torch does not define ``nbytes`` of those."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def export_seconds(program: ExportedProgram) -> float:
    """The estimated time of the export of a captured program."""
    return _FIXED_SECONDS + _SECONDS_PER_NODE * len(program.graph.nodes)


def forward_seconds(program: ExportedProgram) -> float:
    """The estimated time of one forward; loops count as one iteration."""
    seconds = 0.0
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.op == "call_function":
                elements = _elements(node.meta.get("val"))
                seconds += _SECONDS_PER_ELEMENT * elements + _SECONDS_PER_PRODUCT * elements * _depth(node)
    return seconds


def _depth(node: torch.fx.Node) -> float:
    """Number of products for each element of a result; 0 for operators that are not sums of products."""
    name = getattr(getattr(node.target, "_schema", None), "name", "").removeprefix("aten::")
    operands = [value for one in node.all_input_nodes if isinstance(value := one.meta.get("val"), torch.Tensor)]
    if name in _CONVOLUTIONS and len(operands) > 1:
        return _elements(operands[1]) / max(1, _size(operands[1].shape[0]))
    if name in _PRODUCTS and operands and operands[0].dim():
        return max(_size(one.shape[-1]) for one in operands if one.dim())
    return 0


def _elements(value: Any) -> float:
    if isinstance(value, tuple | list):
        return sum(map(_elements, value))
    return math.prod(map(_size, value.shape)) if isinstance(value, torch.Tensor) else 0


def _size(size: Any) -> int:
    """A size, for the example if it is symbolic; 1 if it depends on data."""
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else None
    return 1 if hint is None else int(hint)
