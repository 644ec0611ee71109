"""Models that torchao's ``quantize_`` has quantized."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerAxis,
    PerGroup,
    PerTensor,
    quantize_,
)

import fxonnx


def intx(dtype: torch.dtype, granularity: Any = None, **options: Any) -> IntxWeightOnlyConfig:
    return IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity or PerGroup(32), **options)


def dynamic(**options: Any) -> Int8DynamicActivationInt8WeightConfig:
    return Int8DynamicActivationInt8WeightConfig(**options)


INT4, INT8 = torch.int4, torch.int8
# Name, configuration, operators that the graph has for each layer, element type of the stored weight.
CONFIGS: dict[str, tuple[Any, dict[str, int], str]] = {
    "int8": (Int8WeightOnlyConfig(), {"DequantizeLinear": 1, "MatMul": 1}, "INT8"),
    "int8 groups": (Int8WeightOnlyConfig(granularity=PerGroup(32)), {"DequantizeLinear": 1, "MatMul": 1}, "INT8"),
    "int8 tensor": (Int8WeightOnlyConfig(granularity=PerTensor()), {"DequantizeLinear": 1, "MatMul": 1}, "INT8"),
    "dynamic": (dynamic(), {"MatMulInteger": 1, "QuantizeLinear": 1}, "INT8"),
    "dynamic tensor": (dynamic(granularity=PerTensor()), {"MatMulInteger": 1, "QuantizeLinear": 1}, "INT8"),
    "dynamic asymmetric": (dynamic(act_mapping_type=MappingType.ASYMMETRIC), {"MatMulInteger": 1}, "INT8"),
    "dynamic int4": (
        Int8DynamicActivationIntxWeightConfig(weight_dtype=INT4, weight_granularity=PerGroup(32)),
        {"DequantizeLinear": 1, "Gemm": 1},
        "INT4",
    ),
    **{
        f"int{bits} groups of {size}": (
            intx(getattr(torch, f"int{bits}"), PerGroup(size)),
            {"DequantizeLinear": 1, "Gemm": 1},
            "INT4" if bits <= 4 else "INT8",
        )
        for bits, size in ((2, 16), (3, 32), (4, 32), (5, 64), (8, 32))
    },
    "int4 rows": (intx(INT4, PerAxis(0)), {"DequantizeLinear": 1, "Gemm": 1}, "INT4"),
    "int4 asymmetric": (intx(INT4, mapping_type=MappingType.ASYMMETRIC), {"DequantizeLinear": 1, "Gemm": 1}, "INT4"),
    "float8": (Float8WeightOnlyConfig(), {"Cast": 1, "MatMul": 1, "Mul": 1}, "FLOAT8E4M3FN"),
}


def layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32, bias=False)).to(dtype).eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(name: str) -> None:
    config, operators, stored = CONFIGS[name]
    model, x = layers(), torch.randn(5, 64)
    quantize_(model, config)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},))
    assert program.model.opset_imports[""] == 21
    for n in (5, 9):
        rows = program.verify((torch.randn(n, 64),), rtol=1e-6, atol=1e-6)
        assert rows
    found = Counter(node.op_type for node in program.model.graph)
    # A layer without a bias is a MatMul.
    wanted = {"MatMul" if name == "Gemm" else name: 2 * count for name, count in operators.items()}
    found["MatMul"] += found.pop("Gemm", 0)
    assert wanted.items() <= found.items()
    assert "Transpose" not in found
    initializers = program.model.graph.initializers
    types = [value.dtype.name for key, value in initializers.items() if key.startswith("0.weight.qdata")]
    assert set(types) == {stored}
