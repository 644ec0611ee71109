"""Activation functions, softmax and clamp."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import fxonnx

from ..functions import Function
from ..saved import run_from_file
from .harness import Case, T, run

aten = torch.ops.aten

N = T(("n", 3), low=-5, high=5)
I = T(("n", 3), torch.int64, -9, 9)
WIDE = torch.tensor([-math.inf, -200.0, -30.0, -1.0, 0.0, 1.0, 30.0, 200.0, math.inf])

K, WHOLE = T((), low=0.5, high=2.5), T((), torch.int64, 1, 4)
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
    Case("aten.leaky_relu.default", lambda x, k: F.leaky_relu(x, k.item()), (N, K), "value of a tensor"),
    Case("aten.leaky_relu.default", lambda x, k: F.leaky_relu(x, -k), (N, K), "minus a tensor"),
    Case("aten.leaky_relu.default", lambda x: F.leaky_relu(x, x.shape[0]), (N,), "size"),
    Case("aten.elu.default", lambda x, k: F.elu(x, k.item()), (N, K), "value of a tensor"),
    Case("aten.elu.default", lambda x, k: F.elu(x.half(), 1e5 * k.item()), (N, K), "value of a tensor, float16"),
    Case("aten.elu.default", lambda x, k: aten.elu.default(x, k.item(), k.item(), -k.item()), (N, K), "three values"),
    Case("aten.celu.default", lambda x, k: F.celu(x, k.item()), (N, K), "value of a tensor"),
    Case("aten.celu.default", lambda x, k: F.celu(x, k.item()), (N, WHOLE), "whole number"),
    Case("aten.softplus.default", lambda x, k: F.softplus(x, beta=k.item()), (N, K), "value of a tensor"),
    Case("aten.softplus.default", lambda x, k: F.softplus(x.half(), k.item(), 1.5), (N, WHOLE), "value, float16"),
    Case("aten.softplus.default", lambda x, k: F.softplus(x, 2, k.item()), (N, K), "value as threshold"),
    Case("aten.hardtanh.default", lambda x, k: F.hardtanh(x, -k.item(), k.item()), (N, K), "values of a tensor"),
    Case("aten.clamp.default", lambda x, k: x.clamp(-2 * k.item(), k.item() ** 2), (N, K), "values of a tensor"),
    Case("aten.clamp.default", lambda x, k: x.clamp(max=k.item() * x.shape[0] / 9), (N, K), "value and size"),
    Case("aten.threshold.default", lambda x, k: F.threshold(x, k.item(), -k.item()), (N, K), "values of a tensor"),
    Case("aten.hardshrink.default", lambda x, k: F.hardshrink(x, k.item()), (N, K), "value of a tensor"),
    Case("aten.selu.default", F.selu, (N,), ops=("Selu",)),
    Case("aten.selu.default", F.selu, (LARGE.double(),), "float64"),
    Case("aten.selu.default", F.selu, (T((5,), torch.bfloat16),), "bfloat16"),
    Case("aten.celu.default", F.celu, (N,), ops=("Celu",)),
    Case("aten.celu.default", lambda x: F.celu(x, -0.5), (N,), "negative alpha"),
    Case("aten.celu.default", lambda x: F.celu(x, 1.5), (LARGE,), "large"),
    Case("aten.celu.default", lambda x: F.celu(x, 2.0), (LARGE.double(),), "float64"),
    Case("aten.celu.default", lambda x: F.celu(x, 2.0), (T((5,), torch.float16),), "float16"),
    Case("aten.celu.default", lambda x: F.celu(x, 2.0), (N,), "opset 11", opset=11),
    Case("aten.log_sigmoid.default", aten.log_sigmoid.default, (WIDE,)),
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


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_infinities(dtype: torch.dtype, opset: int) -> None:
    x = torch.tensor([math.inf, -math.inf, 1e4], dtype=dtype)
    exact = fxonnx.ExportOptions(numerics="exact")
    program = fxonnx.export(Function(F.logsigmoid), (x,), opset_version=opset, options=exact)
    (found,) = program(x)
    torch.testing.assert_close(found, F.logsigmoid(x))
    assert not torch.signbit(found[0::2]).any()
    for approximate in ("none", "tanh"):
        gelu = Function(partial(F.gelu, approximate=approximate))
        # torch's vectorized kernel returns NaN for infinity, its scalar one infinity.
        assert fxonnx.export(gelu, (x,), opset_version=opset)(x)[0][0] == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["elu", "leaky_relu", "celu", "softplus", "hardtanh", "clamp"])
def test_parameters_that_are_values_of_tensors(name: str, dtype: torch.dtype) -> None:
    def forward(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        number = k.item()
        if name in ("hardtanh", "clamp"):
            return getattr(F if name == "hardtanh" else torch, name)(x, -number, number * 2)
        return getattr(F, name)(x, number)

    program = fxonnx.export(Function(forward), (LARGE, torch.tensor(2.5).to(dtype)))
    run_from_file(program)
    for value in (1, 2, 17, 60000):
        k = torch.tensor(value).to(dtype)
        (found,) = program(LARGE, k)
        torch.testing.assert_close(found, forward(LARGE, k), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [F.hardsigmoid, F.hardswish])
def test_the_default_slope_is_not_written(function: Callable[..., torch.Tensor]) -> None:
    """OpenCV 5.0 fuses a HardSigmoid with beta and a product, such as squeeze-and-excitation's, to the HardSwish of one of both."""
    program = fxonnx.export(
        Function(lambda x: x * function(x.mean(1, True))).eval(), (torch.randn(2, 3),), opset_version=13
    )
    (node,) = (node for node in program.model.graph if node.op_type == "HardSigmoid")
    assert list(node.attributes) == ["alpha"]
    x = torch.randn(2, 3)
    torch.testing.assert_close(program(x)[0], x * function(x.mean(1, True)))
