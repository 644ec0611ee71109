"""Verification is strict: the traps first, then tolerances, then whole programs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fxonnx import ArgumentError, ONNXProgram, Row, VerificationError, verify
from fxonnx.verification import TOLERANCES, compare
from tests.program.handmade import program

NAN, INF = math.nan, math.inf


def single(expected: Any, actual: torch.Tensor, **tolerances: float) -> Row:
    (row,) = compare(["y"], [expected], [actual], **tolerances)
    return row


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN])),
        (torch.tensor([NAN]), torch.tensor([NAN])),
        (torch.tensor([INF, -INF, 1.0]), torch.tensor([INF, -INF, 1.00001])),
        (torch.empty(0), torch.empty(0)),
        (torch.empty(3, 0), torch.empty(3, 0)),
        (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)),
        (torch.tensor([2**63 - 1, -(2**63)]), torch.tensor([2**63 - 1, -(2**63)])),
        (torch.tensor([True, False]), torch.tensor([True, False])),
        (torch.tensor([1 + 2j]), torch.tensor([[1.0, 2.0]])),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([[1.0, -2.0]])),
        (3, torch.tensor(3)),
        (True, torch.tensor(True)),
        (2.5, torch.tensor(2.5)),
        (2.5, torch.tensor(2.5, dtype=torch.float64)),
        (torch.tensor([0.0, -0.0]), torch.tensor([-0.0, 0.0])),
        (torch.tensor([-1e9, 1.0]), torch.tensor([-1e9, 1.00001])),
        (torch.tensor([1000.0, 1e-3]), torch.tensor([1000.01, 1e-3])),
        (torch.ones(3, requires_grad=True), torch.ones(3)),
    ],
)
def test_agreement(expected: Any, actual: torch.Tensor) -> None:
    row = single(expected, actual)
    assert (row.status, row.message) == ("ok", "")


@pytest.mark.parametrize(
    ("expected", "actual", "message"),
    [
        (
            torch.tensor([1.0, 2.0]),
            torch.tensor([1.0, NAN]),
            r"1 of 2 elements are NaN on one side only, first at \[1\]",
        ),
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0]), "1 of 2 elements are NaN on one side only"),
        (torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN]), "2 of 2 elements are NaN on one side only"),
        (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 2.0]), "1 of 2 elements differ by more than"),
        (
            torch.tensor([INF]),
            torch.tensor([-INF]),
            "1 of 1 elements are infinite on one side only, or of another sign",
        ),
        (torch.tensor([INF]), torch.tensor([3e38]), "infinite on one side only"),
        (torch.tensor([3e38]), torch.tensor([INF]), "infinite on one side only"),
        (torch.ones(2), torch.ones(2).double(), "dtype torch.float64 instead of torch.float32"),
        (
            torch.ones(2, dtype=torch.int32),
            torch.ones(2, dtype=torch.int64),
            "dtype torch.int64 instead of torch.int32",
        ),
        (torch.ones(2, 1), torch.ones(1, 2), r"shape \[1, 2\] instead of \[2, 1\]"),
        (torch.ones(()), torch.ones(1), r"shape \[1\] instead of \[\]"),
        (torch.empty(0, 2), torch.empty(0, 3), r"shape \[0, 3\] instead of \[0, 2\]"),
        (torch.tensor([1 + 2j]), torch.tensor([[1.0, 2.5]]), r"first at \[0, 1\]"),
        (torch.tensor([2**53]), torch.tensor([2**53 + 1]), "1 of 1 elements differ"),
        (torch.tensor([True]), torch.tensor([False]), "1 of 1 elements differ"),
        (3, torch.tensor(4), "1 of 1 elements differ"),
        (3, torch.tensor(3.0), "dtype torch.float32 instead of torch.int64"),
        (True, torch.tensor(1), "dtype torch.int64 instead of torch.bool"),
        (2.5, torch.tensor(2), "dtype torch.int64 instead of torch.float32"),
        ("text", torch.tensor(2), "eager torch returns no tensor"),
        (torch.tensor([-1e9, 1.0]), torch.tensor([-1e9, 1.001]), "1 of 2 elements differ by more than"),
        (torch.tensor([torch.finfo().min, 1.0]), torch.tensor([torch.finfo().min, 2.0]), "1 of 2 elements differ"),
    ],
)
def test_disagreement(expected: Any, actual: torch.Tensor, message: str) -> None:
    row = single(expected, actual)
    assert row.status == "mismatch"
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(row.message)


def test_differences_of_unsigned_integers_do_not_wrap_around() -> None:
    row = single(torch.tensor([0, 4], dtype=torch.uint8), torch.tensor([1, 4], dtype=torch.uint8))
    assert (row.status, row.max_abs) == ("mismatch", 1.0)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_tolerance_depends_on_the_dtype(dtype: torch.dtype) -> None:
    expected = torch.full((4,), 4.0, dtype=torch.float64)
    steps = torch.tensor([0.5, 4.0]) * 2 * TOLERANCES[dtype] * 4
    close, far = ((expected + step).to(dtype) for step in steps.double())
    assert single(expected.to(dtype), close).status == "ok"
    assert single(expected.to(dtype), far).status == "mismatch"


@pytest.mark.parametrize(
    ("tolerances", "status"),
    [
        ({"rtol": 0.0, "atol": 0.0}, "mismatch"),
        ({"rtol": 0.0, "atol": 0.2}, "ok"),
        ({"rtol": 0.2, "atol": 0.0}, "ok"),
        ({"atol": 0.0}, "mismatch"),
        ({"rtol": 0.0}, "mismatch"),
    ],
)
def test_own_tolerances(tolerances: dict[str, float], status: str) -> None:
    row = single(torch.tensor([1.0, -1.0]), torch.tensor([1.1, -1.0]), **tolerances)
    assert row.status == status
    assert row.max_abs == pytest.approx(0.1)
    assert row.max_rel == pytest.approx(0.1)


def test_lengths_must_agree() -> None:
    one = torch.ones(1)
    for names, expected, actual in (("a", [one], [one, one]), ("a", [one, one], [one]), ("ab", [one], [one])):
        with pytest.raises(
            VerificationError, match=r"eager torch returns \d outputs, ONNX Runtime \d, and the graph has"
        ):
            compare(list(names), expected, actual)


class Outputs(torch.nn.Module):
    """Outputs of every kind; None has no counterpart in the graph."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"negative": -x, "none": None, "list": [x.abs(), None]}


@pytest.fixture(scope="module")
def outputs() -> ONNXProgram:
    """A correct export of ``Outputs``."""
    return program(Outputs(), (torch.tensor([1.0, -2.0]),), operators=[("Neg", 0), ("Abs", 0)])


def test_none_outputs_are_dropped(outputs: ONNXProgram) -> None:
    rows = verify(outputs)
    assert rows == outputs.verify()
    assert [(row.name, row.index, row.status, row.dtype, row.shape, row.max_abs) for row in rows] == [
        ("output_0", 0, "ok", "float32", (2,), 0.0),
        ("output_1", 1, "ok", "float32", (2,), 0.0),
    ]


def test_other_inputs(outputs: ONNXProgram) -> None:
    assert len(verify(outputs, (torch.tensor([NAN, INF]),))) == 2
    assert len(verify(outputs, kwargs={"x": torch.tensor([3.0, 4.0])})) == 2


def test_mismatch_raises_with_all_rows() -> None:
    wrong = program(Outputs(), (torch.tensor([1.0, 2.0]),), operators=[("Neg", 0), ("Neg", 0)])
    with pytest.raises(VerificationError, match="ONNX Runtime and eager torch disagree:\n  output ") as caught:
        wrong.verify()
    assert [row.status for row in caught.value.rows] == ["ok", "mismatch"]
    lines = str(caught.value).splitlines()
    assert lines[1].split() == ["output", "status", "dtype", "shape", "max", "abs", "max", "rel"]
    assert lines[2].split() == ["output_0", "ok", "float32", "[2]", "0.00e+00", "0.00e+00"]
    assert "2 of 2 elements differ by more than" in lines[3]


def test_missing_output_raises() -> None:
    short = program(Outputs(), (torch.ones(2),), operators=[("Neg", 0)])
    with pytest.raises(VerificationError, match="returns 2 outputs, ONNX Runtime 1, and the graph has 1: output_0"):
        short.verify()


def test_no_example_inputs(outputs: ONNXProgram) -> None:
    without = ONNXProgram(outputs.model, outputs.exported_program)
    without.exported_program._example_inputs = None
    with pytest.raises(
        ArgumentError, match="args: the exported program has no example inputs\nhint: pass args or kwargs"
    ):
        verify(without)


class Writes(torch.nn.Module):
    """Changes its buffer and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        x.mul_(2)
        return x * 1


def test_neither_model_nor_inputs_are_changed() -> None:
    model, x = Writes(), torch.ones(2)
    doubling = program(model, (x,), operators=[("Add", 0)])
    before = x.clone(), model.count.clone()
    for _ in range(2):
        assert verify(doubling, (x,))[0].status == "ok"
    assert torch.equal(x, before[0])
    assert torch.equal(model.count, before[1])
    assert torch.equal(doubling.exported_program.state_dict["count"], before[1])
