"""Grouped matrix products."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

BF16 = torch.bfloat16
ENDS, FEWER = torch.tensor([8, 16], dtype=torch.int32), torch.tensor([0, 8], dtype=torch.int32)
GROUPED, MATRIX, MATRICES = "aten._grouped_mm.default", T((16, 8), BF16), T((2, 8, 16), BF16)

CASES = (
    Case(GROUPED, lambda a, b, o: torch._grouped_mm(a, b, offs=o), (MATRIX, MATRICES, ENDS), "rows"),
    Case(GROUPED, lambda a, b, o: torch._grouped_mm(a, b, offs=o)[:8], (MATRIX, MATRICES, FEWER), "fewer rows"),
    Case(
        GROUPED,
        lambda a, b, o: torch._grouped_mm(a, b, offs=torch.cat([o, o + 2]))[:4],
        (T(("n", 8), BF16), MATRICES, torch.tensor([2], dtype=torch.int32)),
        "dynamic rows",
    ),
    Case(
        GROUPED,
        lambda a, b, o: torch._grouped_mm(a, b, offs=o),
        (T((2, 8, 8), BF16), T((8, 16), BF16), ENDS),
        "columns",
    ),
    Case(GROUPED, lambda a, b, o: torch._grouped_mm(a, b, offs=o), (T((8, 16), BF16), MATRIX, ENDS), "inner"),
    Case(GROUPED, torch._grouped_mm, (T((2, 8, 8), BF16), MATRICES), "batches"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_grouped_matmul(case: Case) -> None:
    run(case)
