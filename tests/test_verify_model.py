"""Verification against the user's model: its own forward, the state after it, and other references."""

from __future__ import annotations

import numbers
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx import ArgumentError, ExportError, VerificationError
from fxonnx._comparison import OutputComparison, report_skipped
from fxonnx._program.random_outputs import is_smaller
from tests.functions import Function
from tests.program.handmade import program as handmade

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))


def doubled_if(question: Callable[[torch.Tensor], bool]) -> nn.Module:
    """A model whose result depends on a question to Python, which may have another answer during the capture."""
    return Function(lambda x: x * 2 if question(x) else x * 3).eval()


QUESTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "isinstance(size, int)": lambda x: isinstance(x.shape[0], int),
    "type(size) is int": lambda x: type(x.shape[0]) is int,
    "Integral": lambda x: isinstance(x.shape[0], numbers.Integral),
    "isinstance(size / 2, float)": lambda x: isinstance(x.shape[0] / 2, float),
    "type(x) is Tensor": lambda x: type(x) is torch.Tensor,
    "class name": lambda x: x.__class__.__name__ == "Tensor",
    "is_grad_enabled": lambda x: torch.is_grad_enabled(),
    "is_compiling": lambda x: torch.compiler.is_compiling(),
    "is_in_onnx_export": lambda x: fxonnx.is_in_onnx_export(),
    "data_ptr": lambda x: x.data_ptr() != 0,
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_capture_that_differs_from_the_model_is_not_verified(name: str, verify: Any, grad: bool) -> None:
    model = doubled_if(QUESTIONS[name])
    with torch.set_grad_enabled(grad):
        try:
            program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n"},), verify=verify)
        except ExportError as error:
            found = error
        else:
            found = None
    if found is None:
        with torch.set_grad_enabled(grad):
            for rows in (4, 7):
                x = torch.rand(rows, 3)
                torch.testing.assert_close(program(x)[0], model(x))
    elif isinstance(found, VerificationError):
        assert "ONNX Runtime and eager torch disagree" in str(found)
        assert {row.reference for row in found.rows} == {"model"}


def test_further_examples_are_compared_with_the_model() -> None:
    model = Function(lambda x: x * 2 if type(x.shape[0]) is int and x.shape[0] == 7 else x * 3).eval()
    with pytest.raises(ExportError):
        fxonnx.export(model, (X,), more_inputs=[((torch.rand(7, 3),), None)], verify=True)


def wrong() -> tuple[fxonnx.ONNXProgram, Function]:
    """A program of ``x * 3``, and the model, whose forward has become ``x * 2``."""
    model = Function(lambda x: (x * 3, x + 1)).eval()
    program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n"},))
    model.function = lambda x: (x * 2, x + 1)
    return program, model


@pytest.mark.parametrize("explicit", [True, False])
def test_a_difference_of_the_capture_is_not_one_of_a_translation(explicit: bool) -> None:
    program, model = wrong()
    other = {"model": model} if explicit else {}
    with pytest.raises(VerificationError, match=r"hint: program.compare.model=model. finds the operator, line and mod"):
        program.verify(**other)
    comparison = program.compare(**other)
    assert [row.status for row in comparison.outputs] == ["mismatch", "ok"]
    assert [row.index for row in comparison.capture] == [0]
    assert comparison.values == ()
    assert not comparison.ok
    assert (
        "The difference is in the capture: the captured program, run in PyTorch, is not the model:\n  mul: 12 of"
        in (str(comparison))
    )
    assert "ONNX Runtime agrees with the captured program: no translation differs." in str(comparison)
    with pytest.raises(VerificationError, match="The difference is in the capture"):
        program.verify(**other, locate=True)


def test_differences_of_the_capture_and_of_a_translation() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 3, torch.sin(x)

    model = Function(function).eval()
    table = {torch.ops.aten.sin.default: lambda op, x: op.Cos(x)}
    program = fxonnx.export(model, (X,), custom_translation_table=table)
    comparison = program.compare(model=lambda x: (x * 2, torch.sin(x)))
    assert [row.index for row in comparison.capture] == [0]
    assert comparison.first is not None
    assert comparison.first.operator == "aten.sin.default"
    assert program.compare().capture == ()


class Counter(nn.Module):
    """Changes a buffer, a parameter, an input, attributes and all random numbers; its results are those values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)
        self.calls, self.history = 0, []

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.total.add_(1)
        self.weight.mul_(2)
        x.mul_(2)
        self.calls += 1
        self.history.append(1)
        if not torch.compiler.is_compiling():
            torch.rand(1), random.random(), np.random.rand()
        return self.total, self.weight * x


@pytest.mark.parametrize("run", ["verify", "auto", "compare", "model"])
def test_state_and_random_numbers_are_restored(run: str) -> None:
    model, x = Counter().eval(), X.clone()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), state="io")
    calls: dict[str, Callable[[], Any]] = {
        "verify": program.verify,
        "auto": lambda: program.verify(sizes="auto"),
        "compare": lambda: program.compare().outputs,
        "model": lambda: program.verify(model=model),
    }
    rows = calls[run]()
    assert {row.status for row in rows} == {"ok"}
    assert len(program.interface.states) == 3
    assert len({row.index for row in rows}) == 5
    assert torch.equal(x, X)
    assert torch.equal(model.total, torch.zeros(3))
    assert torch.equal(model.weight, torch.ones(3))
    assert (model.calls, model.history, model.training) == (0, [], False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])


def test_the_model_runs_in_the_grad_mode_of_the_export() -> None:
    model = doubled_if(lambda x: torch.is_grad_enabled())
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            program = fxonnx.export(model, (X,))
        for later in (True, False):
            with torch.set_grad_enabled(later):
                assert [row.status for row in program.verify()] == ["ok"]


def test_buffers_with_gradients() -> None:
    class Accumulated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("total", torch.zeros(3))
            self.plain = torch.zeros(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total += self.weight
            self.plain.add_(self.weight)
            return x * self.total + self.plain

    model = Accumulated().eval()
    program = fxonnx.export(model, (X,), verify=True)
    assert [row.status for row in program.verify()] == ["ok"]
    for tensor in (model.total, model.plain):
        assert torch.equal(tensor, torch.zeros(3))
        assert (tensor.requires_grad, tensor.is_leaf) == (False, True)


def test_the_model_runs_in_the_mode_of_the_export() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3)).eval()
    program = fxonnx.export(model, (X,), verify=True)
    model.train()
    assert [row.status for row in program.verify()] == ["ok"]
    assert all(module.training for module in model.modules())
    assert torch.equal(model[1].running_mean, torch.zeros(3))


RANDOM = [
    (lambda x: (x + torch.rand(()), x * 2), ["skipped", "ok"]),
    (lambda x: (nn.functional.dropout(x, 0.5), x * 2), ["skipped", "ok"]),
    (lambda x: (x + random.random(), x * 2), ["skipped", "ok"]),
]


@pytest.mark.parametrize(("function", "statuses"), RANDOM)
def test_random_outputs_are_skipped(function: Any, statuses: list[str]) -> None:
    program = fxonnx.export(Function(function).eval(), (X,), verify=True)
    random.random()  # the export leaves the generators as they were
    rows = program.verify()
    assert [row.status for row in rows] == statuses
    assert rows[0].message.startswith("not deterministic: two runs of eager torch differ: ")
    assert program.compare().ok
    assert str(program.compare()).startswith("No output differs, but some are skipped:")


def test_a_wrong_output_beside_a_random_one() -> None:
    program = fxonnx.export(Function(lambda x: (x + torch.rand(()), x * 2)).eval(), (X,))
    with pytest.raises(VerificationError, match="ONNX Runtime and eager torch disagree") as caught:
        program.verify(model=lambda x: (x + torch.rand(()), x * 3))
    assert [row.status for row in caught.value.rows] == ["skipped", "mismatch"]


def test_lengths_beside_a_random_output() -> None:
    calls: list[int] = []

    def lengths(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return x + torch.rand(()), torch.tensor(4 if len(calls) > 6 else 3)

    program = fxonnx.export(Function(lambda x: (x + torch.rand(()), torch.tensor(5))).eval(), (X,))
    assert [row.status for row in program.verify(model=lengths)] == ["skipped", "skipped"]
    assert len(calls) == 7


@pytest.mark.parametrize(
    ("dtype", "own", "other", "is_less"),
    [
        ("int64", 2.0, 59.0, False),
        ("int64", 1.0, 59.0, True),
        ("float32", 2.0, 59.0, True),
        ("float32", 30.0, 59.0, False),
    ],
)
def test_differences_of_classes_have_no_size(dtype: str, own: float, other: float, is_less: bool) -> None:
    row = OutputComparison("classes", 0, "mismatch", dtype, (300,), other, other, "", wrong=300)
    assert is_smaller(replace(row, max_abs=own), row) is is_less
    assert is_smaller(replace(row, max_abs=own, wrong=100), row)


class Router(nn.Module):
    """Experts whose scores tie, as those of a router without training."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(3, 6))
        self.experts = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[(x @ self.scores).topk(2, -1).indices].sum(-2)


def other_expert(x: torch.Tensor) -> torch.Tensor:
    """The result with the last experts."""
    return ROUTER.experts[-2:].sum(0).expand(len(x), 3)


def steep(x: torch.Tensor) -> torch.Tensor:
    return (x * 1e7).sin()


ROUTER = Router().eval()
UNSTABLE = [
    pytest.param(ROUTER, lambda: handmade_weights(ROUTER, other_expert), "weights", id="tied"),
    pytest.param(
        Function(steep).eval(), lambda: Function(lambda x: steep(x * (1 + 1e-6))).eval(), "inputs", id="steep"
    ),
]


def handmade_weights(model: nn.Module, function: Any) -> nn.Module:
    """A model that computes another function with the weights of a model."""
    other = Function(function).eval()
    other.register_module("weights", model)
    return other


@pytest.mark.parametrize(("model", "exported", "changed"), UNSTABLE)
def test_unstable_outputs_are_skipped(model: nn.Module, exported: Any, changed: str) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (row,) = fxonnx.export(exported(), (X,)).verify(model=model)
    assert row.status == "skipped"
    assert row.message.startswith("unstable, not compared: eager torch differs as much from itself after a change of ")
    assert f"1e-6 in its {changed}: " in row.message
    # Also beside sizes at which it is compared.
    with pytest.warns(UserWarning, match=r"the export is not verified:\n  .*: unstable, not compared"):
        report_skipped([row, replace(row, status="ok", message="")])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Scaled(nn.Module):
    """A layer whose scale has a small initial value."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


class Tied(nn.Module):
    """The difference of two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.one(x) - self.other(x)) * 1e4 + x


def masked(x: torch.Tensor) -> torch.Tensor:
    """Attention with the mask of the first row, whose elements are 0 and 1."""
    return (x + (1.0 - x[:1].round()) * torch.finfo(torch.float32).min).softmax(-1)


ROWS = torch.linspace(0.1, 0.9, 300).reshape(100, 3)
SATURATED = torch.cat([torch.rand(4, 3) * 0.9, torch.ones(1, 3)])
# The model, a wrong one, and the inputs: small changes alter few elements, or elements by less.
WRONG: dict[str, tuple[Any, Any, torch.Tensor]] = {
    "small scale": (Scaled().eval(), lambda x: 1.5e-6 * x, X),
    "mask": (masked, lambda x: masked(x) * 1.5, torch.cat([torch.ones(1, 3), X])),
    "tokens": (lambda x: ROWS[x.long()], lambda x: ROWS[x.long()] + 1, torch.arange(6.0).reshape(2, 3)),
    "few ties": (lambda x: x.argmax(-1), lambda x: x.argmax(-1) + 1, torch.cat([ROWS, torch.full((2, 3), 0.5)])),
    "threshold": (lambda x: (x * 1.1 - 0.1 >= 1).float(), lambda x: (x * 1.1 - 0.1 < 1).float(), SATURATED),
    "count": (lambda x: x[x > 0.5], lambda x: x[x > 0.8], ROWS),
    "tied weights": (Tied().eval(), lambda x: x * 1.001, X),
}


@pytest.mark.parametrize("name", WRONG)
def test_instability_does_not_excuse_a_wrong_result(name: str) -> None:
    model, wrong, x = WRONG[name]
    program = fxonnx.export(Function(wrong).eval(), (x,))
    with pytest.raises(VerificationError, match="ONNX Runtime and eager torch disagree"):
        program.verify(model=model)


def test_a_difference_above_the_instability() -> None:
    """The model is unstable by 0.02, and the exported one differs by more."""
    program = fxonnx.export(Function(lambda x: x * 3).eval(), (X,))
    with pytest.raises(VerificationError, match="ONNX Runtime and eager torch disagree"):
        program.verify(model=lambda x: x * 2 + 0.01 * steep(x))


def test_the_captured_program_is_named() -> None:
    program = handmade(Function(torch.neg), (X,), operators=[("Abs", 0)])
    with pytest.raises(VerificationError, match="ONNX Runtime and the captured program disagree") as caught:
        program.verify()
    assert "eager" not in str(caught.value)
    assert caught.value.rows[0].reference == "captured program"
    assert "captured program" in str(program.compare())
    with pytest.raises(VerificationError, match="ONNX Runtime and eager torch disagree"):
        program.verify(model=Function(torch.neg))


def test_exported_programs_are_named() -> None:
    captured = torch.export.export(Function(lambda x: x * 2), (X,))
    program = fxonnx.export(captured, verify=True)
    assert [row.reference for row in program.verify()] == ["exported program"]
    assert [row.reference for row in program.verify(model=captured)] == ["exported program"]
    assert [row.reference for row in program.verify(model=lambda x: x * 2)] == ["model"]
    other = torch.export.export(Function(lambda x: x * 3), (X,))
    with pytest.raises(VerificationError, match="ONNX Runtime and the exported program disagree"):
        program.verify(model=other)


def scripted_function(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 100:
            x = x * 2
        return self.linear(x)


@pytest.mark.parametrize("model", [torch.jit.script(scripted_function), torch.jit.script(Scripted().eval())])
def test_scripted_models_are_the_reference(model: Any) -> None:
    program = fxonnx.export(model, (X,), verify=True)
    assert program.record.options.model is model
    assert {(row.status, row.reference) for row in program.verify()} == {("ok", "model")}
    with pytest.raises(VerificationError):
        program.verify(model=lambda x: model(x) + 1)


def test_scripted_models_with_applied_weights() -> None:
    model = torch.jit.script(Scripted().eval())
    program = fxonnx.export(model, (X,))
    before = model.linear.weight.clone()
    program.apply_weights({"linear.weight": torch.ones(3, 3)})
    assert [row.status for row in program.verify()] == ["ok"]
    assert torch.equal(model.linear.weight, before)


def test_other_weights_are_named() -> None:
    model, other = nn.Linear(3, 3).eval(), nn.Linear(3, 3).eval()
    program = fxonnx.export(model, (X,))
    with pytest.raises(VerificationError, match="the model has other weights than the program: 'weight' and 1 more"):
        program.verify(model=other)
    program.apply_weights(other.state_dict())
    assert [row.status for row in program.verify()] == ["ok"]
    assert [row.status for row in program.verify(model=other)] == ["ok"]
    with pytest.raises(VerificationError, match="other weights"):
        program.verify(model=model)


def test_quantized_weights() -> None:
    model, other = nn.Linear(32, 32).eval(), nn.Linear(32, 32).eval()
    program = fxonnx.export(model, (torch.rand(2, 32),), quantize="int8", verify=True)
    assert [row.status for row in program.verify(model=model)] == ["ok"]
    with pytest.raises(ArgumentError, match="model: 'weight' differs from the weight that was quantized"):
        program.verify(model=other)


@pytest.mark.parametrize("what", [nn.Linear, 3, "model"])
def test_what_is_no_model(what: Any) -> None:
    program = fxonnx.export(Function(torch.neg).eval(), (X,))
    with pytest.raises(ArgumentError, match="model: expected a module or a function, got"):
        program.verify(model=what)


def test_models_without_values() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 3).eval()
    program = fxonnx.export(model, (X,), verify=True)
    for rows in (program.verify(), program.verify(sizes="auto"), program.compare().outputs):
        assert [(row.status, row.name) for row in rows] == [("skipped", "-")]
        assert rows[0].message.startswith("2 weights have no values")
    own = nn.Linear(3, 3).eval()
    program.apply_weights(own.state_dict())
    assert [row.status for row in program.verify()] == ["ok"]
    (row,) = program.verify(model=model)
    assert row.message == "'weight' has no values in the model: it is on the meta device or a fake tensor"
    (row,) = program.verify((torch.rand(4, 3, device="meta"),))
    assert row.message == "the inputs have no values: they are on the meta device or fake tensors"


def test_inputs_that_the_model_refuses() -> None:
    program = fxonnx.export(Function(lambda x: x * 2).eval(), (X,))

    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not these")

    with pytest.raises(ArgumentError, match="args: eager torch failed: ValueError: not these"):
        program.verify(model=refuses)


SAME = [
    pytest.param(lambda x, y: x * 2 if x is y else x * 3, (X, X), id="identity"),
    pytest.param(lambda x, y: (x.add_(1), y * 2)[1], (X, X), id="write"),
    pytest.param(lambda x, y: (x.add_(1), y * 2)[1], (X, X[1:]), id="view"),
]


@pytest.mark.parametrize(("function", "args"), SAME)
def test_inputs_that_share_memory_are_copied_together(function: Any, args: Any) -> None:
    """Eager torch sees the same aliases in the copies; an export that does not is not verified."""
    before = X.clone()
    expected = function(*fxonnx._capture.eager_runs.copies_of_inputs(args))
    try:
        program = fxonnx.export(Function(function).eval(), args, verify=True)
    except ExportError:
        return
    finally:
        assert torch.equal(X, before)
    torch.testing.assert_close(program(*args)[0], expected)


def test_inputs_that_require_grad() -> None:
    class Force(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.requires_grad else x * 3

    x = X.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = fxonnx.export(Force().eval(), (x,))
    expected = program.verify(model=lambda x: x * 2 if x.requires_grad else x * 5)
    assert [row.status for row in expected] == ["ok"]
    # The result of another model may be written to.
    rows = program.verify((x * 1,), model=lambda x: x.mul_(3 if x.requires_grad else 2))
    assert [row.status for row in rows] == ["ok"]


FILES: list[Any] = [
    pytest.param(Function(lambda x, y: x * 2 + y).eval(), (X, X + 1), {}, {}, id="two"),
    pytest.param(Function(lambda x, y: x * 2 + y).eval(), (), {"y": X[:1], "x": X}, {}, id="keywords"),
    pytest.param(Function(lambda x, y: x * y).eval(), (X, 3), {}, {}, id="constant"),
    pytest.param(Function(lambda x, y: x["b"] - x["a"] * y).eval(), ({"a": X, "b": X + 1}, X), {}, {}, id="dict"),
    pytest.param(Function(lambda x: (x + torch.rand(()), x)).eval(), (X,), {}, {}, id="random"),
    pytest.param(Counter().eval(), (X,), {}, {"state": "io"}, id="state"),
    pytest.param(nn.Linear(3, 3).eval(), (X,), {}, {"input_names": ["rows"]}, id="names"),
    pytest.param(Function(lambda x: torch.view_as_complex(x.repeat(1, 2).view(-1, 3, 2))).eval(), (X,), {}, {}, id="complex"),
    pytest.param(torch.jit.script(Scripted().eval()), (X,), {}, {}, id="scripted"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "args", "kwargs", "options"), FILES)
def test_saved_files(model: Any, args: Any, kwargs: Any, options: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fxonnx.export(model, args, path, kwargs=kwargs, **options)
    before = [value.clone() for value in model.state_dict().values()]
    rows = fxonnx.verify(path, model, args, kwargs)
    assert {row.status for row in rows} <= {"ok", "skipped"}
    assert {row.status for row in fxonnx.verify(str(path), model=model, args=args, kwargs=kwargs)} <= {"ok", "skipped"}
    assert all(map(torch.equal, before, model.state_dict().values()))

    def other(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map(lambda value: value + 1, model(*args, **kwargs))

    if options.get("state") is None:
        with pytest.raises(
            VerificationError, match=r"(?s)ONNX Runtime and eager torch disagree.*hint: export the model"
        ):
            fxonnx.verify(path, other, args, kwargs)


def test_forms_of_the_call(tmp_path: Path) -> None:
    model = nn.Linear(3, 3).eval()
    program = fxonnx.export(model, (X,), tmp_path / "model.onnx", dynamic_shapes=({0: "n"},))
    rows = fxonnx.verify(program)
    x = X[:2]
    assert rows == fxonnx.verify(program, model) == fxonnx.verify(program, model=model)
    assert rows == fxonnx.verify(program, None, None) == fxonnx.verify(program, model, (X,), {})
    for again in (
        fxonnx.verify(program, (x,)),
        fxonnx.verify(program, args=(x,)),
        fxonnx.verify(program, None, {"input": x}),
        fxonnx.verify(program, kwargs={"input": x}),
        fxonnx.verify(program, model, (x,)),
        fxonnx.verify(program, (x,), model=model),
        fxonnx.verify(tmp_path / "model.onnx", model, x),
        fxonnx.verify(tmp_path / "model.onnx", torch.export.export(model, (x,)), (x,)),
    ):
        assert [(row.status, row.shape) for row in again] == [("ok", (2, 3))]


WRONG_CALLS: list[Any] = [
    (lambda program, path: fxonnx.verify(program, nn.Identity(), model=nn.Identity()), "model: argument given both by"),
    (lambda program, path: fxonnx.verify(program, (X,), args=(X,)), "args: argument given both by position and by name"),
    (lambda program, path: fxonnx.verify(program, (X,), {}, {}), "inputs: expected a model, args and kwargs, got 3"),
    (lambda program, path: fxonnx.verify(path), r"model: a saved file has no model .*\nhint: verify.path, model, args"),
    (lambda program, path: fxonnx.verify(path, nn.Identity()), "args: a saved file has no model and no inputs"),
    (lambda program, path: fxonnx.verify(path, nn.Identity(), (X,), sizes="auto"), "sizes: a saved file is verified at"),
    (lambda program, path: fxonnx.verify(path, lambda *xs: xs, (X, X)), "the file has the inputs x, and the call has 2 t"),
    (lambda program, path: fxonnx.verify(path.with_name("other"), nn.Identity(), (X,)), "file .*other does not exist"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS)
def test_wrong_calls(call: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    program = fxonnx.export(Function(torch.neg).eval(), (X,), path)
    with pytest.raises(ArgumentError, match=message):
        call(program, path)
