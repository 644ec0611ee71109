"""Dynamic dims that the model specializes: static with a warning as long as another dim is dynamic."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.export import Dim

import fxonnx
from fxonnx.errors import ArgumentError, CaptureError

from ..functions import Function
from ..models.torchvision_shim import import_torchvision


def R(*shape: int) -> torch.Tensor:
    return torch.rand(*shape)


def looped(x: torch.Tensor, *ys: Any) -> torch.Tensor:
    # Comprehensions with two loops and a condition are not rewritten to loops.
    return torch.stack(
        [x[index] * factor for index in range(x.shape[0]) for factor in (index + 1,) if index >= 0]
    ) + sum(ys)


def written_view(x: torch.Tensor) -> torch.Tensor:
    x = (x * 1).transpose(0, 1)
    x.flatten()[0] = 7
    return x


def windowed(x: torch.Tensor) -> torch.Tensor:
    """The relations of a network that halves an image five times and has windows of 7, as SwinUNETR."""
    n = x.shape[1]
    if n % 32 != 0:
        raise ValueError("size")
    if n // 8 > 7:
        raise ValueError("windows")
    return torch.cat((x, x[:, : n // 32]), 1) * 2


def squared(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    return x.repeat(1, 2) if n * n == 25 else x


def grid(x: torch.Tensor) -> torch.Tensor:
    if (x.shape[1] // 2) * (x.shape[2] // 2) != 1 or x.shape[1] % 2 != 0 or x.shape[2] >= 3:
        raise ValueError("grid")
    return x * 2


d = Dim("d")

# Function, example, dynamic_shapes, shapes of the inputs, constraints, another call.
FIXED = [
    pytest.param(looped, (R(2, 3),), ({0: "n", 1: "m"},), "[2,m]", ["n == 2"], (R(2, 5),), id="loop"),
    pytest.param(looped, (R(1, 3),), ({0: "n", 1: "m"},), "[1,m]", ["n == 1"], (R(1, 5),), id="loop-over-size-1"),
    pytest.param(looped, (R(2, 3),), ({0: Dim.DYNAMIC, 1: "m"},), "[2,m]", ["x.shape[0] == 2"], (R(2, 5),), id="hint"),
    pytest.param(looped, (R(2, 3),), ({0: d, 1: "m"},), "[2,m]", ["d == 2"], (R(2, 5),), id="Dim"),
    pytest.param(written_view, (R(3, 1, 4),), ({0: "n", 1: "s"},), "[n,1,4]", ["s == 1"], (R(5, 1, 4),), id="written-view"),
    pytest.param(lambda x: x.view(3, 4, x.shape[1]) * 2, (R(12, 3),), ({0: "n", 1: "m"},), "[12,m]", ["n == 12"], (R(12, 7),), id="view"),
    pytest.param(looped, (R(2, 3), R(2, 1)), ({0: "n", 1: "m"}, {0: "n"}), "[2,m] [2,1]", ["n == 2"], (R(2, 5), R(2, 1)), id="same-name"),
    pytest.param(lambda x, y: (looped(x), y + 1), (R(2, 3), R(2)), ({0: "n", 1: "m"}, {0: "n"}), "[2,m] [2]", ["n == 2"], (R(2, 5), R(2)), id="same-name-unrelated"),
    pytest.param(lambda x, y: (looped(x), y + 1), (R(2, 3), R(4)), ({0: d, 1: "m"}, {0: 2 * d}), "[2,m] [4]", ["d == 2", "y.shape[0] == 4"], (R(2, 5), R(4)), id="derived"),
    pytest.param(windowed, (R(2, 32),), ({0: "n", 1: "s"},), "[n,32]", ["s == 32"], (R(5, 32),), id="bounds-and-divisor"),
    pytest.param(squared, (R(2, 5),), ({0: "n", 1: "s"},), "[n,5]", ["s == 5"], (R(3, 5),), id="square"),
    pytest.param(grid, (R(3, 2, 2),), ({0: "n", 1: "h", 2: "w"},), "[n,2,2]", ["h == 2", "w == 2"], (R(5, 2, 2),), id="product-of-two"),
    pytest.param(lambda x, y: (looped(x), looped(y)), (R(2, 3), R(4, 3)), ({0: "n", 1: "m"}, {0: "k"}), "[2,m] [4,3]", ["n == 2", "k == 4"], (R(2, 5), R(4, 3)), id="two"),
]  # fmt: skip


def text(program: fxonnx.ONNXProgram) -> list[str]:
    return [constraint.text for constraint in program.record.constraints if constraint.narrows]


@pytest.mark.parametrize(("function", "args", "shapes", "expected", "constraints", "other"), FIXED)
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_specialized_dims_become_static_if_others_are_dynamic(
    function: Any, args: tuple[Any, ...], shapes: Any, expected: str, constraints: list[str], other: tuple[Any, ...]
) -> None:
    program = fxonnx.export(Function(function).eval(), args, dynamic_shapes=shapes)
    assert " ".join(str(value.shape) for value in program.model.graph.inputs) == expected
    assert text(program) == constraints
    for inputs in (args, other):
        wanted = function(*inputs)
        for actual, value in zip(program(*inputs), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            torch.testing.assert_close(actual, value)


def test_a_reshape_that_is_a_view_in_the_example_only_names_its_line() -> None:
    with pytest.warns(UserWarning, match=r"only for:\n  s == 1\n    at: .*functions.py:\d+ in forward"):
        fxonnx.export(Function(written_view).eval(), (R(3, 1, 4),), dynamic_shapes=({0: "n", 1: "s"},))


def test_a_specialized_dim_warns_and_is_checked() -> None:
    with pytest.warns(
        UserWarning, match=r"only for:\n  n == 2\n    at: .*test_specialized_dims.py:\d+ in .*range\(x.shape"
    ) as log:
        program = fxonnx.export(Function(looped).eval(), (R(2, 3),), dynamic_shapes=({0: "n", 1: "m"},))
    assert len(log) == 1
    with pytest.raises(ArgumentError, match=r"x: the model was exported for n == 2, got n = 3\n  at: .*range\(x.shape"):
        program(R(3, 3))
    assert {row.status for row in program.verify(sizes="auto")} == {"ok"}


def test_a_specialized_dim_is_an_error_if_strict_or_the_last_one() -> None:
    message = (
        r"the model specializes a dim that should be dynamic:\n  x axis 0, 'n', is always 2\n    at: .*range\(x.shape"
    )
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(looped).eval(), (R(2, 3),), dynamic_shapes=({0: "n", 1: "m"},), strict_shapes=True)
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(looped).eval(), (R(2, 3),), dynamic_shapes=({0: "n", 1: Dim.AUTO},))


def test_constraints_that_leave_one_size_are_declared_in_the_file() -> None:
    lines = r"\n    at: .*in windowed: if n % 32 != 0:; .*in windowed: if n // 8 > 7:"
    with pytest.warns(UserWarning, match=r"only for:\n  s == 32" + lines) as log:
        program = fxonnx.export(Function(windowed).eval(), (R(2, 32),), dynamic_shapes=({0: "n", 1: "s"},))
    assert len(log) == 1
    assert str(program.model.graph.outputs[0].shape) == "[n,33]"
    program.save(file := io.BytesIO())
    session = ort.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    x = R(3, 32)
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), windowed(x))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="Got: 64 Expected: 32"):
        session.run(None, {"x": R(3, 64).numpy()})
    with pytest.raises(ArgumentError, match="x: the model was exported for s == 32, got s = 64"):
        program(R(3, 64))


def test_constraints_that_leave_one_size_of_the_last_dim() -> None:
    message = (
        r"the model specializes a dim that should be dynamic:\n  x axis 1, 's', is always 32\n"
        r"    at: .*if n % 32 != 0:\n    at: .*if n // 8 > 7:"
    )
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(windowed).eval(), (R(2, 32),), dynamic_shapes=({1: "s"},))
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(Function(windowed).eval(), (R(2, 32),), dynamic_shapes=({0: "n", 1: "s"},), strict_shapes=True)


@pytest.mark.parametrize("shapes", [({1: Dim.AUTO},), ({0: "n", 1: Dim.AUTO},)], ids=["alone", "with-another"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.filterwarnings("error")
def test_constraints_that_leave_one_size_of_an_automatic_dim(shapes: Any, strict: bool) -> None:
    program = fxonnx.export(Function(windowed).eval(), (R(2, 32),), dynamic_shapes=shapes, strict_shapes=strict)
    assert program.model.graph.inputs[0].shape[1] == 32
    x = R(2, 32)
    torch.testing.assert_close(program(x)[0], windowed(x))


def several(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    return x * 2 if n % 32 == 0 and n // 16 <= 7 else x


def unlimited(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[1] % 32 == 0 and x.shape[1] // 16 != 4 else x


@pytest.mark.parametrize("function", [several, unlimited])
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_constraints_that_leave_several_sizes(function: Any) -> None:
    program = fxonnx.export(Function(function).eval(), (R(2, 32),), dynamic_shapes=({0: "n", 1: "s"},))
    assert str(program.model.graph.inputs[0].shape) == "[n,s]"
    x = R(3, 96)
    torch.testing.assert_close(program(x)[0], function(x))


class Detector(nn.Module):
    """The raw predictions of a detector: boxes and the scores of three classes, for each cell of a grid."""

    names: Mapping[int, str] = {0: "a", 1: "b", 2: "c"}
    task = "detect"

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 7, 4, stride=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raw = self.conv(x).flatten(2)
        corner = raw[:, :2] * 8 + 16
        return torch.cat((corner, corner + raw[:, 2:4].exp() * 4, raw[:, 4:].sigmoid()), 1)


class NMSModel(nn.Module):
    """A detector with NMS, as ultralytics exports it with ``nms=True, dynamic=True``: a loop over the batch."""

    def __init__(self, model: Detector, args: SimpleNamespace) -> None:
        super().__init__()
        self.model = model
        self.args = args

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pred = self.model(x)
        bs = pred.shape[0]
        pred = pred.transpose(-1, -2)
        extra_shape = pred.shape[-1] - (4 + len(self.model.names))
        if self.args.dynamic and self.args.batch > 1:
            pad = pred.new_zeros((self.args.batch - torch._shape_as_tensor(pred)[0]).clamp(min=0), *pred.shape[1:])
            pred = torch.cat((pred, pad))
        boxes, scores, extras = pred.split([4, len(self.model.names), extra_shape], dim=2)
        scores, classes = scores.max(dim=-1)
        out = pred.new_zeros(pred.shape[0], self.args.max_det, boxes.shape[-1] + 2 + extra_shape)
        for i in range(bs):
            box, cls, score, extra = boxes[i], classes[i], scores[i], extras[i]
            mask = score > self.args.conf
            box, score, cls, extra = box[mask], score[mask], cls[mask], extra[mask]
            nmsbox = box.clone()
            multiplier = 1 / max(len(self.model.names), 1)
            nmsbox = multiplier * (nmsbox / torch._shape_as_tensor(x)[2:].max().to(nmsbox.dtype))
            cls_offset = cls.view(cls.shape[0], 1).expand(cls.shape[0], 4)
            offbox = nmsbox[:, :4] + cls_offset * multiplier
            nmsbox = torch.cat((offbox, nmsbox[:, 4:]), dim=-1)
            keep = torch.ops.torchvision.nms(nmsbox, score, self.args.iou)[: self.args.max_det]
            dets = torch.cat(
                [box[keep], score[keep].view(-1, 1), cls[keep].view(-1, 1).to(out.dtype), extra[keep]], dim=-1
            )
            pad = (0, (self.args.max_det - dets.shape[0]) * dets.shape[-1])
            out[i] = nn.functional.pad(dets.reshape(-1), pad).reshape(self.args.max_det, dets.shape[-1])
        return out[:bs]


@pytest.mark.parametrize("batch", [1, 2])
def test_ultralytics_detection_with_nms(batch: int) -> None:
    import_torchvision()
    from ..translations.torchvision_kernels import make_operators_run

    make_operators_run()
    torch.manual_seed(0)
    args = SimpleNamespace(dynamic=True, batch=batch, max_det=5, conf=0.4, iou=0.5)
    model = NMSModel(Detector(), args).eval()
    shapes = {"x": {0: "batch", 2: "height", 3: "width"}}
    with pytest.raises(CaptureError, match=r"only for:\n  height >= 4"):
        fxonnx.export(model, (R(batch, 3, 32, 32),), dynamic_shapes=shapes, strict_shapes=True)
    program = fxonnx.export(model, (R(batch, 3, 32, 32),), dynamic_shapes=shapes)
    assert [rewrite.construct for rewrite in program.record.rewrites] == ["for over a tensor or a dynamic range"]
    assert str(program.model.graph.inputs[0].shape) == "[batch,3,height,width]"
    program.save(file := io.BytesIO())
    session = ort.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    for other, height, width in ((batch, 32, 32), (1, 24, 40), (3, 8, 4)):
        x = R(other, 3, height, width)
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), model(x))


class Channels(nn.Module):
    """Its weight determines the channels; its last line, the sum with a constant, determines the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x) + torch.ones(2, 1, 1, 1)


ALL_DIMS = {0: "batch", 1: "channels", 2: "height", 3: "width"}


def test_a_capture_ends_at_a_convolution_with_a_dynamic_number_of_channels() -> None:
    model = Channels().eval()
    with pytest.warns(UserWarning, match=r"channels == 3\n  batch == 2"):
        program = fxonnx.export(model, (x := R(2, 3, 8, 8),), dynamic_shapes=(ALL_DIMS,))
    attempts = program.record.capture.attempts
    assert [one.change for one in attempts] == ["", "static dims: x axis 1", "static dims: x axis 1, x axis 0"]
    for size in (8, 13):
        x = R(2, 3, size, 9)
        torch.testing.assert_close(program(x)[0], model(x))
    with pytest.raises(ArgumentError, match="channels"):
        program(R(2, 4, 8, 8))


def _checked(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != 3:
        raise ValueError("three channels")
    assert x.shape[2] == 8, "eight rows"
    return x * 2


def _checked_and_divided(x: torch.Tensor) -> torch.Tensor:
    """Its conditions are of several sizes, not of one."""
    if x.shape[1] % 3 != 0 or x.shape[2] < 4:
        raise ValueError("groups of channels")
    return x * 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no positions of expressions")
def test_a_capture_ends_at_a_check_of_a_size() -> None:
    with pytest.warns(UserWarning, match=r"channels == 3(.|\n)*height == 8"):
        program = fxonnx.export(Function(_checked), (R(2, 3, 8, 8),), dynamic_shapes=(ALL_DIMS,))
    attempts = program.record.capture.attempts
    assert [one.change for one in attempts] == ["", "static dims: x axis 1", "static dims: x axis 1, x axis 2"]
    torch.testing.assert_close(program(x := R(3, 3, 8, 5))[0], _checked(x))


def test_checks_that_several_sizes_pass_end_no_capture() -> None:
    program = fxonnx.export(Function(_checked_and_divided), (R(2, 3, 8, 8),), dynamic_shapes=(ALL_DIMS,))
    assert len(program.record.capture.attempts) == 1
    for channels in (3, 6):
        torch.testing.assert_close(program(x := R(1, channels, 4, 5))[0], x * 2)
    with pytest.raises(ArgumentError, match="channels"):
        program(R(2, 4, 8, 8))


def test_a_strict_export_names_all_specialized_dims() -> None:
    with pytest.raises(CaptureError, match=r"'batch', is always 2(.|\n)*'channels', is always 3"):
        fxonnx.export(Channels().eval(), (R(2, 3, 8, 8),), dynamic_shapes=(ALL_DIMS,), strict_shapes=True)
