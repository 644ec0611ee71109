"""Models that torchao's ``quantize_`` has quantized."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
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
from fxonnx._program.session import session_in_float


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
@pytest.mark.exact_products
def test_configurations(name: str) -> None:
    config, operators, stored = CONFIGS[name]
    model, x = layers(), torch.randn(5, 64)
    quantize_(model, config)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},))
    assert program.model.opset_imports[""] == 21
    for n in (1, 5, 9):
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


def float4(*, tensor_scale: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(64, 48, dtype=torch.bfloat16).eval()
    quantize_(layer, NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=tensor_scale))
    return layer


@pytest.mark.parametrize("tensor_scale", [True, False])
def test_4_bit_floating_point(tensor_scale: bool) -> None:
    model, x = float4(tensor_scale=tensor_scale), torch.randn(3, 64, dtype=torch.bfloat16)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), verify="auto")
    torch.testing.assert_close(program(x)[0], model(x), rtol=0.02, atol=0.02)
    weights = {name: value for name, value in program.model.graph.initializers.items() if "weight" in name}
    assert sum(value.const_value.nbytes for value in weights.values()) == 48 * (64 // 2 + 64 // 16 * 4)


@pytest.mark.parametrize("opset", [23, 25])
def test_4_bit_floating_point_elements(opset: int) -> None:
    """ONNX Runtime has no kernel for FLOAT4E2M1: other targets get it."""
    model, x = float4(), torch.randn(3, 64, dtype=torch.bfloat16)
    program = fxonnx.export(model, (x,), opset_version=opset, target="openvino")
    onnx.checker.check_model(program.model_proto, full_check=True)
    operators = [node.op_type for node in program.model.graph]
    assert "Transpose" not in operators
    codes, scale = program.model.graph[operators.index("DequantizeLinear")].inputs
    assert (codes.dtype.name, list(codes.shape), list(scale.shape)) == ("FLOAT4E2M1", [64, 48], [4, 48])
    values = codes.const_value.numpy().astype("float32") * scale.const_value.numpy().repeat(16, 0)
    expected = model.weight.dequantize(torch.float32).detach().t()
    torch.testing.assert_close(torch.from_numpy(values), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["int8", "int4 rows", "dynamic", "float8"])
@pytest.mark.exact_products
def test_checkpoints(name: str, tmp_path: Path) -> None:
    model, other, x = layers(), layers(), torch.randn(5, 64)
    quantize_(model, CONFIGS[name][0])
    with torch.no_grad():
        other[0].weight.mul_(2)
        other[2].weight.neg_()
    quantize_(other, CONFIGS[name][0])
    torch.save(model.state_dict(), tmp_path / "model.pt")
    with torch.device("meta"):
        loaded = layers()
    loaded.load_state_dict(torch.load(tmp_path / "model.pt"), assign=True)
    program = fxonnx.export(loaded, (x,))
    torch.testing.assert_close(program.quantization.call_in_float(x)[0], model(x), rtol=1e-5, atol=1e-6)
    tensors, metadata = flatten_tensor_state_dict({key: value.detach() for key, value in other.state_dict().items()})
    save_file(tensors, tmp_path / "other.safetensors", metadata=metadata)
    program.save(tmp_path / "other.onnx", weights=tmp_path / "other.safetensors")
    (result,) = session_in_float(str(tmp_path / "other.onnx")).run(None, {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), other(x).detach(), rtol=1e-5, atol=1e-6)
