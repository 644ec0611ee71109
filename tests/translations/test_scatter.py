"""Scatter, index_put, masked writes and writes to views."""

from __future__ import annotations

import math

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

INDEX = torch.tensor([2, 0, -1])
OTHER = torch.tensor([1, -2, 0])
ROWS = torch.tensor([[0, 2, 0], [1, 1, 2]])
TWICE = torch.tensor([0, 2, 0])
MASK = torch.tensor([True, False, True])
NAN = torch.tensor([[math.nan, 1.0, 2.0], [3.0, math.nan, 5.0], [1.0, 2.0, -math.inf]])


def put(
    a: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    return aten.index_put(a, indices, values, accumulate)


CASES = (
    # one position per element
    Case("aten.scatter.src", lambda a, s: a.scatter(0, ROWS, s), (T((3, 4)), T((2, 3))), ops=("ScatterElements",)),
    Case(
        "aten.scatter.src",
        lambda a, s: a.scatter(-1, ROWS[:, :2], s),
        (T((3, 4)), T((2, 3))),
        "larger source",
        opset=11,
    ),
    Case("aten.scatter.src", lambda a: a.sum().scatter(0, torch.tensor([0]), a), (T((1,)),), "number"),
    Case("aten.scatter.value", lambda a: a.scatter(0, ROWS, 2.5), (T((3, "h")),)),
    Case(
        "aten.scatter.value",
        lambda a, i: a.scatter(1, i, True),
        (T(("n", 3), torch.bool), T(("n", 1), torch.int64, 0, 3)),
        "bool",
    ),
    Case(
        "aten.scatter.reduce",
        lambda a, s: aten.scatter.reduce(a, 0, ROWS, s, reduce="multiply"),
        (T((3, 4)), T((2, 3))),
    ),
    Case(
        "aten.scatter.reduce",
        lambda a, s: aten.scatter.reduce(a, 0, ROWS, s, reduce="add"),
        (T((3, 4), torch.float16), T((2, 3), torch.float16)),
        "float16",
    ),
    Case("aten.scatter.value_reduce", lambda a: aten.scatter.value_reduce(a, 0, ROWS, 3, reduce="add"), (T((3, 4)),)),
    Case("aten.scatter_add.default", lambda a, s: a.scatter_add(0, ROWS, s), (T((3, "h")), T((2, 3))), opset=16),
    Case(
        "aten.scatter_add.default",
        lambda a, i: a.new_zeros(9).scatter_add(0, i, a),
        (T(("n",)), T(("n",), torch.int64, 0, 9)),
        "dynamic",
    ),
    *(
        Case(
            "aten.scatter_reduce.two",
            lambda a, s, r=r, i=i: a.scatter_reduce(0, ROWS, s, r, include_self=i),
            (T((3, 4)), T((2, 3))),
            f"{r} {i}",
        )
        for r in ("sum", "prod", "mean", "amax", "amin")
        for i in (True, False)
    ),
    *(
        Case(
            "aten.scatter_reduce.two",
            lambda a, s, r=r: a.scatter_reduce(0, ROWS, s, r, include_self=False),
            (T((3, 4), torch.int64, -9, 9), T((2, 3), torch.int64, -9, 9)),
            f"{r} int64",
        )
        for r in ("mean", "amax")
    ),
    Case(
        "aten.scatter_reduce.two",
        lambda a: a.scatter_reduce(0, ROWS, NAN, "amax"),
        (T((3, 4)),),
        "NaN in source",
        numerics="exact",
    ),
    Case(
        "aten.scatter_reduce.two",
        lambda a: (NAN + 0 * a).scatter_reduce(0, ROWS, a, "amin"),
        (T((3, 3)),),
        "NaN in self",
        numerics="exact",
    ),
    # slices along one axis
    Case("aten.index_copy.default", lambda a, s: a.index_copy(0, INDEX.abs(), s), (T((3, "n")), T((3, "n"))), opset=13),
    Case(
        "aten.index_copy.default", lambda a, s: a.index_copy(-1, INDEX.abs(), s), (T(("n", 4)), T(("n", 3))), "behind"
    ),
    Case("aten.index_add.default", lambda a, s: a.index_add(0, TWICE, s, alpha=2), (T((3, "n")), T((3, "n")))),
    Case("aten.index_add.default", lambda a, s: a.index_add(1, TWICE, s), (T(("n", 3, 2)), T(("n", 3, 2))), "behind"),
    Case("aten.index_fill.int_Scalar", lambda a: a.index_fill(1, TWICE, -1), (T(("n", 3)),)),
    Case("aten.index_fill.int_Tensor", lambda a, v: a.index_fill(0, TWICE, v.sum()), (T((3, "n")), T((2,)))),
    Case("aten.index_reduce.default", lambda a, s: a.index_reduce(1, TWICE, s, "amax"), (T(("n", 3)), T(("n", 3)))),
    Case(
        "aten.index_reduce.default",
        lambda a, s: a.index_reduce(0, TWICE, s, "mean", include_self=False),
        (T((3, 4)), T((3, 4))),
        "mean",
    ),
    # index_put and masked writes
    Case(
        "aten.index_put.default",
        lambda a, v: put(a, [INDEX + 0], v),
        (T((4, "n")), T((3, "n"))),
        ops=("ScatterND",),
        opset=11,
    ),
    Case("aten.index_put.default", lambda a, v: put(a, [INDEX], v), (T((4, "n")), T(())), "number"),
    Case(
        "aten.index_put.default",
        lambda a, v: put(a, [None, None, INDEX + 0], v),
        (T((2, "n", 4, 3)), T((2, "n", 3, 3))),
        "cache",
        ops=("Expand", "ScatterElements"),
    ),
    Case(
        "aten.index_put.default",
        lambda a, i, v: put(a, [None, None, i], v),
        (T(("n", 2, 9, 3)), T(("m",), torch.int64, 0, 9), T(("n", 2, "m", 3))),
        "dynamic cache",
    ),
    Case("aten.index_put.default", lambda a, v: put(a, [None, INDEX], v), (T(("n", 4, 2)), T((3, 1))), "expanded"),
    Case(
        "aten.index_put.default",
        lambda a, v: put(a, [INDEX + 0, OTHER + 0], v),
        (T((3, 3, "n")), T((3, "n"))),
        "two",
        ops=("ScatterND",),
    ),
    Case(
        "aten.index_put.default",
        lambda a, v: put(a, [None, INDEX, OTHER], v),
        (T(("n", 3, 3, "m")), T(("n", 3, "m"))),
        "neighbours",
    ),
    Case(
        "aten.index_put.default", lambda a, v: put(a, [INDEX, None, OTHER], v), (T((3, "n", 3)), T((3, "n"))), "apart"
    ),
    Case("aten.index_put.default", lambda a, v: put(a, [INDEX[:, None], OTHER], v), (T((3, 4, "n")), T((1,))), "outer"),
    Case(
        "aten.index_put.default",
        lambda a, i, v: put(a, [i, INDEX[:1]], v),
        (T((4, 3)), T(("m",), torch.int64, 0, 4), T(("m",))),
        "broadcast",
    ),
    Case(
        "aten.index_put.default",
        lambda a, v: put(a, [INDEX[:1], None, OTHER[:1]], v),
        (T((3, "n", 3)), T(("n",))),
        "one",
    ),
    Case("aten.index_put.default", lambda a, v: put(a, [TWICE], v, True), (T((3, "n")), T((3, "n"))), "add"),
    Case(
        "aten.index_put.default",
        lambda a, v: put(a, [None, TWICE], v, True),
        (T(("n", 3), torch.float16), T(("n", 3), torch.float16)),
        "add behind",
    ),
    Case(
        "aten.index_put.default",
        lambda a, v: put(a, [a > 0], v),
        (T(("n", "m")), T(())),
        "mask",
        ops=("Greater", "Where"),
    ),
    Case("aten.index_put.default", lambda a, v: put(a, [a > 0], v, True), (T(("n", "m")), T((1,))), "mask, add"),
    Case(
        "aten.index_put.default",
        lambda a, b, v: put(b, [a > 0], v),
        (T(("n", 3)), T(("n", 3, 2)), T((2,))),
        "mask, rows",
    ),
    Case(
        "aten.index_put.default",
        lambda a, b, v: put(b, [None, a > 0], v),
        (T(("n", 3)), T((2, "n", 3)), T((2, 1))),
        "mask behind",
    ),
    Case(
        "aten.index_put.default",
        lambda a, b: put(b, [a > 0], b[a > 0] * 2),
        (T(("n", 3)), T(("n", 3, 2))),
        "mask, values",
    ),
    Case(
        "aten.index_put.default",
        lambda a, b: put(b, [a > 0], b[a > 0] * 2),
        (T(("n",)), T(("n", 3, 2))),
        "vector mask, values",
    ),
    Case(
        "aten.index_put.default",
        lambda a, b: put(b, [None, a > 0], b[:, a > 0] * 2),
        (T(("n",)), T((2, "n", 3))),
        "vector mask at the end, values",
    ),
    Case(
        "aten.index_put.default",
        lambda a, b: put(b, [None, a > 0], b[:1, a > 0] * 2),
        (T(("n",)), T((2, "n", 3))),
        "vector mask at the end, expanded",
    ),
    Case(
        "aten.index_put.default",
        lambda a, b: put(b, [None, a > 0], b[:1, a > 0] * 2),
        (T(("n", 3)), T((2, "n", 3, 2))),
        "mask at the end, expanded",
    ),
    Case(
        "aten.index_put.default",
        lambda a: put(a, [a > 0], torch.tensor(True)),
        (T((3, "n"), torch.int64, -2, 2),),
        "casts",
    ),
    Case(
        "aten.index_put.default", lambda a, v: put(a, [MASK], v), (T((3, "n"), torch.bool), T((), torch.bool)), "bool"
    ),
    Case(
        "aten._unsafe_index_put.default", lambda a, v: aten._unsafe_index_put(a, [INDEX], v), (T((3, "n")), T((3, "n")))
    ),
    Case("aten.masked_scatter.default", lambda a, s: a.masked_scatter(a > 0, s), (T((4, 3)), T((20,)))),
    Case(
        "aten.masked_scatter.default",
        lambda a, m, s: a.masked_scatter(m, s),
        (T(("n", 3)), T(("n", 1), torch.bool), T((9, 3))),
        "broadcast",
        opset=12,
    ),
    Case("aten.masked_scatter.default", lambda a, s: a.masked_scatter(a > 9, s), (T(("n", 3)), T((0,))), "nothing"),
    # views
    Case(
        "aten.slice_scatter.default",
        lambda a, s: a.slice_scatter(s, 1, 1, 3),
        (T(("n", 5)), T(("n", 2))),
        ops=("Slice", "Slice", "Concat"),
        opset=11,
    ),
    Case(
        "aten.slice_scatter.default",
        lambda a, s: a.slice_scatter(s, 0, 0, 9) + 1,
        (T(("n", 5)), T(("n", 5))),
        "everything",
        ops=("Add",),
    ),
    Case(
        "aten.slice_scatter.default",
        lambda a, s: a.slice_scatter(s, 0, -2),
        (T(("n", 5)), T((2, 5))),
        "from the end",
        ops=("Slice", "Concat"),
    ),
    Case(
        "aten.slice_scatter.default", lambda a: a.slice_scatter(a[1:-2] * 2, 0, 1, -2), (T(("h", 5)),), "negative end"
    ),
    Case(
        "aten.slice_scatter.default",
        lambda a: a.slice_scatter(a[:, :0], 1, 2, 2) + 1,
        (T(("n", 5)),),
        "nothing",
        ops=("Add",),
    ),
    Case(
        "aten.slice_scatter.default", lambda a, s: a.slice_scatter(s, 1, 1, None, 2), (T(("n", 5)), T(("n", 2))), "step"
    ),
    Case(
        "aten.slice_scatter.default",
        lambda a: a.slice_scatter(a[::2] * 2, 0, 0, None, 2),
        (T(("n", 5)),),
        "dynamic step",
    ),
    Case(
        "aten.slice_scatter.default",
        lambda a: a.slice_scatter(a[-3::2] * 2, 0, -3, None, 2),
        (T(("n", 5)),),
        "negative start, step",
    ),
    Case(
        "aten.slice_scatter.default",
        lambda a, s: a.slice_scatter(s, 0, 2, 2 + s.shape[0]),
        (T((9, 2)), T(("n", 2))),
        "symbolic end",
    ),
    Case(
        "aten.slice_scatter.default",
        lambda a, s: a.slice_scatter(s, 1, 0, s.shape[1]),
        (T((2, 9)), T((2, "n"))),
        "prefix",
    ),
    Case(
        "aten.select_scatter.default",
        lambda a, s: a.select_scatter(s, 1, -1),
        (T(("n", 3, 2)), T(("n", 2))),
        ops=("Unsqueeze", "Where"),
    ),
    Case(
        "aten.select_scatter.default",
        lambda a, s: a.select_scatter(s, 0, 1),
        (T(("n", 3)), T((3,))),
        "first axis",
        ops=("Unsqueeze", "ScatterND"),
    ),
    Case("aten.select_scatter.default", lambda a, s: a.select_scatter(s, 1, 1), (T((2, "n")), T((2,))), "dynamic axis"),
    Case(
        "aten.select_scatter.default",
        lambda a, s: a.select_scatter(s, 1, -1),
        (T((2, "n")), T((2,))),
        "dynamic last",
        opset=11,
    ),
    Case(
        "aten.select_scatter.default",
        lambda a, s: a.select_scatter(s, 1, 1),
        (T(("n", 3), torch.bool), T(("n",), torch.bool)),
        "bool",
    ),
    Case("aten.select_scatter.default", lambda a, s: a.select_scatter(s, 1, 0), (T(("n", 1)), T(("n",))), "only one"),
    Case(
        "aten.select_scatter.default",
        lambda a, s: aten.select_scatter(a, s[0], 1, s.shape[0] - 1),
        (T((2, 9)), T(("n", 2))),
        "symbolic",
    ),
    Case("aten.diagonal_scatter.default", lambda a, s: a.diagonal_scatter(s), (T((3, 5)), T((3,)))),
    Case(
        "aten.diagonal_scatter.default",
        lambda a, s: a.diagonal_scatter(s, -1, 2, 0),
        (T((4, 2, 3)), T((2, 2))),
        "below",
    ),
    Case(
        "aten.diagonal_scatter.default", lambda a: a.diagonal_scatter(a.diagonal(1) * 2, 1), (T(("n", 8)),), "dynamic"
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scatter(case: Case) -> None:
    run(case)
