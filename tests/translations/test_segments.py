"""Reductions of consecutive segments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .harness import Case, T, run

_NAME = "aten.segment_reduce.default"
LENGTHS = torch.tensor([2, 0, 3])


def _rows() -> Iterator[Case]:
    for reduce in ("sum", "mean", "prod", "max", "min"):
        for initial in (None, 0.5):

            def reduced(x, lengths, reduce=reduce, initial=initial):
                return torch.segment_reduce(x, reduce, lengths=lengths, initial=initial)

            what = f"{reduce}{'' if initial is None else ' initial'}"
            yield Case(_NAME, reduced, (T((5, "n")), LENGTHS), what)
            yield Case(_NAME, reduced, (T((5,), torch.bfloat16), LENGTHS), f"{what} bfloat16")


CASES = (
    *_rows(),
    Case(
        _NAME,
        lambda x, lengths: torch.segment_reduce(x, "sum", lengths=lengths, axis=1, unsafe=True),
        (T((2, 5, "n")), torch.tensor([[2, 3], [1, 4]])),
        "second axis",
    ),
    Case(
        _NAME,
        lambda x, offsets: torch.segment_reduce(x, "max", offsets=offsets),
        (T((5, 3), torch.float64), torch.tensor([0, 2, 2, 5])),
        "offsets",
        opset=11,
    ),
    Case(
        _NAME,
        lambda x, lengths: torch.segment_reduce(x, "max", lengths=lengths),
        (torch.tensor([1.0, torch.nan, 2, -torch.inf, 5]), LENGTHS),
        "NaN",
        numerics="exact",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_segments(case: Case) -> None:
    run(case)
