"""The attempts of a capture: the calls of torch.export, and the changes between them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.func import grad, vmap

import fxonnx
from fxonnx._capture.inputs.example_inputs import bind_example_inputs
from fxonnx._capture.plan import CapturePlan
from fxonnx._capture.shapes.spec_keys import read_dynamic_shapes
from fxonnx._capture.traced_states import UnknownStates
from fxonnx._request import Request

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
        assert all("test_attempts.py:" in one.failure for one in attempts if one.failure)
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
    plan = CapturePlan(Request(), UnknownStates(), None, shapes)
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
    assert "The capture took 7 calls of torch.export" in page.read_text()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "number", "attempts", "sizes"),
    [
        ("with_remainder", "int(x.shape[1] % 2) + 1", 2, (3, 8)),
        # A size cannot be a key: the attempt with this file fails, and the one without it captures odd sizes.
        ("with_key", "{int(x.shape[1] % 2): 1}[1]", 4, (3, 9)),
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
