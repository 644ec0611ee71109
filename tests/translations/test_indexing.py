"""Indexing by tensors and masks, gather and where."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import fxonnx

from ..functions import Function
from .harness import Case, T, run

aten = torch.ops.aten

INDEX = torch.tensor([2, 0, -1])
OTHER = torch.tensor([1, -2, 0])
INT32 = torch.int32
MASK = torch.tensor([True, False, True])


def literal(mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, values, -values)


def _backwards(a: torch.Tensor) -> torch.Tensor:
    return a[:, torch.arange(a.shape[1] - 1, -1, -2)]


def _from_end(a: torch.Tensor) -> torch.Tensor:
    return a[torch.arange(-a.shape[0], 0)] + a[torch.arange(-1, a.shape[0] - 1)]


CASES = (
    # one index tensor
    Case("aten.index.Tensor", _backwards, (T((3, "n")),), "positions that count down"),
    Case("aten.index.Tensor", _from_end, (T(("n", 3)),), "positions from the end"),
    Case(
        "aten.index.Tensor",
        lambda a: a[torch.arange(0, a.shape[0], 2)],
        (T(("n", 3)),),
        "step",
    ),
    Case("aten.index.Tensor", lambda a: a[INDEX], (T((3, "n")),), ops=("Gather",)),
    Case("aten.index.Tensor", lambda a: a[:, INDEX.view(3, 1)], (T(("n", 3, 2)),), "2d", ops=("Gather",), opset=11),
    Case(
        "aten.index.Tensor",
        lambda a, i: a[..., i],
        (T(("n", 3)), T(("m",), torch.int64, -3, 3)),
        "last",
        ops=("Gather",),
    ),
    Case("aten.index.Tensor", lambda a: aten.index(a, [None, torch.tensor(-1)]), (T(("n", 3, 2)),), "number"),
    Case("aten.index.Tensor", lambda a, i: a[i], (T((3, "n")), T((0,), torch.int64)), "no positions"),
    Case("aten.index.Tensor", lambda a: aten.index(a, [None, INDEX.int()]), (T(("n", 3)),), "int32"),
    # several
    Case("aten.index.Tensor", lambda a: a[INDEX, OTHER], (T((3, 3, "n")),), "two", opset=12),
    Case("aten.index.Tensor", lambda a: a[:, INDEX, OTHER], (T(("n", 3, 3, "m")),), "neighbours behind"),
    Case("aten.index.Tensor", lambda a: a[:, INDEX, :, OTHER], (T(("n", 3, 2, 3, "m")),), "apart"),
    Case("aten.index.Tensor", lambda a: a[INDEX, :, OTHER], (T((3, "n", 3)),), "apart, first"),
    Case(
        "aten.index.Tensor",
        lambda a: a[INDEX[:, None], OTHER + 0],
        (T((3, 3, "n")),),
        "outer",
        ops=("Gather", "Gather"),
    ),
    Case(
        "aten.index.Tensor",
        lambda a: a[:, INDEX[:, None, None], OTHER[:, None]],
        (T(("n", 3, 3, 2)),),
        "outer with a one",
    ),
    Case("aten.index.Tensor", lambda a: a[INDEX, OTHER[:, None]], (T((3, 3, "n")),), "outer, crossed"),
    Case(
        "aten.index.Tensor",
        lambda a, i: a[i[:, None, None, None], INDEX],
        (T(("n", 3)), T(("m",), torch.int64, 0, 2)),
        "batch",
    ),
    Case("aten.index.Tensor", lambda a: a[INDEX, :, torch.tensor([0])], (T((3, "n", 2)),), "broadcast"),
    Case(
        "aten.index.Tensor",
        lambda a, i, j: a[i, j],
        (T((3, 4)), T(("n", "m"), torch.int64, -3, 3), T(("m",), torch.int64, -4, 4)),
        "dynamic broadcast",
    ),
    Case("aten.index.Tensor", lambda a: a[INDEX, OTHER, torch.tensor(1)], (T((3, 3, 2, "n")),), "with a number"),
    # masks
    Case("aten.index.Tensor", lambda a: a[MASK], (T((3, "n")),), "mask", ops=("Compress",)),
    Case("aten.index.Tensor", lambda a: a[:, a[0] > 0], (T(("n", "m")),), "mask behind"),
    Case(
        "aten.index.Tensor", lambda a: a[a > 0], (T(("n", "m")),), "full mask", ops=("Greater", "Reshape", "Compress")
    ),
    Case("aten.index.Tensor", lambda a: a[a > 9], (T(("n", "m")),), "nothing true"),
    Case("aten.index.Tensor", lambda a, b: b[a > 0], (T(("n", "m")), T(("n", "m", 2))), "leading mask"),
    Case("aten.index.Tensor", lambda a, b: b[:, a > 0], (T(("n", 3)), T((2, "n", 3, 2))), "inner mask"),
    Case(
        "aten.index.Tensor",
        lambda a: aten.index(a, [None, MASK, torch.tensor([1])]),
        (T(("n", 3, 2)),),
        "mask and index",
    ),
    Case(
        "aten.index.Tensor", lambda a: aten.index(a, [OTHER[:2, None], None, MASK]), (T((3, "n", 3)),), "index and mask"
    ),
    Case("aten.index.Tensor", lambda a, m: a[m], (T(("n", 3), torch.bfloat16), T(("n", 3), torch.bool)), "bfloat16"),
    Case(
        "aten._unsafe_index.Tensor", lambda a: aten._unsafe_index(a, [None, INDEX[:, None], INDEX]), (T(("n", 3, 3)),)
    ),
    Case("aten.masked_select.default", lambda a: a.masked_select(a > 0), (T(("n", 3)),)),
    Case("aten.masked_select.default", lambda a, b: a.masked_select(b > 0), (T(("n", 1)), T((3,))), "broadcast"),
    Case(
        "aten.nonzero.default", lambda a: a.nonzero(), (T(("n", "m"), torch.int64, 0, 2),), ops=("NonZero", "Transpose")
    ),
    Case("aten.nonzero.default", lambda a: a.nonzero(), (T(("n",), torch.float64),), "double"),
    Case("aten.nonzero.default", lambda a: a.sum().nonzero(), (T(("n",)),), "number"),
    Case("aten.argwhere.default", lambda a: aten.argwhere(a > 0), (T(("n", "m")),)),
    Case("aten.where.default", lambda a: torch.where(a > 0), (T(("n", "m")),)),
    Case("aten.where.default", lambda a: torch.where(a > 0)[0], (T(("n",)),), "vector"),
    Case("aten.nonzero_numpy.default", lambda a: a.nonzero(as_tuple=True), (T(("n", "m"), torch.bool),)),
    # gather along one axis
    Case("aten.index_select.default", lambda a: a.index_select(-1, INDEX.abs()), (T(("n", 3)),), ops=("Gather",)),
    Case("aten.index_select.default", lambda a: a.index_select(1, torch.tensor(1)), (T(("n", 3)),), "number"),
    Case(
        "aten.index_select.default", lambda a: a.sum().index_select(0, torch.tensor([0])), (T(("n", 3)),), "of a number"
    ),
    Case(
        "aten.gather.default",
        lambda a, i: a.gather(1, i),
        (T((4, 3)), T((4, "m"), torch.int64, 0, 3)),
        ops=("GatherElements",),
    ),
    Case("aten.combinations.default", torch.combinations, (T((5,)),), ops=("Gather",)),
    Case("aten.combinations.default", lambda x: torch.combinations(x, 3, True), (T((4,), torch.int64),), "again"),
    Case("aten.combinations.default", lambda x: torch.combinations(x, 3), (T((2,)),), "too few"),
    Case("aten.narrow.Tensor", lambda x, i: x.narrow(1, i, 2), (T(("n", 5)), torch.tensor(3))),
    Case("aten.narrow.Tensor", lambda x, i: x.narrow(-1, i, 2), (T(("n", 5)), torch.tensor(-5)), "from the end"),
    Case("aten.gather.default", lambda a, i: a.gather(-2, i), (T((4, 3)), T(("n", 2), torch.int64, 0, 4)), "smaller"),
    Case(
        "aten.gather.default", lambda a, i: a.sum().gather(0, i), (T((4, 3)), T((1,), torch.int64, 0, 1)), "of a number"
    ),
    Case("aten.gather.default", lambda a, i: a.gather(0, i), (T((4,)), torch.tensor(2)), "number"),
    Case(
        "aten.take_along_dim.default", lambda a, i: a.take_along_dim(i, 1), (T((4, 3)), T((1, "m"), torch.int64, 0, 3))
    ),
    Case(
        "aten.take_along_dim.default",
        lambda a, i: a.take_along_dim(i),
        (T((4, 3)), T(("n",), torch.int64, 0, 12)),
        "flat",
    ),
    Case("aten.take.default", lambda a, i: a.take(i), (T((4, 3)), T(("n", 2), torch.int64, -12, 12))),
    # selection by condition
    Case("aten.where.self", literal, (T(("n", "m"), torch.bool), T(("n", "m")))),
    Case(
        "aten.where.self",
        lambda c, a, b: torch.where(c, a, b),
        (T(("n", 1), torch.bool), T((3,)), T((1,), torch.int64)),
        "promotes",
    ),
    Case("aten.where.self", lambda c, a, b: torch.where(c, a, b), (T(("n",), torch.bool),) * 3, "bool"),
    Case(
        "aten.where.self",
        lambda c, a: torch.where(c, a, -a),
        (T(("n",), torch.bool), T(("n",), torch.int16, -9, 9)),
        "int16",
    ),
    Case(
        "aten.where.ScalarOther",
        lambda c, a: aten.where.ScalarOther(c, a, 2.5),
        (T(("n",), torch.bool), T(("n",), torch.int64)),
        opset=11,
    ),
    Case(
        "aten.where.ScalarSelf", lambda c, a: aten.where.ScalarSelf(c, math.nan, a), (T(("n",), torch.bool), T(("n",)))
    ),
    Case("aten.where.Scalar", lambda c: aten.where.Scalar(c, 1, 2.0), (T(("n",), torch.bool),)),
    Case(
        "aten.masked_fill.Scalar", lambda a: a.masked_fill(a > 0, -math.inf), (T(("n", "m")),), ops=("Greater", "Where")
    ),
    Case(
        "aten.masked_fill.Scalar",
        lambda a, m: a.masked_fill(m, 2),
        (T(("n", "m"), torch.float16), T(("m",), torch.bool)),
        "broadcast",
    ),
    Case(
        "aten.masked_fill.Scalar",
        lambda a, m: a.masked_fill(m, True),
        (T(("n",), torch.bool), T(("n",), torch.bool)),
        "true",
        ops=("Or",),
    ),
    Case(
        "aten.masked_fill.Scalar",
        lambda a, m: a.masked_fill(m, 0),
        (T(("n",), torch.bool), T(("n",), torch.bool)),
        "false",
        ops=("Not", "And"),
    ),
    Case(
        "aten.masked_fill.Tensor", lambda a, v: a.masked_fill(a > 0, v.sum()), (T(("n", "m")), T((2,), torch.float64))
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_indexing(case: Case) -> None:
    run(case)


@pytest.mark.parametrize(
    "select",
    [
        lambda one, n: torch.full((one,), -1.5).masked_select(torch.arange(n + 1) < 3),
        lambda one, n: torch.full((one,), -1.5).masked_select(torch.arange(n + 1) <= n),
        lambda one, n: torch.zeros(n + 1).masked_scatter(torch.full((one,), True), torch.ones(4)),
        lambda one, n: torch.arange(12.0).view(3, 4)[torch.full((one,), 0), torch.arange(n + 1)],
        lambda one, n: torch.full((one,), -1.5) + torch.arange(n + 1),
    ],
    ids=["masked_select", "whole mask", "masked_scatter", "index", "add"],
)
def test_sizes_that_are_expressions_of_value_1_broadcast(select: Callable[..., torch.Tensor]) -> None:
    model = Function(lambda x: select((x.shape[0] + 2) // 3, x.shape[0])).eval()
    program = fxonnx.export(model, (torch.zeros(1),), dynamic_shapes=({0: "n"},))
    for size in (1, 2, 3):
        assert torch.equal(program(torch.zeros(size))[0], model(torch.zeros(size)))
