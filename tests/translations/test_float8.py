"""Casts to the float8 types: overflow, infinities, NaN and rounding as in torch."""

from __future__ import annotations

import pytest
import torch

import fxonnx

from ..functions import Function
from ..hygiene import check_graph

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]
SIZES = torch.tensor(
    [
        *(0.0, 1.0, 0.1, 240.0, 247.99, 248.0, 256.0, 448.0, 464.0, 465.0, 57344.0, 61439.0, 61440.0, 61441.0, 65535.0),
        *(65536.0, 1e9, torch.inf, 1e-3, 2.0**-9, 2.0**-10, 3 * 2.0**-10, 2.0**-16, 2.0**-17, 2.0**-18, 1e-30),
    ]
)
VALUES = torch.cat([SIZES, -SIZES, torch.tensor([torch.nan])])


@pytest.mark.parametrize("opset", [19, 23])
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_from_floats(dtype: torch.dtype, source: torch.dtype, opset: int) -> None:
    compare(Function(lambda x: x.to(dtype).to(torch.float32)), VALUES.to(source), opset)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_from_integers_and_bools(dtype: torch.dtype) -> None:
    integers = torch.tensor([0, 1, 3, 448, 500, 61440, 65000, -100000])
    compare(Function(lambda x: x.to(dtype).to(torch.float32)), integers, 19)
    compare(Function(lambda x: x.to(dtype).to(torch.float32)), integers > 2, 19)


@pytest.mark.parametrize("source", FLOAT8)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_from_one_another(dtype: torch.dtype, source: torch.dtype) -> None:
    compare(Function(lambda x: x.to(source).to(dtype).to(torch.float32)), VALUES, 19)


E8M0 = torch.float8_e8m0fnu
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32]


def numbers() -> torch.Tensor:
    """All float8 numbers, the numbers halfway between two of them and their neighbors, and numbers out of range."""
    codes = torch.arange(256, dtype=torch.uint8)
    every = torch.cat([codes.view(dtype).double() for dtype in (*FLOAT8, E8M0)])
    every = every[every.isfinite()].unique()
    ties = (every[1:] + every[:-1]) / 2
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e300, 1e-310], dtype=torch.float64)
    return torch.cat([every, ties, ties * (1 + 1e-7), ties * (1 - 1e-7), ties * (1 + 2**-40), special])


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, *FLOAT8, E8M0])
def test_every_pair_of_types(source: torch.dtype) -> None:
    if source in (*FLOAT8, E8M0):
        x = torch.arange(256, dtype=torch.uint8).view(source)
        targets = [dtype for dtype in (*FLOATS, torch.bool, *FLOAT8, E8M0) if dtype != source]
    else:
        x = numbers() if source in FLOATS else numbers().nan_to_num(0).clamp(-1e15, 1e15).to(torch.int64)
        x, targets = x.to(source), [*FLOAT8, E8M0]
    model = Function(lambda x: tuple(x.to(dtype) for dtype in targets))
    for output, expected in zip(fxonnx.export(model.eval(), (x,), opset_version=24)(x), model(x), strict=True):
        assert output.dtype == expected.dtype
        wide, exact = output.double(), expected.double()
        assert torch.equal(wide.isnan(), exact.isnan()), expected.dtype
        kept = ~exact.isnan()
        assert torch.equal(wide[kept], exact[kept]), expected.dtype
        assert torch.equal(wide[kept].signbit(), exact[kept].signbit()), expected.dtype


@pytest.mark.parametrize("source", [*FLOAT8, E8M0])
def test_to_integers(source: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(source)
    # Other numbers have no defined result.
    x = every[every.double().abs() < 127]
    model = Function(lambda x: tuple(x.to(dtype) for dtype in INTEGERS if dtype.is_signed))
    for output, expected in zip(fxonnx.export(model.eval(), (x,), opset_version=24)(x), model(x), strict=True):
        assert torch.equal(output, expected)


def compare(model: Function, values: torch.Tensor, opset: int) -> None:
    program = fxonnx.export(model.eval(), (values,), opset_version=opset)
    check_graph(program.model_proto)
    expected = model(values)
    torch.testing.assert_close(program(values)[0], expected, rtol=0, atol=0, equal_nan=True)
    # The sign of NaN is irrelevant, that of zero is compared.
    kept = ~expected.isnan()
    assert torch.equal(program(values)[0][kept].signbit(), expected[kept].signbit())
