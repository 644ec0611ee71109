"""Fractional max pooling with given random samples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
_2D, _3D = "aten.fractional_max_pool2d.default", "aten.fractional_max_pool3d.default"
_NAN, _INF = float("nan"), float("inf")


def _samples(*shape: int | str, dtype: torch.dtype = torch.float32) -> T:
    return T(shape, dtype, 0.0, 0.999)


def _planes(x, samples):
    return aten.fractional_max_pool2d(x, (3, 2), (3, 4), samples)


def _rows() -> Iterator[Case]:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        inputs = (T((2, 3, 40, 90), dtype), _samples(2, 3, 2, dtype=dtype))
        yield Case(_2D, lambda x, s: aten.fractional_max_pool2d(x, (3, 2), (9, 14), s), inputs, str(dtype)[6:])


CASES = (
    Case(_2D, _planes, (T(("n", 3, "h", "w")), _samples("n", 3, 2))),
    Case(_2D, _planes, (T((3, "h", "w")), _samples(1, 3, 2)), "unbatched", opset=12),
    Case(_2D, lambda x, s: aten.fractional_max_pool2d(x, 2, (1, 1), s), (T((2, 3, 4, 5)), _samples(2, 3, 2)), "one"),
    Case(
        _2D,
        lambda x, s: aten.fractional_max_pool2d(x, (2, 3), (2, 2), s),
        (
            torch.tensor(
                [[[_NAN, 1.0, _NAN, -_INF, -_INF], [1.0, 1.0, 0.0, -_INF, -_INF], [2.0, 2.0, 1.0, -_INF, 2.0]]]
            ),
            _samples(1, 1, 2),
        ),
        "NaN, equal and infinite",
        numerics="exact",
    ),
    *_rows(),
    Case(
        _3D,
        lambda x, s: aten.fractional_max_pool3d(x, (2, 3, 2), (3, 3, 4), s),
        (T((2, 2, 5, 6, 7)), _samples(2, 2, 3)),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fractional_pool(case: Case) -> None:
    run(case)
