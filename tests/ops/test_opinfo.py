"""End-to-end tests of torch's operator database; ``python -m benchmarks.op_coverage`` is the complete sweep."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import onnxruntime
import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo

from .checking import ALL_SAMPLES, check, dtype_name
from .deviations import UNDEFINED, expected_failure
from .limits import FAILURES, LOOSER
from .opinfo import DTYPES, entries, problems
from .running import is_random, run

# The element types that kernels, casts and promotion differ for most; the others are the same translations.
FREQUENT = frozenset({torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64})

# Number of samples per entry and dtype; the complete sweep runs more of them.
SAMPLES = {torch.float32: 8, torch.int64: 4, torch.bool: 4, torch.complex64: 4}

OPSETS = (11, 13, 17, 18, 20, 23, 26)


# Entries that were removed from torch's database, and the first version without them.
REMOVED = {"qr": "2.14"}

# Entries that older versions of torch's database lack, and the first version with them.
ADDED = {"linalg.polar": "2.14"}


class Deviates(AssertionError):
    """Samples that fail as expected by the table of limits."""


def _rows() -> Iterator[object]:
    for entry in entries():
        for dtype in DTYPES:
            if dtype not in entry.supported_dtypes("cpu"):
                continue
            failure = expected_failure(entry.full_name, dtype_name(dtype))
            marks = [] if dtype in FREQUENT else [pytest.mark.nightly]
            if failure is not None:
                reason = f"{failure.owner}: {failure.reason}"
                marks.append(pytest.mark.xfail(strict=True, raises=Deviates, reason=reason))
            yield pytest.param(entry, dtype, id=f"{entry.full_name}-{dtype_name(dtype)}", marks=marks)


@pytest.mark.parametrize(("entry", "dtype"), _rows())
def test_operator(entry: OpInfo, dtype: torch.dtype) -> None:
    failure = expected_failure(entry.full_name, dtype_name(dtype))
    known = failure is not None
    samples = ALL_SAMPLES if known else SAMPLES.get(dtype, 2)
    outcomes = check(entry, dtype, samples, dynamic=known or dtype == torch.float32)
    wrong = [outcome for outcome in outcomes if outcome.status not in ("ok", "eager")]
    text = "\n".join(f"{outcome.name}: {outcome.status}: {outcome.detail}" for outcome in wrong)
    if failure is not None and wrong and all(outcome.status in failure.statuses for outcome in wrong):
        raise Deviates(text)
    assert not wrong, text


def _opset_rows() -> Iterator[object]:
    """Each entry at one of the opsets, in turn, with one sample."""
    usable = [entry for entry in entries() if torch.float32 in entry.supported_dtypes("cpu")]
    for number, entry in enumerate(usable):
        if expected_failure(entry.full_name, "float32") is None:
            opset = OPSETS[number % len(OPSETS)]
            yield pytest.param(entry, opset, id=f"{entry.full_name}-opset{opset}")


@pytest.mark.parametrize(("entry", "opset"), _opset_rows())
def test_opset(entry: OpInfo, opset: int) -> None:
    outcomes = check(entry, torch.float32, 1, dynamic=False, opset=opset)
    # The error names the opset from which on the call is supported.
    says = re.compile(r"is supported from opset \d+")
    wrong = [
        outcome for outcome in outcomes if outcome.status not in ("ok", "eager") and not says.search(outcome.detail)
    ]
    assert not wrong, wrong


def test_the_entries_of_the_tables_exist() -> None:
    known = {entry.full_name for entry in entries()}
    named = UNDEFINED.union(*(row.entries for row in FAILURES), *(row.entries for row in LOOSER))
    gone = {entry for entry, version in REMOVED.items() if torch.__version__ >= version}
    missing = {entry for entry, version in ADDED.items() if torch.__version__ < version}
    assert named - known == gone | missing


def test_all_expected_wrong_results_are_due_to_onnx_runtime() -> None:
    wrong = {"count", "shape", "dtype", "value"}
    rows = [row for row in FAILURES if row.statuses & wrong and row.owner != "ort"]
    assert [row.reason for row in rows] == []


def _entry(name: str) -> OpInfo:
    return next(entry for entry in entries() if entry.full_name == name)


def test_random_numbers_of_onnx_runtime_are_the_same_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem, *_) = problems(_entry("rand_like"), torch.float32, 8)
    found: list[torch.Tensor] = []
    monkeypatch.setattr("tests.ops.running._difference", lambda ours, *others: found.append(ours) or "")
    for seed in (1, 2):
        onnxruntime.set_seed(seed)
        run(problem)
    assert torch.equal(*found)


def test_only_random_operators_may_differ_from_run_to_run() -> None:
    for name, expected in (("rand_like", True), ("empty_like", False), ("nn.functional.relu", False)):
        problem = list(problems(_entry(name), torch.float32, 8))[1]
        assert is_random(problem, 0, torch.tensor(math.pi)) == expected, name
