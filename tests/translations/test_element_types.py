"""Layers and functions in each element type, opset and target: every file loads, with the results of eager torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxonnx
from fxonnx._comparison import compare

from ..functions import VariadicFunction

_IMAGE, _ROWS, _SERIES = (2, 4, 6, 6), (3, 8), (2, 4, 9)


def _attention(**options: Any) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        heads = x.reshape(2, 3, 4, 6, 2).unbind(1)
        return F.scaled_dot_product_attention(heads[0], heads[1], heads[2], **options)

    return function


class _Recurrent(nn.Module):
    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = layer(8, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)[0]


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x, x, x)[0]


TABLE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 4), _ROWS),
    "linear without bias": (lambda: nn.Linear(8, 4, bias=False), (2, 3, 8)),
    "bilinear": (lambda: lambda x: F.bilinear(x, x, torch.ones(2, 8, 8, dtype=x.dtype)), _ROWS),
    "conv": (lambda: nn.Conv2d(4, 3, 3, padding=1), _IMAGE),
    "conv without bias": (lambda: nn.Conv1d(4, 4, 3, bias=False, groups=2), _SERIES),
    "conv transpose": (lambda: nn.ConvTranspose2d(4, 3, 2, stride=2), _IMAGE),
    "batch norm": (lambda: nn.BatchNorm2d(4), _IMAGE),
    "batch norm without weights": (lambda: nn.BatchNorm2d(4, affine=False), _IMAGE),
    "batch norm of the batch": (lambda: nn.BatchNorm2d(4, track_running_stats=False), _IMAGE),
    "instance norm": (lambda: nn.InstanceNorm2d(4), _IMAGE),
    "instance norm with weights": (lambda: nn.InstanceNorm1d(4, affine=True), _SERIES),
    "layer norm": (lambda: nn.LayerNorm(8), _ROWS),
    "layer norm without bias": (lambda: nn.LayerNorm(8, bias=False), _ROWS),
    "layer norm without weights": (lambda: nn.LayerNorm(8, elementwise_affine=False), _ROWS),
    "layer norm of two axes": (lambda: nn.LayerNorm((6, 6), eps=1e-3), _IMAGE),
    "rms norm": (lambda: nn.RMSNorm(8), _ROWS),
    "rms norm without a scale": (lambda: nn.RMSNorm(8, elementwise_affine=False), _ROWS),
    "rms norm of two axes": (lambda: nn.RMSNorm((6, 6), elementwise_affine=False, eps=1e-3), _IMAGE),
    "group norm": (lambda: nn.GroupNorm(2, 4), _IMAGE),
    "group norm without weights": (lambda: nn.GroupNorm(2, 4, affine=False), _IMAGE),
    "normalize": (lambda: F.normalize, _ROWS),
    "cosine similarity": (lambda: lambda x: F.cosine_similarity(x, x + 1), _ROWS),
    "local response norm": (lambda: nn.LocalResponseNorm(2), _IMAGE),
    "softmax": (lambda: nn.Softmax(-1), _ROWS),
    "log softmax": (lambda: nn.LogSoftmax(1), _IMAGE),
    "attention": (lambda: _attention(), (2, 3, 4, 6, 2)),
    "causal attention": (lambda: _attention(is_causal=True), (2, 3, 4, 6, 2)),
    "attention with a scale": (lambda: _attention(scale=0.3), (2, 3, 4, 6, 2)),
    "attention with a mask": (lambda: _attention(attn_mask=torch.ones(6, 6).tril().bool()), (2, 3, 4, 6, 2)),
    "multi-head attention": (lambda: _SelfAttention(), (3, 2, 8)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8)),
    "gru": (lambda: _Recurrent(nn.GRU), (2, 3, 8)),
    "lstm": (lambda: _Recurrent(nn.LSTM), (2, 3, 8)),
    "rnn": (lambda: _Recurrent(nn.RNN), (2, 3, 8)),
    "max pool": (lambda: nn.MaxPool2d(2), _IMAGE),
    "average pool": (lambda: nn.AvgPool2d(3, padding=1, count_include_pad=False), _IMAGE),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d(2), _IMAGE),
    "adaptive pool to one": (lambda: nn.AdaptiveAvgPool2d(1), _IMAGE),
    "lp pool": (lambda: nn.LPPool2d(2, 2), _IMAGE),
    "bilinear resize": (lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), _IMAGE),
    "nearest resize": (lambda: nn.Upsample(size=(9, 9)), _IMAGE),
    "bicubic resize": (lambda: lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic", antialias=True), _IMAGE),
    "grid sample": (lambda: lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh()), _IMAGE),
    "reflection pad": (lambda: nn.ReflectionPad2d(2), _IMAGE),
    "constant pad": (lambda: nn.ConstantPad2d(1, 0.3), _IMAGE),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), _IMAGE),
    "gelu": (lambda: nn.GELU(), _ROWS),
    "gelu by tanh": (lambda: nn.GELU("tanh"), _ROWS),
    "silu": (lambda: nn.SiLU(), _ROWS),
    "mish": (lambda: nn.Mish(), _ROWS),
    "elu": (lambda: nn.ELU(0.3), _ROWS),
    "celu": (lambda: nn.CELU(0.3), _ROWS),
    "selu": (lambda: nn.SELU(), _ROWS),
    "prelu": (lambda: nn.PReLU(4), _IMAGE),
    "hard swish": (lambda: nn.Hardswish(), _ROWS),
    "hard sigmoid": (lambda: nn.Hardsigmoid(), _ROWS),
    "hard tanh": (lambda: nn.Hardtanh(-0.3, 0.7), _ROWS),
    "softplus": (lambda: nn.Softplus(0.3), _ROWS),
    "soft shrink": (lambda: nn.Softshrink(0.3), _ROWS),
    "threshold": (lambda: nn.Threshold(0.3, -7.0), _ROWS),
    "glu": (lambda: nn.GLU(), _ROWS),
    "standard deviation": (lambda: lambda x: x.std(-1), _ROWS),
    "variance and mean": (lambda: lambda x: torch.var_mean(x, 1), _IMAGE),
    "vector norm": (lambda: lambda x: torch.linalg.vector_norm(x, 3, -1), _ROWS),
    "logsumexp": (lambda: lambda x: x.logsumexp(-1), _ROWS),
    "cumulative sum": (lambda: lambda x: x.cumsum(-1), _ROWS),
    "product": (lambda: lambda x: x.prod(-1), _ROWS),
    "sort": (lambda: lambda x: x.sort(-1)[0], _ROWS),
    "clamp": (lambda: lambda x: x.clamp(-0.3, 0.7), _ROWS),
    "where": (lambda: lambda x: torch.where(x > 0.3, x, -7.0), _ROWS),
    "einsum": (lambda: lambda x: torch.einsum("bchw,bdhw->bcd", x, x), _IMAGE),
    "distances": (lambda: lambda x: torch.cdist(x, x + 1), _ROWS),
    "smooth loss": (lambda: lambda x: F.smooth_l1_loss(x, x * 2, beta=0.3), _ROWS),
    "cross entropy": (lambda: lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3]), label_smoothing=0.1), _ROWS),
    "numbers": (lambda: lambda x: (1.0 - x) * 0.3 / 7.0 + 2, _ROWS),
}

_DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.float32)
_OPSETS = (13, 17, 18, 20, 21, 22, 23, 24, 26)
_TARGETS: tuple[Literal["onnxruntime"] | None, ...] = (None, "onnxruntime")


@pytest.mark.parametrize("target", _TARGETS)
@pytest.mark.parametrize("opset", _OPSETS)
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_element_types(
    name: str, dtype: torch.dtype, opset: int, target: Literal["onnxruntime"] | None, tmp_path: Path
) -> None:
    make, shape = TABLE[name]
    made = make()
    model = (made if isinstance(made, nn.Module) else VariadicFunction(made)).eval().to(dtype)
    inputs = torch.randn(shape, dtype=torch.float64).to(dtype)
    with torch.no_grad():
        try:
            result = model(inputs)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"eager torch: {error}")
    expected = result if isinstance(result, tuple) else (result,)
    program = fxonnx.export(model, (inputs,), tmp_path / "model.onnx", opset_version=opset, target=target)
    onnxruntime.InferenceSession(tmp_path / "model.onnx")
    rows = compare([str(index) for index in range(len(expected))], expected, program(inputs))
    assert not [row.message for row in rows if row.message]
