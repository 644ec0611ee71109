"""Errors for operators that an opset lacks name an opset that works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fxonnx

from ..functions import Function
from ..hygiene import check_graph

HALF = torch.bfloat16
X = torch.rand(2, 3)

MODELS: dict[str, tuple[Callable[[Tensor], Tensor] | nn.Module, Tensor]] = {
    "input": (lambda x: x, X.to(HALF)),
    "from bfloat16": (lambda x: x.to(torch.float32), X.to(HALF)),
    "to bfloat16": (lambda x: x.to(HALF), X),
    "inside": (lambda x: x.to(HALF).to(torch.float32), X),
    "constant": (lambda x: torch.full((2,), 1.5, dtype=HALF), X),
    "view": (lambda x: x.reshape(3, 2), X.to(HALF)),
    "arithmetic": (lambda x: x * x + 1, X.to(HALF)),
    "layer norm": (nn.LayerNorm(3).to(HALF), X.to(HALF)),
    "linear": (nn.Linear(3, 2).to(HALF), X.to(HALF)),
    "lstm": (nn.Sequential(nn.LSTM(3, 2).to(HALF)), X.to(HALF)),
}


@pytest.mark.parametrize("opset", [11, 12])
@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_needs_opset_13(name: str, opset: int) -> None:
    function, x = MODELS[name]
    model = (function if isinstance(function, nn.Module) else Function(function)).eval()
    with pytest.raises(
        (fxonnx.UnsupportedOperatorError, fxonnx.ArgumentError), match=r"(?s)BFLOAT16.*hint: pass opset_version=13$"
    ):
        fxonnx.export(model, (x,), opset_version=opset)
    program = fxonnx.export(model, (x,), opset_version=13)
    check_graph(program.model_proto)
    expected = torch.utils._pytree.tree_leaves(model(x))
    for ours, theirs in zip(program(x), expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=2e-2, atol=1e-2)


def test_float8_needs_opset_19() -> None:
    with pytest.raises(fxonnx.UnsupportedOperatorError, match=r"Cast cannot return FLOAT8E5M2 at opset 18") as caught:
        fxonnx.export(Function(lambda x: x.to(torch.float8_e5m2)), (X,), opset_version=18)
    assert caught.value.lowest_opset == 19
