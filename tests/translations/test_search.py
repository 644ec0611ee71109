"""searchsorted, histograms and unique."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

_EDGES = torch.tensor([-1.0, 0.0, 0.0, 1.5])
_VALUES = torch.tensor([[-2.0, -1.0, 0.0], [1.5, 9.0, math.nan]])
_RUNS = torch.tensor([1, 1, 2, 2, 2, 1, 3])


def _flat(histogram: Any) -> tuple[torch.Tensor, ...]:
    return histogram.hist, *histogram.bin_edges


CASES = (
    Case("aten.searchsorted.Tensor", torch.searchsorted, (_EDGES, T(("n", 3)))),
    Case(
        "aten.searchsorted.Tensor",
        lambda e, v: torch.searchsorted(e, v, side="right"),
        (_EDGES, _VALUES),
        "right",
        numerics="exact",
    ),
    Case(
        "aten.searchsorted.Tensor",
        lambda e, v: torch.searchsorted(e, v, out_int32=True, sorter=torch.tensor([[1, 0], [0, 1]])),
        (torch.tensor([[2.0, 1.0], [1.0, 2.0]]), T((2, 3))),
        "sorter",
    ),
    Case("aten.searchsorted.Scalar", lambda e: torch.searchsorted(e, 0.0), (_EDGES,)),
    Case("aten.bucketize.Tensor", lambda v: torch.bucketize(v, _EDGES, right=True), (T(("n", 3)),)),
    Case("aten.bucketize.Scalar", lambda e: torch.bucketize(0.5, e), (_EDGES,)),
    *(
        Case("aten.histogram.bin_ct", function, inputs, name)
        for name, function, inputs in (
            ("range of the values", lambda x: torch.histogram(x, 5), (T(("n", 3)),)),
            ("range", lambda x: torch.histogram(x, 5, range=(-1.0, 1.0)), (T(("n", 3)),)),
            ("density", lambda x, w: torch.histogram(x, 4, weight=w, density=True), (T(("n", 3)), T(("n", 3), low=0))),
            ("one value", lambda x: torch.histogram(x, 4), (torch.ones(3),)),
            ("empty range", lambda x: torch.histogram(x, 4, range=(1.0, 1.0)), (torch.tensor([0.6, 1.0, 1.3]),)),
            ("no values", lambda x: torch.histogram(x, 4), (torch.ones(0),)),
            ("on the edges", lambda x: torch.histogram(x, 8), (torch.tensor([0.0, 1, 2, 3, 7, 8, 8, 4]),)),
            ("float64", lambda x: torch.histogram(x, 7), (T(("n", 3), torch.float64),)),
        )
    ),
    Case("aten.histogram.bins_tensor", torch.histogram, (T(("n", 3)), torch.tensor([-1.0, 0.0, 0.25, 1.5]))),
    *(
        Case("aten.histogramdd.default", function, inputs, name)
        for name, function, inputs in (
            ("range of the values", lambda x: _flat(torch.histogramdd(x, [3, 2])), (T(("n", 2)),)),
            ("range", lambda x: _flat(torch.histogramdd(x, [3, 2], [-1.0, 1, -0.5, 2])), (T(("n", 2)),)),
            ("one coordinate", lambda x: _flat(torch.histogramdd(x, [4])), (T(("n", 3, 1)),)),
            ("no points", lambda x: _flat(torch.histogramdd(x, [3, 2])), (torch.ones(0, 2),)),
            ("on the edges", lambda x: _flat(torch.histogramdd(x, [2, 4])), (torch.arange(5.0)[:, None].expand(5, 2),)),
            (
                "density",
                lambda x, w: _flat(torch.histogramdd(x, [3, 2, 2], weight=w, density=True)),
                (T(("n", 3), torch.float64), T(("n",), torch.float64, low=0)),
            ),
            (
                "NaN, infinity and an empty range",
                lambda x: _flat(torch.histogramdd(x, [3, 2], [1.0, 1, -0.5, 2])),
                (torch.tensor([[1.0, math.nan], [1.2, 0.0], [math.inf, 1.0], [1.5, 2.0], [0.5, -0.5]]),),
            ),
        )
    ),
    Case("aten.histogramdd.int_bins", lambda x: _flat(torch.histogramdd(x, 3)), (T(("n", 2)),)),
    Case(
        "aten.histogramdd.TensorList_bins",
        lambda x, a, b, w: _flat(torch.histogramdd(x, [a, b], weight=w)),
        (T(("n", 2)), torch.tensor([-1.0, 0.0, 0.25, 1.5]), torch.tensor([-1.5, 1.0, 1.5]), T(("n",))),
    ),
    Case("aten._histogramdd_bin_edges.default", lambda x: aten._histogramdd_bin_edges(x, [3, 2]), (T(("n", 2)),)),
    Case("aten._histogramdd_from_bin_cts.default", lambda x: aten._histogramdd_from_bin_cts(x, [3, 2]), (T(("n", 2)),)),
    Case(
        "aten._histogramdd_from_bin_tensors.default",
        lambda x, a: aten._histogramdd_from_bin_tensors(x, [a, a]),
        (T(("n", 2)), torch.tensor([-1.0, 0.0, 0.25, 1.5])),
    ),
    Case("aten.histc.default", lambda x: torch.histc(x, 5, -1, 1), (T(("n", 3)),)),
    Case("aten.histc.default", lambda x: torch.histc(x, 4), (T(("n", 3)),), "range of the values"),
    Case("aten.histc.default", lambda x: torch.histc(x, 4), (torch.ones(3),), "one value"),
    Case("aten.bincount.default", lambda x: torch.bincount(x, minlength=4), (T(("n",), torch.int64, 0, 7),)),
    Case(
        "aten.bincount.default", lambda x, w: torch.bincount(x, w), (T(("n",), torch.int64, 0, 7), T(("n",))), "weights"
    ),
    Case("aten._unique2.default", lambda x: torch.unique(x), (T(("n", 3), torch.int64),)),
    Case(
        "aten._unique2.default",
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        (T(("n", 3), torch.int32),),
        "all of it",
    ),
    Case(
        "aten.unique_dim.default",
        lambda x: torch.unique(x, dim=1, return_inverse=True, return_counts=True),
        (T((2, "n"), torch.int64, 0, 2),),
    ),
    Case("aten.unique_consecutive.default", lambda x: torch.unique_consecutive(x, True, True), (_RUNS,)),
    Case("aten.unique_consecutive.default", lambda x: torch.unique_consecutive(x), (T(("n",), torch.bool),), "bool"),
    Case(
        "aten.unique_consecutive.default",
        lambda x: torch.unique_consecutive(x, True, True, dim=1),
        (torch.stack([_RUNS, _RUNS]),),
        "dim",
    ),
    Case("aten.nonzero_static.default", lambda x: torch.nonzero_static(x, size=5), (T((2, 2), torch.int64, 0, 2),)),
    Case("aten.mode.default", lambda x: torch.mode(x, 1), (T(("n", 5), torch.int64, 0, 3),)),
    Case("aten.mode.default", lambda x: torch.mode(x, 0, True), (T((4, 2)),), "keepdim"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
