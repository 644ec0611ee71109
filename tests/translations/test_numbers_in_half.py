"""Numbers and 0-dim tensors that half precision does not hold: applied in float32 or rounded before, as eager torch does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch.nn import functional as F

import fxonnx

from ..functions import Function, VariadicFunction
from ..saved import run_from_file
from .harness import Case, T, run

_HALF, _BFLOAT = torch.float16, torch.bfloat16
_X = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.1, 3.0, -2.5, 20000.0, math.inf, -math.inf, math.nan, 6e-8, 2e-5], dtype=_HALF
)
_SMALL = torch.tensor([0.0, 1.0, -1.0, 0.1, 3.0, -2.5, 0.1001, 0.13342], dtype=_HALF)
_SHARE = torch.tensor([0.0, 1e-5, 0.25, 0.5, 0.9995, 1.0], dtype=_HALF)
_MATRIX, _VECTOR, _QUERY = T((4, 4), _HALF), T((4,), _HALF), T((1, 2, 4, 2), _HALF)
_INFINITE = torch.tensor([[math.inf, 1.0], [2.0, 3.0]], dtype=_HALF)
_PAIR = torch.tensor([1.0, 2.0], dtype=_HALF)

CASES = (
    *(
        Case(f"aten.{name}.Tensor", lambda x, f=function, c=number: f(x, c), (_X,), f"{number}")
        for name, function in (("mul", lambda x, c: x * c), ("div", lambda x, c: x / c))
        for number in (1e5, -1e9, 1e-9, 3e-5, 65504.0, 0.5, math.inf)
    ),
    Case("aten.mul.Tensor", lambda x: (1.0 - x) * -1e9, (_SHARE,), "a mask"),
    Case("aten.mul.Tensor", lambda x: x * torch.tensor(1e5), (_X,), "a 0-dim constant"),
    Case("aten.mul.Tensor", lambda x: x * torch.tensor(70000), (_X,), "a 0-dim integer"),
    Case("aten.mul.Tensor", lambda x, scale: x * scale, (_X, torch.tensor(1e5)), "a 0-dim input"),
    Case("aten.mul.Tensor", lambda x: x.clone().mul_(1e5), (_X,), "in-place"),
    Case("aten.div.Tensor", lambda x, scale: x / scale, (_X, torch.tensor(1e5, dtype=torch.float64)), "a 0-dim input"),
    Case("aten.div.Tensor", lambda x: x.sum() / (x.shape[0] * 30000), (T(("n",), _HALF, 1.0, 3.0),), "a dynamic size"),
    Case("aten.mul.Tensor", lambda x: x * 1e39, (torch.tensor([0.0, 1.0], dtype=_BFLOAT),), "no float32"),
    Case("aten.add.Tensor", lambda x: torch.add(x, x, alpha=1e-9), (_X,), "an alpha that is rounded to 0"),
    Case("aten.lerp.Tensor", lambda x: torch.lerp(x, x * 0.5, torch.tensor(1e-9)), (_X,)),
    Case("aten.lerp.Tensor", lambda x: torch.lerp(x, x * 0.5, torch.tensor(0.7)), (_X,), "near the end"),
    Case("aten.lerp.Scalar", lambda x: torch.lerp(x, x * 0.5, 1e5), (_SMALL,)),
    Case("aten.addcmul.default", lambda x: torch.addcmul(x, x, x, value=1e-9), (_SMALL,)),
    Case("aten.addcdiv.default", lambda x: torch.addcdiv(x, x, x + 2, value=1e5), (_SMALL,)),
    Case("aten.atan2.default", lambda x: torch.atan2(x, torch.tensor(1e5)), (_X,)),
    Case("aten.hypot.default", lambda x: torch.hypot(x, torch.tensor(1e5)), (_X,)),
    Case("aten.logaddexp.default", lambda x: torch.logaddexp(x, torch.tensor(1e5)), (_SMALL,)),
    Case("aten.xlogy.Tensor", lambda x: torch.xlogy(x, torch.tensor(1e5)), (_X,)),
    Case("aten.xlogy.Scalar_Other", lambda x: torch.xlogy(x, 1e-9), (_X,)),
    Case("aten.xlogy.Scalar_Self", lambda x: torch.xlogy(1e5, x), (_X,)),
    Case("aten.special_xlog1py.default", lambda x: torch.special.xlog1py(x, torch.tensor(1e5)), (_X,)),
    Case("aten.special_xlog1py.other_scalar", lambda x: torch.special.xlog1py(x, 1e5), (_X,)),
    Case("aten.special_xlog1py.self_scalar", lambda x: torch.special.xlog1py(0.1, x), (_SMALL,)),
    Case("aten.logit.default", lambda x: torch.logit(x, 1e-4), (_SHARE,), "1 - eps is 1"),
    Case("aten.logit.default", lambda x: torch.logit(x, 1e-3), (_SHARE.bfloat16(),), "1 - eps is 1 in bfloat16"),
    Case("aten.leaky_relu.default", lambda x: F.leaky_relu(x, 1e5), (_X,)),
    Case("aten.elu.default", lambda x: F.elu(x, 1e5), (_SMALL,)),
    Case("aten.celu.default", lambda x: F.celu(x, 1e5), (_SMALL,)),
    Case("aten.celu.default", lambda x: F.celu(x, 1e4), (T((20,), low=-30.0),), "float32", rtol=1e-5),
    Case("aten.celu.default", lambda x: F.celu(x, -1e4), (T((20,), low=-30.0),), "a negative alpha", rtol=1e-5),
    Case("aten.softplus.default", lambda x: F.softplus(x, 1e5), (_SMALL,)),
    Case("aten.softplus.default", lambda x: F.softplus(x, 1, 0.1), (_SMALL.bfloat16(),), "a rounded threshold"),
    Case("aten.softshrink.default", lambda x: F.softshrink(x, 0.1), (_SMALL,)),
    Case("aten.softshrink.default", lambda x: F.softshrink(x, 0.1), (torch.cat([_X, _SMALL]).bfloat16(),), "bfloat16"),
    Case("aten.addr.default", lambda a, b, c: torch.addr(a, b, c, alpha=0.2, beta=0.6), (_MATRIX, _VECTOR, _VECTOR)),
    Case("aten.addr.default", lambda a, b: torch.addr(a, b, b, beta=1e-9), (_INFINITE, _PAIR), "a beta rounded to 0"),
    *(
        Case(
            "aten.scaled_dot_product_attention.default",
            lambda q, k, v, c=scale: F.scaled_dot_product_attention(q, k, v, scale=c),
            (_QUERY, _QUERY, _QUERY),
            f"scale {scale} at opset {opset}",
            opset=opset,
        )
        for scale in (1e5, -1e5, 1e-9)
        for opset in (20, 23)
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_in_half(case: Case) -> None:
    run(case)


_FUNCTIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "mul": lambda x, c: x * c,
    "mul of a 0-dim tensor": lambda x, c: x * torch.tensor(c),
    "mul by a 0-dim tensor": lambda x, c: torch.tensor(c) * x,
    "div": lambda x, c: x / c,
    "div of a number": lambda x, c: c / x,
    "add": lambda x, c: x + c,
    "rsub": lambda x, c: c - x,
    "floor_divide": lambda x, c: x // c,
    "trunc": lambda x, c: torch.div(x, c, rounding_mode="trunc"),
    "remainder": lambda x, c: x % c,
    "fmod": lambda x, c: torch.fmod(x, c),
    "pow": lambda x, c: x**c,
    "gt": lambda x, c: x > c,
    "eq": lambda x, c: x == c,
    "le of a 0-dim tensor": lambda x, c: x <= torch.tensor(c),
    "clamp": lambda x, c: x.clamp(min=c),
    "maximum": lambda x, c: torch.maximum(x, torch.tensor(c)),
    "where": lambda x, c: torch.where(x > 0, x, c),
    "hypot": lambda x, c: torch.hypot(x, torch.tensor(c)),
    "xlogy": lambda x, c: torch.xlogy(x, c),
    "addcmul": lambda x, c: torch.addcmul(x, x, x, value=c),
    "lerp": lambda x, c: torch.lerp(x, x * 2, c),
    "leaky_relu": F.leaky_relu,
    "celu": F.celu,
    "hardshrink": F.hardshrink,
    "isclose": lambda x, c: torch.isclose(x, x + 1, rtol=c, atol=c),
}
_NUMBERS = (1e5, -1e9, 1e-9, 0.1, 2049.0, 3e-5)


@pytest.mark.parametrize("number", _NUMBERS)
@pytest.mark.parametrize("dtype", [_HALF, _BFLOAT], ids=str)
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_exact_numerics_round_as_torch(name: str, dtype: torch.dtype, number: float) -> None:
    # By onnx's reference implementation: ONNX Runtime does not round each float16 operator on the CPU.
    model = Function(lambda x: _FUNCTIONS[name](x, number)).eval()
    inputs = torch.cat([_X, torch.randn(100).to(_HALF) * 10]).to(dtype)
    try:
        expected = model(inputs)
    except RuntimeError as error:
        pytest.skip(f"eager torch: {error}")
    program = fxonnx.export(model, (inputs,), options=fxonnx.ExportOptions(numerics="exact"))
    torch.testing.assert_close(program.call_reference(inputs)[0], expected, rtol=0, atol=0, equal_nan=True)


class _Scaled(torch.nn.Module):
    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.scale, x / self.scale


@pytest.mark.parametrize("numerics", ["default", "exact"])
@pytest.mark.parametrize("value", [1e5, 1e-9, 70000, 0.5])
def test_a_buffer_of_another_type(value: float, numerics: Literal["default", "exact"]) -> None:
    model = _Scaled(torch.tensor(value)).eval()
    program = fxonnx.export(model, (_X,), options=fxonnx.ExportOptions(numerics=numerics))
    run_from_file(program)
    for ours, theirs in zip(program(_X), model(_X), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("number", [2.0, 0.125, 65504.0, 0.1, 0.088])
def test_numbers_that_half_holds_need_no_casts(number: float) -> None:
    program = fxonnx.export(VariadicFunction(lambda x: x * number).eval(), (_X,))
    assert {node.op_type for node in program.model.graph} <= {"Mul"}
