"""The work of an export grows in proportion to the number of layers."""

from __future__ import annotations

import cProfile
import pstats

import torch
from torch import nn
from torch.nn import functional as F

import fxonnx


class Block(nn.Module):
    """A layer of a decoder: attention over heads, and a gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)
        self.first, self.second = nn.RMSNorm(16), nn.RMSNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.first(x)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def calls_of_export(layers: int) -> int:
    """The number of function calls of an export, which unlike its time is the same in every run."""
    with torch.device("meta"):
        model, x = nn.Sequential(*[Block() for _ in range(layers)]).eval(), torch.ones(2, 5, 16)
    profile = cProfile.Profile()
    profile.enable()
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "batch", 1: "tokens"},), target="onnxruntime-genai")
    profile.disable()
    assert sum(node.op_type == "Softmax" or node.op_type == "Attention" for node in program.model.graph) == layers
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]


def test_layers_add_equal_work() -> None:
    calls_of_export(1)
    few, more, many = (calls_of_export(layers) for layers in (2, 6, 18))
    # 3 for linear growth; a quadratic part of 8 % of the work for 18 layers gives 3.2.
    assert (many - more) / (more - few) < 3.2
