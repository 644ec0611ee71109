"""Verification: comparison of outputs, tolerances, and verification of programs at several sizes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxonnx
from fxonnx import ArgumentError, ONNXProgram, OutputComparison, VerificationError, verify
from fxonnx._comparison import TOLERANCES, compare
from tests.functions import Function
from tests.program.handmade import program

NAN, INF = math.nan, math.inf


def single(expected: Any, actual: torch.Tensor, **tolerances: float) -> OutputComparison:
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
def test_matches(expected: Any, actual: torch.Tensor) -> None:
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
            "1 of 1 elements are infinite on one side only or differ in sign",
        ),
        (torch.tensor([INF]), torch.tensor([3e38]), "infinite on one side only"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0]), r"\|expected\|, by their signs alone, first at \[1\]"),
        (torch.tensor([0.0, 2.0]), torch.tensor([math.pi, 2.0]), r"\|expected\|, by pi, the angle of -0.0, first"),
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
        ("text", torch.tensor(2), "a tensor instead of str"),
        (torch.tensor([-1e9, 1.0]), torch.tensor([-1e9, 1.001]), "1 of 2 elements differ by more than"),
        (torch.tensor([torch.finfo().min, 1.0]), torch.tensor([torch.finfo().min, 2.0]), "1 of 2 elements differ"),
    ],
)
def test_mismatches(expected: Any, actual: torch.Tensor, message: str) -> None:
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
def test_explicit_tolerances(tolerances: dict[str, float], status: str) -> None:
    row = single(torch.tensor([1.0, -1.0]), torch.tensor([1.1, -1.0]), **tolerances)
    assert row.status == status
    assert row.max_abs == pytest.approx(0.1)
    assert row.max_rel == pytest.approx(0.1)


def test_number_of_outputs_must_match() -> None:
    one = torch.ones(1)
    for names, expected, actual in (("a", [one], [one, one]), ("a", [one, one], [one]), ("ab", [one], [one])):
        with pytest.raises(
            VerificationError, match=r"eager torch returns \d outputs, ONNX Runtime \d, and the graph has"
        ):
            compare(list(names), expected, actual)


class Outputs(torch.nn.Module):
    """Returns outputs of every kind; None is not a graph output."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"negative": -x, "none": None, "list": [x.abs(), None]}


@pytest.fixture(scope="module")
def outputs() -> ONNXProgram:
    """Create a correct program of ``Outputs``."""
    return program(Outputs(), (torch.tensor([1.0, -2.0]),), operators=[("Neg", 0), ("Abs", 0)])


def test_none_outputs_are_dropped(outputs: ONNXProgram) -> None:
    rows = verify(outputs)
    assert rows == outputs.verify()
    assert [(row.name, row.index, row.status, row.dtype, row.shape, row.max_abs) for row in rows] == [
        ("output_0", 0, "ok", "float32", (2,), 0.0),
        ("output_1", 1, "ok", "float32", (2,), 0.0),
    ]


def test_explicit_inputs(outputs: ONNXProgram) -> None:
    assert len(verify(outputs, (torch.tensor([NAN, INF]),))) == 2
    assert len(verify(outputs, kwargs={"x": torch.tensor([3.0, 4.0])})) == 2


def test_mismatch_raises_with_all_rows() -> None:
    wrong = program(Outputs(), (torch.tensor([1.0, 2.0]),), operators=[("Neg", 0), ("Neg", 0)])
    with pytest.raises(VerificationError, match="ONNX Runtime and eager torch disagree:\n  output ") as caught:
        wrong.verify(model=Outputs())
    assert [row.status for row in caught.value.rows] == ["ok", "mismatch"]
    lines = str(caught.value).splitlines()
    assert lines[1].split() == ["output", "status", "reference", "dtype", "shape", "max", "abs", "max", "rel"]
    assert lines[2].split() == ["output_0", "ok", "model", "float32", "[2]", "0.00e+00", "0.00e+00"]
    assert "2 of 2 elements differ by more than" in lines[3]
    assert lines[-1] == "hint: program.compare(model=model) finds the operator, line and module"


def test_mismatch_of_nan_suggests_exact_numerics() -> None:
    x = torch.tensor([[1.0, 2.0], [NAN, 3.0]])
    model = Function(torch.sign)
    with pytest.raises(VerificationError, match=r"(?s)are NaN on one side only.*\nhint: export with numerics"):
        fxonnx.export(model, (x,)).verify()
    fxonnx.export(model, (x,), options=fxonnx.ExportOptions(numerics="exact")).verify()


def test_the_angle_of_a_negative_zero_suggests_exact_numerics() -> None:
    x = torch.tensor([[-0.0, -0.0], [1.0, 2.0]])
    # The zeros before atan2 have torch's signs, those before the model's own form of it have the runtime's.
    model = Function(lambda x: torch.where(1 / x.sum(1) < 0, math.pi, 0.0))
    with pytest.raises(VerificationError, match=r"(?s)by pi, the angle of -0.0.*\nhint: export with numerics"):
        fxonnx.export(model, (x,)).verify()
    fxonnx.export(model, (x,), options=fxonnx.ExportOptions(numerics="exact")).verify()


def test_missing_output() -> None:
    short = program(Outputs(), (torch.ones(2),), operators=[("Neg", 0)])
    with pytest.raises(VerificationError, match="returns 2 outputs, ONNX Runtime 1, and the graph has 1: output_0"):
        short.verify()


def test_no_example_inputs(outputs: ONNXProgram) -> None:
    without = ONNXProgram(outputs.model, fxonnx.ExportRecord(outputs.record.capture))
    without.exported_program._example_inputs = None
    with pytest.raises(
        ArgumentError, match="args: the exported program has no example inputs\nhint: pass args or kwargs"
    ):
        verify(without)


class Writes(torch.nn.Module):
    """Mutates its buffer and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        x.mul_(2)
        return x * 1


def test_model_and_inputs_are_not_modified() -> None:
    model, x = Writes(), torch.ones(2)
    doubling = program(model, (x,), operators=[("Add", 0)])
    before = x.clone(), model.count.clone()
    for _ in range(2):
        assert verify(doubling, (x,))[0].status == "ok"
    assert torch.equal(x, before[0])
    assert torch.equal(model.count, before[1])
    assert torch.equal(doubling.exported_program.state_dict["count"], before[1])


def two_ways(x: torch.Tensor) -> torch.Tensor:
    # No graph has both results: they have different numbers of axes.
    if x.shape[1] > 8:
        return x + 1
    return x.sum(1)


def exported(function: Callable[..., Any], args: tuple[Any, ...], dynamic_shapes: Any) -> ONNXProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fxonnx.export(Function(function).eval(), args, dynamic_shapes=dynamic_shapes)


def sizes_of(rows: list[OutputComparison]) -> list[dict[str, int]]:
    return [dict(row.sizes) for row in rows]


R = torch.rand
d = torch.export.Dim("d")
one_dim = [{"n": 4}, {"n": 1}, {"n": 7}, {"n": 17}]
AUTO = [
    pytest.param(lambda x: x * 2, (R(4, 3),), ({0: "n"},), one_dim, id="one"),
    pytest.param(lambda x: x * 2, (R(7, 3),), ({0: "n"},), [{"n": 7}, {"n": 1}, {"n": 11}, {"n": 17}], id="example-is-prime"),
    pytest.param(lambda x: x * 2, (R(2, 12),), ({0: "n", 1: "m"},), [{"n": 2, "m": 12}, {"n": 1, "m": 1}, {"n": 1, "m": 12}, {"n": 2, "m": 1}, {"n": 7, "m": 11}, {"n": 17, "m": 26}], id="two"),
    pytest.param(two_ways, (R(2, 12),), ({1: "s"},), [{"s": 12}, {"s": 9}, {"s": 25}], id="at-least"),
    pytest.param(lambda x: x.view(-1, 16), (R(32),), ({0: "n"},), [{"n": 32}, {"n": 16}, {"n": 64}], id="multiples"),
    pytest.param(lambda x: x * 2, (R(4),), ({0: torch.export.Dim("n", min=3, max=9)},), [{"n": 4}, {"n": 3}, {"n": 7}, {"n": 9}], id="range"),
    pytest.param(lambda x, y: x + y, (R(4), R(4)), ({0: "a"}, {0: "b"}), [{"a": size, "b": size} for size in (4, 1, 7, 17)], id="equal"),
    pytest.param(lambda x, y: x + y[1:], (R(4), R(5)), ({0: d}, {0: d + 1}), [{"d": 4}, {"d": 1}, {"d": 7}, {"d": 17}], id="derived"),
    pytest.param(lambda x, y: x + y[1:], (R(4), R(5)), ({0: "a"}, {0: "b"}), [{"a": size, "b": size + 1} for size in (4, 1, 7, 17)], id="following"),
    pytest.param(lambda x, y: (x + 1, y + 1), (R(4), R(4)), ({0: "n"}, {0: "n"}), [row for size in (4, 1, 7, 17) for row in 2 * [{"n": size}]], id="one-name"),
    pytest.param(lambda x, y: x * y, (R(4), 5), ({0: "n"}, "k"), [{"n": size, "k": 5} for size in (4, 1, 7, 17)], id="int"),
    pytest.param(lambda x: x * 2, (R(4),), None, [{}], id="static"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "args", "shapes", "sizes"), AUTO)
def test_auto_sizes(function: Any, args: Any, shapes: Any, sizes: list[dict[str, int]]) -> None:
    rows = exported(function, args, shapes).verify(sizes="auto")
    assert sizes_of(rows) == sizes
    assert {row.status for row in rows} == {"ok"}


def test_explicit_sizes() -> None:
    program = exported(lambda x: x * 2, (R(4, 3, 2),), ({0: "n", 1: "m"},))
    rows = verify(program, sizes=[{"n": 2}, {"n": 5, "m": 1}])
    assert [(dict(row.sizes), row.shape) for row in rows] == [
        ({"n": 2, "m": 3}, (2, 3, 2)),
        ({"n": 5, "m": 1}, (5, 1, 2)),
    ]
    assert rows == verify(program, sizes=[{"n": 2}, {"n": 5, "m": 1}])


WRONG_SIZES = [
    ([{"s": 4}], r"sizes: the model was exported for s >= 9, got s = 4\n  at: .*test_verify\.py:\d+ in two_ways: if x\.shape"),
    ([{"q": 4}], r"sizes: unknown dim 'q'\nhint: the dynamic dims are: s"),
    ([{"s": 4.5}], r"sizes: the size of 's' is 4.5\nhint: pass an int of at"),
    ([{"s": -1}], "sizes: the size of 's' is -1"),
    ("all", "sizes: expected 'auto' or a list of dicts, got 'all'\nhint: for example"),
    ({"s": 12}, "sizes: expected 'auto' or a list of dicts, got {'s': 12}"),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "message"), WRONG_SIZES)
def test_invalid_sizes(sizes: Any, message: str) -> None:
    program = exported(two_ways, (R(2, 12),), ({1: "s"},))
    with pytest.raises(ArgumentError, match=message):
        program.verify(sizes=sizes)


def test_sizes_are_verified_against_the_original_model() -> None:
    program = exported(lambda x: x * 2, (R(4, 3),), ({0: "n"},))
    program.record.capture.source.function = lambda x: x * 2 if x.shape[0] != 7 else x
    with pytest.raises(VerificationError, match=r"21 of 21 elements differ .*  \[n = 7\]") as caught:
        program.verify(sizes="auto")
    assert [(row.status, dict(row.sizes)["n"]) for row in caught.value.rows] == [
        ("ok", 4),
        ("ok", 1),
        ("mismatch", 7),
        ("ok", 17),
    ]


def test_sizes_where_eager_torch_fails() -> None:
    program = exported(lambda x: x * 2, (R(4, 3),), ({0: "n"},))

    def fails(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            raise ValueError("not for one")
        return x * 2

    program.record.capture.source.function = fails
    rows = program.verify(sizes="auto")
    assert [row.status for row in rows] == ["ok", "skipped", "ok", "ok"]
    assert rows[1].message == "eager torch failed: ValueError: not for one"
    with pytest.raises(ArgumentError, match=r"sizes: eager torch failed: ValueError: not for one\n  at sizes: n = 1"):
        program.verify(sizes=[{"n": 1}])


def test_resized_inputs_are_in_the_value_range_of_the_examples() -> None:
    seen: list[torch.Tensor] = []
    examples = {
        "float": torch.tensor([0.25, 0.5, float("inf")]),
        "constant": torch.ones(3),
        "empty": torch.ones(0),
        "half": torch.tensor([1.0, 2.0], dtype=torch.float16),
        "complex": torch.tensor([1 + 2j, 2 + 3j]),
        "int": torch.tensor([3, 5], dtype=torch.int32),
        "no_int": torch.ones(0, dtype=torch.int64),
        "bool": torch.tensor([True, True]),
        "no_bool": torch.ones(0, dtype=torch.bool),
    }

    def note(x: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        seen.append(x)
        return [torch.view_as_real(value) * 1 if value.is_complex() else value * 1 for value in x.values()]

    program = exported(note, (examples,), ({name: {0: name} for name in examples},))
    program.verify(sizes=[dict.fromkeys(examples, 50)])
    made = seen[-1]
    assert all(made[name].dtype == examples[name].dtype and made[name].shape == (50,) for name in examples)
    ranges = {name: (made[name].min().item(), made[name].max().item()) for name in made if name != "complex"}
    limits = {
        "float": (0.25, 0.5),
        "constant": (1, 2),
        "empty": (0, 1),
        "half": (1, 2),
        "int": (3, 5),
        "no_int": (0, 0),
    }
    for name, (low, high) in limits.items():
        assert low <= ranges[name][0] <= ranges[name][1] <= high
    assert made["int"].unique().tolist() == [3, 4, 5]
    assert made["float"].unique().numel() > 40
    assert made["complex"].imag.min() >= 2
    assert made["bool"].all()
    assert 0 < made["no_bool"].sum() < 50


def test_verification_at_sizes_does_not_modify_the_model() -> None:
    model, x = Writes(), torch.ones(2)
    program = fxonnx.export(model.eval(), (x,), dynamic_shapes=({0: "n"},))
    rows = program.verify(sizes="auto")
    assert {row.status for row in rows} == {"ok"}
    assert torch.equal(x, torch.ones(2))
    assert torch.equal(model.count, torch.zeros(1))


def test_sizes_of_an_exported_program_without_its_model() -> None:
    captured = torch.export.export(
        Function(lambda x: x * 2), (R(4, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    program = fxonnx.export(captured, dynamic_shapes=({0: "n"},))
    assert program.record.capture.source is None
    assert sizes_of(program.verify(sizes="auto")) == one_dim
