"""The hints of refusals, followed: a recommended option exports the model, or ends in another error with a hint."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx import CaptureError

_RAW = re.compile(r"\b(u|zuf|zf|s)\d+\b|guard_or_|Proxy|BooleanAtom|RoundDecimal|unbacked")
"""No message shows them: torch's symbols and its advice, and classes of its tracer."""


def _sum(x: torch.Tensor) -> Any:
    return x.sum().item()


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "logarithm": lambda x: x * math.log(_sum(x)),
    "sum of conditions": lambda x: x * sum([_sum(x) > 2, x.mean().item() > 0]),
    "negation": lambda x: x * (not _sum(x) > 2),
    "numpy range": lambda x: x * float(numpy.linspace(0, 1, int(x.sum()))[-1]),
    "text": lambda x: x * len(str(_sum(x))),
    "format": lambda x: x * len(f"{_sum(x):.2f}"),
    "key": lambda x: x * {6: 2.0, 7: 3.0}[int(x.sum())],
    "hash": lambda x: x * (hash(int(x.sum())) % 7),
    "numpy scalar": lambda x: x * numpy.float32(_sum(x)),
    "numpy rounding": lambda x: x * float(numpy.round(_sum(x), 1)),
    "numpy clip": lambda x: x * float(numpy.clip(_sum(x), 0, 3)),
    "remainder": lambda x: x * divmod(int(x.sum()), 4)[1],
    "power": lambda x: x * 2 ** int(x.sum()),
    "sorted": lambda x: x * sorted(x.flatten().tolist())[0],
    "index of a list": lambda x: [x, x + 1][int(x.sum()) % 2],
    "set": lambda x: x * len({int(value) for value in x.flatten()}),
    "steps": lambda x: sum((x for _ in range(int(x.sum()))), x),
    "chained comparison": lambda x: x * 2 if 0 < _sum(x) < 10 else x,
    "any of a generator": lambda x: x * 2 if any(value > 0.5 for value in x.flatten().tolist()) else x,
    "fraction": lambda x: x * float(Fraction(_sum(x))),
    "is close": lambda x: x * 2 if math.isclose(_sum(x), 6.0) else x,
    "scale factor": lambda x: nn.functional.interpolate(x[None, None], scale_factor=x.mean().item() + 1),
    "probability": lambda x: nn.functional.dropout(x, p=x.mean().item() / 10, training=False),
    "chunks": lambda x: x.chunk(int(x.mean()) + 1, 0)[0],
    "order of a norm": lambda x: x.norm(p=int(x.mean()) + 1),
    "axis": lambda x: x.softmax(int(x.mean())),
}


class _Calls(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _followed(model: nn.Module, x: torch.Tensor, options: dict[str, Any]) -> str | None:
    """The hint of the error; None if the export succeeds and agrees with the model at the example."""
    try:
        program = fxonnx.export(model, (x,), **options)
    except CaptureError as refusal:
        found = refusal
    else:
        torch.testing.assert_close(program(x)[0].to(torch.float32), model(x), check_dtype=False)
        return None
    assert not _RAW.search(str(found)), str(found)
    assert found.hint, str(found)
    return found.hint


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_a_followed_hint_works(name: str) -> None:
    model, x = _Calls(REFUSED[name]), torch.ones(2, 3)
    hint = _followed(model, x, {})
    if hint is None:
        return
    assert "frozen=[" in hint or "with tensor operators" in hint
    if 'data_dependent="example"' in hint:
        hint = _followed(model, x, {"data_dependent": "example"}) or ""
        assert hint == "" or "frozen=[" in hint
    assert _followed(model, x, {"frozen": ["x"]}) is None
