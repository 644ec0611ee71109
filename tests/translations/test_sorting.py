"""Sorting, topk, argmax and order statistics."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

NAN = torch.tensor([[1.0, math.nan, 3.0, 2.0], [-math.inf, 0.0, 5.0, math.nan], [4.0, 3.0, 2.0, 1.0]])
FLAGS = T(("n", 5), torch.bool)

CASES = (
    Case("aten.topk.default", lambda a: a.topk(2), (T(("n", 5)),)),
    Case(
        "aten.topk.default", lambda a: a.topk(2, 0, largest=False), (T(("n", 5), torch.float64),), "smallest", opset=11
    ),
    Case("aten.topk.default", lambda a: a.topk(a.shape[1] // 2), (T((2, "h")),), "symbolic"),
    Case("aten.topk.default", lambda a: torch.arange(9).roll(4).topk(3).values + a, (T((3,), torch.int64),), "int64"),
    Case("aten.topk.default", lambda a: (NAN + 0 * a).topk(2), (T((3, 4)),), "NaN", numerics="exact"),
    Case("aten.topk.default", lambda a: a.sum().topk(1), (T((3, 4)),), "number"),
    Case("aten.sort.default", lambda a: a.sort(), (T(("n", "m")),)),
    Case("aten.sort.default", lambda a: a.sort(0, descending=True), (T(("n", 5)),), "descending"),
    Case("aten.sort.default", lambda a: (NAN + 0 * a).sort(descending=True), (T((3, 4)),), "NaN", numerics="exact"),
    Case("aten.sort.stable", lambda a: a.sort(stable=True, dim=0), (T(("n", 5), torch.int64, 0, 3),), "ties"),
    Case("aten.sort.stable", lambda a: a.sort(stable=True), (FLAGS,), "bool"),
    Case("aten.sort.stable", lambda a: a.sort(stable=True), (T(("n", 5), torch.int16, 0, 3),), "int16"),
    Case("aten.sort.stable", lambda a: a.sort(stable=True), (T(("n", 5), torch.float16),), "float16"),
    Case("aten.argsort.default", lambda a: a.argsort(-1, True), (T(("n", 5)),)),
    Case("aten.argsort.stable", lambda a: a.argsort(dim=0, stable=True), (T(("n", 5), torch.uint8, 0, 3),)),
    Case("aten.msort.default", lambda a: a.msort(), (T(("n", 5)),)),
    Case("aten.kthvalue.default", lambda a: a.kthvalue(2), (T(("n", 5)),)),
    Case("aten.kthvalue.default", lambda a: a.kthvalue(3, 0, keepdim=True), (T((4, "m")),), "keepdim"),
    Case("aten.argmax.default", lambda a: a.argmax(-1), (T(("n", "m")),), ops=("ArgMax",)),
    Case("aten.argmax.default", lambda a: a.argmax(), (T(("n", "m")),), "flat"),
    Case("aten.argmax.default", lambda a: a.argmax(None, True), (T(("n", "m")),), "flat keepdim"),
    Case("aten.argmax.default", lambda a: (NAN + 0 * a).argmax(1), (T((3, 4)),), "NaN", numerics="exact"),
    Case("aten.argmax.default", lambda a: a.argmax(0, True), (T(("n", 5), torch.int16, 0, 3),), "ties", opset=11),
    Case("aten.argmax.default", lambda a: a.sum().argmax(), (T((3, 4)),), "number"),
    Case("aten.argmin.default", lambda a: a.argmin(1), (T(("n", "m")),), ops=("ArgMin",)),
    Case("aten.argmax.default", lambda a: a.argmax(-1), (T(("n", 5), torch.int64),), "int64", ops=("ArgMax",)),
    Case("aten.argmin.default", lambda a: (NAN + 0 * a).argmin(0), (T((3, 4)),), "NaN", numerics="exact"),
    Case("aten.max.dim", lambda a: a.max(1), (T(("n", "m")),)),
    Case(
        "aten.max.dim",
        lambda a: a.max(-1)[1],
        (T(("n", "m")),),
        "position",
        ops=("ArgMax",),
    ),
    Case("aten.max.dim", lambda a: (NAN + 0 * a).max(1, keepdim=True), (T((3, 4)),), "NaN", numerics="exact"),
    Case("aten.max.dim", lambda a: a.max(0), (FLAGS,), "bool"),
    Case("aten.min.dim", lambda a: a.min(0), (T(("n", 5), torch.int64, 0, 3),)),
    Case("aten.min.dim", lambda a: a.sum().min(0), (T(("n", 5)),), "number"),
    Case("aten.median.dim", lambda a: torch.stack([a, a + 10, a + 5]).median(0), (T((4,), torch.int64),)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sorting(case: Case) -> None:
    run(case)
