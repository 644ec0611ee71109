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
CASES = (
    Case("aten.embedding.default", torch.nn.Embedding(5, 3, padding_idx=0), (IDS,), ops=("Gather",)),
    Case("aten.embedding.default", torch.nn.Embedding(5, 3), (T(("n",), torch.int32, 0, 5),), "int32", opset=11),
    Case(BAG, Bag("sum"), (IDS,), "sum, 2d"),
    Case(BAG, Bag("mean"), (FLAT, OFFSETS), "mean"),
    Case(BAG, Bag("max"), (FLAT, OFFSETS), "max"),
    Case(BAG, Bag("sum"), (FLAT, OFFSETS, T(("h",))), "weights"),
    Case(BAG, Bag("mean", last=True), (T((8,), torch.int32, 0, 5), OFFSETS.int()), "last offset"),
    Case(BAG, Bag("mean", padding_idx=-3), (FLAT, OFFSETS), "mean, padding"),
    Case(BAG, Bag("max", padding_idx=2), (FLAT, OFFSETS), "max, padding"),
    Case("aten.one_hot.default", lambda a: torch.nn.functional.one_hot(a, 5), (IDS,), ops=("OneHot",)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_embedding(case: Case) -> None:
    run(case)
