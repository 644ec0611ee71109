"""as_strided."""

from __future__ import annotations

import pytest
import torch

import fxonnx

from .harness import Case, T, run

_READ, _WRITE = "aten.as_strided.default", "aten.as_strided_scatter.default"


def _assigned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    changed = x.clone()
    changed.as_strided((2, 3), (1, 4), 2).copy_(y)
    return changed


CASES = (
    Case(_READ, lambda a: a.as_strided((2, 3), (1, 2), 1), (T((3, 4)),)),
    Case(_READ, lambda a: a.as_strided((), (), 5), (T((3, 4), torch.int64, -9, 9),), "number"),
    Case(_READ, lambda a: a.as_strided((0, 2), (1, 1), 99), (T((3, 4)),), "no elements"),
    Case(_READ, lambda a: (a + 1)[1:].as_strided((2, 2), (4, 1)), (T((3, 4)),), "from where a view begins"),
    Case(
        _READ,
        lambda a: a.as_strided((a.shape[0], a.shape[1] - 1, 2), (a.shape[1], 1, 1)),
        (T(("n", "h")),),
        "symbolic windows",
    ),
    Case(_READ, lambda a: a.as_strided((a.shape[0] - 2, 3), (1, 1), 0), (T(("h",)),), "symbolic", opset=11),
    Case(
        _WRITE,
        lambda a, b: torch.as_strided_scatter(a, b, (2, 2), (1, 2), 1),
        (T((3, 4)), T((2, 2))),
        ops=("Reshape", "Reshape", "ScatterElements", "Reshape"),
    ),
    Case(_WRITE, lambda a, b: torch.as_strided_scatter(a, b, (), ()), (T((3,), torch.bool), T((), torch.bool)), "one"),
    Case(
        _WRITE,
        lambda a, b: torch.as_strided_scatter(a, b, (a.shape[0], 2), (a.shape[1], 1), 1),
        (T(("n", "h")), T(("n", 2))),
        "symbolic",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_strided(case: Case) -> None:
    run(case)


def test_written_view() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return _assigned(x, y)

    x, y = torch.rand(4, 4), torch.rand(2, 3)
    program = fxonnx.export(Model(), (x, y))
    torch.testing.assert_close(program(x, y)[0], _assigned(x, y))


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (lambda x: x.t().as_strided((2, 2), (1, 2)), "that is not contiguous"),
        (lambda x: x[1:].as_strided((2, 2), (1, 2), 0), "does not begin at the start of its storage"),
        (lambda x: x[:2].as_strided((3, 4), (4, 1)), "reads beyond its input"),
    ],
)
def test_unsupported_strides_are_rejected(view, reason) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return view(x)

    with pytest.raises(fxonnx.UnsupportedOperatorError, match=reason):
        fxonnx.export(Model(), (torch.rand(4, 4),))
