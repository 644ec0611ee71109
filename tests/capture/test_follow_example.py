"""Following the example: branches on the values of inputs, with the assumptions checked in calls and in the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from torch import Tensor, nn

import fxonnx
from fxonnx import AssumptionKind


class Chooser(nn.Module):
    """A function of a float and an integer tensor as a module.

    The functions branch inside of ``try``, which cannot be rewritten to ``torch.cond``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, n: Tensor) -> Any:
        return self.function(x, n)


def _repeats(x: Tensor, n: Tensor) -> Tensor:
    return torch.stack([x] * int(n.max()))


def _compares_item(x: Tensor, n: Tensor) -> Tensor:
    try:
        if x.mean().item() > 0.25:
            return x + 1
        return x - 1
    finally:
        pass


def _compares_with_a_size(x: Tensor, n: Tensor) -> Tensor:
    try:
        if n.sum() == x.shape[1] + 1:
            return x * 2
        return x
    finally:
        pass


def _counts(x: Tensor, n: Tensor) -> Tensor:
    rows = x[x[:, 0] > 0.1]
    try:
        if rows.shape[0] > 1:
            return rows.sum(0)
        return rows.mean(0)
    finally:
        pass


def _combines(x: Tensor, n: Tensor) -> Tensor:
    try:
        if not (n > 5).any() and x.sum() > 0:
            return x
        return -x
    finally:
        pass


def _loops(x: Tensor, n: Tensor) -> Tensor:
    try:
        while n.sum() < 7:
            n = n + 1
            x = x * 2
        return x
    finally:
        pass


def _indexes(x: Tensor, n: Tensor) -> Tensor:
    return [x, -x, x * 2][n[0]]


def _equal(x: Tensor, n: Tensor) -> Tensor:
    try:
        if torch.equal(n, torch.tensor([1, 2])):
            return x
        return -x
    finally:
        pass


def _distinct(x: Tensor, n: Tensor) -> Tensor:
    return x if len(set(n.tolist())) > 1 else -x


FUNCTIONS = (_repeats, _compares_item, _compares_with_a_size, _counts, _combines, _loops, _indexes, _equal, _distinct)
X = torch.tensor([[0.0, 1, 2, 3], [0.5, 1, 1, 1], [0.6, 0, 0, 0]])
N = torch.tensor([1, 2])
OTHERS = ((X * 2, N), (-X, N), (X, N * 3), (X, N.flip(0)), (X[:2], N), (X.flip(0), N + 1))


def _export(function: Any, *, dynamic: bool, **options: Any) -> tuple[nn.Module, fxonnx.ONNXProgram]:
    model = Chooser(function).eval()
    shapes = {"x": {0: "rows"}, "n": None} if dynamic else None
    with pytest.warns(UserWarning, match="the model branches on the values of its inputs"):
        program = fxonnx.export(model, (X, N), dynamic_shapes=shapes, data_dependent="example", **options)
    return model, program


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_calls_are_right_or_refused(function: Any, dynamic: bool, tmp_path: Path) -> None:
    """The saved file itself fails for the inputs that the program refuses, and a node with the line fails."""
    model, program = _export(function, dynamic=dynamic)
    assert any(one.kind is AssumptionKind.EXAMPLE for one in program.record.assumptions)
    program.verify()
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [value.name for value in session.get_inputs()]
    refused = 0
    for x, n in ((X, N), *OTHERS):
        if not dynamic and x.shape != X.shape:
            continue
        given = {name: value.numpy() for name, value in (("x", x), ("n", n)) if name in names}
        try:
            result = tuple(torch.from_numpy(value) for value in session.run(None, given))
        except (Fail, InvalidArgument, RuntimeException):
            result = None
        if result is not None:
            torch.testing.assert_close(result, program(x, n))
            torch.testing.assert_close(program.unflatten(result), model(x, n))
        else:
            refused += 1
            with pytest.raises(
                fxonnx.ArgumentError, match=r"(?s)these inputs take another branch than the example.*->"
            ):
                program(x, n)
    assert refused


def test_an_assumption_is_recorded_with_its_line(tmp_path: Path) -> None:
    _, program = _export(
        _compares_item, dynamic=False, diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    )
    (assumption,) = program.record.assumptions
    assert str(assumption).endswith("if x.mean().item() > 0.25: -> True (as for the example inputs)")
    assert str(assumption) in next(tmp_path.glob("*.md")).read_text(encoding="utf-8")
    assert program.record.guards == ("requires if x.mean().item() > 0.25: -> True (test_follow_example.py:40)",)
    assert [value.name for value in program.model.graph.outputs] == ["add"]


def test_applied_weights_decide() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            try:
                if self.fc(x).sum() > 0:
                    return x + 1
                return x - 1
            finally:
                pass

    model = Gate().eval()
    nn.init.ones_(model.fc.weight)
    with pytest.warns(UserWarning, match="branches on the values"):
        program = fxonnx.export(model, (torch.ones(1, 4),), data_dependent="example")
    program.apply_weights({"fc.weight": -torch.ones(1, 4), "fc.bias": torch.zeros(1)})
    with pytest.raises(fxonnx.ArgumentError, match="take another branch than the example"):
        program(torch.ones(1, 4))


def test_models_without_questions_are_unchanged() -> None:
    model = nn.Linear(4, 4).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(model, (torch.rand(1, 4),), data_dependent="example")
    assert program.record.assumptions == ()
    assert len(program.model.graph.outputs) == 1
    plain = fxonnx.export(model, (torch.rand(1, 4),))
    assert program.model_proto.SerializeToString() == plain.model_proto.SerializeToString()


def test_the_option_is_checked() -> None:
    with pytest.raises(fxonnx.ArgumentError, match=r"data_dependent: expected one of 'error', 'example', got 'follow'"):
        fxonnx.export(nn.Linear(4, 4), (torch.rand(1, 4),), data_dependent="follow")  # type: ignore[arg-type]


def test_inputs_for_which_an_operator_fails_are_refused() -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0.1]
        return torch.stack([rows[0]] * int(n[1]))

    model, program = _export(function, dynamic=False)
    torch.testing.assert_close(program(X * 2, N)[0], model(X * 2, N))
    for x, n in ((-X, N), (X, N + 1)):
        with pytest.raises(fxonnx.ArgumentError, match="take another branch than the example"):
            program(x, n)


class WritesAfterBranch(nn.Module):
    """Writes to its input and to a buffer after a branch on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Buffer(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sum(0)
        if y.sum() > 0:
            y = y * 2
        x[:, 0] = 9.0
        self.total.add_(y)
        return y + self.total


@pytest.mark.filterwarnings("ignore")
def test_the_check_of_the_answers_does_not_write() -> None:
    model, x = WritesAfterBranch().eval(), torch.ones(2, 3)
    program = fxonnx.export(model, (x,), data_dependent="example")
    given = torch.ones(2, 3)
    results = [program(given)[0], program(given)[0]]
    assert torch.equal(given, torch.ones(2, 3))
    assert torch.equal(model.total, torch.zeros(3))
    expected = model(torch.ones(2, 3))
    assert all(torch.equal(result, expected) for result in results)
