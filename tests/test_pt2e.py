"""Models quantized with PT2E (torchao): kernels in ONNX Runtime, and the same results as the converted models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

import fxonnx

pytestmark = pytest.mark.filterwarnings("ignore")


class Convolutions(nn.Module):
    """Convolutions with a residual connection and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.third = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = (x + self.second(x)).relu()
        x = self.third(torch.cat([x, nn.functional.max_pool2d(x, 3, 1, 1)], 1))
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0)


def xnnpack(**options: Any) -> Any:
    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**options))


def inductor(**options: Any) -> Any:
    return x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config(**options))


@dataclass(frozen=True)
class Case:
    """A model with its quantizer, and the operators of its graph after ONNX Runtime's optimizations."""

    name: str
    make: Callable[[], nn.Module]
    quantizer: Callable[[], Any]
    shape: tuple[int, ...]
    operators: dict[str, int]
    tolerance: float = 1e-6

    def __str__(self) -> str:
        return self.name

    def converted(self, x: Tensor) -> nn.Module:
        """The model, quantized for a dynamic batch size."""
        torch.manual_seed(0)
        model = self.make().eval()
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
        prepared = prepare_pt2e(exported.module(), self.quantizer())
        with torch.no_grad():
            prepared(x)
        return convert_pt2e(prepared)


IMAGE, SEQUENCE = (3, 8, 8), (5, 8)
ALL_INTEGER = {"Conv": 0, "QLinearConv": 3, "QLinearAdd": 1, "QLinearConcat": 1, "QGemm": 1}
# The quantizer leaves out the projections of attention.
PRODUCTS = {"MatMulIntegerToFloat": 2, "Gemm": 2, "MatMulNBits": 0}
# An integer may be the next one.
ROUNDED = 0.03
CASES = (
    Case("xnnpack", Convolutions, lambda: xnnpack(is_per_channel=True), IMAGE, ALL_INTEGER, tolerance=ROUNDED),
    Case("xnnpack-per-tensor", Convolutions, xnnpack, IMAGE, ALL_INTEGER, tolerance=ROUNDED),
    Case("x86", Convolutions, inductor, IMAGE, {"QGemm": 1}, tolerance=ROUNDED),
    Case("transformer", transformer, lambda: inductor(is_dynamic=True), (5, 16), PRODUCTS, tolerance=ROUNDED),
    Case("lstm", Recurrent, lambda: xnnpack(is_dynamic=True), SEQUENCE, {"LSTM": 1, "MatMulIntegerToFloat": 1}),
    Case("lstm-static", Recurrent, xnnpack, SEQUENCE, {"LSTM": 1}, tolerance=ROUNDED),
)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.exact_products
def test_kernels_and_results(case: Case, tmp_path: Path) -> None:
    x = torch.randn(2, *case.shape)
    model, path = case.converted(x), tmp_path / "model.onnx"
    fxonnx.export(model, (x,), path, dynamic_shapes=({0: "batch"},), target="onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    for example in (x, torch.randn(5, *case.shape)):
        with torch.no_grad():
            expected = model(example)
        (found,) = session.run(None, {given.name: example.numpy()})
        torch.testing.assert_close(
            torch.from_numpy(found), expected, rtol=0, atol=case.tolerance * float(expected.abs().max())
        )
    operators = Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)
    assert {name: operators[name] for name in case.operators} == case.operators
