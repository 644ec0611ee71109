"""The operators of transformers."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from ..models.torchvision_shim import import_torchvision
from .harness import Case, T, run

import_torchvision()
import_module("transformers.integrations.moe")

ops = torch.ops.transformers
WEIGHT = T((3, 4, 5))


def _ends(*ends: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(ends, dtype=dtype)


_NAME = "transformers.grouped_mm_fallback.default"
CASES = (
    Case(_NAME, ops.grouped_mm_fallback, (T((7, 4)), WEIGHT, _ends(2, 6, 7)), opset=13),
    Case(_NAME, ops.grouped_mm_fallback, (T(("h", 4)), WEIGHT, _ends(3, 3, 5)), "an expert without rows, and a rest"),
    Case(_NAME, ops.grouped_mm_fallback, (T((6, 4)), WEIGHT, _ends(0, 0, 0, dtype=torch.int64)), "nothing but a rest"),
    Case(
        _NAME,
        ops.grouped_mm_fallback,
        (T((6, 4), torch.bfloat16), T((3, 4, 5), torch.bfloat16), _ends(2, 3, 6)),
        "bfloat16",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_transformers(case: Case) -> None:
    run(case)
