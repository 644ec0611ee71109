"""Pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import fxonnx

from .harness import Case, T, run

F16, F64, BF16, I64 = torch.float16, torch.float64, torch.bfloat16, torch.int64
_NAN, _INF = float("nan"), float("inf")
_IMAGE = T(("n", 3, "h", "w"))
_STATIC = T((2, 3, 8, 9))

# kernel, stride, padding: torch drops different windows in ceil_mode with each.
_GEOMETRIES = ((2, 2, 0), (3, 2, 1), (2, 3, 1), (1, 3, 0), (2, 4, 0), (3, 3, 1), ((3, 2), (2, 4), (1, 0)))


def _ceil_rows() -> Iterator[Case]:
    for kernel, stride, pad in _GEOMETRIES:
        what = f"ceil {kernel} {stride} {pad}"

        def largest(x: torch.Tensor, k: Any = kernel, s: Any = stride, p: Any = pad) -> torch.Tensor:
            return F.max_pool2d(x, k, s, p, ceil_mode=True)

        def places(x: torch.Tensor, k: Any = kernel, s: Any = stride, p: Any = pad) -> Any:
            return F.max_pool2d(x, k, s, p, ceil_mode=True, return_indices=True)

        yield Case("aten.max_pool2d.default", largest, (_IMAGE,), what)
        yield Case("aten.max_pool2d_with_indices.default", places, (_IMAGE,), what)
        for include in (True, False):

            def mean(
                x: torch.Tensor, k: Any = kernel, s: Any = stride, p: Any = pad, include: bool = include
            ) -> torch.Tensor:
                return F.avg_pool2d(x, k, s, p, True, include)

            yield Case("aten.avg_pool2d.default", mean, (_IMAGE,), f"{what} {include}")
        yield Case("aten.avg_pool2d.default", mean, (T((2, 3, 8, 9), F64),), f"{what} float64")

        def override(x: torch.Tensor, k: Any = kernel, s: Any = stride, p: Any = pad) -> torch.Tensor:
            return F.avg_pool2d(x, k, s, p, True, True, 5)

        yield Case("aten.avg_pool2d.default", override, (_STATIC,), f"{what} divisor")


def _beside_zeros(x: torch.Tensor, padding: int = 0, ceil: bool = False) -> torch.Tensor:
    """Maxima of negative numbers and of zeros around them, which ONNX Runtime would drop."""
    return F.max_pool2d(F.pad(x - 9, (1, 1, 1, 1)), 3, 2, padding, ceil_mode=ceil)


def _wide_zeros(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Means of zeros that are more than a window, and of the numbers beside them."""
    return F.avg_pool1d(F.pad(x, (1, 3)), *arguments)


_MAX = (
    Case("aten.max_pool1d.default", lambda x: F.max_pool1d(x, 2), (T(("n", 3, 8)),), ops=("MaxPool",)),
    Case("aten.max_pool1d.default", lambda x: F.max_pool1d(x, 3, 1, 1), (T((3, 8)),), "unbatched"),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 3, 2, 1), (_IMAGE,), ops=("MaxPool",)),
    Case("aten.max_pool2d.default", _beside_zeros, (_IMAGE,), "beside zeros", ops=("Sub", "Pad", "MaxPool")),
    Case("aten.max_pool2d.default", _beside_zeros, (_IMAGE,), "beside zeros, opset 10", opset=10),
    Case("aten.max_pool2d.default", lambda x: _beside_zeros(x, 1, True), (_IMAGE,), "beside zeros, padding"),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 2, 1, 0, 2), (_IMAGE,), "dilation"),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 2, 1, 1, 3), (_IMAGE,), "dilation and padding"),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 2, 3, 1, 5, True), (_STATIC,), "wide dilation ceil"),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 2, 3, 1, 4, True), (_IMAGE,), "dilation ceil"),
    Case(
        "aten.max_pool2d.default", lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (_STATIC,), "pool", ops=("MaxPool",)
    ),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 2), (T((3, "h", "w")),), "unbatched"),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 2), (torch.full((1, 1, 4, 4), -torch.inf),), "-inf"),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 3, 2, 1), (_IMAGE,), "opset 11", opset=11),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 3, 2, 1, 1, True), (_IMAGE,), "ceil 11", opset=11),
    Case("aten.max_pool2d.default", lambda x: F.max_pool2d(x, 2, 3, 1, 1, True), (_IMAGE,), "ceil 22", opset=22),
    *(
        Case(
            "aten.max_pool2d.default",
            lambda x: F.max_pool2d(x, 3, 2, 1),
            (T((2, 3, "h", "w"), dtype, low, 99),),
            str(dtype),
        )
        for dtype, low in (
            (F64, -99),
            (F16, -99),
            (BF16, -99),
            (I64, -99),
            (torch.int32, -99),
            (torch.int16, -99),
            (torch.int8, -99),
            (torch.uint8, 0),
        )
    ),
    Case(
        "aten.max_pool2d.default",
        lambda x: F.max_pool2d(x, 2, 3, 1, 1, True),
        (T((2, 3, "h", "w"), I64, -99, 99),),
        "int64 ceil",
    ),
    Case(
        "aten.max_pool2d.default", lambda x: F.max_pool2d(x, 2), (T((1, 2, 4, 4), torch.int8, -9, 9),), "11", opset=11
    ),
    Case("aten.max_pool3d.default", lambda x: F.max_pool3d(x, 2, 1, 1), (T((2, 3, 4, 5, "w")),), ops=("MaxPool",)),
    Case(
        "aten.max_pool1d_with_indices.default",
        lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True),
        (T(("n", 3, "h")),),
    ),
    Case(
        "aten.max_pool2d_with_indices.default",
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        (_IMAGE,),
        ops=("MaxPool", "Mod"),
    ),
    Case(
        "aten.max_pool2d_with_indices.default",
        lambda x: F.max_pool2d(x, 2, 1, 1, 2, return_indices=True),
        (T((3, "h", "w")),),
        "unbatched dilation",
    ),
    Case(
        "aten.max_pool2d_with_indices.default",
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        (T((2, 3, 4, 6), torch.int32, -9, 9),),
        "int32",
    ),
    Case(
        "aten.max_pool2d_with_indices.default",
        lambda x: F.max_pool2d(x, 3, 2, 1, 1, True, return_indices=True),
        (T((2, 3, "h", "w"), I64, -3, 3),),
        "int64, equal elements",
    ),
    Case(
        "aten.max_pool2d_with_indices.default",
        lambda x: F.max_pool2d(x, 2, 1, 1, return_indices=True),
        (torch.full((1, 1, 3, 3), -(2**63)),),
        "int64, no less than the padding",
        opset=11,
    ),
    Case(
        "aten.max_pool1d_with_indices.default",
        lambda x: F.max_pool1d(x, 2, 3, 1, 3, True, return_indices=True),
        (torch.tensor([[[_NAN, 1.0, 3.0, _NAN, -_INF, _NAN, 2.0, 2.0, -_INF, -_INF, _NAN, 9.0, _NAN]]]),),
        "a last window beyond the end, NaN",
        numerics="exact",
    ),
    Case(
        "aten.max_pool3d_with_indices.default",
        lambda x: F.max_pool3d(x, 2, return_indices=True),
        (T((2, 3, 4, 5, "w")),),
    ),
)

_AVERAGE = (
    Case("aten.avg_pool1d.default", lambda x: F.avg_pool1d(x, 2), (T(("n", 3, "h")),), ops=("AveragePool",)),
    Case("aten.avg_pool1d.default", lambda x: F.avg_pool1d(x, 3, 2, 1), (T((3, "h")),), "unbatched"),
    Case("aten.avg_pool1d.default", lambda x: _wide_zeros(x, 2), (T(("n", 3, "h")),), "wide zeros"),
    Case("aten.avg_pool1d.default", lambda x: _wide_zeros(x, 2), (T((2, 3, 8)),), "wide zeros, opset 10", opset=10),
    Case("aten.avg_pool1d.default", lambda x: _wide_zeros(x, 2, 9, 1), (T(("n", 3, "h")),), "wide zeros, padding"),
    Case("aten.avg_pool1d.default", lambda x: _wide_zeros(x, 3, 2, 1, True), (T(("n", 3, "h")),), "wide zeros, ceil"),
    Case(
        "aten.avg_pool1d.default",
        lambda x: _wide_zeros(x, 2, 1, 1, False, False),
        (T((2, 3, 8), F16),),
        "wide zeros, half",
    ),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3, 2, 1), (_IMAGE,), "padding", ops=("AveragePool",)),
    Case(
        "aten.avg_pool2d.default",
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (_IMAGE,),
        "padding not counted",
        ops=("AveragePool",),
    ),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=2), (_IMAGE,), "divisor"),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3, 2, 1, True), (_IMAGE,), "ceil 11", opset=11),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3, 2, 1, True), (_IMAGE,), "ceil 18", opset=18),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 2, 3, 1, True, False), (_IMAGE,), "ceil 22", opset=22),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 2, 3, 1, True), (_STATIC,), "ceil static 22", opset=22),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3, 2, 1), (T((2, 3, "h", "w"), F64),), "float64"),
    Case(
        "aten.avg_pool2d.default",
        lambda x: F.avg_pool2d(x, 3, 2, 1, False, False),
        (T((2, 3, "h", "w"), F64),),
        "float64 padding not counted",
    ),
    *(
        Case(
            "aten.avg_pool2d.default",
            lambda x, include=include: F.avg_pool2d(x, 3, 2, 1, True, include),
            (T((2, 3, "h", "w"), F64),),
            f"float64 dynamic ceil {include}",
        )
        for include in (True, False)
    ),
    Case(
        "aten.avg_pool2d.default",
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, divisor_override=3),
        (_IMAGE,),
        "ceil divisor",
    ),
    Case(
        "aten.avg_pool2d.default",
        lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=2),
        (T((1, 2, 6, 6), F64),),
        "f64 divisor",
    ),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3, 2, 1), (T((2, 3, 8, 9), F16),), "float16"),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3, 2, 1), (T((2, 3, 8, 9), BF16),), "bfloat16"),
    Case("aten.avg_pool2d.default", lambda x: F.avg_pool2d(x, 3, 2, 1), (T((2, 3, 8, 9), I64, -99, 99),), "int64"),
    Case(
        "aten.avg_pool2d.default",
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
        (T((1, 1, 8, 9), I64, -99, 99),),
        "int64 ceil",
    ),
    Case("aten.avg_pool3d.default", lambda x: F.avg_pool3d(x, 2, 1, 1), (T((2, 3, 4, 5, "w")),)),
)


def _adaptive(name: str, function: Callable[..., Any]) -> Iterator[Case]:
    for wanted in ((6, 4), (4, 9), (5, 7), (1, 5), (8, 3)):
        yield Case(name, lambda x, wanted=wanted: function(x, wanted), (_IMAGE,), f"{wanted}")
        yield Case(name, lambda x, wanted=wanted: function(x, wanted), (T((1, 2, 8, 9), F64),), f"{wanted} float64")
    yield Case(name, lambda x: function(x, (6, 6)), (T((2, 3, 13, 7)),), "13 to 6 and 7 to 6 are regular")
    yield Case(name, lambda x: function(x, (4, 3)), (T((2, 3, 8, 9)),), "divides")
    yield Case(name, lambda x: function(x, (12, 5)), (T((2, 3, 8, 9)),), "more windows than elements")
    yield Case(name, lambda x: function(x, 1), (_IMAGE,), "1")
    yield Case(name, lambda x: function(x, 1), (T((3, "h", "w")),), "1 unbatched")
    yield Case(name, lambda x: function(x, 1), (T((2, 3, "h", "w"), F64),), "1 float64")
    yield Case(name, lambda x: function(x, (5, 4)), (T((3, "h", "w")),), "unbatched")
    yield Case(name, lambda x: function(x, (5, 4)), (T((2, 3, 7, 7), F16),), "float16")
    yield Case(name, lambda x: function(x, (5, 4)), (T((2, 3, 7, 7), BF16),), "bfloat16")
    yield Case(name, lambda x: function(x, (3, 2)), (T((2, 3, 6, 6)),), "opset 11", opset=11)
    yield Case(name, lambda x: function(x, (5, 4)), (_IMAGE,), "opset 12", opset=12)


def _places_too(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, wanted: function(x, wanted, return_indices=True)


_ADAPTIVE = (
    *_adaptive("aten.adaptive_avg_pool2d.default", F.adaptive_avg_pool2d),
    *_adaptive("aten.adaptive_max_pool2d.default", _places_too(F.adaptive_max_pool2d)),
    Case(
        "aten.adaptive_avg_pool2d.default",
        lambda x: F.adaptive_avg_pool2d(x, 1),
        (_IMAGE,),
        "global",
        ops=("GlobalAveragePool",),
    ),
    Case(
        "aten.adaptive_avg_pool2d.default",
        lambda x: F.adaptive_avg_pool2d(x, 6),
        (T((2, 3, 7, 13)),),
        "regular",
        ops=("AveragePool",),
    ),
    Case("aten.adaptive_avg_pool2d.default", lambda x: F.adaptive_avg_pool2d(x, (None, 2)), (_IMAGE,), "one axis kept"),
    Case(
        "aten.adaptive_avg_pool2d.default",
        lambda x: F.adaptive_avg_pool2d(x, 6),
        (T((2, 3, 1, 4)),),
        "more windows than elements",
    ),
    Case(
        "aten.adaptive_avg_pool2d.default",
        lambda x: F.adaptive_avg_pool2d(x, 7) * 2,
        (T((2, 3, 7, 7)),),
        "nothing to do",
        ops=("Mul",),
    ),
    Case(
        "aten.adaptive_avg_pool2d.default",
        lambda x: F.adaptive_avg_pool2d(x.repeat(1, 1, 2, 2), x.shape[2:]),
        (_IMAGE,),
        "symbolic halves",
    ),
    Case(
        "aten.adaptive_avg_pool2d.default",
        lambda x: F.adaptive_avg_pool2d(x, 4),
        (torch.where(torch.arange(36.0).reshape(1, 1, 6, 6) == 7, torch.inf, torch.ones(1, 1, 6, 6)),),
        "infinity stays in its windows",
    ),
    Case("aten.adaptive_avg_pool1d.default", lambda x: F.adaptive_avg_pool1d(x, 5), (T(("n", 3, "h")),)),
    Case("aten.adaptive_avg_pool3d.default", lambda x: F.adaptive_avg_pool3d(x, (2, 1, 4)), (T((2, 3, 4, 5, "w")),)),
    Case(
        "aten._adaptive_avg_pool2d.default", lambda x: torch.ops.aten._adaptive_avg_pool2d.default(x, [2, 4]), (_IMAGE,)
    ),
    Case(
        "aten._adaptive_avg_pool3d.default",
        lambda x: torch.ops.aten._adaptive_avg_pool3d.default(x, [2, 2, 2]),
        (T((2, 3, 4, 5, 6)),),
    ),
    Case("aten.adaptive_max_pool1d.default", lambda x: F.adaptive_max_pool1d(x, 5), (T(("n", 3, "h")),)),
    Case(
        "aten.adaptive_max_pool2d.default",
        lambda x: F.adaptive_max_pool2d(x, 4),
        (T((2, 3, 8, 8)),),
        "places dropped",
        ops=("MaxPool",),
    ),
    Case("aten.adaptive_max_pool3d.default", lambda x: F.adaptive_max_pool3d(x, (2, 1, 4)), (T((2, 3, 4, 5, "w")),)),
)

CASES = (*_MAX, *_AVERAGE, *_ADAPTIVE, *_ceil_rows())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pool(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("opset", [11, 20, 23])
def test_windows_that_begin_in_the_padding_are_dropped_without_optimizations(opset: int) -> None:
    # ONNX Runtime's fusion of Pad and AveragePool drops them as well, which would hide the difference.
    model = torch.nn.AvgPool2d(2, padding=1, ceil_mode=True).eval()
    shapes = ({2: "h", 3: "w"},)
    program = fxonnx.export(model, (torch.rand(1, 3, 7, 8),), dynamic_shapes=shapes, opset_version=opset)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)
    for height in range(1, 9):
        x = torch.rand(1, 3, height, height + 1)
        found = torch.from_numpy(session.run(None, {"input": x.numpy()})[0])
        torch.testing.assert_close(found, model(x))
