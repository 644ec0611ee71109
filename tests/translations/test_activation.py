"""Activation functions, softmax and clamp."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from .harness import Case, T, run

aten = torch.ops.aten

N = T(("n", 3), low=-5, high=5)
I = T(("n", 3), torch.int64, -9, 9)
WIDE = torch.tensor([-math.inf, -200.0, -30.0, -1.0, 0.0, 1.0, 30.0, 200.0, math.inf])

LARGE = torch.tensor([-2e3, -30.0, -1.0, 0.0, 17.5, 18.5, 19.9, 20.1, 90.0, 1e38])
CASES = (
    Case("aten.relu.default", F.relu, (N,), ops=("Relu",)),
    Case("aten.relu.default", F.relu, (I,), "int64"),
    Case("aten.relu.default", F.relu, (T((3,), torch.int32, -9, 9),), "int32, opset 13", opset=13),
    Case("aten.relu6.default", aten.relu6.default, (N,)),
    Case("aten.hardtanh.default", lambda x: F.hardtanh(x, -0.5, 2), (N,)),
    Case("aten.gelu.default", F.gelu, (N,), ops=("Gelu",)),
    Case("aten.gelu.default", lambda x: F.gelu(x, approximate="tanh"), (N,), "tanh"),
    Case("aten.gelu.default", F.gelu, (N,), "opset 17", opset=17),
    Case("aten.gelu.default", lambda x: F.gelu(x, approximate="tanh"), (N,), "tanh, opset 17", opset=17),
    Case("aten.silu.default", F.silu, (N,)),
    Case("aten.mish.default", F.mish, (N,)),
    Case("aten.mish.default", F.mish, (N,), "opset 17", opset=17),
    Case("aten.hardsigmoid.default", F.hardsigmoid, (N,)),
    Case("aten.hardswish.default", F.hardswish, (N,)),
    Case("aten.hardswish.default", F.hardswish, (N,), "opset 13", opset=13),
    Case("aten.leaky_relu.default", lambda x: F.leaky_relu(x, 0.2), (N,)),
    Case("aten.elu.default", lambda x: F.elu(x, 0.7), (N,)),
    Case("aten.elu.default", lambda x: aten.elu.default(x, 0.7, 1.1, 0.9), (N,), "scales"),
    Case("aten.softplus.default", lambda x: F.softplus(x, 2.0, 5.0), (N,)),
    Case("aten.softplus.default", F.softplus, (LARGE,), "default threshold", ops=("Softplus",)),
    Case("aten.softplus.default", lambda x: F.softplus(x, 0.5), (LARGE,), "small beta"),
    Case("aten.softplus.default", F.softplus, (LARGE.double(),), "float64"),
    Case("aten.softplus.default", F.softplus, (LARGE[:5].half(),), "float16"),
    Case("aten.selu.default", F.selu, (N,), ops=("Selu",)),
    Case("aten.selu.default", F.selu, (LARGE.double(),), "float64"),
    Case("aten.selu.default", F.selu, (T((5,), torch.bfloat16),), "bfloat16"),
    Case("aten.celu.default", F.celu, (N,), ops=("Celu",)),
    Case("aten.celu.default", lambda x: F.celu(x, -0.5), (N,), "negative alpha"),
    Case("aten.celu.default", lambda x: F.celu(x, 1.5), (LARGE,), "large"),
    Case("aten.celu.default", lambda x: F.celu(x, 2.0), (LARGE.double(),), "float64"),
    Case("aten.celu.default", lambda x: F.celu(x, 2.0), (T((5,), torch.float16),), "float16"),
    Case("aten.celu.default", lambda x: F.celu(x, 2.0), (N,), "opset 11", opset=11),
    Case("aten.log_sigmoid.default", aten.log_sigmoid.default, (WIDE[1:-1],)),
    Case("aten.prelu.default", torch.nn.PReLU(), (T(("n", 3, 4)),)),
    Case("aten.prelu.default", torch.nn.PReLU(3), (T(("n", 3, 4)),), "per channel"),
    Case("aten.glu.default", lambda x: F.glu(x, 1), (T(("n", 6)),)),
    Case("aten.glu.default", lambda x: F.glu(torch.cat([x, x]), 0), (T(("n", 6)),), "symbolic axis"),
    Case("aten.glu.default", F.glu, (T(("n", 6), torch.bfloat16),), "opset 13", opset=13),
    Case("aten.softmax.int", lambda x: F.softmax(x, -1), (N,), ops=("Softmax",)),
    Case("aten.softmax.int", lambda x: F.softmax(x, 0), (T(()),), "0-dim"),
    Case("aten.softmax.int", lambda x: F.softmax(x, 1), (T(("n", 3, 4)),), "opset 12", opset=12),
    Case("aten.softmax.int", lambda x: F.softmax(x, 0, dtype=torch.float64), (N,), "dtype"),
    Case("aten._softmax.default", lambda x: aten._softmax.default(x, 1, False), (N,)),
    Case("aten.log_softmax.int", lambda x: F.log_softmax(x, 0), (N,)),
    Case("aten._log_softmax.default", lambda x: aten._log_softmax.default(x, 1, False), (N,)),
    Case("aten.clamp.default", lambda x: x.clamp(-1, 2.5), (N,), ops=("Clip",)),
    Case("aten.clamp.default", lambda x: x.clamp(max=2), (I,), "int64"),
    Case("aten.clamp.default", lambda x: x.clamp(-1, 1.5), (I,), "promoted"),
    Case("aten.clamp.default", lambda x: x.clamp(-1, 2), (T((3,), torch.int16, -9, 9),), "int16"),
    Case("aten.clamp.default", lambda x: x.clamp(-1, 1), (torch.tensor([math.nan, 3.0]),), "NaN"),
    Case("aten.clamp.default", lambda x: x.clamp(-3, 2), (I,), "int64, opset 11", opset=11),
    Case("aten.clamp.default", lambda x: x.clamp(min=0), (WIDE,), "one limit keeps infinities"),
    Case("aten.clamp.default", lambda x: x.clamp(-math.inf, math.nan), (N,), "limit NaN"),
    Case("aten.clamp.Tensor", lambda x, low: torch.clamp(x, low), (N, torch.tensor(math.nan)), "limit NaN"),
    Case("aten.clamp.Tensor", lambda x, low, high: torch.clamp(x, low, high), (N, T((3,), high=0.0), T((3,), low=0.0))),
    Case("aten.clamp_min.default", lambda x: aten.clamp_min.default(x, 0.5), (N,)),
    Case("aten.clamp_min.Tensor", lambda x, y: aten.clamp_min.Tensor(x, y), (N, T((3,)))),
    Case("aten.clamp_max.default", lambda x: aten.clamp_max.default(x, 0.5), (N,)),
    Case("aten.clamp_max.Tensor", lambda x, y: aten.clamp_max.Tensor(x, y), (N, T((3,)))),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_activation(case: Case) -> None:
    run(case)
