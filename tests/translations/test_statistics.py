"""Medians, pairwise distances, trilinear products, and take and put by flat indices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .harness import Case, T, run

aten = torch.ops.aten

_NAN = torch.tensor([[1.0, math.nan, 3.0, 2.0], [4.0, 1.0, 2.0, 3.0], [math.nan, math.nan, math.nan, math.nan]])
_MASK = torch.tensor([True, False, True])
_PLACES = torch.tensor([1, 99, 0])


def _quantile(name: str, q: Any, dim: int | None = None, keepdim: bool = False, mode: str = "linear") -> Any:
    return lambda x: getattr(torch, name)(x, q, dim=dim, keepdim=keepdim, interpolation=mode)


CASES = (
    Case("aten.median.default", torch.median, (T(("n", 3)),)),
    Case("aten.median.default", torch.median, (_NAN,), "nan", numerics="exact"),
    Case("aten.median.default", torch.median, (torch.empty(0),), "nothing"),
    Case("aten.median.dim", lambda x: torch.median(x, 0), (T(("n", 3)),)),
    Case("aten.median.dim", lambda x: torch.median(x, 1, True), (_NAN,), "nan", numerics="exact"),
    *(
        Case(f"aten.{name}.scalar", _quantile(name, q, dim, keepdim, mode), (inputs,), f"{q} {mode}", numerics=numerics)
        for q, dim, keepdim, mode in (
            (0.3, None, False, "linear"),
            (0.9, 1, False, "linear"),
            (0.5, 0, True, "midpoint"),
            (0.4, None, True, "lower"),
            (0.4, 1, True, "higher"),
            (0.2, 0, False, "nearest"),
        )
        for name, inputs, numerics in (
            ("quantile", T(("n", 3)), "default"),
            ("quantile", _NAN, "exact"),
            ("nanquantile", T(("n", 3)), "default"),
            ("nanquantile", _NAN, "default"),
        )
    ),
    Case("aten.nanquantile.default", _quantile("nanquantile", torch.tensor([0.1, 0.7]), 1), (_NAN,), "of each row"),
    Case("aten.nanquantile.default", _quantile("nanquantile", torch.tensor([0.1]), 0, True), (T((3, "n")),), "kept"),
    Case("aten.nanquantile.default", _quantile("nanquantile", torch.tensor(0.6)), (T((3, "n")),), "of all"),
    Case("aten.nanquantile.default", lambda x, q: torch.nanquantile(x, q, 1), (_NAN, T((2,), low=0, high=1)), "input"),
    Case("aten.nanmedian.default", torch.nanmedian, (T(("n", 3)),)),
    Case("aten.nanmedian.default", torch.nanmedian, (_NAN,), "nan"),
    Case("aten.nanmedian.dim", lambda x: torch.nanmedian(x, 0), (T(("n", 3)),)),
    Case("aten.nanmedian.dim", lambda x: torch.nanmedian(x, 1)[0], (_NAN,), "nan"),
    *(
        Case("aten.cdist.default", lambda x, y, p=p: torch.cdist(x, y, p), (T((2, "n", 3)), T((2, 4, 3))), f"p={p}")
        for p in (0.0, 1.0, 2.0, 3.5, math.inf)
    ),
    Case(
        "aten._cdist_forward.default", lambda x, y: aten._cdist_forward(x, y, 2.0, None), (T((2, "n", 3)), T((2, 4, 3)))
    ),
    Case("aten.pdist.default", lambda x: F.pdist(x, 3.0), (T((4, "n")),)),
    Case("aten._pdist_forward.default", lambda x: aten._pdist_forward(x, 2.0), (T((4, 3)),)),
    Case(
        "aten._trilinear.default",
        lambda a, b, c: aten._trilinear(a, b, c, [1, 3], [0], [1, 2], [2, 3]),
        (T(("n", 4)), T((3, 4, 5)), T(("n", 5))),
    ),
    Case(
        "aten.addbmm.default",
        lambda s, a, b: torch.addbmm(s, a, b, beta=0.5, alpha=2),
        (T((2, 4)), T(("n", 2, 3)), T(("n", 3, 4))),
    ),
    Case("aten.put.default", lambda x, v: aten.put(x, torch.tensor([[1, -1]]), v), (T(("n", 3)), T((1, 2)))),
    Case(
        "aten.put.default",
        lambda x, v: aten.put(x, torch.tensor([1, 1]), v, accumulate=True),
        (T((2, 3)), T((2,))),
        "accumulate",
    ),
    Case(
        "aten._unsafe_masked_index.default",
        lambda x: aten._unsafe_masked_index(x, _MASK, [_PLACES], 7.0),
        (T((3,)),),
    ),
    Case(
        "aten._unsafe_masked_index_put_accumulate.default",
        lambda x, v: aten._unsafe_masked_index_put_accumulate(x, _MASK, [_PLACES], v),
        (T((3,)), T((3,))),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
