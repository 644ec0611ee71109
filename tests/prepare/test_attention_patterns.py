"""Fusion patterns of attention, rotary embeddings and slices: each spelling is fused and keeps its values."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxonnx
from tests.functions import Function

from .test_patterns import kinds

SIZE = 4


class Attending(nn.Module):
    """Attention that splits the last axis into heads, in the spellings of several libraries.

    Args:
        form: Keywords that select variations, in any order.
    """

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form.split()
        heads = 4
        self.heads, self.groups = heads, 2 if "grouped" in self.form else heads
        self.projections = nn.ModuleList(nn.Linear(8, SIZE * count) for count in (self.heads, self.groups, self.groups))
        self.whole = nn.Linear(8, 3 * SIZE * heads)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        batch, length, _ = x.shape
        if "thirds" in self.form:
            return list(self.whole(x).reshape(batch, length, 3, self.heads, SIZE).permute(2, 0, 3, 1, 4).unbind(0))
        if "two" in self.form:
            both = self.whole(x)[..., 2 * SIZE * self.heads :].repeat(1, 1, 2)
            pair = both.reshape(batch, length, 2, self.heads, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
            return [self.projections[0](x).view(batch, length, -1, SIZE).transpose(1, 2), *pair]
        parts = [layer(x).view(batch, length, -1, SIZE) for layer in self.projections]
        if "normed" in self.form:
            parts[0] = functional.layer_norm(parts[0], (SIZE,))
        if "permuted" in self.form:
            return [part.permute(0, 2, 1, 3).contiguous() for part in parts]
        return [part.transpose(1, 2) for part in parts]

    def forward(self, x: torch.Tensor, mask: torch.Tensor, past: torch.Tensor) -> Any:
        batch, length, _ = x.shape
        query, key, value = self.parts(x)
        if "past" in self.form:
            key, value = torch.cat([past, key], dim=2), torch.cat([past * 2, value], dim=-2)
        if "swapped" in self.form:
            key, value = torch.cat([key, past], dim=2), torch.cat([value, past], dim=2)
        kept = (key, value) if "kept" in self.form else ()
        if "repeated" in self.form:
            key, value = (each.repeat_interleave(2, dim=1) for each in (key, value))
        if "halves" in self.form:
            query = torch.cat([query[..., SIZE // 2 :], query[..., : SIZE // 2]], dim=-1)
        given = mask if "mask" in self.form else mask > 0 if "shown" in self.form else None
        options = {
            "attn_mask": given,
            "is_causal": "causal" in self.form,
            "scale": 0.3 if "scaled" in self.form else None,
        }
        out = functional.scaled_dot_product_attention(query, key, value, enable_gqa="grouped" in self.form, **options)
        if "apart" in self.form:
            return out.transpose(1, 2) + 1
        if "untransposed" in self.form:
            return out.reshape(batch, length, -1)
        return (out.transpose(1, 2).reshape(batch, length, -1), *kept)


def inputs(form: str) -> tuple[Any, ...]:
    groups = 2 if "grouped" in form else 4
    length, past = 3, 2 if "past" in form or "swapped" in form else 0
    return (torch.randn(2, length, 8), torch.rand(2, 1, length, length + past) - 0.2, torch.randn(2, groups, 2, SIZE))


def axes(form: str) -> Any:
    both = "length" if "past" not in form and "swapped" not in form else "whole"
    return ({0: "batch", 1: "length"}, {0: "batch", 2: "length", 3: both}, {0: "batch", 2: "past"})


PACKED = [
    "",
    "permuted",
    "thirds",
    "mask",
    "shown",
    "causal scaled",
    "past",
    "past kept mask",
    "kept",
    "grouped",
    "normed",
]
PACKED += ["grouped past kept", "thirds mask", "two", "permuted past shown scaled"]
NOT_PACKED = ["apart", "untransposed", "causal past", "swapped", "halves"]


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("form", [*PACKED, *NOT_PACKED])
def test_split_and_merge_of_heads_are_fused(form: str, is_dynamic: bool) -> None:
    shapes = axes(form) if is_dynamic else None
    model = Attending(form).eval()
    program = fxonnx.export(model, inputs(form), dynamic_shapes=shapes, opset_version=23, verify=True)
    assert program.record.patterns["packed_attention"] == (form in PACKED)
    if form in PACKED:
        assert "Transpose" not in kinds(program)
        assert "Concat" not in kinds(program) or is_dynamic
    if is_dynamic:
        past = inputs(form)[2]
        wide = 5 + (4 if "past" in form or "swapped" in form else 0)
        more = (torch.randn(3, 5, 8), torch.rand(3, 1, 5, wide) - 0.2, torch.randn(3, past.shape[1], 4, SIZE))
        assert all(row.status == "ok" for row in program.verify(more))


def test_past_and_present_are_fused_into_attention() -> None:
    program = fxonnx.export(Attending("past kept").eval(), inputs("past"), opset_version=23, verify=True)
    (node,) = [node for node in program.model.graph if node.op_type == "Attention"]
    assert [None if value is None else len(value.shape) for value in node.inputs] == [3, 3, 3, None, 4, 4]
    assert [output.name for output in program.model.graph.outputs[1:]] == [output.name for output in node.outputs[1:]]


def test_past_of_length_zero() -> None:
    model, (x, mask, past) = Attending("past kept").eval(), inputs("past")
    shapes = ({0: "batch", 1: "length"}, None, {0: "batch", 2: "past"})
    program = fxonnx.export(model, (x, mask, past), dynamic_shapes=shapes, opset_version=23)
    assert all(row.status == "ok" for row in program.verify((x, mask, past[:, :, :0])))


@pytest.mark.parametrize("seed", range(12))
def test_random_attention_graphs_keep_their_values(seed: int) -> None:
    generator = random.Random(seed)
    words = ["permuted", "mask", "shown", "past", "grouped", "normed", "kept", "scaled", "halves", "repeated", "apart"]
    words.remove("mask" if generator.random() < 0.5 else "shown")
    words.remove("grouped" if generator.random() < 0.5 else "repeated")
    form = " ".join(word for word in words if generator.random() < 0.4 and word != "repeated")
    for opset in (20, 23):
        program = fxonnx.export(Attending(form).eval(), inputs(form), opset_version=opset, verify=True)
        plain = fxonnx.export(Attending(form).eval(), inputs(form), opset_version=opset, optimize=False, verify=True)
        assert len(kinds(program)) <= len(kinds(plain))


def test_identity_operators_are_eliminated() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x[:, :].to(torch.float32).contiguous().view(x.shape).expand(x.shape).clone()
        return functional.dropout(functional.dropout(y, 0.0), training=False).reshape(x.shape).relu()

    program = fxonnx.export(Function(function), (torch.randn(2, 3),), dynamic_shapes=({0: "n", 1: "m"},), verify="auto")
    assert kinds(program) == ["Relu"]
    written = fxonnx.export(Function(lambda x: x.clone().contiguous()), (torch.randn(2),), verify=True)
    assert kinds(written) == ["Identity"]


class WrittenOut(nn.Module):
    """Decomposed attention.

    Args:
        form: Keywords that select variations.
    """

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.bias = nn.Embedding(3, 4)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: torch.Tensor) -> Any:
        scores = torch.matmul(q, k.mT if self.form == "mT" else k.transpose(2, 3))
        if self.form == "keys as they are":
            scores = torch.matmul(q, k)
        scores = scores * 0.4 if self.form == "product" else scores / 2.5
        if self.form in ("masked", "broadcast", "lowest"):
            shown = given[:, :, :1] > 0 if self.form == "broadcast" else given > 0
            lowest = torch.finfo(torch.float32).min if self.form == "lowest" else -1e4
            scores = scores + torch.where(shown, 0.0, lowest)
        if self.form == "biased":
            scores = self.bias(torch.arange(3)).t()[None, :, None, :] + scores
        if self.form == "given":
            scores = scores + given
        weights = functional.dropout(
            torch.softmax(scores, dim=2 if self.form == "other axis" else -1), 0.1, self.training
        )
        out = torch.matmul(weights, v)
        return (out, weights) if self.form == "shown" else out


@pytest.mark.parametrize(
    "form",
    [
        "product",
        "quotient",
        "mT",
        "masked",
        "broadcast",
        "biased",
        "lowest",
        "given",
        "keys as they are",
        "other axis",
        "shown",
    ],
)
def test_decomposed_attention_is_fused(form: str) -> None:
    args = (*(torch.randn(2, 4, 3, 3) for _ in range(3)), torch.randn(2, 1, 3, 3))
    is_whole = form not in ("given", "keys as they are", "other axis", "shown")
    axes = {0: "batch"}
    for shapes in (None, (axes,) * 4):
        program = fxonnx.export(
            WrittenOut(form).eval(), args, dynamic_shapes=shapes, opset_version=23, verify="auto" if shapes else True
        )
        assert kinds(program).count("Attention") == is_whole
    assert "Attention" not in kinds(fxonnx.export(WrittenOut(form).eval(), args, verify=True))
