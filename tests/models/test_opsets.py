"""A few models of different kinds at old and new opsets."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx

from ..hygiene import check_graph
from .zoo import CASES, Case

NAMES = ("mlp", "squeezenet1_1", "word_language_model_gru", "word_language_model_transformer")
LOWEST = {"squeezenet1_1": 10, "word_language_model_transformer": 9}
"""The lowest opset of a model: pooling of partial windows at dynamic sizes, and masks."""


def runs(opset: int) -> bool:
    """Whether the installed versions of onnx and ONNX Runtime know an opset: the oldest supported ones end at 23."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value], [])
    graph.output.extend([onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        return False
    return opset <= onnx.defs.onnx_opset_version()


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 13, 15, 17, 18, 19, 21, 22, 23, 24, 25, 26])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=lambda case: case.name)
def test_opset(case: Case, opset: int) -> None:
    if not runs(opset):
        pytest.skip("the installed onnx or ONNX Runtime does not know the opset")
    model, args, kwargs = case.example()
    options = {"kwargs": kwargs, "dynamic_shapes": case.dynamic_shapes, "opset_version": opset}
    lowest = LOWEST.get(case.name, 0)
    if opset < lowest:
        with pytest.raises(fxonnx.UnsupportedOperatorError, match=f"hint: pass opset_version={lowest}") as info:
            fxonnx.export(model, args, **options)
        assert info.value.lowest_opset == lowest
        return
    program = fxonnx.export(model, args, **options, verify=True)
    assert program.model.graph.opset_imports[""] == opset
    check_graph(program.model_proto)
    with torch.no_grad():
        rows = program.verify(*case.second_inputs())
    assert all(row.status == "ok" for row in rows)


def test_names_are_cases_of_the_zoo() -> None:
    assert set(NAMES) <= {case.name for case in CASES}
    assert set(LOWEST) <= set(NAMES)


class Residual(nn.Module):
    """A residual block with the layers around it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 8, 1))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x))
        return self.head(torch.relu(x + self.body(x))).softmax(-1)


class Enlarged(nn.Module):
    """Operations of detectors and super-resolution: resize, concatenate, slice, pad, pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.shuffle = nn.Conv2d(3, 8, 3, padding="same", padding_mode="zeros"), nn.PixelShuffle(2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.conv(x).clamp(-0.5, 2.0)
        large = nn.functional.interpolate(y, scale_factor=2.0)
        left, right = large.chunk(2, 1)
        padded = nn.functional.pad(left[..., 1:-1], (1, 1, 0, 2), value=3.0)
        return torch.cat([left, right], -1), padded, self.shuffle(y), y.mean(1), y.squeeze().unsqueeze(-1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4), nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.table(x))[0])[:, -1].log_softmax(1)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu", norm_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_key_padding_mask=mask)


IMAGE = torch.rand(1, 3, 16, 16)
OLD = {
    "residual": (Residual(), (IMAGE,), {0: "n", 2: "h", 3: "w"}, 7),
    "partial windows": (nn.MaxPool2d(3, 2, ceil_mode=True), (torch.rand(2, 3, 8, 11),), {0: "n"}, 7),
    "enlarged": (Enlarged(), (IMAGE[:, :, :6],), {}, 7),
    "recurrent": (Recurrent(), (torch.randint(0, 9, (2, 5)),), {0: "n", 1: "t"}, 8),
    "attentive": (Attentive(), (torch.rand(2, 5, 8), torch.arange(5) > torch.tensor([[2], [4]])), {0: "n", 1: "t"}, 9),
}


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
@pytest.mark.parametrize("name", list(OLD))
def test_old_opsets(name: str, opset: int) -> None:
    model, args, dims, lowest = OLD[name]
    options = {"dynamic_shapes": [dims] * len(args) if dims else None, "opset_version": opset}
    if opset < lowest:
        with pytest.raises(fxonnx.UnsupportedOperatorError, match=f"hint: pass opset_version={lowest}"):
            fxonnx.export(model.eval(), args, **options)
        return
    program = fxonnx.export(model.eval(), args, **options, verify="auto")
    check_graph(program.model_proto)
    assert program.model.ir_version == (5 if opset == 10 else 4)


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x[:, : y.shape[0]], min(x.shape[1], y.shape[0])


def test_sizes_at_old_opsets() -> None:
    args, dims = (torch.rand(3, 5), torch.rand(4)), ({0: "n", 1: "m"}, {0: "k"})
    program = fxonnx.export(Sizes().eval(), args, dynamic_shapes=dims, opset_version=9)
    check_graph(program.model_proto)
    for rows, columns, length in ((3, 5, 4), (1, 1, 1), (2, 3, 7), (7, 9, 2)):
        x = torch.rand(rows, columns)
        cut, size = program(x, torch.rand(length))
        assert torch.equal(cut, x[:, :length])
        assert size == min(columns, length)
    with pytest.raises(fxonnx.UnsupportedOperatorError, match="hint: pass opset_version=9") as info:
        fxonnx.export(Sizes().eval(), args, dynamic_shapes=dims, opset_version=8)
    assert [operator.name for operator in info.value.operators] == ["aten.slice.Tensor"]


def test_loop_missing_from_an_old_opset() -> None:
    # These recurrent layers become a Scan whose subgraph reads outer values.
    layer = nn.LSTM(4, 6, proj_size=2)
    with pytest.raises(fxonnx.UnsupportedOperatorError, match="hint: pass opset_version=9"):
        fxonnx.export(layer.eval(), (torch.rand(5, 2, 4),), opset_version=7)


def test_slices_of_unknown_length() -> None:
    class Rest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[1:] = 0
            return y

    # ONNX's shape inference at opset 10 assumes that the dim does not change.
    program = fxonnx.export(Rest().eval(), (torch.rand(3, 2),), dynamic_shapes=({0: "n"},), opset_version=10)
    shapes = [value.shape for node in program.model.graph for value in node.outputs if node.op_type == "Slice"]
    assert shapes
    assert all(shape[0] != "n" for shape in shapes)


@pytest.mark.parametrize(
    ("model", "args", "opset", "reason"),
    [
        (nn.Upsample(scale_factor=0.5), (IMAGE,), 9, "Resize supports nearest neighbors of larger images only"),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (IMAGE,), 10, "Resize supports nearest neighbors"),
        (nn.MaxPool2d(3, dilation=2), (IMAGE,), 9, "MaxPool has no dilations"),
        (nn.MaxPool2d(3), (IMAGE.double(),), 7, "ONNX Runtime has no kernel of MaxPool for DOUBLE"),
        (nn.Hardtanh(), (IMAGE.int(),), 8, "ONNX has no Where at opset 8"),
    ],
    ids=["smaller", "linear", "dilations", "doubles", "integers"],
)
def test_operators_missing_from_old_opsets(
    model: nn.Module, args: tuple[torch.Tensor], opset: int, reason: str
) -> None:
    with pytest.raises(fxonnx.UnsupportedOperatorError, match=f"declined: .*{reason}"):
        fxonnx.export(model.eval(), args, opset_version=opset)
