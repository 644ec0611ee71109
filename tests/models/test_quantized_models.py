"""torchvision's quantized models, with random weights and small images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
import torch.ao.quantization as tq
from torch import nn

import fxonnx

from .torchvision_shim import import_torchvision

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def qnnpack() -> Iterator[None]:
    """Use the engine that rounds biases to integers, as ONNX Runtime does.

    With random weights, the differences to the other engines grow from layer to layer: torch's own engines differ by
    half of the standard deviation of MobileNet's outputs.
    """
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "qnnpack"
    yield
    torch.backends.quantized.engine = engine


def quantized_model(name: str, x: torch.Tensor) -> nn.Module:
    """A model with batch statistics and activations calibrated on ``x``."""
    options = {"init_weights": False, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    torch.manual_seed(1)
    constructor = getattr(import_torchvision().models.quantization, name)
    model: nn.Module = constructor(weights=None, quantize=False, num_classes=50, **options)
    with torch.no_grad():
        model.train()(torch.randn(x.shape))
        model.eval().fuse_model()  # type: ignore[operator]
        model.qconfig = tq.get_default_qconfig("qnnpack")  # type: ignore[assignment]
        tq.prepare(model, inplace=True)
        model(x)
    converted: nn.Module = tq.convert(model)
    return converted


ROWS = [
    ("resnet18", 32, 20, 0.05),
    ("mobilenet_v2", 32, 52, 0.0),
    ("mobilenet_v3_large", 32, 62, 0.0),
    ("googlenet", 32, 57, 0.0),
    ("inception_v3", 75, 94, 0.15),
    ("shufflenet_v2_x0_5", 32, 56, 0.0),
]
# Of architectures that are above.
VARIANTS = [
    ("resnet50", 32, 53, 0.15),
    ("resnext101_32x8d", 32, 104, 0.3),
    ("resnext101_64x4d", 32, 104, 0.3),
    ("shufflenet_v2_x1_0", 32, 56, 0.05),
    ("shufflenet_v2_x1_5", 32, 56, 0.05),
    ("shufflenet_v2_x2_0", 32, 56, 0.05),
]
NAMES = [row[0] for row in (*ROWS, *VARIANTS)]


@pytest.mark.parametrize(
    ("name", "size", "convolutions", "difference"),
    [*ROWS, *(pytest.param(*row, marks=pytest.mark.nightly) for row in VARIANTS)],
)
@pytest.mark.exact_products
def test_torchvision(name: str, size: int, convolutions: int, difference: float, tmp_path: Path) -> None:
    """All convolutions run as integer kernels; differences begin at sums that round at a tie."""
    x = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    model = quantized_model(name, x)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), target="onnxruntime")
    program.save(tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    for inputs in (x, x[1:3]):
        expected = model(inputs)
        (actual,) = session.run(None, {"x": inputs.numpy()})
        assert len(expected.unique()) > 30
        error = (torch.from_numpy(actual) - expected).norm() / (expected - expected.mean()).norm()
        assert error.item() <= difference
    operators = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert operators.count("QLinearConv") == convolutions
    assert "Conv" not in operators
    assert operators.count("QGemm") == (2 if name == "mobilenet_v3_large" else 1)
