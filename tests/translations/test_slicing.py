"""Slices, diagonals, unfold, flips and axis permutations."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten

CASES = (
    Case("aten.select.int", lambda a: a[:, -1], (T(("n", 3, 2)),), ops=("Gather",), opset=11),
    Case("aten.select.int", lambda a: a[0], (T((1, "n")),), "one", ops=("Squeeze",)),
    Case("aten.select.int", lambda a: aten.select(a, 0, a.shape[0] - 1), (T(("n", 3)),), "symbolic", ops=("Gather",)),
    Case("aten.select.int", lambda a, b: aten.select(b, 0, a.shape[0] - 2), (T(("n", 3)), T((9, 2))), "other size"),
    Case("aten.select_copy.int", lambda a: aten.select_copy(a, 1, 2), (T(("n", 3)),)),
    Case("aten.slice.Tensor", lambda a: a[:, 1:3], (T(("n", 5)),), ops=("Slice",), opset=11),
    Case("aten.slice.Tensor", lambda a: a[:, -3:-1], (T((2, "h")),), "negative", ops=("Slice",)),
    Case("aten.slice.Tensor", lambda a: a[:, -99:99], (T(("n", 5)),), "clamped"),
    Case("aten.slice.Tensor", lambda a: a[::2, 1::3], (T(("h", "w")),), "steps"),
    Case("aten.slice.Tensor", lambda a: aten.slice(a, 1, 0, 99) + 1, (T(("n", "m")),), "everything", ops=("Add",)),
    Case("aten.slice.Tensor", lambda a, b: a[:, : b.shape[0]], (T((2, 9)), T(("n",))), "symbolic end"),
    Case("aten.slice.Tensor", lambda a, b: a[:, b.shape[0] :], (T((2, 9)), T(("n",))), "symbolic start"),
    Case("aten.slice.Tensor", lambda a: a[3:1], (T(("h", 2)),), "empty"),
    Case("aten.slice_copy.Tensor", lambda a: aten.slice_copy(a, 1, 1, 3), (T(("n", 5)),)),
    Case("aten.narrow.default", lambda a: a.narrow(1, 1, 3), (T(("n", 5)),), ops=("Slice",)),
    Case("aten.narrow.default", lambda a: aten.narrow(a, 1, -2, 2), (T(("n", 5)),), "from the end"),
    Case("aten.narrow.default", lambda a: a.narrow(0, 0, a.shape[0]) + 1, (T(("n", 5)),), "everything", ops=("Add",)),
    Case("aten.narrow_copy.default", lambda a: aten.narrow_copy(a, 1, 1, 3), (T(("n", 5)),)),
    Case("aten.unfold.default", lambda a: a.unfold(1, 3, 2), (T(("n", 9, 2)),), ops=("Gather", "Transpose")),
    Case("aten.unfold.default", lambda a: a.unfold(-1, 2, 1), (T((2, "h")),), "dynamic"),
    Case("aten.unfold.default", lambda a: a.sum().unfold(0, 1, 1), (T((2,)),), "number"),
    Case("aten.diagonal.default", lambda a: a.diagonal(), (T((3, 5)),), ops=("Reshape", "Slice")),
    Case("aten.diagonal.default", lambda a: a.diagonal(-1, 2, 0), (T((4, "n", 3)),), "below"),
    Case("aten.diagonal.default", lambda a: a.diagonal(1), (T(("n", 8)),), "dynamic"),
    Case("aten.diagonal.default", lambda a: a.diagonal(9), (T((3, 5)),), "outside"),
    Case("aten.flip.default", lambda a: a.flip(0, -1), (T(("n", "m", 3)),), ops=("Slice",), opset=11),
    Case("aten.flip.default", lambda a: a.flip(()) + 1, (T(("n",)),), "nothing", ops=("Add",)),
    Case("aten.flip.default", lambda a: a.sum().flip(()), (T(("n",)),), "number"),
    Case("aten.roll.default", lambda a: a.roll((1, -2), (0, 1)), (T((4, 5)),), ops=("Slice", "Slice", "Concat") * 2),
    Case("aten.roll.default", lambda a: a.roll(-3, -1), (T(("n", "t")),), "dynamic"),
    Case("aten.roll.default", lambda a: a.roll((5, -3), (0, 1)), (T(("n", "m", 2)),), "two dynamic"),
    Case("aten.roll.default", lambda a: a.roll(-a.shape[0], 0) + 1, (T(("n", 2)),), "around", ops=("Add",)),
    Case("aten.roll.default", lambda a: a.roll(2), (T(("n", 3)),), "flat"),
    Case("aten.roll.default", lambda a: a.roll(6, 1) + 1, (T(("n", 3)),), "twice", ops=("Add",)),
    *(
        Case("aten.rot90.default", lambda a, k=k: a.rot90(k, (0, 2)), (T(("n", 2, "m")),), str(k))
        for k in (-1, 0, 1, 2)
    ),
    Case("aten.movedim.int", lambda a: a.movedim(-1, 0), (T(("n", 3, 2)),), ops=("Transpose",)),
    Case("aten.movedim.intlist", lambda a: a.movedim((0, 1), (-1, 0)), (T(("n", 3, 2)),)),
    Case("aten.moveaxis.int", lambda a: a.moveaxis(0, 1), (T(("n", 3, 2)),)),
    Case("aten.moveaxis.intlist", lambda a: a.moveaxis((2, 0), (0, 1)), (T(("n", 3, 2)),)),
    Case("aten.swapaxes.default", lambda a: a.swapaxes(0, -1), (T(("n", 3, 2)),), ops=("Transpose",)),
    Case("aten.swapdims.default", lambda a: a.swapdims(0, 1), (T(("n", 3, 2)),)),
    Case("aten.tril.default", lambda a: a.tril(), (T(("n", "m")),), ops=("Trilu",)),
    Case("aten.tril.default", lambda a: a.tril(-1), (T(("n", "m"), torch.bool),), "below"),
    Case("aten.tril.default", lambda a: a.tril(1), (T((2, "n", "m")),), "old", opset=13),
    Case("aten.triu.default", lambda a: a.triu(a.shape[0] - 2), (T(("n", "w")),), "symbolic"),
    Case("aten.triu.default", lambda a: a.triu(1), (T(("n", "m"), torch.int8, -9, 9),), "int8"),
    Case("aten.triu.default", lambda a: a.triu(1), (T(("n", "m"), torch.bfloat16),), "bfloat16"),
    Case("aten.triu.default", lambda a: a.triu(), (T(("n", "m"), torch.int16, -9, 9),), "int16"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_slicing(case: Case) -> None:
    run(case)
