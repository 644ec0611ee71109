"""Flattening of token-wise layers for ONNX Runtime: the values do not change."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import nn
from torch.nn import functional

import fxonnx

from .test_attention_patterns import Attending
from .test_patterns import kinds


class Flattened(nn.Linear):
    """The linear layer of GPT-2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight.t())
        return flat.view(*x.shape[:-1], self.out_features)


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, flattened: bool = False) -> None:
        super().__init__()
        self.attention = Attending("")
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.joined = nn.Linear(16, 8)
        kind = Flattened if flattened else nn.Linear
        self.wide, self.narrow = kind(8, 32), kind(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing = torch.zeros(1)
        x = x + self.joined(self.attention(self.first(x), nothing, nothing)[0])
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


@pytest.mark.parametrize("flattened", [False, True])
@pytest.mark.parametrize("opset", [17, 20, 23])
def test_linear_layers_become_gemms(opset: int, flattened: bool) -> None:
    args, axes = (torch.randn(2, 3, 8),), ({0: "batch", 1: "length"},)
    for shapes in (None, ({0: "batch"},), axes):
        program = fxonnx.export(
            Block(flattened).eval(),
            args,
            dynamic_shapes=shapes,
            opset_version=opset,
            target="onnxruntime",
            verify="auto" if shapes else True,
        )
        assert program.record.patterns["flat_tokens"] == 6
        found = kinds(program)
        assert (found.count("Gemm"), found.count("MatMul")) == (6, 0 if opset == 23 else 2)
    assert "flat_tokens" not in fxonnx.export(Block().eval(), args).record.patterns


def test_target_selects_its_opset() -> None:
    args = (torch.randn(2, 3, 8),)
    assert fxonnx.export(Block().eval(), args, target="onnxruntime").model.opset_imports == {"": 23}
    assert fxonnx.export(Block().eval(), args, target="onnxruntime", opset_version=17).model.opset_imports == {"": 17}
    switched = fxonnx.export(
        Block().eval(), args, target="onnxruntime", options=fxonnx.ExportOptions(patterns={"flat_tokens": False})
    )
    assert "Gemm" not in kinds(switched)


class Random(nn.Module):
    """Layers in a random order, some of them not token-wise."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.linears = nn.ModuleList(nn.Linear(6, 6, bias=index % 3 > 0) for index in range(6))
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.rand(6))
        self.positions = nn.Parameter(torch.rand(1, 3, 6))

    def forward(self, x: torch.Tensor) -> Any:
        generator = random.Random(self.seed)
        values = [x]
        for _ in range(12):
            y = generator.choice(values)
            kind = generator.randrange(10)
            if kind < 3:
                y = self.linears[generator.randrange(6)](y)
            elif kind == 3:
                y = self.norm(y)
            elif kind == 4:
                y = torch.tanh(y) * self.scale
            elif kind == 5:
                y = y + generator.choice(values)
            elif kind == 6:
                y = y + self.positions
            elif kind == 7:
                first, second = y.split([2, 4], dim=-1)
                y = torch.cat([second, first], dim=-1)
            elif kind == 8:
                y = torch.softmax(y, dim=1)
            else:
                y = y * y[:, :1] + y.mean(1, keepdim=True)
            values.append(y)
        return values[-1], values[generator.randrange(len(values))] + 1, values[-2].transpose(1, 2)


@pytest.mark.parametrize("seed", range(25))
def test_random_layers_keep_their_values(seed: int) -> None:
    shapes = ({0: "batch"},) if seed % 2 else None
    program = fxonnx.export(
        Random(seed).eval(),
        (torch.randn(2, 3, 6),),
        dynamic_shapes=shapes,
        target="onnxruntime",
        verify="auto" if shapes else True,
    )
    plain = fxonnx.export(Random(seed).eval(), (torch.randn(2, 3, 6),), dynamic_shapes=shapes, opset_version=23)
    assert "flat_tokens" in program.record.patterns
    assert "flat_tokens" not in plain.record.patterns


@pytest.mark.parametrize("example", [(3, 1, 8), (1, 3, 8), (1, 1, 8)])
def test_size_one_in_the_example_inputs_stays_dynamic(example: tuple[int, int, int]) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    program = fxonnx.export(
        model, (torch.randn(example),), dynamic_shapes=({0: "batch", 1: "seq"},), target="onnxruntime"
    )
    for sizes in (example, (1, 5, 8), (7, 1, 8), (2, 3, 8)):
        x = torch.randn(sizes)
        with torch.no_grad():
            torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-5)


class Quantized(nn.Module):
    """Two linear layers with quantized activations and, unless they are floats, quantized weights."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        # 7 bits: on x86 without VNNI, ONNX Runtime's sums of products of uint8 and int8 saturate at 16 bits.
        codes = [torch.randint(-64, 64, layer.weight.shape, dtype=torch.int8) for layer in (self.first, self.second)]
        self.codes = nn.ParameterList([nn.Parameter(one, requires_grad=False) for one in codes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(self.first, self.codes[0], x).relu()
        return self.layer(self.second, self.codes[1], y) + x

    def layer(self, layer: nn.Linear, codes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        weight = layer.weight
        if self.kind != "float weights":
            weight = torch.ops.quantized_decomposed.dequantize_per_tensor(codes, 0.02, 0, -127, 127, torch.int8)
        return functional.linear(self.quantized(x), weight, layer.bias)

    def quantized(self, x: torch.Tensor) -> torch.Tensor:
        ops, limits = torch.ops.quantized_decomposed, (-128, 127)
        if self.kind != "dynamic":
            integers = ops.quantize_per_tensor(x, 0.05, 3, *limits, torch.int8)
            return ops.dequantize_per_tensor(integers, 0.05, 3, *limits, torch.int8)
        parameters = ops.choose_qparams(x, *limits, 1e-5, torch.int8)
        integers = ops.quantize_per_tensor.tensor(x, *parameters, *limits, torch.int8)
        return ops.dequantize_per_tensor.tensor(integers, *parameters, *limits, torch.int8)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("static", {"Gemm": 2, "MatMul": 0, "Reshape": 2}),
        ("dynamic", {"MatMulInteger": 2, "Gemm": 0, "Reshape": 2}),
        # ONNX Runtime quantizes the float weights of a Gemm between quantized activations.
        ("float weights", {"Gemm": 0, "MatMul": 2}),
    ],
)
def test_quantized_layers(kind: str, expected: dict[str, int]) -> None:
    torch.manual_seed(0)
    model, x = Quantized(kind).eval(), torch.randn(2, 3, 8)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "batch"},), target="onnxruntime")
    found = kinds(program)
    assert {name: found.count(name) for name in expected} == expected
    for example in (x, torch.randn(5, 3, 8)):
        with torch.no_grad():
            torch.testing.assert_close(
                program(example)[0], model(example), rtol=0, atol=0.1
            )  # an integer may be the next one
