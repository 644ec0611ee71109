"""as_strided."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import fxonnx

from ..functions import Function
from .harness import Case, T, run

_READ, _WRITE = "aten.as_strided.default", "aten.as_strided_scatter.default"


def _assigned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    changed = x.clone()
    changed.as_strided((2, 3), (1, 4), 2).copy_(y)
    return changed


def _overlapping_chunks(a: torch.Tensor) -> torch.Tensor:
    """Longformer's: chunks that overlap by half, of a tensor that is a transposed view."""
    chunks = a.transpose(0, 1).unflatten(1, (a.shape[0] // 4, 4))
    size, stride = list(chunks.shape), list(chunks.stride())
    size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
    return chunks.as_strided(size, stride)


def _frames(a: torch.Tensor) -> torch.Tensor:
    """Frames of a padded sequence, of which torch does not know that its length is positive."""
    length = a.shape[-1]
    size = min(7, length)
    count = math.ceil((length - size) / (size - 1)) + 1
    padded = F.pad(a, (0, (count - 1) * (size - 1) + size - length)).contiguous()
    return padded.as_strided((*a.shape[:-1], count, size), (*padded.stride()[:-1], size - 1, 1))


def _written_and_transposed(a: torch.Tensor) -> torch.Tensor:
    changed = a * 2
    view = changed.t()
    changed[0] = 7
    return view.as_strided((2, 3), (3, 1), 1)


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
    Case(_READ, _frames, (T((2, 3, "h")),), "frames of at most 7"),
    Case(_READ, lambda a: a.as_strided((a.shape[0] - 2, 3), (1, 1), 0), (T(("h",)),), "symbolic", opset=11),
    Case(_READ, lambda a: a.t().as_strided((2, 2), (1, 2)), (T((3, 4)),), "of a transposed tensor"),
    Case(_READ, lambda a: a[1:, ::2].as_strided((2, 2), (1, 2), 0), (T((3, 4)),), "before the start of a view"),
    Case(_READ, lambda a: a[1:, 1:].as_strided((2, 2), (4, 2)), (T((3, 4)),), "from where a slice begins"),
    Case(
        _READ,
        lambda a: F.dropout(a[1:, 1:], 0.5, False).as_strided((2, 2), (1, 1), 0),
        (T((3, 4)),),
        "of a dropout that returns its input",
    ),
    Case(_READ, lambda a: (a * 2)[:2].as_strided((3, 4), (4, 1)), (T((3, 4)),), "beyond the end of a view"),
    Case(_READ, lambda a: a.split(3)[0].as_strided((2, 2), (3, 1)), (T((5,)),), "beyond the end of a piece"),
    Case(_READ, lambda a: a.tensor_split(2)[0].as_strided((2, 2), (3, 1)), (T(("h",)),), "of a dynamic piece"),
    Case(
        _READ,
        lambda a: torch.ones(20, 4).cumsum(0)[: 8 // a.shape[0]].as_strided((2, 2), (3, 1), 1) + a.sum(),
        (T(("n",)),),
        "beyond the end of a dynamic slice at other sizes",
    ),
    Case(_READ, lambda a: (a * 2).expand(5, 3).as_strided((3,), (1,)), (T((3,)),), "of an expanded tensor"),
    Case(_READ, _overlapping_chunks, (T((8, 3, 2)),), "overlapping chunks"),
    Case(_READ, lambda a: _overlapping_chunks(a + 1), (T((8, "n", 2)),), "overlapping chunks of dynamic size"),
    Case(_READ, _written_and_transposed, (T((3, 4)),), "of a mutated tensor"),
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
        (lambda x: x.t(), "that is not contiguous"),
        (lambda x: x[1:], "does not begin at the start of its storage"),
        (lambda x: x[:2], "reads beyond its input"),
    ],
)
def test_unsupported_strides_are_rejected(view, reason) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.as_strided((3, 4), (4, 1), 0)

    with pytest.raises(fxonnx.UnsupportedOperatorError, match=reason):
        fxonnx.export(Model(), (view(torch.rand(4, 4)),))


def test_strides_of_another_dtype_are_rejected() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(x).transpose(0, 1).as_strided((2, 2), (2, 1))

    with pytest.raises(fxonnx.UnsupportedOperatorError, match="that is not contiguous"):
        fxonnx.export(Model(), (torch.rand(4, dtype=torch.complex64),))


def _reshaped(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).reshape(x.shape[0] * 2, -1, 2)


def test_reshapes_that_copy_at_some_sizes_only() -> None:
    def view(x: torch.Tensor) -> torch.Tensor:
        return _reshaped(x).as_strided((2, 2), (3, 1), 0)

    def cloned_view(x: torch.Tensor) -> torch.Tensor:
        return _reshaped(x).clone(memory_format=torch.contiguous_format).as_strided((2, 2), (3, 1), 0)

    x = torch.arange(40.0).reshape(2, 5, 2, 2)
    torch.testing.assert_close(fxonnx.export(Function(view).eval(), (x,))(x), (view(x),))
    with pytest.warns(UserWarning, match="batch"):
        program = fxonnx.export(Function(view).eval(), (x,), dynamic_shapes=({0: "batch"},))
    torch.testing.assert_close(program(x.repeat(2, 1, 1, 1)), (view(x.repeat(2, 1, 1, 1)),))
    with pytest.raises(fxonnx.ArgumentError, match="batch != 1"):
        program(x[:1])
    program = fxonnx.export(Function(cloned_view).eval(), (x,), dynamic_shapes=({0: "batch"},))
    for inputs in (x, x[:1]):
        torch.testing.assert_close(program(inputs), (cloned_view(inputs),))
