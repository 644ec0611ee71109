"""Operators of torchao."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
from torchao.quantization import quantize_

from .harness import Case, T, run

ops = torch.ops.torchao
X = T(("n", 8))
LONG = (None, None, None, None)


def choose(kind: str, block: Any, *limits: Any) -> Any:
    dtypes = (torch.int8, *limits)
    return lambda x: ops.choose_qparams_affine(x, kind, block or list(x.shape), *dtypes)


def quantize(block: Any, dtype: torch.dtype = torch.int8, *limits: int) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        low, high = limits or (None, None)
        scale, zero_point = ops.choose_qparams_affine(x, "ASYMMETRIC", block, dtype, low, high, None, None, torch.int32)
        return ops.quantize_affine(x, block, scale, zero_point, dtype, low, high)

    return function


def dequantize(block: Any, scales: tuple[int, ...], **options: Any) -> Any:
    scale, zero_point = torch.rand(scales) / 8, torch.randint(-3, 4, scales, dtype=torch.int8)
    return lambda x: ops.dequantize_affine(x, block, scale, zero_point, torch.int8, **options)


class Weight(torch.nn.Module):
    """A linear layer whose weight is dequantized in blocks."""

    def __init__(self, block: int, limits: tuple[int, int], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        low, high = limits
        self.block, self.limits, self.dtype = [1, block], limits, dtype
        self.codes = torch.nn.Buffer(torch.randint(low, high + 1, (5, 64), dtype=torch.int8))
        self.scale = torch.nn.Buffer(torch.rand(5, 64 // block).to(dtype) / 8)
        self.zero_point = torch.nn.Buffer(torch.randint(low, high + 1, (5, 64 // block), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = ops.dequantize_affine(
            self.codes, self.block, self.scale, self.zero_point, torch.int8, *self.limits, output_dtype=self.dtype
        )
        return torch.nn.functional.linear(x, weight)


def float4_layer() -> torch.nn.Module:
    layer = torch.nn.Linear(64, 16)
    quantize_(layer, NVFP4WeightOnlyConfig())
    return layer


BYTES, NIBBLES = (-128, 127), (-8, 7)
CODES = T(("n", 8), torch.int8, -128, 128)
ROWS = T(("n", 64))
CASES = (
    Case("torchao.choose_qparams_affine.default", choose("SYMMETRIC", [1, 8]), (X,), "tokens"),
    Case("torchao.choose_qparams_affine.default", choose("SYMMETRIC", None), (X,), "tensor"),
    Case("torchao.choose_qparams_affine.default", choose("SYMMETRIC", [1, 4], *LONG, torch.int8, True), (X,), "blocks"),
    Case("torchao.choose_qparams_affine.default", choose("SYMMETRIC", [1, 1]), (X,), "elements"),
    Case("torchao.choose_qparams_affine.default", choose("ASYMMETRIC", [1, 8], *LONG, torch.int8), (X,), "asymmetric"),
    Case("torchao.choose_qparams_affine.default", choose("ASYMMETRIC", [1, 4], -8, 7, 1e-3), (X,), "limits"),
    Case("torchao.choose_qparams_affine.default", choose("SYMMETRIC_NO_CLIPPING_ERR", [1, 8], -8, 7), (X,), "clipping"),
    Case("torchao.quantize_affine.default", quantize([1, 8]), (X,), "tokens"),
    Case("torchao.quantize_affine.default", quantize([1, 4], torch.int8, -8, 7), (X,), "blocks"),
    Case("torchao.quantize_affine.default", quantize([1, 8], torch.uint8), (X,), "uint8"),
    Case(
        "torchao.quantize_affine.default",
        lambda x: ops.quantize_affine(
            x, [1, 8], x[:, :1].abs() / 64, torch.zeros(1, dtype=torch.int8).expand(x.shape[0], 1), torch.int8
        ),
        (T(("n", 8), low=0.5),),
        "symmetric",
        opset=13,
    ),
    Case("torchao.quantize_affine.default", quantize([1, 8]), (T(("n", 8), torch.bfloat16),), "bfloat16"),
    Case("torchao.quantize_affine.default", quantize([1, 4], torch.uint8), (T(("n", 8), torch.float16),), "float16"),
    Case(
        "torchao.choose_qparams_affine.default",
        choose("SYMMETRIC", [1, 8], None, None, 1e-5, torch.float32, torch.int8, True),
        (T(("n", 8), torch.bfloat16),),
        "bfloat16",
    ),
    Case(
        "torchao.dequantize_affine.default", dequantize([4, 8], (1, 1)), (T((4, 8), torch.int8, -128, 128),), "tensor"
    ),
    Case(
        "torchao.dequantize_affine.default",
        lambda x: ops.dequantize_affine(x, [1, 4], x[:, ::4].abs().float(), None, torch.int8),
        (CODES,),
        "no zero point",
    ),
    Case(
        "torchao.dequantize_affine.default",
        Weight(32, BYTES),
        (ROWS,),
        "bytes",
        ops=("DequantizeLinear", "MatMul"),
        opset=21,
    ),
    Case(
        "torchao.dequantize_affine.default",
        Weight(32, NIBBLES),
        (ROWS,),
        "nibbles",
        ops=("DequantizeLinear", "MatMul"),
        opset=21,
    ),
    Case(
        "torchao.dequantize_affine.default",
        Weight(64, NIBBLES),
        (ROWS,),
        "channels",
        ops=("DequantizeLinear", "MatMul"),
        opset=13,
    ),
    Case("torchao.dequantize_affine.default", Weight(32, NIBBLES), (ROWS,), "before blocks", opset=13),
    Case(
        "torchao.dequantize_affine.default",
        Weight(32, BYTES, torch.float16),
        (T(("n", 64), torch.float16),),
        "half",
        opset=21,
        rtol=2e-2,
        atol=2e-2,
    ),
    Case("fxonnx.dequantize_float4.default", float4_layer(), (ROWS,), "weight"),
    Case("fxonnx.dequantize_float4.default", float4_layer(), (ROWS,), "before 4 bits", opset=19),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torchao(case: Case) -> None:
    run(case)
