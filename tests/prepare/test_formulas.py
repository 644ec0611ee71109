"""Formulas of fusion patterns: the spellings that one formula finds, and the reasons of near misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxonnx._prepare.patterns.formula import Formula, Matches, always
from fxonnx._prepare.patterns.terms import Number, Tensor, Term, either, op
from tests.functions import Function


def hard_swish(x: Tensor) -> Term:
    clamped = either(op.clamp(x + 3, 0, 6), op.relu6(x + 3)).anchor()
    return either(x * clamped / 6, x * (clamped / 6))


def squared_error(x: Tensor, y: Tensor) -> Term:
    return op.mean((x - y) ** 2, [-1]).anchor()


def scaled_root(x: Tensor, scale: Number) -> Term:
    return op.sqrt(x).named("the root").anchor() * scale


def twice_subtracted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x - y) * (x - y)).mean(-1)


def search(form: Callable[..., Term], function: Callable[[torch.Tensor], Any]) -> tuple[int, list[str]]:
    """The number of matches of a formula, and the reasons of its near misses."""
    found = Matches()
    graph = torch.export.export(Function(function), (torch.rand(2, 6),)).graph
    return len(list(Formula(form, near=always).matches(graph, found))), list(found.missed.values())


@pytest.mark.parametrize(
    ("form", "function"),
    [
        (hard_swish, lambda x: x * torch.clamp(x + 3, 0, 6) / 6),
        (hard_swish, lambda x: torch.clamp(3.0 + x, min=0, max=6) * x / 6),
        (hard_swish, lambda x: x * (torch.ops.aten.relu6(x + 3) / 6)),
        # A square in any form; a difference that is computed twice.
        (squared_error, lambda x: twice_subtracted(x, x.abs())),
        (squared_error, lambda x: torch.square(x - x.abs()).mean([-1])),
        (squared_error, lambda x: (x - x.abs()).pow(2).mean(-1, keepdim=False)),
        (scaled_root, lambda x: 0.5 * x.sqrt()),
    ],
)
def test_spellings(form: Callable[..., Term], function: Callable[[torch.Tensor], Any]) -> None:
    assert search(form, function) == (1, [])


@pytest.mark.parametrize(
    ("form", "function", "reasons"),
    [
        (hard_swish, lambda x: x * torch.clamp(x + 2, 0, 6) / 6, ["the operand of aten.add is 2, where the pattern has 3"]),
        (hard_swish, lambda x: x * torch.clamp(x + 3, 0, 6), ["the result of aten.mul.Tensor is returned, where the pattern has aten.div"]),
        # Operands of another form are not near.
        (hard_swish, lambda x: x * torch.clamp(x * 3, 0, 6) / 6, []),
        (squared_error, lambda x: (x - x.abs()).pow(3).mean(-1), ["the operand of aten.pow is 3, where the pattern has 2"]),
        (squared_error, lambda x: (x - x.abs()).pow(2).mean(-1, keepdim=True), []),
        (scaled_root, lambda x: x.sqrt() + 1, ["aten.add.Tensor is applied to the root, where the pattern has aten.mul"]),
        (scaled_root, lambda x: (x.sqrt() * 2, x.sqrt() * 3), None),
    ],
)  # fmt: skip
def test_reasons(form: Callable[..., Term], function: Callable[[torch.Tensor], Any], reasons: list[str] | None) -> None:
    assert search(form, function) == ((0, reasons) if reasons is not None else (2, []))


def test_inner_nodes_have_one_user() -> None:
    def function(x: torch.Tensor) -> Any:
        root = x.sqrt()
        return root * 2, root + 1

    assert search(scaled_root, function) == (0, ["another operator uses the root"])


def test_a_formula_that_is_searched_has_an_anchor() -> None:
    def form(x: Tensor) -> Term:
        return op.sqrt(x)

    with pytest.raises(ValueError, match="needs an operator with"):
        search(form, torch.sqrt)
