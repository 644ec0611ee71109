"""``tensorrt::quantize_op``, the fake quantization of modelopt, with its arithmetic written by us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxonnx

from .harness import Case, T, run
from .test_stored_weights import COLUMNS, ROWS, op_types, saved, stored_types


def _quantize(
    input: torch.Tensor,
    amax: torch.Tensor,
    num_bits: int = 8,
    exponent_bits: int = 0,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> torch.Tensor:
    amax = amax.float()
    if exponent_bits:
        scale = 448.0 / torch.where(amax <= 2.0**-24, torch.ones_like(amax), amax)
        scaled = (input.float() * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        return (scaled.float() * (1 / scale)).to(input.dtype)
    limit = 2.0 ** (num_bits - 1 + unsigned) - 1
    low = 0.0 if unsigned else -limit if narrow_range else -limit - 1
    scale = limit / amax
    return ((input.float() * scale).round().clamp(low, limit) / scale).to(input.dtype)


def _define() -> Any:
    make: Any = torch.library.Library
    library = make("tensorrt", "FRAGMENT")
    library.define(
        "quantize_op(Tensor input, Tensor amax, int num_bits=8, int exponent_bits=0, bool unsigned=False, "
        "bool narrow_range=True) -> Tensor"
    )
    library.impl("quantize_op", _quantize, "CPU")
    torch.library.register_fake("tensorrt::quantize_op", lambda input, *rest: torch.empty_like(input), lib=library)
    return library


LIBRARY = _define()


class Model(nn.Module):
    def __init__(self, bits: tuple[int, int], *, per_channel: bool, unsigned: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bits, self.unsigned = bits, unsigned
        self.linear = nn.Linear(COLUMNS, ROWS)
        weight = self.linear.weight.detach().abs()
        self.register_buffer("amax", weight.amax(1, keepdim=True) if per_channel else weight.amax())
        self.register_buffer("input_amax", torch.tensor(2.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quantize = torch.ops.tensorrt.quantize_op
        weight = quantize(self.linear.weight, self.amax, *self.bits, False, False)
        return F.linear(quantize(x, self.input_amax, 8, self.bits[1], self.unsigned, False), weight, self.linear.bias)


@pytest.mark.parametrize("per_channel", [True, False], ids=["channel", "tensor"])
@pytest.mark.parametrize(
    ("bits", "opset", "dtype", "unsigned"),
    [
        ((8, 0), 13, "INT8", False),
        ((8, 0), 20, "INT8", True),
        ((4, 0), 21, "INT4", False),
        ((8, 4), 19, "FLOAT8E4M3FN", False),
        ((8, 4), 23, "FLOAT8E4M3FN", False),
    ],
    ids=str,
)
def test_quantize_op(
    bits: tuple[int, int], opset: int, dtype: str, unsigned: bool, per_channel: bool, tmp_path: Path
) -> None:
    model = Model(bits, per_channel=per_channel, unsigned=unsigned).eval()
    program = fxonnx.export(
        model, (torch.randn(2, COLUMNS),), dynamic_shapes=({0: "n"},), input_names=["x"], opset_version=opset
    )
    proto, session = saved(program, tmp_path)
    for rows in (2, 5):
        x = torch.randn(rows, COLUMNS)
        expected = model(x).detach()
        found = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert stored_types(proto) == {dtype}
    assert sorted(op_types(proto)) == ["DequantizeLinear", "DequantizeLinear", "Gemm", "QuantizeLinear"]
    assert onnx.checker.check_model(proto, full_check=True) is None


CASES = (
    Case(
        "tensorrt.quantize_op.default",
        lambda x: torch.ops.tensorrt.quantize_op(x, torch.tensor(2.5), 8, 0, False, False),
        (T(("n", 8)),),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_table(case: Case) -> None:
    run(case)


def test_float8_requires_opset_19() -> None:
    model = Model((8, 4), per_channel=True).eval()
    with pytest.raises(fxonnx.UnsupportedOperatorError, match="float8 requires opset 19"):
        fxonnx.export(model, (torch.randn(2, COLUMNS),), opset_version=18)
