"""A program that torch.onnx exports right, in either of its ways, is right in fxonnx; the verdicts of torch.onnx are stored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .catalog import programs
from .judge import KINDS, Verdict, judge
from .program import Program, module
from .stored import known_verdicts, open_programs
from .worker import Worker

_PROGRAMS = 3000
"""The programs that nightly runs; ``python -m tests.superset`` runs the others too."""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


@pytest.mark.parametrize("program", [pytest.param(each, id=each.name) for each in programs()[:_PROGRAMS]])
def test_program(program: Program, worker: Worker) -> None:
    kinds = [found.get(program.name) for found in known_verdicts().values()]
    verdict = worker.judge(program, "fxonnx")
    is_open = program.name in open_programs()
    if verdict.kind == "right":
        assert not is_open, "right now: python -m tests.superset --open removes it from open.txt"
    elif "right" in kinds and not is_open:
        pytest.fail(f"{verdict.kind}, and right in torch.onnx: {verdict.text}\n{program.text}")


def test_names_are_distinct_and_the_same_in_every_process() -> None:
    names = [program.name for program in programs()]
    assert len(set(names)) == len(names) >= _PROGRAMS
    assert Program.from_json(programs()[7].to_json()) == programs()[7]


def test_stored_verdicts_are_of_programs_that_exist() -> None:
    names = {program.name for program in programs()}
    stored = known_verdicts()
    assert set(stored["torchscript"]) <= names
    assert set(stored["dynamo"]) <= set(stored["torchscript"])
    assert set(open_programs()) <= names


def _program(
    expression: str, calls: tuple[str, ...] = ("(f(2, 3),)", "(f(2, 5),)"), dynamic: str = "({1: 'n'},)"
) -> Program:
    return Program("test", module("x", [f"return {expression}"]), calls, dynamic)


def _kind(expression: str, dynamic: str = "({1: 'n'},)") -> Verdict:
    return judge(_program(expression, dynamic=dynamic), "fxonnx")


def test_kinds_of_verdicts() -> None:
    assert _kind("x * 2").kind == "right"
    assert _kind("x * 2", "None").kind == "limited"
    assert _kind("x * x.no_such_attribute").kind == "invalid"
    refused = _kind("torch.empty(0).set_(x.untyped_storage()).sort()[0].apply_(abs)")
    assert (refused.kind, "Error" in refused.text) == ("refused", True)
    assert set(KINDS) == {"right", "limited", "wrong", "refused", "not loaded", "timeout", "crash", "invalid"}


@pytest.mark.parametrize(
    ("body", "exporter", "kind"),
    [
        pytest.param(
            "F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), mode='bicubic', align_corners=False)",
            "fxonnx",
            "right",
            id="the file has the result without torch's rounding",
        ),
        pytest.param("x.float() * float(x.shape[0])", "torchscript", "wrong", id="neither"),
    ],
)
def test_rounding_within_a_kernel_is_not_a_finding(body: str, exporter: str, kind: str) -> None:
    source = module("x", ["x = x.bfloat16()", f"return ({body}).float()"])
    half = source.replace("return Model()", "return Model().to(torch.bfloat16)")
    calls = tuple(f"(f({size}, 3, 8, 8),)" for size in (2, 3, 1))
    program = Program("test", half, calls, "({0: 'b'},)")
    assert judge(program, exporter).kind == kind


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_torch_exporters_are_judged_in_the_same_way(exporter: str) -> None:
    assert judge(_program("x * 2"), exporter).kind == "right"


def test_value_that_is_frozen_is_wrong() -> None:
    found = judge(_program("x * float(x.shape[1])"), "torchscript")
    assert (found.kind, found.text[:9]) == ("wrong", "at call 1")


def test_crash_is_a_verdict(worker: Worker) -> None:
    source = "import os, signal\n\n\ndef build():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    assert worker.judge(Program("test", source, ("()",)), "fxonnx").kind == "crash"
    assert worker.judge(_program("x * 2"), "fxonnx").kind == "right"
