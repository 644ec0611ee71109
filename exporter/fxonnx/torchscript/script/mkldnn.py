"""Operators in the layout of oneDNN, which ``optimize_for_inference`` makes of a script, in the plain layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional as F

from fxonnx_translations._torch_compat import disable_current_modes

from ..._capture.rewriting.operators.values import same_shape

__all__ = ["MKLDNN", "run_mkldnn"]


def run_mkldnn(node: Any, inputs: Sequence[Any]) -> Any:
    """Run a node whose kind is in ``MKLDNN`` on tensors in the plain layout.

    Args:
        node: The node.
        inputs: The values of its inputs.
    """
    kind = node.kind()
    if kind in MKLDNN:
        return MKLDNN[kind](node, *inputs)
    # The form that writes to its first argument.
    return inputs[0].copy_(MKLDNN[kind.removesuffix("_")](node, *inputs))


def _constant(node: Any) -> torch.Tensor:
    with disable_current_modes():
        dense: torch.Tensor = node.t("value").to_dense()
        return dense


def _to_plain(_node: Any, tensor: torch.Tensor, dtype: torch.dtype | None = None, *_: Any) -> torch.Tensor:
    # A copy, as in the script, which may write to it.
    return tensor.clone() if dtype is None else tensor.to(dtype, copy=True)


def _broadcast(_node: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    # Clones of those that grow, as in the script, which may write to them.
    all_expanded: list[torch.Tensor] = torch.broadcast_tensors(*tensors)  # type: ignore[no-untyped-call]
    return [
        tensor if same_shape(expanded, tensor) else expanded.clone()
        for expanded, tensor in zip(all_expanded, tensors, strict=True)
    ]


def _convolution(
    _node: Any,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    no_output_padding = [0] * len(stride)
    return torch.convolution(tensor, weight, bias, stride, padding, dilation, False, no_output_padding, groups)


def _clamp(node: Any, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clamp(node.f("min_val"), node.f("max_val"))


def _layer_norm(
    _node: Any, tensor: torch.Tensor, shape: list[int], weight: Any, bias: Any, eps: float, _cudnn: Any
) -> Any:
    return F.layer_norm(tensor, shape, weight, bias, eps)


MKLDNN: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "aten::to_mkldnn": _to_plain,
        "prim::BroadcastMKLDNNTensors": _broadcast,
        "prim::ConstantMKLDNNTensor": _constant,
        "prim::MKLDNNClamp": _clamp,
        "prim::MKLDNNHardSigmoid": lambda _node, tensor: F.hardsigmoid(tensor),
        "prim::MKLDNNHardSwish": lambda _node, tensor: F.hardswish(tensor),
        "prim::MKLDNNHardTanh": _clamp,
        "prim::MKLDNNLayerNorm": _layer_norm,
        "prim::MKLDNNScalarMul": lambda _node, tensor, factor: tensor * factor,
        "prim::mkldnn_convolution": _convolution,
    }
)
"""Node kind to its function, which takes the node and its inputs."""
