"""Embedding tables."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

IDS = T(("n", "m"), torch.int64, 0, 5)
FLAT = T(("h",), torch.int64, 0, 5)
OFFSETS = torch.tensor([0, 3, 3, 8])


class Bag(torch.nn.Module):
    """A bag of embeddings whose sample weights, if any, are an input."""

    def __init__(self, mode: str, last: bool = False, padding_idx: int | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(5, 3, generator=generator))
        self.mode, self.last, self.padding_idx = mode, last, padding_idx

    def forward(
        self, indices: torch.Tensor, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(
            indices,
            self.weight,
            offsets,
            mode=self.mode,
            per_sample_weights=weights,
            include_last_offset=self.last,
            padding_idx=self.padding_idx,
        )


BAG = "aten.embedding_bag.padding_idx"
BAG_WITH_END = Bag("sum", last=True)
ENDS = torch.tensor([0, 2, 2, 5])
STARTS = torch.tensor([0, 2, 2, 5])
CASES = (
    Case("aten.embedding.default", torch.nn.Embedding(5, 3, padding_idx=0), (IDS,), ops=("Gather",)),
    Case(
        "aten._embedding_bag.default",
        lambda i, w: torch.ops.aten._embedding_bag(w, i, STARTS, False, 1)[0],
        (T((6,), torch.int64, 0, 5), T((5, 3))),
        "no padding",
    ),
    Case(
        "aten._embedding_bag_forward_only.default",
        lambda i, w: torch.ops.aten._embedding_bag_forward_only(w, i, STARTS, mode=2, padding_idx=1)[0],
        (T((6,), torch.int64, 0, 5), T((5, 3))),
        "padding",
    ),
    Case(
        "aten.embedding_renorm_.default",
        lambda i, w: torch.nn.functional.embedding(i, w.clone(), max_norm=1.0),
        (T(("n", 3), torch.int64, 0, 5), T((5, 3))),
    ),
    Case(
        "aten.embedding_renorm.default",
        lambda i, w: torch.ops.aten.embedding_renorm(w, i, 0.7, 1.0),
        (T(("n", 3), torch.int64, 0, 5), T((5, 3))),
        "of order 1",
    ),
    Case(
        "aten.embedding_renorm.default",
        lambda i, w: torch.ops.aten.embedding_renorm(w, i, 0.7, 2.0),
        (T(("n", 3), torch.int64, 0, 5), T((5, 3), torch.float16)),
        "float16",
    ),
    Case("aten.embedding.default", torch.nn.Embedding(5, 3), (T(("n",), torch.int32, 0, 5),), "int32", opset=11),
    Case(BAG, Bag("sum"), (IDS,), "sum, 2d"),
    *(
        Case(BAG, Bag(mode), (T((2, 4), torch.int64, 0, 5),), f"{mode}, static", ops=("Gather", f"Reduce{name}"))
        for mode, name in (("sum", "Sum"), ("mean", "Mean"))
    ),
    Case(BAG, Bag("max"), (T((2, 4), torch.int64, 0, 5),), "max, static"),
    Case(BAG, Bag("mean", padding_idx=1), (T((2, 4), torch.int64, 0, 5),), "padding, static"),
    Case(BAG, Bag("mean").half(), (T((2, 4), torch.int64, 0, 5),), "float16, static"),
    Case(BAG, Bag("mean"), (FLAT, OFFSETS), "mean"),
    Case(BAG, Bag("max"), (FLAT, OFFSETS), "max"),
    Case(BAG, Bag("sum"), (FLAT, OFFSETS, T(("h",))), "weights"),
    Case(BAG, Bag("mean", last=True), (T((8,), torch.int32, 0, 5), OFFSETS.int()), "last offset"),
    Case(BAG, Bag("mean", padding_idx=-3), (FLAT, OFFSETS), "mean, padding"),
    Case(BAG, Bag("max", padding_idx=2), (FLAT, OFFSETS), "max, padding"),
    *(
        Case(BAG, Bag(mode, last=True, padding_idx=padding), (FLAT, ENDS), f"{mode}, indices after the last offset")
        for mode, padding in (("sum", None), ("mean", None), ("max", None), ("sum", 2), ("mean", 2))
    ),
    Case(BAG, Bag("sum", last=True), (FLAT, ENDS, T(("h",))), "weights, indices after the last offset"),
    Case(BAG, Bag("mean", last=True).double(), (FLAT, ENDS), "float64, indices after the last offset"),
    Case(
        BAG,
        lambda i, step: BAG_WITH_END.forward(i, torch.cumsum(step, 0) - 1),
        (FLAT, T(("m",), torch.int64, 1, 2)),
        "dynamic offsets",
    ),
    Case("aten.one_hot.default", lambda a: torch.nn.functional.one_hot(a, 5), (IDS,), ops=("OneHot",)),
    Case("aten.one_hot.default", lambda a: torch.nn.functional.one_hot(a, 5), (torch.tensor(3),), "0-dim"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_embedding(case: Case) -> None:
    run(case)
