"""Losses that have a translation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .harness import Case, T, run

LABELS = torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2], [-1, 0, 1, 2], [3, 2, 1, 0]])
CASES = tuple(
    Case(
        "aten.multilabel_margin_loss.default",
        lambda x, t, r=reduction: F.multilabel_margin_loss(x, t, reduction=r),
        (inputs, labels),
        f"{reduction}, {labels.dim()}d",
    )
    for reduction in ("none", "mean", "sum")
    for inputs, labels in ((T((4, 4)), LABELS), (T((4,)), LABELS[0]))
    # For one sample without a reduction the shape of torch's fake tensor differs from its kernel's.
    if (reduction, labels.dim()) != ("none", 1)
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses(case: Case) -> None:
    run(case)
