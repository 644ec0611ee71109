"""Factory functions and dtype conversion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fxonnx

from ..functions import Function
from .harness import Case, T, run

aten = torch.ops.aten

X, I = T(("n", 3)), T(("n", 3), torch.int64, -9, 9)
DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int8, torch.uint8, torch.bool)

CASES = (
    Case("aten.full.default", lambda x: torch.full((x.shape[0], 2), 1.5) + x.sum(), (X,)),
    Case(
        "aten.full.default", lambda x: torch.full((2,), -0.0) + torch.full((2,), 0.0).mul(x.sum()), (X,), "signed zeros"
    ),
    Case("aten.zeros.default", lambda x: torch.zeros(x.shape[0], dtype=torch.int64), (X,)),
    Case("aten.ones.default", lambda x: torch.ones(x.shape[0], 2), (X,)),
    Case("aten.empty.memory_format", lambda x: torch.empty(x.shape[0], 2, dtype=torch.int64) * 0, (X,)),
    Case("aten.full_like.default", lambda x: torch.full_like(x, 3), (X,)),
    Case("aten.zeros_like.default", torch.zeros_like, (I,)),
    Case("aten.ones_like.default", lambda x: torch.ones_like(x, dtype=torch.bool), (X,)),
    Case("aten.empty_like.default", lambda x: torch.empty_like(x) * 0, (I,)),
    Case("aten.new_full.default", lambda x: x.new_full((x.shape[0],), 2), (X,)),
    Case("aten.new_zeros.default", lambda x: x.new_zeros(x.shape[0], 2), (I,)),
    Case("aten.new_ones.default", lambda x: x.new_ones((2, 2)), (X,)),
    Case("aten.new_empty.default", lambda x: x.new_empty(x.shape[0], 2) * 0, (I,)),
    Case("aten.new_empty_strided.default", lambda x: x.new_empty_strided((x.shape[0], 2), (2, 1)) * 0, (I,)),
    Case(
        "aten.empty_strided.default", lambda x: torch.ops.aten.zero(torch.empty_strided((x.shape[0], 2), (1, 9))), (X,)
    ),
    Case("aten.fill.Scalar", lambda x: aten.fill.Scalar(x, 2), (X,)),
    Case("aten.fill.Tensor", lambda x, y: aten.fill.Tensor(x, y), (X, T((), torch.int64))),
    Case("aten.scalar_tensor.default", lambda x: aten.scalar_tensor.default(x.shape[0]) + x, (X,)),
    Case("aten.arange.default", lambda x: torch.arange(x.shape[0]), (X,)),
    Case("aten.arange.default", lambda x: torch.arange(x.shape[0], dtype=torch.float16), (X,), "float16"),
    Case("aten.arange.start", lambda x: torch.arange(1, x.shape[0] + 1), (X,)),
    Case("aten.arange.start_step", lambda x: torch.arange(0, x.shape[0] * 2, 2, dtype=torch.int32), (X,)),
    Case("aten.eye.default", lambda x: torch.eye(x.shape[0]), (X,)),
    Case("aten.eye.m", lambda x: torch.eye(x.shape[0], 2, dtype=torch.int64), (X,)),
    *(Case("aten.to.dtype", lambda x, d=d: x.to(d), (X,), str(d)) for d in DTYPES),
    *(Case("aten.to.dtype", lambda x, d=d: x.to(d), (I,), f"int64 to {d}") for d in DTYPES),
    Case("aten.to.dtype", lambda x: x.to(torch.float32) + 1, (X,), "nothing to do", ops=("Add",)),
    Case("aten.to.dtype_layout", lambda x: aten.to.dtype_layout(x, dtype=torch.int64), (X,)),
    Case("aten.to.device", lambda x: aten.to.device(x, torch.device("cpu"), torch.float64), (X,)),
    Case("aten.to.other", lambda x, y: aten.to.other(x, y), (X, I)),
    Case("aten._to_copy.default", lambda x: aten._to_copy.default(x, dtype=torch.float64), (X,)),
    Case("aten.type_as.default", lambda x, y: x.type_as(y), (X, I)),
    Case("prims.convert_element_type.default", lambda x: torch.ops.prims.convert_element_type(x, torch.float64), (X,)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_creation(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "build",
    [
        lambda n, dtype: torch.arange(n, 0, -0.7, dtype=dtype),
        lambda n, dtype: torch.arange(0, n, 0.1, dtype=dtype),
        lambda n, dtype: torch.arange(0, n * 0.3, 1, dtype=dtype),
        lambda n, dtype: torch.arange(0, 1, 1 / n, dtype=dtype),
        lambda n, dtype: torch.arange(0.5, n, dtype=dtype),
    ],
)
def test_ranges_of_floats_have_the_length_of_torch(build: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """Range counts in its own type, and adds the step again and again."""
    model = Function(lambda x: build(x.shape[0], dtype)).eval()
    program = fxonnx.export(model, (torch.zeros(5),), dynamic_shapes=({0: "n"},))
    for size in (5, 1, 3, 7, 10, 14, 21, 49):
        x = torch.zeros(size)
        torch.testing.assert_close(program(x)[0], model(x), rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=1e-13)
