"""Values of different types on the paths of a branch: they go on to where their results are of one type.

Without such a place, they are an error, never a conversion that changes the value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

import fxonnx
from fxonnx._capture.rewriting.operators import conditionals

from ...functions import Function, VariadicFunction
from .cases import signs


def both(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x + (a > 2 and s)


def either(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x + (a > 2 or s)


def half_or_count(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x * (1.5 if s > 1 else a)


def count_or_flag(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x * (3 if s > 1 else a > 2)


def returned(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return x, a > 2 and s


def returned_rank(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    return a > 2 or x.flatten()


@pytest.mark.parametrize("function", [returned, returned_rank], ids=lambda each: each.__name__)
def test_values_of_different_types_are_refused(function: Any) -> None:
    inputs = (torch.randn(2, 3), torch.tensor(3), torch.tensor(1.25))
    with pytest.raises(fxonnx.CaptureError, match=r"in one branch and .* in the other"):
        fxonnx.export(VariadicFunction(function).eval(), inputs)


def as_tests(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    if a > 2 and s:
        x = x * 2
    y = x + 1 if s or a > 2 else x - 1
    while not (a > 9 or s > 100) and s:
        a, y = a + 1, y * 1.5
    return y


def static_operands(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
    y = x.sum()
    if a > 2 and x.dtype == torch.float64:
        y = y.double()
    if s > 1 or x.dim() == 2:
        y = y + 1
    return y


@pytest.mark.parametrize("function", [as_tests, static_operands, half_or_count, count_or_flag, both, either])
def test_the_truth_of_mixed_operands_decides_in_tests(function: Any) -> None:
    values = [(3, 1.25), (3, 0.0), (1, 0.0), (1, 2.0), (10, 1.0)]
    calls = [(torch.randn(2, 3), torch.tensor(a), torch.tensor(s)) for a, s in values]
    program = fxonnx.export(VariadicFunction(function).eval(), calls[0])
    for call in calls:
        torch.testing.assert_close(program(*call)[0], function(*call))


def test_a_factor_of_different_types() -> None:
    """torch raises an error for a factor of type bool: the model has no result at the other values."""

    def function(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> Any:
        return x.sub(x * 2, alpha=(a > 2 and s))  # type: ignore[arg-type]

    calls = [(torch.randn(2, 3), torch.tensor(a), torch.tensor(s)) for a, s in ((3, 1.25), (5, 0.0), (4, 2.5))]
    program = fxonnx.export(VariadicFunction(function).eval(), calls[0])
    for call in calls:
        torch.testing.assert_close(program(*call)[0], function(*call))


def _losses(x: torch.Tensor) -> dict[str, Any]:
    if not (x > 0).any():
        return {"losses": 0, "kind": "reduced"}
    return {"losses": x[x > 0], "kind": "elements"}


def _reduced(found: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    if found["kind"] == "reduced":
        return (x * 0).sum()
    return found["losses"].mean()


def callers(x: torch.Tensor) -> torch.Tensor:
    return _reduced(_losses(x), x)


def variables(x: torch.Tensor) -> torch.Tensor:
    high, low = [], []
    if (x > 0).any():
        high = x[x > 0]
    if (x < 0).any():
        low = x[x < 0]
    total = x.new_zeros(())
    for part, sign in ((high, 1), (low, -1)):
        total = total + (sign * part.sum() if len(part) else 0.5)
    return total


def inside_of_a_branch(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if x.sum() < 20:
        offset = None
        if x.sum() > 0:
            offset = x.max()
        y = y * 2 if offset is None else y - offset
    return y


class Offset(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor | None:
        return x.mean() if x.sum() > 0 else None


class OfModules(torch.nn.Module):
    """The values differ in a module inside of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.linear = Offset(), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        offset = self.offset(self.linear(x) * 0 + x)
        y = self.linear(x)
        return self.linear(y) if offset is None else y + offset


@pytest.mark.parametrize(
    "model",
    [callers, variables, inside_of_a_branch, OfModules()],
    ids=lambda each: getattr(each, "__name__", "modules"),
)
def test_values_of_different_types_go_on_to_where_results_agree(model: Any, tmp_path: Path) -> None:
    module = model if isinstance(model, torch.nn.Module) else Function(model).eval()
    fxonnx.export(module, (signs(4)[0],), tmp_path / "model.onnx", dynamic_shapes=({0: "n"},))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (name,) = (each.name for each in session.get_inputs())
    for rows in (4, 1, 7):
        for x in signs(rows):
            (found,) = session.run(None, {name: x.numpy()})
            torch.testing.assert_close(torch.from_numpy(found), module(x))


class _Draws(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dropout(x)
        offset = None if x.sum() > 0 else y
        return x if offset is None else offset


def _writes(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    offset = None if x.sum() > 0 else x
    return x + 1 if offset is None else offset


def _counts(x: torch.Tensor, counted: list[int] = []) -> torch.Tensor:  # noqa: B006 - what it changes
    counted.append(1)
    offset = None if x.sum() > 0 else x
    return x + 1 if offset is None else offset


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_writes, r"a tensor is modified in place before it(?s:.*)hint: write to a clone\(\) of the tensor"),
        (_counts, "the returned value is None in one branch"),
    ],
)
def test_effects_before_values_of_different_types_are_refused(function: Any, problem: str) -> None:
    with pytest.raises(fxonnx.CaptureError, match=problem):
        fxonnx.export(Function(function).eval(), (signs(4)[0],))


def test_random_numbers_before_values_of_different_types_are_refused() -> None:
    x = signs(4)[0]
    with pytest.raises(fxonnx.CaptureError, match=r"are drawn before it(?s:.*)hint: call model\.eval"):
        fxonnx.export(_Draws().train(), (x,))
    fxonnx.export(_Draws().eval(), (x,), verify=True)


def test_branches_of_many_operators_end_before_they_take_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each condition that goes on to the end, all operators before it run four times."""

    def grows(x: torch.Tensor) -> Any:
        total = x.sum()
        for _ in range(5):
            if total > 0:
                kept: Any = x
            else:
                kept = "nothing"
            for _ in range(10):
                x = x * 0.5 + 1
            x = x if isinstance(kept, str) else x + kept
        return x

    runs = []

    class Counted(conditionals.Fork):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            runs.append(self.answers)

    monkeypatch.setattr(conditionals, "Fork", Counted)
    with pytest.raises(fxonnx.CaptureError, match="in one branch and of type str in the other"):
        fxonnx.export(Function(grows).eval(), (torch.rand(2, 3),))
    assert 0 < len(runs) < 50
