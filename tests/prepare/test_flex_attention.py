"""``flex_attention`` becomes scaled dot product attention with a bias, or plain operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fxonnx

from ..functions import VariadicFunction
from ..lower.higher_order import Row, check_row


def qkv(*sizes: tuple[int, int], heads: int = 4, groups: int = 1, width: int = 8) -> list[tuple[Tensor, ...]]:
    """Queries, keys and values of several batch sizes and lengths."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, 8), (heads // groups, 8), (heads // groups, width))
    return [tuple(torch.randn(b, h, n, e, generator=generator) for h, e in shapes) for b, n in sizes]


def scored(score_mod: Callable[..., Tensor] | None = None, **options: Any) -> Callable[..., Any]:
    return lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, **options)


def masked(mask_mod: Callable[..., Tensor], *, by_batch: bool = False, **options: Any) -> Callable[..., Any]:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
        sizes = (q.shape[0], q.shape[1]) if by_batch else (None, None)
        mask = create_block_mask(mask_mod, *sizes, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask, **options)

    return attention


class Positions(nn.Module):
    """A learned bias, indexed by head and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 16, 16))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + self.bias[h, i, j])


class Block(nn.Module):
    """Self attention with slopes by head (ALiBi) and a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.slopes = nn.Linear(32, 96), nn.Linear(32, 32), nn.Buffer(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cpu")
        y = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - self.slopes[h] * (i - j), block_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, n, 32))


class Fixed(nn.Module):
    """A block mask made in ``__init__``."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu")

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=self.mask)


def documents(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Any:
    def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (document[b, i] == document[b, j]) & (i >= j)

    return flex_attention(q, k, v, block_mask=create_block_mask(same, q.shape[0], None, q.shape[2], k.shape[2], "cpu"))


def by_content(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * (table[i] * table[j]).softmax(-1)[b % 2])


def in_branches(q: Tensor, k: Tensor, v: Tensor) -> Any:
    def biased(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + i)

    return torch.cond(q.sum() > 0, biased, lambda q, k, v: flex_attention(q, k, v, scale=1.0), (q, k, v))


SIZES = ((2, 6), (1, 1), (3, 7))
ALIKE = qkv(*SIZES)
GROUPED = qkv(*SIZES, groups=2)
SELF = ({0: "b", 2: "n"},) * 3
DOCUMENTS = [(*given, torch.randint(0, 2, (given[0].shape[0], given[0].shape[2]))) for given in ALIKE]
TABLES = [(*given, torch.randn(given[0].shape[2], 5)) for given in ALIKE]
SIGNS = [ALIKE[0], (-ALIKE[0][0], *ALIKE[0][1:]), *ALIKE[1:]]
CROSS = [(q, k, v) for (q, _, _), (_, k, v) in zip(ALIKE, qkv((2, 5), (1, 3), (3, 11)), strict=True)]
ROWS = (
    Row("plain", scored(), ALIKE, SELF),
    Row("cross", scored(scale=0.3), CROSS, ({0: "b", 2: "n"}, {0: "b", 2: "m"}, {0: "b", 2: "m"})),
    Row("relative", scored(lambda s, b, h, i, j: s + (i - j) * 0.1), ALIKE, SELF),
    Row("integer bias", scored(lambda s, b, h, i, j: s - (i - j).abs()), ALIKE, SELF),
    Row("alibi", scored(lambda s, b, h, i, j: s - (i - j).abs() * torch.exp2(-(h + 1.0))), ALIKE, SELF),
    Row("soft cap", scored(lambda s, b, h, i, j: 5 * torch.tanh(s / 5)), ALIKE, SELF),
    Row("causal score", scored(lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf)), ALIKE, SELF),
    Row("causal", masked(lambda b, h, i, j: i >= j), ALIKE, SELF),
    Row("window by head", masked(lambda b, h, i, j: (i >= j) & (i - j < 3 + h), by_batch=True), ALIKE, SELF),
    Row(
        "mask and bias",
        masked(lambda b, h, i, j: i >= j, score_mod=lambda s, b, h, i, j: s + b * 0.1 + j),
        ALIKE,
        SELF,
    ),
    Row("rows without keys", masked(lambda b, h, i, j: i > j), ALIKE, SELF),
    Row("learned bias", Positions(), ALIKE, SELF),
    Row("mask of the module", Fixed(), ALIKE[:1], ({0: "b"},) * 3),
    Row("documents", documents, DOCUMENTS, (*SELF, {0: "b", 1: "n"})),
    Row("by content", by_content, TABLES, (*SELF, {0: "n"})),
    Row("groups", scored(enable_gqa=True), GROUPED, SELF),
    Row("width of values", scored(), qkv(*SIZES, width=5), SELF),
    Row("lse", scored(lambda s, b, h, i, j: s * 2, return_lse=True), ALIKE, SELF),
    Row("lse and groups", masked(lambda b, h, i, j: i >= j, enable_gqa=True, return_lse=True), GROUPED, SELF),
    Row("lse, rows without keys", masked(lambda b, h, i, j: i > j, return_lse=True), ALIKE, SELF),
    Row("double", scored(lambda s, b, h, i, j: s + i), [tuple(x.double() for x in given) for given in ALIKE], SELF),
    Row("block", Block(), [(torch.randn(b, n, 32),) for b, n in SIZES], ({0: "b", 1: "n"},)),
    Row("in cond", in_branches, SIGNS, SELF, "If"),
)


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_against_eager(row: Row, opset: int) -> None:
    check_row(row, opset)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in ("mask and bias", "groups", "soft cap")], ids=str)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_against_eager_with_the_operator(row: Row) -> None:
    check_row(row, 23)


@pytest.mark.parametrize("name", ["plain", "relative", "mask and bias", "groups", "learned bias"])
def test_one_attention_operator(name: str) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    model = row.model if isinstance(row.model, nn.Module) else VariadicFunction(row.model)
    program = fxonnx.export(model.eval(), row.examples[0], opset_version=23)
    kinds = [node.op_type for node in program.model_proto.graph.node]
    assert "Attention" in kinds
    assert "MatMul" not in kinds


def test_half_precision_adds_the_bias_in_single_precision() -> None:
    model = VariadicFunction(scored(lambda s, b, h, i, j: s + (i - j) * 300.3)).eval()
    given = tuple(x.half() for x in ALIKE[0])
    program = fxonnx.export(model, given)
    torch.testing.assert_close(program(*given)[0], model(*given), rtol=2e-3, atol=2e-3)


def test_score_mod_that_depends_on_a_value() -> None:
    model = VariadicFunction(scored(lambda s, b, h, i, j: s + torch.nonzero(torch.stack([s, s])).sum())).eval()
    with pytest.raises(
        fxonnx.PrepareError, match=r"the score_mod or mask_mod of flex_attention at .* cannot be computed"
    ):
        fxonnx.export(model, ALIKE[0])
