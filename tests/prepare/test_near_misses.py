"""Records of fusions and near misses: the module, the line and the reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxonnx
from tests.functions import VariadicFunction


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    before: Callable[[torch.Tensor], torch.Tensor] = lambda scores: scores / 2,
    after: Callable[[torch.Tensor], torch.Tensor] = lambda weights: weights,
    axis: int = -1,
) -> torch.Tensor:
    return after(before(q @ k.transpose(-2, -1)).softmax(axis)) @ v


def layer_norm(x: torch.Tensor, *, axis: int = -1, unbiased: bool = False) -> torch.Tensor:
    centered = x - x.mean(axis, keepdim=True)
    return centered / torch.sqrt(x.var(axis, keepdim=True, unbiased=unbiased) + 1e-5)


def rms_norm(x: torch.Tensor, *, axis: int = -1, other: bool = False) -> torch.Tensor:
    return (x.abs() if other else x) * torch.rsqrt(x.pow(2).mean(axis, keepdim=True) + 1e-5)


def shared_root(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    return x * root, root


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2)))


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def rotary(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    angles = positions[:, :, None] * torch.tensor([1.0, 0.1])
    whole = torch.cat((angles, angles), -1)
    cosine, sine = whole.cos()[:, None], whole.sin()[:, None]
    return x * cosine + torch.cat((-x[..., 2:], x[..., :2]), -1) * sine


def half_softmax(x: torch.Tensor) -> torch.Tensor:
    return x.half().softmax(-1, dtype=torch.float32).half()


def half_norm(x: torch.Tensor, *, narrow: bool = True) -> torch.Tensor:
    y = functional.layer_norm(x.half().float(), [4])
    return y.half() if narrow else y


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, tiled: bool = False) -> torch.Tensor:
    def repeated(x: torch.Tensor) -> torch.Tensor:
        return x[:, :1].repeat(1, 2, 1, 1) if tiled else x[:, :1, None].expand(2, 1, 2, 3, 4).reshape(2, 2, 3, 4)

    return functional.scaled_dot_product_attention(q, repeated(k), repeated(v))


QKV = tuple(torch.randn(2, 2, 3, 4) for _ in range(3))
X = (torch.randn(2, 3, 4),)
ROTATED = (torch.randn(2, 2, 3, 4), torch.arange(3.0).expand(2, 3))
MASK = torch.ones(3, 3).tril()

CASES: tuple[tuple[str, Callable[..., Any], tuple[torch.Tensor, ...], dict[str, Any], str], ...] = (
    ("attention", attention, QKV, {}, ""),
    ("attention", attention, QKV, {"after": lambda w: w * MASK}, r"aten\.mul\.Tensor is applied to the attention weights, where the pattern has aten\.matmul"),
    ("attention", attention, QKV, {"before": lambda s: s.masked_fill(MASK == 0, -1e4)}, r"aten\.masked_fill\.Scalar is applied to the scores, which may only be scaled and masked"),
    ("attention", attention, QKV, {"before": lambda s: s + MASK.log()[None, None]}, "the mask may contain -inf"),
    ("attention", attention, QKV, {"axis": 2}, "the softmax is not computed over the last of four axes"),
    ("attention", attention, tuple(x[0] for x in QKV), {}, "do not have the four axes"),
    ("grouped_attention", grouped, QKV, {}, ""),
    ("grouped_attention", grouped, QKV, {"tiled": True}, "the keys are not repeated by expand and reshape"),
    ("packed_attention", functional.scaled_dot_product_attention, QKV, {}, "the heads of the result are not merged"),
    ("layer_norm", layer_norm, X, {}, ""),
    ("layer_norm", layer_norm, X, {"axis": 1}, "the normalized axis is not the last one"),
    ("layer_norm", layer_norm, X, {"unbiased": True}, "the variance is the unbiased one"),
    ("layer_norm", lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6), X, {}, "divided by a standard deviation"),
    ("rms_norm", rms_norm, X, {}, ""),
    ("rms_norm", rms_norm, X, {"axis": 1}, "the normalized axis is not the last one"),
    ("rms_norm", rms_norm, X, {"other": True}, "is not multiplied by the tensor of which it is the root"),
    ("rms_norm", shared_root, X, {}, "another operator uses the reciprocal root"),
    ("rms_norm", lambda x: x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5), X, {}, "divided by sqrt"),
    ("gelu", gelu, X, {}, ""),
    ("gelu", tanh_gelu, X, {}, ""),
    ("rotary", rotary, ROTATED, {}, ""),
    ("softmax", half_softmax, X, {}, ""),
    ("wide_norms", half_norm, X, {}, ""),
    ("wide_norms", half_norm, X, {"narrow": False}, "the norm is returned, where the pattern has a cast"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "function", "args", "options", "reason"),
    CASES,
    ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES)],
)
def test_near_misses_have_a_reason(
    pattern: str, function: Callable[..., Any], args: tuple[torch.Tensor, ...], options: dict[str, Any], reason: str
) -> None:
    model = VariadicFunction(lambda *inputs: function(*inputs, **options)).eval()
    program = fxonnx.export(model, args, opset_version=23)
    missed = [miss for miss in program.record.near_misses if miss.pattern == pattern]
    fused = [fusion for fusion in program.record.fusions if fusion.pattern == pattern]
    if not reason:
        assert (len(fused), missed) == (1, [])
        assert fused[0] == fxonnx.Fusion(pattern, "", program.record.patterns[pattern])
        return
    assert (fused, len(missed)) == ([], 1)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(missed[0].reason)
    assert missed[0].node in {node.name for node in program.exported_program.graph.nodes}
    assert ".py:" in missed[0].line


def test_other_uses_of_the_anchors_are_not_near_misses() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.softmax(-1) + x.erf() * torch.tanh(x) + torch.rsqrt(x.abs() + 1) + (x.var(-1, keepdim=True) + 1).sqrt()
        return torch.cat([-y[:, :2], y[:, 2:]], 1).view(3, 4)

    assert not fxonnx.export(
        VariadicFunction(function).eval(), (torch.randn(3, 4),), opset_version=23
    ).record.near_misses


class Block(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gelu(rms_norm(x, axis=self.axis))


def test_fusions_by_module() -> None:
    model = nn.Sequential(Block(-1), Block(1), nn.Sequential(Block(-1))).eval()
    program = fxonnx.export(model, X)
    assert [str(fusion) for fusion in program.record.fusions] == [
        *("rms_norm in 0: 1", "rms_norm in 2.0: 1", "rsqrt in 1: 1"),
        *("gelu in 0: 1", "gelu in 1: 1", "gelu in 2.0: 1"),
    ]
    (miss,) = program.record.near_misses
    assert str(miss).endswith(" in 1: rms_norm: the normalized axis is not the last one")
    assert sum(fusion.count for fusion in program.record.fusions) == sum(program.record.patterns.values())
    plain = fxonnx.export(model, X, optimize=False)
    assert (plain.record.fusions, plain.record.near_misses) == ((), ())
