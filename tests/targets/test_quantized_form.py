"""Quantized operators in the form that a target fuses: the same numbers as without a target, and as eager torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor

import fxonnx
from tests.functions import Function
from tests.saved import run_from_file

Q = torch.ops.quantized_decomposed
SIGNED, UNSIGNED = ir.DataType.INT8, ir.DataType.UINT8


def quantize(x: Tensor, scale: float = 0.02, zero: int = -7) -> Tensor:
    return Q.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)


def dequantize(x: Tensor, scale: float = 0.02, zero: int = -7) -> Tensor:
    return Q.dequantize_per_tensor(x, scale, zero, -128, 127, torch.int8)


def moved(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of integers between QuantizeLinear and DequantizeLinear."""
    return lambda x: dequantize(function(quantize(x)))


@dataclass(frozen=True)
class Chain:
    """A function with quantized activations, and the types of their integers for ONNX Runtime."""

    name: str
    function: Callable[..., Any]
    expected: ir.DataType = UNSIGNED

    def __str__(self) -> str:
        return self.name


def _narrow(x: Tensor) -> Tensor:
    return dequantize(Q.quantize_per_tensor(x, 0.02, -7, -100, 90, torch.int8))


def _as_tensors(x: Tensor) -> Tensor:
    scale, zero = x.abs().amax() / 100, x.amin().mul(0).to(torch.int64) - 3
    integers = Q.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
    return Q.dequantize_per_tensor.tensor(integers, scale, zero, -128, 127, torch.int8)


def _per_channel(x: Tensor) -> Tensor:
    scales, zeros = torch.tensor([0.02, 0.05, 0.01]), torch.tensor([0, -5, 8])
    integers = Q.quantize_per_channel(x, scales, zeros, 1, -128, 127, torch.int8)
    return Q.dequantize_per_channel(integers, scales, zeros, 1, -128, 127, torch.int8)


CHAINS = (
    Chain("adjacent", moved(lambda q: q)),
    Chain("limits of torch", _narrow),
    Chain("clamped integers", moved(lambda q: q.clamp(-5, 60))),
    Chain("computed parameters", _as_tensors),
    Chain("per channel", _per_channel),
    Chain("moved", moved(lambda q: q.reshape(q.shape[0], -1).t()[3:].unsqueeze(1))),
    Chain("gathered", moved(lambda q: q.flip(1)[:, [2, 0]])),
    Chain("pooled", moved(lambda q: torch.ops.aten.max_pool2d(q, 2, 2, 1))),
    Chain("joined", lambda x: dequantize(torch.cat([quantize(x), quantize(x * 2, 0.04)], 1))),
    Chain("selected", lambda x: dequantize(torch.where(x > 0, quantize(x), quantize(-x)))),
    Chain("returned", quantize, SIGNED),
    Chain("returned as well", lambda x: (quantize(x), dequantize(quantize(x))), SIGNED),
    Chain("computed with", moved(lambda q: q + 1), SIGNED),
    Chain("joined with a constant", moved(lambda q: torch.cat([q, torch.ones_like(q[:1])])), SIGNED),
    Chain("cast", lambda x: (quantize(x).to(torch.int32) + 3, dequantize(quantize(x))), SIGNED),
    Chain("limit", lambda x: dequantize(torch.minimum(quantize(x), quantize(-x))), SIGNED),
)


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_activations_for_onnxruntime(chain: Chain) -> None:
    inputs = (torch.linspace(-4, 4, 3 * 3 * 4 * 4).reshape(3, 3, 4, 4),)
    model = Function(chain.function).eval()
    options: dict[str, Any] = {"dynamic_shapes": ({0: "batch"},), "opset_version": 21}
    found = {}
    for target in (None, "onnxruntime", "tensorrt"):
        program = fxonnx.export(model, inputs, target=target, **options)
        types = {node.outputs[0].dtype for node in program.model.graph if node.op_type == "QuantizeLinear"}
        assert types == {chain.expected if target == "onnxruntime" else SIGNED}
        run_from_file(program)
        for example in (inputs, (torch.randn(5, 3, 4, 4),)):
            program.verify(example)
        found[target] = program(*inputs)
    for ours, reference in zip(found["onnxruntime"], found[None], strict=True):
        assert torch.equal(ours, reference)
