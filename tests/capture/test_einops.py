"""Models with einops, which caches its results by shape, keep their dims dynamic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import Rearrange, Reduce
from torch import nn

import fxonnx

from ..functions import Function


def _attention(x: torch.Tensor) -> torch.Tensor:
    query, key, value = (rearrange(one, "b n (h d) -> b h n d", h=2) for one in x.chunk(3, -1))
    weights = einsum(query, key, "b h i d, b h j d -> b h i j").softmax(-1)
    return rearrange(weights @ value, "b h n d -> b n (h d)")


def _broadcast(x: torch.Tensor) -> torch.Tensor:
    return x + repeat(x[0, 0], "d -> b n d", b=x.shape[0], n=x.shape[1]) + reduce(x, "b n d -> b () ()", "max")


def _packed(x: torch.Tensor) -> torch.Tensor:
    joined, shapes = pack([x, x[:, 0]], "b * d")
    return unpack(joined * 2, shapes, "b * d")[0]


def _selected(x: torch.Tensor) -> torch.Tensor:
    rows = x[(x[:, 0, 0] > 0.5).nonzero()[:, 0]]
    return rearrange(rows, "b n (h d) -> (b h) n d", h=3)


@pytest.mark.parametrize("function", [_attention, _broadcast, _packed, _selected], ids=lambda one: one.__name__)
def test_functions(function: Callable[..., Any]) -> None:
    _check(Function(function).eval())


def test_layers() -> None:
    _check(nn.Sequential(Rearrange("b n (h d) -> b n h d", h=3), Reduce("b n h d -> b n d", "mean")).eval())


def _check(model: nn.Module) -> None:
    program = fxonnx.export(model, (torch.rand(4, 5, 12),), dynamic_shapes=({0: "batch", 1: "length"},))
    assert not [constraint for constraint in program.record.constraints if "==" in str(constraint)]
    for sizes in ((4, 5, 12), (2, 7, 12), (7, 1, 12)):
        x = torch.rand(*sizes)
        torch.testing.assert_close(program(x)[0], model(x))
