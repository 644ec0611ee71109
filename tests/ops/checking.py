"""Run all samples of one entry in one dtype."""

from __future__ import annotations

import torch
from torch.testing._internal.opinfo.core import OpInfo

from .deviations import UNDEFINED, tolerance
from .opinfo import Problem, problems
from .running import Outcome, run, run_dynamic

__all__ = ["ALL_SAMPLES", "check", "dtype_name"]

ALL_SAMPLES = 8
"""Number of samples per entry and dtype in the complete sweep."""


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def check(entry: OpInfo, dtype: torch.dtype, samples: int, *, dynamic: bool, opset: int | None = None) -> list[Outcome]:
    """Run an entry of the database.

    Args:
        entry: The entry.
        dtype: One of those it supports.
        samples: How many samples to run.
        dynamic: Whether to run the first sample of some size once more with all its sizes dynamic, and at the sizes of
            the other samples that are the same program.
        opset: Target opset.
    """
    found = list(problems(entry, dtype, max(samples, ALL_SAMPLES if dynamic else 0)))
    undefined, allowed = entry.full_name in UNDEFINED, tolerance(entry.full_name, dtype_name(dtype))
    outcomes = [run(problem, undefined=undefined, tolerance=allowed, opset=opset) for problem in found[:samples]]
    sized = next(filter(_has_sizes, found), None)
    if dynamic and sized is not None:
        others = [problem for problem in found if problem is not sized]
        outcome = run_dynamic(sized, others, undefined=undefined, tolerance=allowed)
        outcomes.append(Outcome(f"{entry.full_name}-{dtype_name(dtype)}-dynamic", outcome.status, outcome.detail))
    return outcomes


def _has_sizes(problem: Problem) -> bool:
    return any(size >= 2 for tensor in problem.inputs for size in tensor.shape)
