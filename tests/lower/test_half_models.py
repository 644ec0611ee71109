"""Models in half precision, converted or in regions of autocast, against torch in half and in single precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx

from ..hygiene import check_graph
from ..saved import run_from_file


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.layer = layer(8, 16, batch_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.positions = nn.Embedding(8, 16)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x + self.positions(torch.arange(x.shape[1]))).mean(1)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2)),
        *(nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4), nn.Softmax(-1)),
    )


class Autocast(nn.Module):
    """A model in a region of autocast, with a region without autocast before its end."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=self.dtype):
            result = self.model(x)
            with torch.autocast("cpu", enabled=False):
                norm = result.float().norm()
            return result / norm


# The number of Casts in the float16 model, in the bfloat16 model, and with autocast to each of them.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, int, int, int]]] = {
    "perceptron": (perceptron, (16,), (0, 5, 3, 10)),
    "convolutions": (convolutions, (3, 8, 8), (0, 9, 3, 14)),
    "encoder": (Encoder, (6, 16), (2, 13, 8, 24)),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 8), (0, 7, 0, 12)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 8), (0, 7, 3, 8)),
}
KINDS = ("float16", "bfloat16", "autocast to float16", "autocast to bfloat16")
CASES = [
    pytest.param(
        *(name, KINDS.index(kind), target),
        marks=pytest.mark.xfail(
            (name, kind) == ("lstm", KINDS[3]) and not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
            reason="torch: oneDNN has no LSTM in bfloat16 for this processor, in eager mode either",
            raises=RuntimeError,
        ),
        id=f"{name}, {kind}{', onnxruntime' if target else ''}",
    )
    for name in MODELS
    for kind in KINDS
    # oneDNN has no LSTM in float16 on most CPUs.
    if (name, kind) != ("lstm", KINDS[2])
    for target in (None, *(("onnxruntime",) if name == "encoder" else ()))
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "mode", "target"), CASES)
def test_half_precision(name: str, mode: int, target: Any) -> None:
    torch.manual_seed(0)
    make, shape, casts = MODELS[name]
    single = make().eval()
    dtype = (torch.float16, torch.bfloat16)[mode % 2]
    model = Autocast(single, dtype).eval() if mode > 1 else copy.deepcopy(single).to(dtype)
    inputs = [torch.randn(rows, *shape) for rows in (4, 1, 7)]
    given = [x if mode > 1 else x.to(dtype) for x in inputs]
    program = fxonnx.export(model, (given[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), target=target)
    check_graph(program.model_proto)
    run_from_file(program)
    for x, low in zip(inputs, given, strict=True):
        # With gradients, as in the captured graph: torch's fused encoder layer returns other dtypes under autocast.
        expected, exact = model(low).detach(), single(x).detach()
        if mode > 1:
            exact = exact / exact.norm()
        (output,) = program(low)
        assert output.dtype == expected.dtype
        torch_error = (expected.double() - exact).abs().max()
        rounding = 4 * torch.finfo(dtype).eps * exact.abs().max()
        assert (output.double() - exact).abs().max() <= 1.5 * torch_error + rounding / 4
        assert (output - expected).abs().max() <= rounding
    assert sum(node.op_type == "Cast" for node in program.model.graph) <= casts[mode]
