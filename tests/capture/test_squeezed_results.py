"""Results whose rank depends on sizes: ``squeeze`` of a dynamic axis removes it at one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import fxonnx

from ..functions import Function
from ..saved import run_from_file

SIZES = ((2, 6), (1, 6), (3, 1), (1, 1), (1, 5), (4, 7))

WEIGHT = torch.linspace(-1, 1, 4)


class Scores(nn.Module):
    """One score per row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x).squeeze())


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    z = y.squeeze(0)
    y.add_(1)
    return z


FUNCTIONS: dict[str, Callable[[Tensor], Any] | nn.Module] = {
    "squeeze of an axis": lambda x: x.squeeze(0),
    "squeeze of all axes": lambda x: x[:, :, :1].squeeze(),
    "squeeze of several axes": lambda x: x.sum(2, keepdim=True).squeeze((0, 2)),
    "scores": Scores(),
    "operators after the squeeze": lambda x: F.relu(x.squeeze(0) * WEIGHT + 1).half().float(),
    "operators in place": lambda x: x.squeeze(0).mul(2).add_(1),
    "write to the tensor that was squeezed": in_place,
    "squeeze of a squeezed tensor": lambda x: x.unsqueeze(3).squeeze(-1).squeeze(0),
    "integers": lambda x: x.argmax(-1).squeeze(),
    "several results": lambda x: (x.squeeze(0), {"a": x.squeeze(1) * 2, "b": x.squeeze(0).sum()}),
    "one result twice": lambda x: (lambda y: (y, y))(x.squeeze(0)),
    "results of other kinds": lambda x: (x.squeeze(0).abs(), x.mean(2)),
}


@pytest.mark.parametrize(
    ("name", "rows", "opset"),
    [(name, 2, 20) for name in FUNCTIONS] + [(name, 1, opset) for opset in (11, 13) for name in (*FUNCTIONS,)[:5]],
)
def test_rank_of_a_result_depends_on_sizes(name: str, rows: int, opset: int) -> None:
    function = FUNCTIONS[name]
    model = function if isinstance(function, nn.Module) else Function(function)
    program = fxonnx.export(
        model.eval(), (torch.randn(rows, 6, 4),), dynamic_shapes=({0: "b", 1: "t"},), opset_version=opset
    )
    assert not program.record.capture.limits.constraints
    onnx.checker.check_model(program.model_proto, full_check=True)
    run_from_file(program)
    for size in SIZES:
        x = torch.randn(*size, 4)
        with torch.no_grad():
            expected = pytree.tree_leaves(model(x))
        for have, want in zip(pytree.tree_leaves(program(x)), expected, strict=True):
            assert have.shape == want.shape
            torch.testing.assert_close(have, want)


def test_a_guard_is_not_on_a_result_of_no_rank() -> None:
    model = Function(lambda x: (x * 2 if x.shape[1] % 2 == 0 else x).sum((1, 2)).squeeze())
    program = fxonnx.export(model, (torch.randn(2, 6, 4),), dynamic_shapes=({0: "b", 1: "t"},))
    run_from_file(program)
    for rows in (1, 3):
        x = torch.randn(rows, 4, 4)
        (found,) = program(x)
        assert found.shape == model(x).shape
        torch.testing.assert_close(found, model(x))
    with pytest.raises(fxonnx.ExportError, match="t % 2 == 0"):
        program(torch.randn(1, 5, 4))


def test_a_rank_on_which_the_model_depends_stays_a_limit() -> None:
    model = Function(lambda x: (x.squeeze(0), x.squeeze(0).sum(0)))
    program = fxonnx.export(model, (torch.randn(2, 6, 4),), dynamic_shapes=({0: "b"},))
    assert [str(one.expression) for one in program.record.capture.limits.constraints] == ["Ne(b, 1)"]
