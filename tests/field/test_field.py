"""The field: programs of public reports in every change, a sample of the models of libraries by night, and the page."""

from __future__ import annotations

import zlib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from .catalog import rows
from .judge import Result, dims_text, judge
from .page import page, totals
from .reports import ISSUES, REPORTS
from .row import Model, Row, randn
from .stored import known, pins
from .worker import SITE, prepare, run

ROOT = Path(__file__).parents[2]

_SAMPLE = 30
LIBRARIES = tuple(row for row in rows() if row.library != "reports")
SAMPLE = sorted(LIBRARIES, key=lambda row: zlib.crc32(row.key.encode()))[:_SAMPLE]


def _is_as_stored(row: Row, result: Result) -> bool:
    stored = known("fxonnx")[row.key]
    return result.verdict == "right" or (stored.verdict != "right" and result.verdict == stored.verdict)


@pytest.mark.parametrize("row", REPORTS, ids=lambda row: row.name.replace(" ", "_"))
def test_report(row: Row) -> None:
    result = judge(row)
    assert _is_as_stored(row, result), result


@pytest.mark.nightly
@pytest.mark.skipif(not SITE.exists(), reason="make field installs the libraries")
@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.key)
def test_model(row: Row) -> None:
    prepare()
    result = run(row)
    assert _is_as_stored(row, result), result


def test_each_row_has_a_result_and_a_pinned_library() -> None:
    keys = [row.key for row in rows()]
    assert len(set(keys)) == len(keys)
    assert set(known("fxonnx")) == set(keys)
    assert set(known("dynamo")) | set(known("torchscript")) <= set(keys)
    assert {row.library for row in LIBRARIES} <= set(pins())
    assert set(ISSUES) == {row.name for row in REPORTS}


def test_page_and_readme_have_the_stored_results() -> None:
    assert (ROOT / "docs/field.md").read_text() == page()
    assert totals() in " ".join((ROOT / "README.md").read_text().split())


class _Summed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) if x.shape[1] < 8 else x


def _judged(module: nn.Module, *widths: int, exporter: str = "fxonnx") -> Result:
    calls = [(randn(2, width),) for width in widths]
    return judge(Row("test", "model", lambda: Model(module, calls, ({1: "n"},))), exporter)


def test_verdicts() -> None:
    right = _judged(nn.ReLU(), 3, 5)
    assert (right.verdict, right.dims, right.nodes) == ("right", "n", 1)
    limited = _judged(_Summed(), 3, 5, 9)
    assert (limited.verdict, limited.text) == ("limited", "n <= 7")
    assert _judged(nn.Linear(3, 3), 3, 5).verdict == "invalid"


def test_the_order_of_equal_elements_is_that_of_a_stable_sort() -> None:
    class Order(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sort(x.round().long(), -1, False)[1] + x.round().argsort(-1)

    result = _judged(Order(), 2000, 3000)
    assert (result.verdict, result.text) == ("right", "with the order of a stable sort")
    assert _judged(nn.ReLU(), 3, 5).text == ""


def test_verdicts_of_errors() -> None:
    class Eigenvalues(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eig(x[:, :2])[0]

    refused = _judged(Eigenvalues(), 3, 5)
    assert (refused.verdict, refused.text[:5]) == ("refused", "FX004")


@pytest.mark.skipif(find_spec("onnxscript") is None, reason="torch.onnx needs it")
def test_values_of_the_example_are_wrong() -> None:
    class Frozen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float(x.shape[1])

    result = _judged(Frozen(), 3, 5, exporter="torchscript")
    assert (result.verdict, result.text[:35]) == ("wrong", "at (2, 5): output 0 differs by 4.0e"[:35])


def test_crash_and_time_limit_are_verdicts() -> None:
    def end() -> Model:
        raise SystemExit(3)

    def turn() -> Model:
        while True:
            pass

    assert run(Row("test", "end", end)).text == "the process ended with 3"
    assert run(Row("test", "turn", turn, seconds=1)) == Result("timeout", "more than 1 s of processor time")


def test_dims_are_named_once() -> None:
    assert dims_text(({0: "batch", 1: "n"}, None, {0: "batch"})) == "batch, n"
