"""Exports for OpenVINO, compiled and run on the CPU, against eager torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import fxonnx
from benchmarks.target_kernels import FOLDER, content, openvino_kernels
from tests.functions import Function
from tests.models.zoo import CASES, Case, Inputs

openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")


def run(path: Path, program: fxonnx.ONNXProgram, inputs: Inputs) -> list[torch.Tensor]:
    """The outputs of a file in OpenVINO, for the arguments of a call."""
    # By default processors with bfloat16 instructions compute float32 models in bfloat16.
    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    args, kwargs = inputs
    outputs = compiled([_to_openvino(value) for value in program.interface.bind(args, kwargs)])
    found = [torch.from_numpy(outputs[index].copy()) for index in range(len(outputs))]
    # numpy has no bfloat16: its bits arrive as float16.
    bfloat16 = [output.get_element_type() == openvino.Type.bf16 for output in compiled.outputs]
    return [
        value.view(torch.bfloat16) if is_bfloat16 else value for value, is_bfloat16 in zip(found, bfloat16, strict=True)
    ]


def _to_openvino(value: torch.Tensor) -> Any:
    if value.dtype == torch.bfloat16:
        return openvino.Tensor(value.view(torch.int16).numpy(), list(value.shape), openvino.Type.bf16)
    return value.numpy()


def compare(program: fxonnx.ONNXProgram, model: nn.Module, path: Path, tolerance: float, *calls: Inputs) -> None:
    program.save(path)
    for args, kwargs in calls:
        with torch.no_grad():
            expected = [each for each in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(each, torch.Tensor)]
        found = run(path, program, (args, kwargs))
        assert len(found) == len(expected)
        for actual, wanted in zip(found, expected, strict=True):
            scale = max(wanted.abs().max().item(), 1e-3) if wanted.numel() else 1.0
            # Both in double: OpenVINO returns int64 as it computes it, in int32.
            torch.testing.assert_close(actual.double(), wanted.double(), rtol=0, atol=tolerance * scale)


# Those that take longer are omitted.
SLOW = {
    *("alexnet", "bert_base", "bert_base_masked", "convnext_tiny", "densenet121"),
    *("inception_v3", "resnet50", "vgg11", "vit_b_16"),
}
SELECTED = [case for case in CASES if case.name not in SLOW]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=case.marks) for case in SELECTED])
def test_networks(case: Case, tmp_path: Path) -> None:
    model, args, kwargs = case.example()
    program = fxonnx.export(
        model,
        args,
        kwargs=kwargs,
        dynamic_shapes=case.dynamic_shapes,
        input_names=case.input_names,
        output_names=case.output_names,
        target="openvino",
    )
    assert fxonnx.check(program.model, "openvino") == []
    compare(program, model, tmp_path / "m.onnx", case.tolerance, (args, kwargs), case.second_inputs())


class Norms(nn.Module):
    """Layers that opsets above 20 have operators for."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rms = nn.LayerNorm(8), nn.RMSNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.norm(x).unflatten(-1, (2, 4)).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return nn.functional.gelu(self.rms(attended.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("opset", [15, 18, 20, 22, 23, 24, 26])
def test_opsets(opset: int, tmp_path: Path) -> None:
    model, x = Norms().eval(), torch.rand(2, 5, 8)
    program = fxonnx.export(model, (x,), dynamic_shapes=({1: "n"},), target="openvino", opset_version=opset)
    assert fxonnx.check(program.model, "openvino") == []
    compare(program, model, tmp_path / "m.onnx", 1e-5, ((x,), {}), ((torch.rand(2, 7, 8),), {}))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-5)])
def test_types(dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2), nn.Softmax(-1)).to(dtype).eval()
    x = torch.rand(3, 4, dtype=dtype)
    program = fxonnx.export(model, (x,), target="openvino")
    # Without a target, bfloat16 gets Casts, and float64 a GELU of other operators: those are for ONNX Runtime's CPU kernels.
    assert [node.op_type for node in program.model.graph] == ["Gemm", "LayerNormalization", "Gelu", "Gemm", "Softmax"]
    found = {(one.op_type, one.problem.partition(": ")[2]) for one in fxonnx.check(program.model, "openvino")}
    conversion = "it is computed in float, between conversions"
    assert found == ({(node.op_type, conversion) for node in program.model.graph} if dtype == torch.float64 else set())
    compare(program, model, tmp_path / "m.onnx", tolerance, ((x,), {}))


X = torch.rand(3, 4)
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), X),
    "cumsum": (lambda x: x.cumsum(0), X),
    "grid_sample": (
        lambda x: nn.functional.grid_sample(x, torch.zeros(1, 2, 2, 2), align_corners=False),
        torch.rand(1, 2, 4, 4),
    ),
    "int16": (lambda x: torch.maximum(x, x * 2), torch.arange(6, dtype=torch.int16)),
    "int8": (lambda x: x.clamp(max=3) + x, torch.arange(6, dtype=torch.int8)),
    "nonzero": (lambda x: (x > 0.5).nonzero(), X),
    "one_hot": (lambda x: nn.functional.one_hot(x, 5), torch.tensor([0, 4, 2])),
    "quotients": (lambda x: (x // 0.3, x // x.flip(0), x % 0.3), torch.tensor([1.0, -7.3, 0.7, -0.11])),
    "resize": (lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bicubic"), torch.rand(1, 2, 4, 4)),
    "scatter_add": (lambda x: x.scatter_add(0, torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4)), X),
    "sort": (lambda x: x.sort()[0], X),
    "topk": (lambda x: x.topk(2)[0], X),
    "unique": (lambda x: torch.unique(x), torch.tensor([3.0, 1.0, 3.0])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, tmp_path: Path) -> None:
    function, x = FUNCTIONS[name]
    model = Function(function).eval()
    program = fxonnx.export(model, (x,), target="openvino")
    assert fxonnx.check(program.model, "openvino") == []
    compare(program, model, tmp_path / "m.onnx", 1e-5, ((x,), {}))


def test_findings_are_limits_of_openvino(tmp_path: Path) -> None:
    """The restriction on DFT: a wrong shape, which the profile names."""
    model, x = Function(lambda x: torch.fft.rfft(x).real).eval(), torch.rand(3, 8)
    program = fxonnx.export(model, (x,), target="openvino")
    assert [found.problem for found in fxonnx.check(program.model, "openvino")] == [
        "OpenVINO: its attribute onesided is 1, supported: 0"
    ]
    program.save(tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", program, ((x,), {}))[0].shape != model(x).shape


def test_float64_is_computed_in_float32(tmp_path: Path) -> None:
    """The source of the profile's ``computes_in``: a model for other runtimes is wrong, and the check names the nodes."""
    model, x = Function(lambda x: x // 0.1).eval(), torch.ones(1)
    program = fxonnx.export(model, (x,))
    assert (program(x)[0].item(), model(x).item()) == (9, 9)
    assert [(one.op_type, one.severity) for one in fxonnx.check(program.model, "openvino")] == [
        *(("Cast", "slow"), ("Div", "slow"), ("Floor", "slow"), ("Cast", "slow")),
    ]
    program.save(tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", program, ((x,), {}))[0].item() == 10


@pytest.mark.nightly
def test_the_table_is_that_of_the_installed_version() -> None:
    stored = json.loads((FOLDER / "openvino.json").read_text())
    version = openvino.__version__.partition("-")[0]
    if f" {version}," not in stored["source"]:
        pytest.skip(f"the table is of {stored['source']}, installed is {version}")
    assert stored == json.loads(json.dumps(content(*openvino_kernels()))), (
        "run python -m benchmarks.target_kernels openvino"
    )
