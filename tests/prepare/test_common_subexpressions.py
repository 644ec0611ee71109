"""Common subexpression elimination."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxonnx
from fxonnx._prepare.redundant_nodes import eliminate_common_subexpressions

from ..functions import Function


def masked(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        positions = torch.arange(x.shape[0])
        x = x + torch.where(positions[:, None] >= positions, 0.0, 1.0)
    return x


ROWS = [
    pytest.param(lambda x: x.sin() + x.sin(), 1, id="the-same"),
    pytest.param(lambda x: x.sin().exp() + x.sin().exp(), 2, id="a-chain"),
    pytest.param(masked, 8, id="masks"),
    pytest.param(lambda x: (x.max(0)[0], x.max(0)[0]), 2, id="elements"),
    pytest.param(lambda x: (x + 1, x + 1), 1, id="both-are-outputs"),
    pytest.param(lambda x: (x + 1, x + 1.0, x * True, x * 1), 0, id="types-of-numbers"),
    pytest.param(lambda x: (torch.atan2(x, x * 0.0), torch.atan2(x, x * -0.0)), 0, id="signs-of-zero"),
    pytest.param(lambda x: x.sum(0) + x.sum(1), 0, id="other-arguments"),
    pytest.param(lambda x: x.masked_select(x > 0).sum() + x.masked_select(x > 0).sum(), 1, id="sizes-of-their-own"),
    pytest.param(lambda x: x.sum().long().item() + x.sum().long().item() + x, 2, id="values-of-their-own"),
    pytest.param(lambda x: x.sin().new_zeros(3) + x.cos().new_zeros(3) + x.int().new_zeros(3), 1, id="of-a-dtype"),
]


class ViewsOfWeights(torch.nn.Module):
    """Equal views of two weights in many spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(3, 4))
        self.b = torch.nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> Any:
        rows = [self.b.view(1, 6), self.b.reshape(1, 6), self.b.unsqueeze(0), self.b[None]]
        columns = [self.w.t(), self.w.T, self.w.mT, self.w.permute(1, 0), self.w.transpose(-1, -2)]
        others = [self.b.view(2, 3), self.b.view(3, 2), self.w.reshape(4, 3)]
        return [
            x * value.sum(0).mean() + value.sum(1).mean() + (x[0] * value).sum(0)[0]
            for value in rows + columns + others
        ]


def test_equal_views_of_a_weight_share_an_initializer() -> None:
    model = ViewsOfWeights().eval()
    x = torch.randn(1)
    program = fxonnx.export(model, (x,))
    names = [name for name in program.model.graph.initializers if name.startswith(("w::", "b::"))]
    matrices = [name for name in names if program.model.graph.initializers[name].shape.rank() == 2]
    assert len(matrices) == 5
    for actual, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("function", "removed"), ROWS)
def test_cse_removes_equal_calls_only(function: Any, removed: int) -> None:
    x = torch.randn(3, 3)
    exported = torch.export.export(Function(function), (x,))
    graph = exported.graph_module.graph
    assert eliminate_common_subexpressions(graph) == removed
    graph.lint()
    program = fxonnx.export(Function(function).eval(), (x,), dynamic_shapes=({0: "n", 1: "n"},))
    for size in (3, 5):
        example = torch.randn(size, size)
        for actual, expected in zip(program(example), torch.utils._pytree.tree_leaves(function(example)), strict=True):
            torch.testing.assert_close(actual, expected)


def _scaled_rows(x: torch.Tensor) -> torch.Tensor:
    count: Any = (x[:, 0] > 0).sum().item()
    y = x.clone()
    y[count // 2 : count] = y[count // 2 : count] * 10
    return y


def test_slices_with_data_dependent_bounds_keep_their_sizes() -> None:
    program = fxonnx.export(
        Function(_scaled_rows).eval(), (torch.randn(5, 3),), dynamic_shapes=({0: "n", 1: "m"},), verify="auto"
    )
    for x in (torch.ones(4, 2), -torch.ones(4, 2), torch.randn(7, 3)):
        torch.testing.assert_close(program(x)[0], _scaled_rows(x))


def test_random_calls_are_not_shared() -> None:
    exported = torch.export.export(Function(lambda x: torch.rand_like(x) - torch.rand_like(x)), (torch.zeros(3),))
    assert eliminate_common_subexpressions(exported.graph_module.graph) == 0


def test_transformer_layers_share_one_mask() -> None:
    program = fxonnx.export(Function(masked).eval(), (torch.zeros(3, 3),), dynamic_shapes=({0: "n", 1: "n"},))
    assert sum(node.op_type == "Range" for node in program.model.graph) == 1
