"""TorchScript as ``torch.jit.load``, ``freeze`` and ``optimize_for_inference`` return it, of scripts and of traces."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from tests.saved import run_from_file

# TorchScript requires the loops that ruff would write as comprehensions.


def loaded(script: Any) -> Any:
    """The script from a file in memory, whose parameters are plain tensors."""
    data = io.BytesIO()
    torch.jit.save(script, data)
    data.seek(0)
    return torch.jit.load(data)


class Convolutions(nn.Module):
    """The operators that have a form of oneDNN, which ``optimize_for_inference`` makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.Hardswish(), nn.ConvTranspose2d(4, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1)),
            *(nn.BatchNorm2d(4), nn.Hardtanh(0.0, 6.0), nn.Conv2d(4, 4, 1), nn.ReLU6(), nn.SiLU()),
            *(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU(), nn.Hardsigmoid(), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Sigmoid()),
        )
        self.same, self.scale = nn.Conv2d(3, 3, 3, padding=1), nn.Parameter(torch.rand(3, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y = self.same(x)
        scaled = (y * self.scale).clamp(0.1, 0.4)
        return self.layers(x + y), torch.cat([y, y], 1) * 0.5, scaled, self.same(y.relu()).add(y) * 2.0


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.gru, self.dropout = nn.GRU(8, 4, batch_first=True), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.lstm(x)
        return self.dropout(self.gru(y)[0]), h


class Steps(nn.Module):
    """Loops, of a constant and of the static length of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.count = nn.Parameter(torch.rand(3, 3)), 3

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.count):
            x = torch.tanh(x @ self.weight) + i
        total = torch.zeros_like(x[:, 0])
        for t in range(x.size(1)):
            total = total * 0.5 + x[:, t]
        return total


class Branches(nn.Module):
    """Both branches read a parameter; the script reads it anew in each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.layer, self.flag = nn.Parameter(torch.rand(3)), nn.Linear(3, 3), True

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):  # noqa: SIM108 - a statement of TorchScript
            y = self.layer(x) * self.weight
        else:
            y = self.layer(x * 2) - self.weight
        if self.flag:
            y = y + 1
        while bool(y.abs().sum() > 1):
            y = y * 0.5 + self.weight * 0.001
        return y


class Results(nn.Module):
    """A dict of results, a tensor that is a plain attribute, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head, self.shift = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False), torch.rand(9)
        self.head.weight = self.embedding.weight
        self.groups = nn.ModuleDict({"one": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.embedding(x)
        for layer in self.groups.values():
            y = layer(y)
        return {"logits": self.head(y) + self.shift, "state": y}


KINDS: dict[str, tuple[Callable[[], nn.Module], Tensor, Tensor]] = {
    "convolutions": (Convolutions, torch.rand(2, 3, 12, 12), torch.rand(5, 3, 12, 12)),
    "recurrent": (Recurrent, torch.rand(2, 5, 3), torch.rand(3, 5, 3)),
    "steps": (Steps, torch.rand(2, 5, 3), torch.rand(3, 5, 3)),
    "branches": (Branches, torch.rand(2, 3), -torch.rand(3, 3)),
    "results": (Results, torch.randint(0, 9, (2, 4)), torch.randint(0, 9, (3, 4))),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        torch.rand(2, 5, 4),
        torch.rand(3, 5, 4),
    ),
}

FORMS: dict[str, Callable[[Any], Any]] = {
    "loaded": loaded,
    "frozen": torch.jit.freeze,
    "frozen_then_loaded": lambda script: loaded(torch.jit.freeze(script)),
    "loaded_then_frozen": lambda script: torch.jit.freeze(loaded(script)),
    "optimized": torch.jit.optimize_for_inference,
    "loaded_then_optimized": lambda script: torch.jit.optimize_for_inference(loaded(script)),
}


def check(model: Any, example: Tensor, other: Tensor) -> fxonnx.ONNXProgram:
    """Compare the file with the model, which may be a script, at the example and for other values at another size."""
    program = fxonnx.export(model, (example,), dynamic_shapes=({0: "b"},))
    run_from_file(program)
    for x in (example, other):
        with torch.no_grad():
            torch.testing.assert_close(program.unflatten(program(x)), model(x), rtol=1e-4, atol=1e-4)
    return program


@pytest.mark.parametrize("form", ["loaded", "frozen", "optimized"])
@pytest.mark.parametrize("kind", KINDS)
def test_scripts(kind: str, form: str) -> None:
    make, example, other = KINDS[kind]
    check(FORMS[form](torch.jit.script(make().eval())), example, other)


@pytest.mark.parametrize("form", ["frozen_then_loaded", "loaded_then_frozen", "loaded_then_optimized"])
def test_forms_of_forms(form: str) -> None:
    make, example, other = KINDS["convolutions"]
    check(FORMS[form](torch.jit.script(make().eval())), example, other)


@pytest.mark.parametrize("form", ["loaded", "frozen", "optimized"])
@pytest.mark.parametrize("kind", ["convolutions", "recurrent"])
def test_traces(kind: str, form: str) -> None:
    make, example, other = KINDS[kind]
    check(FORMS[form](torch.jit.trace(make().eval(), example, strict=False)), example, other)


@pytest.mark.parametrize("form", ["loaded", "frozen", "optimized"])
def test_a_script_inside_of_a_module(form: str) -> None:
    make, example, other = KINDS["convolutions"]

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.script, self.layer = FORMS[form](torch.jit.script(make().eval())), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Any:
            return self.layer(self.script(x)[0])

    check(Holder().eval(), example, other)


def test_a_file_and_its_names(tmp_path: Path) -> None:
    make, example, other = KINDS["recurrent"]
    torch.jit.script(make().eval()).save(str(tmp_path / "model.pt"))
    model = torch.jit.load(str(tmp_path / "model.pt"), map_location="cpu")
    program = check(model, example, other)
    assert any("lstm" in name for name in program.model.graph.initializers)


def test_a_shared_weight_of_a_file_is_stored_once() -> None:
    make, example, _ = KINDS["results"]
    program = fxonnx.export(loaded(torch.jit.script(make().eval())), (example,))
    shapes = [tuple(value.shape.numpy()) for value in program.model.graph.initializers.values() if value.shape]
    assert sum(shape in ((9, 4), (4, 9)) for shape in shapes) == 1


def test_a_loaded_file_in_training_mode(tmp_path: Path) -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Any:
            return self.norm(x)

    model, example = loaded(torch.jit.script(Norm())), torch.rand(4, 3)
    with pytest.warns(UserWarning, match="the model is in training mode"):
        program = fxonnx.export(model, (example,))
    with torch.no_grad():
        torch.testing.assert_close(program(example)[0], Norm()(example))
    check(model.eval(), example, torch.rand(2, 3))


class Kept(nn.Module):
    """State in attributes: a number, a tensor and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.last = 0, torch.zeros(0)
        self.seen = torch.jit.Attribute([], list[Tensor])

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if len(self.last) == 0:
            self.last = torch.zeros(3)
        y = x + self.last * self.count
        self.last = self.last + x[0]
        self.seen.append(y)
        return y + len(self.seen)


@pytest.mark.parametrize("calls", [0, 2])
def test_state_of_a_script_is_warned_about_and_restored(calls: int) -> None:
    model, x = loaded(torch.jit.script(Kept().eval())), torch.rand(2, 3)
    for _ in range(calls):
        model(x)
    before = (model.count, model.last.clone(), len(model.seen))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The tensor attribute")
        with pytest.warns(UserWarning, match="'count': . becomes"):
            program = fxonnx.export(model, (x,))
    assert (model.count, len(model.seen)) == (before[0], before[2])
    torch.testing.assert_close(model.last, before[1])
    run_from_file(program)
    torch.testing.assert_close(program(x)[0], model(x))


def test_packed_weights_in_a_frozen_script_are_refused() -> None:
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 3)).eval(), {nn.Linear})
    x, y = torch.rand(2, 4), torch.rand(5, 4)
    check(loaded(torch.jit.script(quantized)), x, y)
    with pytest.raises(fxonnx.CaptureError, match=r"a script holds an object of the class \S*LinearPackedParams\S*"):
        fxonnx.export(torch.jit.freeze(torch.jit.script(quantized)), (x,))


class Counts(nn.Module):
    """Arithmetic on sizes, which traces compute with tensors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n = x.shape[:2]
        return (x + b).reshape(b * n, -1) / (n + 1) + torch.zeros(b * n, x.shape[2] // 2).sum()


@pytest.mark.parametrize("layer", [Counts(), nn.GRU(4, 3, 2, bidirectional=True)], ids=["sizes", "GRU"])
@pytest.mark.parametrize("form", [lambda traced: traced, torch.jit.freeze], ids=["traced", "frozen"])
def test_sizes_in_traces(layer: nn.Module, form: Any) -> None:
    traced = form(torch.jit.trace(layer.eval(), torch.randn(5, 2, 4)))
    program = fxonnx.export(traced, (torch.randn(5, 2, 4),), dynamic_shapes=({1: "b"},))
    for size in (2, 3, 1):
        x = torch.randn(5, size, 4)
        expected = traced(x)
        torch.testing.assert_close(program(x)[0], expected[0] if isinstance(expected, tuple) else expected)
