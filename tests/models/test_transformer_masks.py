"""``nn.Transformer`` and its parts with every form of mask, at three sizes of batch and sequences.

Eager torch runs with gradients: without them the encoder takes a fast path of fused kernels, which writes zeros where
the input is padding and returns NaN for float masks that are not causal.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fxonnx

Kind = Literal["encoder", "decoder", "both"]
MaskForm = Literal["none", "bool", "float"]
MaskSource = Literal["input", "forward"]
SIZES = ((2, 5, 4), (3, 4, 6), (1, 7, 3))


class Row(NamedTuple):
    """One way to call a transformer.

    Attributes:
        kind: The module.
        form: Dtype of the attention mask.
        source: Whether the mask is an input or a causal one made in forward.
        hint: The argument ``is_causal``.
        padded: Whether there are a key padding mask and, in decoders, a memory mask.
        batch_first: ``batch_first`` of the module.
        norm_first: ``norm_first`` of the module.
    """

    kind: Kind
    form: MaskForm
    source: MaskSource
    hint: bool | None
    padded: bool = False
    batch_first: bool = False
    norm_first: bool = False

    def __str__(self) -> str:
        flags = (name for name in ("padded", "batch_first", "norm_first") if getattr(self, name))
        return "-".join((self.kind, self.form, self.source, str(self.hint), *flags))


class Masked(nn.Module):
    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row
        options: dict[str, Any] = {"batch_first": row.batch_first, "norm_first": row.norm_first}
        if row.kind == "encoder":
            self.body: Any = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **options), 2)
        elif row.kind == "decoder":
            self.body = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, **options), 2)
        else:
            self.body = nn.Transformer(8, 2, 1, 1, 16, **options)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor, padding: Tensor, memory_mask: Tensor) -> Tensor:
        row = self.row
        attention: Tensor | None = mask
        if row.source == "forward":
            attention = nn.Transformer.generate_square_subsequent_mask(target.shape[1 if row.batch_first else 0])
            attention = attention.isinf() if row.form == "bool" else attention
        if row.form == "none":
            attention = None
        given = padding if row.padded else None
        if row.kind == "encoder":
            return self.body(target, attention, given, row.hint)
        sides = (target, source) if row.kind == "decoder" else (source, target)
        memory = memory_mask if row.padded else None
        return self.body(
            *sides, tgt_mask=attention, memory_mask=memory, tgt_key_padding_mask=given, tgt_is_causal=row.hint
        )


def inputs(row: Row, batch: int, source: int, target: int) -> tuple[Tensor, ...]:
    """Inputs in the order of ``Masked.forward``; the first key of every query is visible."""
    sequences = [torch.randn(batch, length, 8) for length in (source, target)]
    if not row.batch_first:
        sequences = [sequence.transpose(0, 1) for sequence in sequences]
    padding = torch.zeros(batch, target, dtype=torch.bool)
    padding[0, -1] = True
    masks = torch.rand(target, target) < 0.3, torch.rand(target, source) < 0.3
    for mask in masks:
        mask[:, 0] = False
    attention = torch.randn(target, target) if row.form == "float" else masks[0]
    return *sequences, attention, padding, masks[1]


KINDS: tuple[Kind, ...] = ("encoder", "decoder", "both")
ROWS = (
    *(Row(kind, form, "input", None) for kind, form in product(KINDS, ("none", "bool", "float"))),
    *(Row(kind, form, "forward", None, batch_first=True) for kind, form in product(KINDS, ("bool", "float"))),
    *(Row(kind, "float", "forward", hint, padded=True) for kind, hint in product(KINDS, (True, False))),
    *(Row(kind, form, "input", False, padded=True) for kind, form in product(KINDS, ("bool", "float"))),
    *(Row(kind, "none", "input", None, True, True, norm_first) for kind, norm_first in product(KINDS, (False, True))),
    Row("encoder", "float", "forward", None, True, True, True),
    Row("decoder", "float", "forward", True, False, True, True),
    Row("both", "bool", "input", None, True, True, True),
)


def check(program: fxonnx.ONNXProgram, model: Masked, *sizes: tuple[int, int, int]) -> None:
    for size in sizes:
        given = inputs(model.row, *size)
        expected = model(*given).detach()
        assert expected.isfinite().all()
        torch.testing.assert_close(program(*given)[0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:Support for mismatched")
def test_masks(row: Row) -> None:
    torch.manual_seed(0)
    model = Masked(row).eval()
    batch, time = (0, 1) if row.batch_first else (1, 0)
    dims = (
        {batch: "batch", time: "source"},
        {batch: "batch", time: "target"},
        {0: "target", 1: "target"},
        {0: "batch", 1: "target"},
        {0: "target", 1: "source"},
    )
    program = fxonnx.export(model, inputs(row, *SIZES[0]), dynamic_shapes=dims, strict_shapes=True)
    check(program, model, *SIZES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:Support for mismatched")
def test_static_masks_of_other_values(kind: Kind) -> None:
    torch.manual_seed(0)
    model = Masked(Row(kind, "bool", "input", None, padded=True)).eval()
    check(fxonnx.export(model, inputs(model.row, *SIZES[0])), model, *(SIZES[0],) * 3)
