"""Exports for TensorRT: operators that it has no kernel for, or few, are written as others, or in a wider type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import fxonnx
from benchmarks.tensorrt_probe import Example
from fxonnx._targets import PROFILES
from tests.functions import Function


def exported(function: Callable[..., Any], *inputs: torch.Tensor, opset: int | None = None) -> fxonnx.ONNXProgram:
    """The program for TensorRT, compared with the function."""
    program = fxonnx.export(Function(function).eval(), inputs, target="tensorrt", opset_version=opset)
    for found, wanted in zip(program(*inputs), torch.utils._pytree.tree_leaves(function(*inputs)), strict=True):
        tolerance = 1e-2 if wanted.dtype in (torch.float16, torch.bfloat16) else 1e-5
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    return program


def operators(program: fxonnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


X = torch.tensor([[-3.5, 0.0, 1.25], [2.0, -0.5, 4.0]])
BYTES = torch.tensor([[1, 200, 3], [4, 5, 250]], dtype=torch.uint8)
SIGNED = torch.tensor([[1, -100, 3], [4, 5, 127]], dtype=torch.int8)

FUNCTIONS: dict[str, tuple[Callable[..., Any], torch.Tensor, list[str]]] = {
    "hardswish in bfloat16": (nn.functional.hardswish, X.bfloat16(), ["Cast", "HardSwish", "Cast"]),
    "hardswish in float16": (nn.functional.hardswish, X.half(), ["HardSwish"]),
    "clamp of int8": (lambda x: x.clamp(-5, 5), SIGNED, ["Cast", "Clip", "Cast"]),
    "sum of bytes": (lambda x: x + x, BYTES, ["Cast", "Add", "Cast"]),
    "nonzero of bool": (lambda x: (x > 0).nonzero(), X, ["Greater", "Cast", "NonZero", "Transpose"]),
    "softmax of one axis": (lambda x: x.softmax(0), X.flatten(), ["Squeeze", "Softmax", "Unsqueeze"]),
    "argmax of all": (lambda x: x.argmax(), X, ["Reshape", "ArgMax", "Squeeze", "Unsqueeze"]),
    "masked_select": (
        lambda x: torch.masked_select(x, x > 0),
        X,
        ["Greater", "Reshape", "Reshape", "Cast", "NonZero", "Reshape", "Gather"],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forms_that_it_accepts(name: str) -> None:
    function, x, expected = FUNCTIONS[name]
    program = exported(function, x)
    assert sorted(operators(program)) == sorted(expected)
    assert [found for found in fxonnx.check(program.model, "tensorrt") if found.severity == "fails"] == []


@pytest.mark.parametrize("length", [8, 12])
def test_fourier_transforms_are_products(length: int) -> None:
    x = torch.rand(2, length)
    program = exported(
        lambda x: (
            torch.fft.rfft(x).abs(),
            torch.fft.irfft(torch.fft.rfft(x)),
            *(torch.fft.irfft(torch.fft.rfft(x), size) for size in (5, length + 7)),
            torch.fft.fft(x, dim=0).real,
        ),
        x,
    )
    assert "DFT" not in operators(program)
    assert "MatMul" in operators(program)
    assert fxonnx.check(program.model, "tensorrt") == []


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_sizes_of_a_dynamic_batch_are_written_in_full(mode: str) -> None:
    """Its parser takes -1 for the size of a dynamic axis that the attribute axes does not name."""
    model, x = Function(lambda x: nn.functional.interpolate(x, (7, 9), mode=mode)).eval(), torch.rand(2, 3, 4, 5)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "batch"},), target="tensorrt")
    (resize,) = (node for node in program.model.graph if node.op_type == "Resize")
    assert "axes" not in resize.attributes
    for batch in (2, 5):
        x = torch.rand(batch, 3, 4, 5)
        torch.testing.assert_close(program(x)[0], model(x))


def test_fourier_transforms_of_dynamic_lengths_keep_the_operator() -> None:
    model, x = Function(lambda x: torch.fft.fft(x).real).eval(), torch.rand(2, 8)
    program = fxonnx.export(model, (x,), dynamic_shapes=({1: "n"},), target="tensorrt")
    assert "DFT" in operators(program)
    assert {found.op_type for found in fxonnx.check(program.model, "tensorrt") if found.severity == "fails"} == {"DFT"}
    torch.testing.assert_close(program(y := torch.rand(2, 6))[0], model(y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("opset", [20, 23, 24, 26])
def test_attention_is_written_as_other_operators(dtype: torch.dtype, opset: int) -> None:
    """TensorRT has fused kernels only: none for float32, nor with the precision of the softmax."""
    x = torch.rand(1, 2, 5, 16, dtype=dtype)
    program = exported(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), x, opset=opset)
    assert "Attention" not in operators(program)
    assert "Softmax" in operators(program)
    assert fxonnx.check(program.model, "tensorrt") == []


def test_attention_of_onnx_is_written_as_other_operators() -> None:
    x = torch.rand(1, 2, 5, 16)
    program = exported(lambda x: torch.onnx.ops.attention(x, x, x)[0], x, opset=23)
    assert "Attention" not in operators(program)
    assert fxonnx.check(program.model, "tensorrt") == []


def test_other_targets_keep_the_operators() -> None:
    x = torch.rand(1, 2, 4, 16)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attended = nn.functional.scaled_dot_product_attention(x, x, x)
        return attended, torch.masked_select(x, x > 0.5), torch.fft.fft(x).real

    program = fxonnx.export(Function(function).eval(), (x,), target="onnxruntime")
    assert {"Attention", "Compress", "DFT"} <= set(operators(program))


def test_types_without_a_kernel_have_a_wider_one() -> None:
    """An operator is computed in another type only where that has a kernel: otherwise the export would fail."""
    profile = PROFILES["tensorrt"]
    missing = profile.missing_kernels(profile.default_opset)
    names = {dtype.name for dtype in missing["HardSwish"]}
    assert "BFLOAT16" in names
    assert not names & {"FLOAT", "FLOAT16"}
    assert not missing["Add"] & missing["Attention"]
    assert "BitwiseAnd" not in missing


def test_models_of_one_node_in_other_types() -> None:
    """The models that the table of TensorRT is asked with."""
    indices = np.array([0, 2])
    node = onnx.helper.make_node("Gather", ["x", "indices"], ["y"], axis=1)
    x, i = (onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in (("x", 1), ("indices", 7)))
    graph = onnx.helper.make_graph([node], "gather", [x, i], [onnx.helper.make_tensor_value_info("y", 1, None)])
    example = Example(onnx.helper.make_model(graph), [np.ones((2, 3), np.float32), indices])
    assert example.variables({}) == {"T": "float", "Tind": "int64"}
    for constants in (True, False):
        made = onnx.load_from_string(example.model({"T": "bfloat16", "Tind": "int32"}, constants))
        assert len(made.graph.input) == (1 if constants else 2)
        assert made.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
        assert made.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
