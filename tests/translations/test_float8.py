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


def compare(model: Function, values: torch.Tensor, opset: int) -> None:
    program = fxonnx.export(model.eval(), (values,), opset_version=opset)
    check_graph(program.model_proto)
    expected = model(values)
    torch.testing.assert_close(program(values)[0], expected, rtol=0, atol=0, equal_nan=True)
    # The sign of NaN is irrelevant, that of zero is compared.
    kept = ~expected.isnan()
    assert torch.equal(program(values)[0][kept].signbit(), expected[kept].signbit())
