"""Operators without a float64 kernel, against eager torch in float64 over the whole domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F

from fxonnx_translations._builder.op_schema import schema_info
from fxonnx_translations._opsets.float64_kernels import FLOAT64_KERNELS

from .harness import Case, T, run

aten = torch.ops.aten

_WIDE = torch.cat(
    [
        torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 709.0, -709.0, 1e-300, -1e200, 1e200]),
        torch.linspace(-9.0, 9.0, 73),
        torch.logspace(-12, 3, 31),
        -torch.logspace(-12, 3, 31),
    ]
).double()

_FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten.acos.default": torch.acos,
    "aten.acosh.default": torch.acosh,
    "aten.asin.default": torch.asin,
    "aten.asinh.default": torch.asinh,
    "aten.atan.default": torch.atan,
    "aten.atanh.default": torch.atanh,
    "aten.cosh.default": torch.cosh,
    "aten.elu.default": lambda x: F.elu(x, 0.7),
    "aten.erf.default": torch.erf,
    "aten.gelu.default": F.gelu,
    "aten.hardsigmoid.default": F.hardsigmoid,
    "aten.hardswish.default": F.hardswish,
    "aten.leaky_relu.default": F.leaky_relu,
    "aten.log_sigmoid.default": aten.log_sigmoid,
    "aten.mish.default": F.mish,
    "aten.prelu.default": lambda x: F.prelu(x, torch.tensor([0.2], dtype=torch.float64)),
    "aten.sinh.default": torch.sinh,
    "aten.softplus.default": lambda x: F.softplus(x, 2.0, 5.0),
    "aten.tan.default": torch.tan,
}

CASES = (
    *(Case(name, function, (_WIDE,), rtol=1e-12, atol=1e-15) for name, function in _FUNCTIONS.items()),
    Case("aten.gelu.default", lambda x: F.gelu(x, approximate="tanh"), (T(("n", 3), torch.float64),), "tanh"),
    Case("aten.celu.default", F.celu, (T(("n", 3), torch.float64),), rtol=1e-12),
    Case("aten.selu.default", F.selu, (T(("n", 3), torch.float64),), rtol=1e-12),
    Case("aten.gelu.default", F.gelu, (T(("n", 3), torch.float64),), "opset 13", opset=13),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_double(case: Case) -> None:
    run(case)


def test_the_table_names_operators_of_onnx() -> None:
    assert [name for name in FLOAT64_KERNELS if schema_info(name, 23) is None] == []
