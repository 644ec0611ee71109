"""Outputs in which two runs of the user's model differ, which no program can reproduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .._comparison import REFERENCE_TEXTS, OutputComparison

__all__ = ["as_runtime_outputs", "without_random_outputs"]

_FURTHER_RUNS = 2
"""Number of runs with which a run of the model is compared, to find out whether it is deterministic."""


def without_random_outputs(
    rows: Sequence[OutputComparison],
    expected: Sequence[Any],
    run: Callable[[], Sequence[Any]],
    compare: Callable[[Sequence[Any], Sequence[Any]], Sequence[OutputComparison]],
) -> list[OutputComparison]:
    """Skip the outputs that differ from ONNX Runtime's and in which further runs of the model differ as well.

    Args:
        rows: The comparison with ONNX Runtime.
        expected: The outputs of the model in that comparison.
        run: Runs the model again, without a seed of its own.
        compare: Compares expected and actual outputs.
    """
    found = list(rows)
    if all(row.status != "mismatch" for row in rows):
        return found
    for _ in range(_FURTHER_RUNS):
        again = compare(expected, as_runtime_outputs(run(), expected))
        for index, (row, own) in enumerate(zip(rows, again, strict=True)):
            if row.status == "mismatch" and own.status == "mismatch":
                text = REFERENCE_TEXTS[row.reference]
                message = f"not deterministic: two runs of {text} differ: {own.message}"
                found[index] = replace(row, status="skipped", max_abs=None, max_rel=None, message=message)
    return found


def as_runtime_outputs(values: Sequence[Any], expected: Sequence[Any]) -> list[Any]:
    """Convert outputs of PyTorch to the form in which ONNX Runtime returns them.

    Args:
        values: The outputs.
        expected: The outputs with which they are compared; lists where ONNX Runtime returns lists.
    """
    return [_as_runtime_output(value, other) for value, other in zip(values, expected, strict=True)]


def _as_runtime_output(value: Any, expected: Any) -> Any:
    is_list = isinstance(expected, list | tuple)
    if isinstance(value, list | tuple) or (is_list and isinstance(value, torch.Tensor)):
        items = list(expected) if is_list and len(expected) == len(value) else [None] * len(value)
        return [_as_runtime_output(one, other) for one, other in zip(value, items, strict=True)]
    if not isinstance(value, torch.Tensor):
        dtype = expected.dtype if isinstance(expected, torch.Tensor) and isinstance(value, float) else None
        return torch.tensor(value, dtype=dtype)
    value = value.detach().cpu().resolve_conj().resolve_neg()
    return torch.view_as_real(value) if value.is_complex() else value
