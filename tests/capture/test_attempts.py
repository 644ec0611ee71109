"""The attempts of a capture: the calls of torch.export, the changes between them, and plain torch.export as the last one."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.func import grad, vmap

import fxonnx
from fxonnx._capture.constraints.guard_recorder import Guard, GuardLog
from fxonnx._capture.inputs.example_inputs import bind_example_inputs
from fxonnx._capture.plan import CapturePlan
from fxonnx._capture.shapes.spec_keys import read_dynamic_shapes
from fxonnx._capture.trace import EarlyEnd, EarlyEnds
from fxonnx._capture.traced_states import UnknownStates
from fxonnx._request import Request
from fxonnx_translations._torch_compat import Mod

from ..functions import Function


def loops(x: Tensor, factors: Tensor) -> Tensor:
    for factor in factors:
        if factor > 1:
            x = x * factor
    return x


def constant(x: Tensor) -> Tensor:
    return x * 2 if torch.ones(2).sum() > 1 else x


def branches(x: Tensor) -> Tensor:
    return x * 2 if bool((x > 0).all()) else x.new_zeros(int(x.sum().abs()))


_LINE_OF_BRANCHES = f"test_attempts.py:{branches.__code__.co_firstlineno + 1}"


def product(x: Tensor) -> Tensor:
    return x @ x.new_ones(3, 2)


def broken(x: Tensor) -> Tensor:
    if x.dim():
        raise AttributeError("no such attribute")
    return x


def derivative(x: Tensor) -> Tensor:
    return vmap(grad(lambda given: given.pow(2).sum()))(x)


def halves(x: Tensor) -> Tensor:
    return x[: int(x.shape[0] / 2)]


def numbers(x: Tensor) -> Tensor:
    return x * float(torch.tensor([1.0, 2.0]).numpy().sum())


def total(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def repeated(x: Tensor, count: Tensor) -> Tensor:
    for _ in range(count):
        x = x * 2
    return x


def long_loop(x: Tensor) -> Tensor:
    total = torch.zeros(3)
    for row in x:
        total = total * 0.5 + row
    return total


def derivative_and_product(x: Tensor) -> Tensor:
    return derivative(x) @ x.new_ones(3, 2)


X = torch.ones(4, 3)
VALUES = "values that depend on no input are known, and checks that only raise are assumed to pass"
TRANSFORMS = "torch.func transforms are traced as plain operators"
Row = tuple[Callable[..., Any], tuple[Tensor, ...], dict[str, Any], list[str]]
CASES: dict[str, Row] = {
    "plain": (torch.relu, (X,), {}, [""]),
    "constant": (constant, (X,), {}, ["", VALUES]),
    "rewritten": (
        *(loops, (X, torch.tensor([2.0, 3.0])), {"dynamic_shapes": (None, {0: "n"})}),
        ["", VALUES, f"control flow of test_attempts.py:{loops.__code__.co_firstlineno} in loops is rewritten"],
    ),
    "static": (product, (X,), {"dynamic_shapes": ({0: "n", 1: "m"},)}, ["", "static dims: x axis 1"]),
    "transform": (derivative, (X,), {}, ["", TRANSFORMS]),
    "integers": (
        *(halves, (X,), {"dynamic_shapes": ({0: "n"},)}),
        ["", "int, float and len keep sizes symbolic in test_attempts.py"],
    ),
    "strict": (numbers, (X,), {}, ["", "strict mode (TorchDynamo)"]),
    "suggested dims": (
        *(total, (X, X), {"dynamic_shapes": ({0: Dim("a")}, {0: Dim("b")})}),
        ["", "the ranges and relations of dims that torch suggests"],
    ),
    "loop over a value": (
        *(repeated, (X, torch.tensor(3)), {}),
        ["", VALUES, f"control flow of test_attempts.py:{repeated.__code__.co_firstlineno} in repeated is rewritten"],
    ),
    "long loop": (
        *(long_loop, (torch.ones(64, 3),), {"dynamic_shapes": ({0: "n"},)}),
        ["", f"control flow of test_attempts.py:{long_loop.__code__.co_firstlineno} in long_loop is rewritten"],
    ),
    "inner strategy begins anew": (
        *(derivative_and_product, (X,), {"dynamic_shapes": ({0: "n", 1: "m"},)}),
        ["", TRANSFORMS, "static dims: x axis 1", TRANSFORMS],
    ),
    "example": (
        *(branches, (X,), {"data_dependent": "example"}),
        [
            "",
            VALUES,
            f"control flow of test_attempts.py:{branches.__code__.co_firstlineno} in branches is rewritten",
            *(f"the branches at {_LINE_OF_BRANCHES} go on to the end of {name}" for name in ("branches", "forward")),
            "branches on data follow the example",
        ],
    ),
}


# The first attempt captures the model, for fewer inputs.
LIMITED = {"integers"}
# torch.export rejects the ranges of dims after the model has run.
AFTER_THE_MODEL = {"static", "suggested dims", "inner strategy begins anew"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_changes_of_each_attempt(name: str) -> None:
    function, args, options, changes = CASES[name]
    program = fxonnx.export(Function(function).eval(), args, **options)
    attempts = program.record.capture.attempts
    assert [one.change.replace(f"{Path(__file__).parent}/", "") for one in attempts] == changes
    assert [bool(one.failure) for one in attempts] == [name not in LIMITED] * (len(changes) - 1) + [False]
    assert all(one.seconds > 0 for one in attempts)
    if name not in AFTER_THE_MODEL:
        # The branches go on to the end of the caller, ``Function.forward``.
        places = ("test_attempts.py:", "functions.py:")
        assert all(any(place in one.failure for place in places) for one in attempts if one.failure)
    torch.testing.assert_close(program(*args)[0], function(*args))


def test_an_error_of_the_model_is_traced_once(tmp_path: Path) -> None:
    with pytest.raises(fxonnx.CaptureError, match="no such attribute"):
        fxonnx.export(
            Function(broken).eval(),
            (X,),
            dynamic_shapes=({0: "n"},),
            diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path),
        )
    (text,) = tmp_path.glob("*.md")
    attempts = text.read_text().partition("## Attempts of the capture")[2]
    assert re.findall(r"^\d+\. (.*) \(", attempts, re.MULTILINE) == [
        f"first attempt: no such attribute at {__file__}:{broken.__code__.co_firstlineno + 2} in broken: "
        'raise AttributeError("no such attribute")'
    ]


def test_plans_keep_the_changes_of_outer_strategies() -> None:
    """The fields have the order of the strategies; a change resets the later ones."""
    shapes = read_dynamic_shapes(bind_example_inputs(Function(constant), (X,), {}), None, ())
    plan = CapturePlan(Request(), UnknownStates(), None, None, shapes)
    inner = plan.changed("outer", resolves_guards=True).changed("inner", skips_masks=True, log=plan.log)
    assert (inner.resolves_guards, inner.skips_masks, inner.change) == (True, True, "inner")
    assert inner.log is plan.log
    outer = inner.changed("outer again", unrolls_long_loops=True)
    assert outer == replace(plan, unrolls_long_loops=True, change="outer again")
    assert outer.log is not plan.log


def test_reports_list_them(tmp_path: Path) -> None:
    fxonnx.export(Function(constant).eval(), (X,), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path))
    (page,), (text,) = tmp_path.glob("*.html"), tmp_path.glob("*.md")
    assert "The capture took 2 calls of torch.export" in page.read_text()
    assert f"\n2. {VALUES}: captured (" in text.read_text()


def test_reports_on_failures_list_them(tmp_path: Path) -> None:
    with pytest.raises(fxonnx.CaptureError, match="asks for the value of a tensor"):
        fxonnx.export(
            Function(branches).eval(), (X,), diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
        )
    (page,) = tmp_path.glob("*.html")
    assert "The capture took 11 calls of torch.export" in page.read_text()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "number", "attempts", "sizes"),
    [
        ("with_remainder", "int(x.shape[1] % 2) + 1", 2, (3, 8)),
        # A size cannot be in a set: the attempts with this file fail, and the one without it captures odd sizes.
        ("with_set", "len({int(x.shape[1] % 2), 3}) - 1", 8, (3, 9)),
    ],
)
def test_files_that_convert_sizes_are_found_by_the_first_attempt(
    name: str, number: str, attempts: int, sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(f"def number_of(x):\n    return {number}\n")
    monkeypatch.syspath_prepend(tmp_path)
    number_of = importlib.import_module(name).number_of

    def both(x: Tensor) -> Tensor:
        return x.new_ones(3) * number_of(x) * len(x)

    program = fxonnx.export(Function(both).eval(), (X,), dynamic_shapes=({0: "n", 1: "m"},))
    assert len(program.record.capture.attempts) == attempts
    change = program.record.capture.attempts[1].change
    assert f"{name}.py" in change
    assert __file__ in change
    for size in sizes:
        (found,) = program(x := torch.ones(10, size))
        torch.testing.assert_close(found, both(x))


def few_sizes(x: Tensor) -> Tensor:
    missing = max(0, 5 - x.shape[0])
    if missing > 0:
        return x.repeat(2)[: int(x.sum())]
    if x.shape[0] % 8 != 0:
        x = nn.functional.pad(x, (0, 8 - x.shape[0] % 8))
    return x.reshape(-1, 8).sum(1)


@pytest.mark.filterwarnings("ignore")
def test_answers_of_few_sizes_that_lead_to_data_are_kept_at_once() -> None:
    program = fxonnx.export(Function(few_sizes).eval(), (torch.ones(16),), dynamic_shapes=({0: "n"},))
    beside = "branches for single sizes are left out"
    changes = [one.change for one in program.record.capture.attempts]
    assert changes == ["", beside, beside, "both branches on sizes are captured"]
    assert [one.text for one in program.record.constraints] == ["n >= 5"]
    for size in (5, 8, 13, 24):
        x = torch.randn(size)
        torch.testing.assert_close(program(x)[0], few_sizes(x))


def keyed_by_order(x: Tensor) -> Tensor:
    return {True: x, False: 2 * x}[len(x[x > 0]) > 2]


def keyed_by_equation(x: Tensor) -> Tensor:
    return {True: x, False: 2 * x}[len(x[x > 0]) == 2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("function", "has_edge"), [(keyed_by_order, False), (keyed_by_equation, True)])
def test_branches_for_single_sizes_of_data_are_left_out_only_if_there_are_some(
    function: Callable[..., Any], has_edge: bool, tmp_path: Path
) -> None:
    shown = fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    model, refusal = Function(function).eval(), pytest.raises(fxonnx.CaptureError, match="value of a tensor")
    with nullcontext() if has_edge else refusal:
        fxonnx.export(model, (torch.ones(6),), tmp_path / "m.onnx", dynamic_shapes=({0: "n"},), diagnostics=shown)
    (text,) = tmp_path.glob("*.md")
    assert ("single sizes that depend on data are left out" in text.read_text()) is has_edge
    for values in ((1.0, 3.0, 2.0), (-1.0,), (-1.0, 1.0, 2.0, 4.0)) if has_edge else ():
        session, x = onnxruntime.InferenceSession(tmp_path / "m.onnx"), torch.tensor(values)
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), model(x))


def test_attempts_with_kept_edges_end_at_long_relations_of_dims() -> None:
    batch, height = sympy.symbols("s0 s1", integer=True, positive=True)
    blocks = sum(Mod(batch * (height + step), 16) for step in range(9))
    long, short = Guard(sympy.Eq(blocks, 0), None), Guard(sympy.Eq(Mod(batch * height, 16), 0), None)
    for has_kept_edges in (True, False):
        end = EarlyEnds((), has_kept_edges=has_kept_edges)
        end.watch(log := GuardLog())
        assert log.observer is not None
        log.observer(log, short)
        with pytest.raises(EarlyEnd, match="more dims") if has_kept_edges else nullcontext():
            log.observer(log, long)
        assert end.has_long_limit is has_kept_edges


def causal(x: torch.Tensor) -> torch.Tensor:
    """As in BigBird-Pegasus of transformers 4.57: a program that is compiled has a mask that is too long."""
    length = len(x) + 1 if torch.compiler.is_compiling() else len(x)
    return x.cumsum(0) + torch.arange(length)


def for_exports(x: torch.Tensor) -> torch.Tensor:
    return x + 1 - 1 if torch.compiler.is_compiling() else x


def test_code_for_compiled_programs_that_fails() -> None:
    program = fxonnx.export(Function(causal).eval(), (torch.randn(5),), dynamic_shapes=({0: "n"},))
    assert "torch.compiler.is_compiling" in str(program.record.proof)
    for count in (1, 3, 8):
        x = torch.randn(count)
        torch.testing.assert_close(program(x)[0], causal(x))


def test_the_failure_of_both_codes_is_the_first_one() -> None:
    model = Function(lambda x: x + torch.ones(7 if torch.compiler.is_compiling() else 6)).eval()
    with pytest.raises(fxonnx.ExportError, match=r"\b6\b.*") as caught:
        fxonnx.export(model, (torch.randn(5),))
    assert "7" not in str(caught.value).partition("\n  at:")[0]


def test_code_for_compiled_programs_that_works_is_exported() -> None:
    program = fxonnx.export(Function(for_exports).eval(), (torch.randn(5),), optimize=False)
    assert {"Add", "Sub"} <= {node.op_type for node in program.model.graph}


# Plain torch.export, non-strict and then strict, before an error is raised: exported only if the proof confirms it.


_NAMES: dict[str, Any] = {"torch": torch}
exec(
    "def checked(x, a):\n"
    "    if not torch.compiler.is_dynamo_compiling() and a > 2:\n"
    "        x = x + 0\n"
    "    return x * a",
    _NAMES,
)


class Checked(nn.Module):
    """A branch in a function without source, which TorchDynamo does not take."""

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> Any:
        return _NAMES["checked"](x, a)


class Refused(nn.Module):
    """A function of fxonnx refuses what plain torch.export captures.

    Args:
        is_wrong: Whether the captured program differs from the model.
    """

    def __init__(self, *, is_wrong: bool) -> None:
        super().__init__()
        self.is_wrong = is_wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x.numpy()
        except (RuntimeError, TypeError, ValueError):
            return x * 2 + self.is_wrong
        return x * 2


def last_change(program: fxonnx.ONNXProgram) -> str:
    return program.record.capture.attempts[-1].change


def test_plain_torch_export_is_the_last_attempt(tmp_path: Path) -> None:
    model, a = Checked().eval(), torch.tensor([3])
    program = fxonnx.export(model, (torch.randn(2, 3), a), tmp_path / "m.onnx", dynamic_shapes=({0: "n"}, {}))
    assert any(one.kind is fxonnx.DepartureKind.LAST for one in program.record.capture.departures)
    assert last_change(program) == "plain torch.export, strict mode"
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for size, factor in ((2, 3), (5, 1), (3, 7)):
        x, a = torch.randn(size, 3), torch.tensor([factor])
        torch.testing.assert_close(
            torch.from_numpy(session.run(None, {"x": x.numpy(), "a": a.numpy()})[0]), model(x, a)
        )


def exported_or_error(model: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fxonnx.export(model.eval(), (torch.randn(2, 3),), dynamic_shapes=({0: "n"},))
        except fxonnx.CaptureError as error:
            return error


def test_a_program_that_the_proof_confirms_is_exported() -> None:
    program = exported_or_error(Refused(is_wrong=False))
    assert isinstance(program, fxonnx.ONNXProgram)
    for size in (2, 4):
        x = torch.randn(size, 3)
        torch.testing.assert_close(program(x)[0], x * 2)


def test_a_program_that_differs_is_the_error_of_the_other_attempts() -> None:
    error = exported_or_error(Refused(is_wrong=True))
    assert isinstance(error, fxonnx.CaptureError)
    assert "the model handles an error" in str(error)


def test_a_program_that_cannot_be_proved_is_the_error_of_the_other_attempts() -> None:
    model = Refused(is_wrong=False).to("meta")
    model.weight = nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(fxonnx.CaptureError, match="the model handles an error"):
        fxonnx.export(model.eval(), (torch.randn(2, 3, device="meta"),), dynamic_shapes=({0: "n"},))


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 2)


def test_a_model_that_fails_itself_is_not_tried_again() -> None:
    attempts: list[str] = []
    with pytest.raises(fxonnx.CaptureError, match="the model itself fails on the example"):
        fxonnx.export(
            Failing().eval(),
            (torch.randn(2, 3),),
            dynamic_shapes=({0: "n"},),
            diagnostics=fxonnx.Diagnostics(on_stage=lambda *stage: attempts.append(str(stage))),
        )
    assert not any("plain" in one for one in attempts)


def padded(x: Tensor) -> Tensor:
    rest = int(x.shape[0]) % 4
    if rest:
        x = torch.cat((x, x.new_zeros(4 - rest, x.shape[1])))
    return x.view(-1, 4, x.shape[1]).sum(1)


def test_attempts_beside_single_sizes_begin_with_symbolic_integers() -> None:
    model = Function(padded).eval()
    program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n"},))
    changes = [one.change.replace(f"{Path(__file__).parent}/", "") for one in program.record.capture.attempts]
    integers = "int, float and len keep sizes symbolic in test_attempts.py"
    assert changes == ["", integers, "branches for single sizes are left out"]
    for rows in (4, 5, 8, 3):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(program(x)[0], model(x))


def checked(x: Tensor) -> Tensor:
    if x.shape[0] < 3:
        raise ValueError("too few rows")
    rest = -x.shape[1] % 4
    if rest > 0:
        x = torch.cat((x, x.new_zeros(x.shape[0], rest)), 1)
    return x.unflatten(1, (-1, 4)).sum(2)


def test_limits_of_other_lines_are_no_reason_for_attempts_beside_single_sizes() -> None:
    with pytest.warns(UserWarning, match="n >= 3"):
        program = fxonnx.export(Function(checked).eval(), (torch.ones(4, 5),), dynamic_shapes=({0: "n"},))
    assert [one.change for one in program.record.capture.attempts] == [""]


def undecided(x: torch.Tensor) -> Any:
    return [x, x + 1][int(x.sum()) % 2] if x.mean().item() > 0 else x.numpy()


@pytest.mark.filterwarnings("ignore")
def test_reports_have_no_symbols_of_torch(tmp_path: Path) -> None:
    """Neither of the attempt in strict mode, whose error has another class."""
    diagnostics = fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    with pytest.raises(fxonnx.CaptureError):
        fxonnx.export(Function(undecided).eval(), (X,), diagnostics=diagnostics)
    (text,) = tmp_path.glob("*.md")
    attempts = text.read_text().partition("## Attempts of the capture")[2]
    assert "strict mode: the value of a tensor has to be known" in attempts
    assert not re.search(r"\b(zuf|u|s)\d+\b|_check", attempts)


def skips_with_an_error(x: Tensor) -> Tensor:
    """The model itself fails at the sizes that the condition excludes."""
    y = x[..., ::2].repeat_interleave(2, -1)
    if y.shape[-1] != x.shape[-1]:
        y = y[..., 3:]
    return torch.cat((x, y))


def compares_a_tuple(x: Tensor) -> Tensor:
    """No other answer, and no branch, replaces the comparison of several sizes at once."""
    if tuple(x.shape[1:]) in ((4, 6), (6, 4)):
        x = x + 1
    if -x.shape[2] % 8 > 0:
        x = torch.nn.functional.pad(x, (0, -x.shape[2] % 8))
    return x * 2


@pytest.mark.parametrize(
    ("function", "last"), [(skips_with_an_error, ""), (compares_a_tuple, "the limits of the capture")]
)
def test_attempts_that_are_of_no_use_are_not_made_to_their_end(
    function: Callable[..., Any], last: str, tmp_path: Path
) -> None:
    """The capture before them is exported, with its limits."""
    path = tmp_path / "m.onnx"
    with pytest.warns(UserWarning, match="exported"):
        program = fxonnx.export(
            Function(function),
            (torch.randn(2, 4, 6),),
            path,
            dynamic_shapes=({0: "n", 1: "h", 2: "w"},),
            input_names=["x"],
        )
    attempts = program.record.capture.attempts
    assert not any(one.change.startswith("both branches") and not one.failure for one in attempts)
    assert not last or last in attempts[-1].failure
    session = onnxruntime.InferenceSession(path)
    for shape in ((2, 4, 6), (3, 4, 6), (2, 6, 4), (2, 3, 8), (2, 5, 7)):
        x = torch.randn(shape)
        try:
            (found,) = session.run(None, {"x": x.numpy()})
        except Exception:  # noqa: BLE001 - a size outside of the limits
            assert shape[1:] != (4, 6)
            continue
        torch.testing.assert_close(torch.from_numpy(found), function(x))


def asserts_all(x: Tensor) -> Tensor:
    assert all([size % 4 == 0 for size in x.shape[1:]]), "divisible by 4"  # noqa: C419 - as users write it
    return x * 2


def test_assertions_with_a_comprehension_are_not_rewritten() -> None:
    with pytest.warns(UserWarning, match=r"h % 4 == 0\n  w % 4 == 0"):
        program = fxonnx.export(
            Function(asserts_all), (torch.randn(2, 4, 8),), dynamic_shapes=({0: "n", 1: "h", 2: "w"},)
        )
    assert len(program.record.capture.attempts) == 1
    x = torch.randn(3, 12, 4)
    torch.testing.assert_close(program(x)[0], x * 2)


class Rotated(nn.Module):
    """Keys of which the last two are not rotated, as in the memory of SAM 2."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.polar(torch.ones(4, 2), torch.tensor([[0.1, 0.2], [0.3, 0.4]] * 2)))

    def rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        pairs_q = torch.view_as_complex(q.reshape(*q.shape[:-1], -1, 2))
        pairs_k = torch.view_as_complex(k.reshape(*k.shape[:-1], -1, 2)) if k.shape[-2] != 0 else None
        q = torch.view_as_real(pairs_q * self.angles).flatten(2)
        if pairs_k is None:
            return q, k
        angles = self.angles.repeat(pairs_k.shape[-2] // pairs_q.shape[-2], 1)
        return q, torch.view_as_real(pairs_k * angles).flatten(2)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        count = k.shape[1] - 2
        q, k[:, :count] = self.rotated(q, k[:, :count])
        return q @ k.mT


def test_later_attempts_keep_the_signs_of_slices(tmp_path: Path) -> None:
    model, path = Rotated(), tmp_path / "model.onnx"
    dims = ({0: "n"}, {0: "n", 1: "m"})
    program = fxonnx.export(model, (torch.rand(2, 4, 4), torch.rand(2, 10, 4)), path, dynamic_shapes=dims)
    changes = [attempt.change for attempt in program.record.capture.attempts]
    signed = changes.index("slices between sizes of unknown sign have the signs of the example")
    later = changes[signed + 1 :]
    assert later
    assert not [change for change in later if change == changes[signed] or change.endswith("is rewritten")]
    session = onnxruntime.InferenceSession(path)
    for n, m in ((2, 10), (3, 6), (5, 14)):
        q, k = torch.rand(n, 4, 4), torch.rand(n, m, 4)
        (found, *_) = session.run(None, {"q": q.numpy(), "k": k.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(q, k.clone()))
    with pytest.raises(Exception, match=r"."):  # ONNX Runtime has no base class of its errors
        session.run(None, {"q": torch.rand(2, 4, 4).numpy(), "k": torch.rand(2, 9, 4).numpy()})
