"""Zeros whose signs an operator sees, such as ``atan2`` or ``signbit``: they are torch's with default numerics as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fxonnx

from ..functions import VariadicFunction
from ..saved import run_from_file

_ROWS = torch.tensor([[-0.0, -0.0], [0.0, -0.0], [0.0, 0.0], [-0.0, 1.0], [-1.0, 1.0], [-2.0, -0.0]])
_READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "atan2 of y": lambda y: torch.atan2(y, torch.full_like(y, -2.0)),
    "atan2 of x": lambda x: torch.atan2(torch.zeros_like(x), x),
    "angle": lambda x: torch.complex(torch.full_like(x, -2.0), x).angle(),
    "copysign": lambda x: torch.copysign(torch.full_like(x, 3.0), x),
    "signbit": torch.signbit,
    "logarithm": lambda x: torch.complex(torch.full_like(x, -2.0), x).log().imag,
    "square root": lambda x: torch.complex(torch.full_like(x, -2.0), x).sqrt().imag,
    "bits": lambda x: x.view(torch.int32) == 0,
}
_SOURCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "sum of all": lambda x: x[:1].sum(),
    "mean": lambda x: x.mean(1),
    "nansum": lambda x: x.nansum(1),
    "trace": lambda x: x[:2].trace(),
    "cumsum": lambda x: x.cumsum(1),
    "prod": lambda x: x.prod(1),
    "var": lambda x: x.var(1),
    "mean of var_mean": lambda x: torch.var_mean(x, 1)[1],
    "matmul": lambda x: x @ x.T.abs(),
    "vector product": lambda x: x @ torch.ones(2),
    "linear": lambda x: F.linear(x, torch.ones(3, 2)),
    "einsum of one": lambda x: torch.einsum("ij->i", x),
    "einsum": lambda x: torch.einsum("ij,ij->i", x, x.abs()),
    "cosine similarity": lambda x: F.cosine_similarity(x, torch.ones_like(x)),
    "views of a sum": lambda x: -x.sum(1, keepdim=True).T.expand(3, -1)[1:] * 2.0,
    "parts of a list": lambda x: torch.stack([x.sum(1), x[:, 0]], 1).unbind(1)[0],
    "sum with zero": lambda x: -x.abs() + 0.0,
    "difference from zero": lambda x: 0.0 - x,
    "clamp": lambda x: x.clamp(min=0.0),
    "where": lambda x: torch.where(x == 0, x, x + 1),
    "masked_fill": lambda x: x.masked_fill(x == 0, -0.0),
    "truncated": lambda x: x.trunc(),
    "fraction": lambda x: x.frac(),
    "truncated quotient": lambda x: torch.div(x, 3.0, rounding_mode="trunc"),
    "floored quotient": lambda x: x // 3.0,
    "maximum": lambda x: x.fmax(torch.full_like(x, -0.5)),
    "branch": lambda x: torch.cond(x.amax() > 0, lambda y: y.sum(1), lambda y: y.sum(1) * 2, (x,)),
    "before a branch": lambda x: torch.cond(x.amax() > 5, torch.sin, torch.clone, (x.sum(1),)),
}


@pytest.mark.parametrize("reader", _READERS)
@pytest.mark.parametrize("source", _SOURCES)
def test_signs_that_an_operator_sees(source: str, reader: str) -> None:
    _agrees(lambda x: _READERS[reader](_SOURCES[source](x)), _ROWS, _ROWS[:3], _ROWS[2:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("reader", ["atan2 of y", "atan2 of x", "copysign", "signbit"])
def test_element_types(reader: str, dtype: torch.dtype) -> None:
    _agrees(lambda x: _READERS[reader](x.sum(1)), _ROWS.to(dtype), _ROWS[:3].to(dtype))


_COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda z: z.sum(1),
    "mean": lambda z: z.mean(1),
    "cumsum": lambda z: z.cumsum(1),
    "sum with a number": lambda z: z + 1.0,
    "difference from a number": lambda z: z - 1.0,
    "product": lambda z: z * z,
    "conjugate": lambda z: z.conj(),
}


@pytest.mark.parametrize("name", _COMPLEX)
def test_angles_of_complex_numbers(name: str) -> None:
    z = torch.complex(torch.tensor([[-1.0, -2.0, -3.0]]).expand(4, 3), -torch.zeros(4, 3))
    _agrees(lambda z: torch.angle(_COMPLEX[name](z)), z, z[:2])


def _stft(x: torch.Tensor, frame: int, window: torch.Tensor) -> torch.Tensor:
    """Without reflected frames, whose spectra are real but for rounding errors."""
    return torch.stft(x, frame, 1, window=window, center=False, return_complex=True)


_SPECTRA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rfft": lambda x: torch.fft.rfft(x).angle(),
    "rfft of an axis": lambda x: torch.fft.rfft(x[:, None].expand(-1, 2, -1), dim=-1, norm="ortho").angle(),
    "fft": lambda x: torch.fft.fft(x).angle()[:, [0, -1]],
    "stft": lambda x: _stft(x, 10, torch.hann_window(10)).angle(),
    "stft of a power of two": lambda x: _stft(x, 8, torch.hann_window(8)).angle(),
}


@pytest.mark.parametrize("size", [12, 15, 16])
@pytest.mark.parametrize("name", _SPECTRA)
def test_phases_of_spectra(name: str, size: int) -> None:
    """The first number of a spectrum, and the middle one of an even length, are real: their phases are 0.0 or pi."""
    x = torch.randn(3, size)
    _agrees(_SPECTRA[name], torch.cat([x, -x.abs()]), -x)


def test_phases_of_a_dynamic_length() -> None:
    model = VariadicFunction(lambda x: torch.fft.rfft(x).angle()).eval()
    program = fxonnx.export(model, (-torch.rand(2, 12),), dynamic_shapes=(({1: "n"},),))
    run_from_file(program)
    for size in (12, 7, 9, 16):
        x = -torch.rand(2, size)
        torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-4)


def test_reciprocals_of_sums_need_exact_numerics() -> None:
    """Ordinary models divide by sums: their files have no further nodes."""
    model = VariadicFunction(lambda x: 1 / x.sum(1)).eval()
    exact = fxonnx.export(model, (_ROWS,), options=fxonnx.ExportOptions(numerics="exact"))
    torch.testing.assert_close(exact(_ROWS)[0], model(_ROWS))
    assert [node.op_type for node in fxonnx.export(model, (_ROWS,)).model.graph] == ["ReduceSum", "Reciprocal"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sum(1).exp(), torch.atan2(x, x)),
        lambda x: torch.atan2(F.relu(x.sum(1, keepdim=True)) @ torch.ones(1, 2), x),
    ],
    ids=["beside", "before a product"],
)
def test_other_sums_are_one_node(function: Callable[..., Any]) -> None:
    program = fxonnx.export(VariadicFunction(function).eval(), (_ROWS,))
    users = [
        [user.op_type for user in node.outputs[0].consumers()]
        for node in program.model.graph
        if node.op_type == "ReduceSum"
    ]
    assert users in ([["Exp"]], [["Relu"]])


def _agrees(function: Callable[..., torch.Tensor], example: torch.Tensor, *others: torch.Tensor) -> None:
    model = VariadicFunction(function).eval()
    program = fxonnx.export(model, (example,), dynamic_shapes=(({0: "n"},),))
    run_from_file(program)
    for inputs in (example, *others):
        found, expected = program(inputs)[0], model(inputs)
        if expected.is_floating_point():
            tolerance = 1e-2 if expected.dtype in (torch.float16, torch.bfloat16) else 1e-4
            is_jump = (found - expected).abs() > math.pi / 2
            assert not is_jump.any(), (found, expected)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        else:
            assert torch.equal(found, expected)
