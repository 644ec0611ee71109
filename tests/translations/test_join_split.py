"""Joining, splitting and repeating."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
REPEATS = torch.tensor([2, 0, 3])

CASES = (
    Case("aten.cat.default", lambda a, b: torch.cat([a, b], 1), (T((2, "n")), T((2, "m"))), ops=("Concat",)),
    Case("aten.cat.default", lambda a, b: torch.cat([a, b], -1), (T((2, 3)), T((2, 3), torch.int64)), "promotes"),
    Case("aten._chunk_cat.default", lambda a, b: torch._chunk_cat([a, b], 1, 3), (T((2, "n", 2)), T((2, "m")))),
    Case(
        "aten._chunk_cat.default", lambda a: torch._chunk_cat([a, a], -1, 5), (T(("n", 7), torch.complex64),), "complex"
    ),
    Case("aten.cat.default", lambda a: torch.cat([torch.zeros(0), a, a], -2), (T(("n", 3)),), "skips empty", opset=11),
    Case("aten.cat.default", lambda a: torch.cat([a[:0], a]), (T(("n", 3)),), "no elements"),
    Case("aten.concat.default", lambda a: aten.concat([a, a], 1), (T((2, "n")),)),
    Case("aten.concatenate.default", lambda a: aten.concatenate([a, a], 1), (T((2, "n")),)),
    Case("aten.stack.default", lambda a, b: torch.stack([a, b], 1), (T((2, 3)), T((2, 3))), ops=("Concat", "Reshape")),
    Case("aten.stack.default", lambda a, b: torch.stack([a, b]), (T(("n", "m")), T(("n", "m"))), "dynamic"),
    Case("aten.stack.default", lambda a, b: torch.stack([a, b], -1), (T(("n", "m")), T(("n", "m"))), "last"),
    Case("aten.stack.default", lambda a: torch.stack([a[0], a[1]], 0), (T(("n",)),), "numbers"),
    Case("aten.split.Tensor", lambda a: a.split(3, 1), (T((2, 8)),), ops=("Split",)),
    Case("aten.split.Tensor", lambda a: torch.cat([a, a], 1).split(4, -1), (T((2, 8)),), "even"),
    Case("aten.split.sizes", lambda a: aten.split.sizes(a, [1, 0, 3], 0), (T((4, "n")),)),
    Case("aten.unsafe_split.Tensor", lambda a: aten.unsafe_split(a, 2, 0), (T((4, "n")),)),
    Case("aten.split_with_sizes.default", lambda a: a.split([1, 2, 5], -1), (T(("n", 8)),), ops=("Split",)),
    Case(
        "aten.split_with_sizes.default",
        lambda a: torch.cat([a, a, a]).split([a.shape[0], 2 * a.shape[0]]),
        (T(("n", 8)),),
        "symbolic",
        opset=11,
    ),
    Case("aten.unsafe_split_with_sizes.default", lambda a: aten.unsafe_split_with_sizes(a, [1, 3]), (T((4, "n")),)),
    Case("aten.chunk.default", lambda a: a.chunk(3, 1), (T(("n", 8)),), ops=("Split",)),
    Case("aten.chunk.default", lambda a: a.chunk(1, 1)[0] + 1, (T(("n", 8)),), "one", ops=("Add",)),
    Case("aten.unsafe_chunk.default", lambda a: aten.unsafe_chunk(a, 3, 1), (T(("n", 8)),)),
    Case("aten.hsplit.int", lambda a: a.hsplit(2), (T(("n", 8)),)),
    Case("aten.hsplit.int", lambda a: a.hsplit(2), (T((8,)),), "1 dim"),
    Case("aten.vsplit.int", lambda a: a.vsplit(3), (T((6, "n")),)),
    Case("aten.dsplit.int", lambda a: a.dsplit(2), (T(("n", 3, 4)),)),
    Case("aten.tensor_split.sections", lambda a: a.tensor_split(3, 1), (T(("n", 8)),)),
    Case("aten.tensor_split.indices", lambda a: a.tensor_split([2, 5], -1), (T(("n", 8)),)),
    Case("aten.tensor_split.indices", lambda a: a.tensor_split([1, -2, 99]), (T(("h", 3)),), "of a symbolic size"),
    Case("aten.tensor_split.indices", lambda a: a.tensor_split([4, 1, 3], 1), (T(("n", 8)),), "out of order"),
    Case(
        "aten.tensor_split.tensor_indices_or_sections",
        lambda a, i: torch.tensor_split(a, i, -1),
        (T(("n", "h")), torch.tensor([1, -3])),
    ),
    Case("aten.unbind.int", lambda a: a.unbind(-1), (T(("n", 3)),), ops=("Gather",) * 3),
    Case("aten.unbind.int", lambda a: a.unbind(1)[0], (T(("n", 1, 3)),), "one", ops=("Squeeze",)),
    Case("aten.cartesian_prod.default", torch.cartesian_prod, (T(("n",)), T(("m",)))),
    Case("aten.hstack.default", lambda x, y: torch.hstack([x, y]), (T(("n", 3)), T(("n", "m")))),
    Case("aten.hstack.default", lambda x, y: torch.hstack([x, y.long()]), (T(("n",)), T(("m",))), name="of rank 1"),
    Case("aten.hstack.default", lambda x, y: torch.hstack([x[0], y[0]]), (T((2,)), T((2,))), name="of numbers"),
    Case("aten.cartesian_prod.default", torch.cartesian_prod, (T(("n",)),), name="of one"),
    Case("aten.kron.default", torch.kron, (T(("n", 2)), T((3, "m"), torch.float64))),
    Case("aten.meshgrid.default", lambda a, b: aten.meshgrid([a, b]), (T(("n",)), T(("m",)))),
    Case("aten.meshgrid.indexing", lambda a, b: torch.meshgrid(a, b, indexing="xy"), (T(("n",)), T(("m",)))),
    Case("aten.repeat.default", lambda a: a.repeat(2, 1, 3), (T(("n", 3)),), ops=("Unsqueeze", "Tile")),
    Case("aten.repeat.default", lambda a: a.repeat(2, 1, 1), (T(("n", 3)),), "new axis", ops=("Unsqueeze", "Expand")),
    Case("aten.repeat.default", lambda a: a.repeat(1, 1) + 1, (T(("n", 3)),), "once", ops=("Add",)),
    Case("aten.repeat.default", lambda a: a.repeat(0, 2), (T(("n", 3), torch.bool),), "empty"),
    Case("aten.repeat.default", lambda a, b: b.repeat(a.shape[0], 2), (T(("n", 3)), T((2, "m"))), "symbolic"),
    Case("aten.repeat.default", lambda a: a.repeat(2, 2), (T(("n", 3), torch.bfloat16),), "bfloat16"),
    Case("aten.tile.default", lambda a: torch.tile(a, (2,)), (T(("n", 3)),), ops=("Tile",)),
    Case("aten.tile.default", lambda a: torch.tile(a, (2, 1, 2)), (T(("n", 3)),), "more"),
    Case("aten.repeat_interleave.self_int", lambda a: a.repeat_interleave(3, 1), (T(("n", "m", 3)),)),
    Case("aten.repeat_interleave.self_int", lambda a: a.repeat_interleave(2, 0), (T(("n", "m", 3)),), "first"),
    Case("aten.repeat_interleave.self_int", lambda a: a.repeat_interleave(2), (T(("n", 3)),), "flat"),
    Case("aten.repeat_interleave.self_int", lambda a: a.sum().repeat_interleave(2), (T(("n", 3)),), "number"),
    Case(
        "aten.repeat_interleave.self_Tensor", lambda a: a.repeat_interleave(REPEATS, 1, output_size=5), (T(("n", 3)),)
    ),
    Case(
        "aten.repeat_interleave.self_Tensor",
        lambda a, r: a.repeat_interleave(r, 0),
        (T(("n", 3)), T(("n",), torch.int64, 0, 4)),
        "data",
    ),
    Case(
        "aten.repeat_interleave.self_Tensor",
        lambda a, r: a.repeat_interleave(r),
        (T(("n", 2)), torch.tensor([2])),
        "one for all",
    ),
    Case(
        "aten.repeat_interleave.Tensor", lambda r: torch.repeat_interleave(r), (T(("n",), torch.int32, 0, 4),), opset=11
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_join_split(case: Case) -> None:
    run(case)
