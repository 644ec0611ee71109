"""Batch normalization operators of decomposed graphs, which return or update the running statistics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
BF16, F64 = torch.bfloat16, torch.float64
C = (T((4,)), T((4,)))
RUNNING = (T((4,)), T((4,), low=0.5))
IMAGE = T(("n", 4, "h", 5))


def _updating(x, weight, bias, mean, var, training=True):
    mean, var = mean.clone(), var.clone()
    return *aten._native_batch_norm_legit(x, weight, bias, mean, var, training, 0.2, 1e-3), mean, var


def _fused(x, weight, bias, mean, var):
    mean, var = mean.clone(), var.clone()
    return *aten._batch_norm_with_update(x, weight, bias, mean, var, 0.2, 1e-3)[:3], mean, var


def _rows() -> Iterator[Case]:
    names = ("_native_batch_norm_legit_functional", "native_batch_norm")
    for name in names:
        for training in (True, False):
            what = "training" if training else "inference"

            def normalized(x, *parameters, name=name, training=training):
                # native_batch_norm mutates the statistics, which its schema does not declare.
                return getattr(aten, name)(x, *(p.clone() for p in parameters), training, 0.2, 1e-3)

            yield Case(f"aten.{name}.default", normalized, (IMAGE, *C, *RUNNING), what)
            for dtype in (BF16, F64):
                shapes = [T(t.shape, dtype, t.low, t.high) for t in (T((3, 4, 2)), *C, *RUNNING)]
                # torch's meta kernels disagree on the dtype of the statistics for bfloat16.
                function = (lambda *args, f=normalized: f(*args)[0]) if dtype == BF16 else normalized
                yield Case(f"aten.{name}.default", function, tuple(shapes), f"{what} {str(dtype)[6:]}")


CASES = (
    *_rows(),
    Case(
        "aten._native_batch_norm_legit_no_training.default",
        lambda x, *p: aten._native_batch_norm_legit_no_training(x, *p, 0.1, 1e-3),
        (IMAGE, *C, *RUNNING),
    ),
    Case(
        "aten._native_batch_norm_legit_no_training.default",
        lambda x, *p: aten._native_batch_norm_legit_no_training(x, *p, 0.1, 1e-3)[0],
        (IMAGE, *C, *RUNNING),
        "one node",
        ops=("BatchNormalization",),
        opset=11,
    ),
    Case(
        "aten._batch_norm_no_update.default",
        lambda x, *p: aten._batch_norm_no_update(x, *p, 0.1, 1e-3)[:3],
        (IMAGE, *C, *RUNNING),
    ),
    Case(
        "aten._native_batch_norm_legit.no_stats",
        lambda x, *p: aten._native_batch_norm_legit.no_stats(x, *p, True, 0.1, 1e-3),
        (IMAGE, *C),
    ),
    Case("aten._native_batch_norm_legit.default", _updating, (IMAGE, *C, *RUNNING), "written statistics"),
    Case("aten._batch_norm_with_update.default", _fused, (IMAGE, *C, *RUNNING), "written statistics"),
    Case(
        "aten._batch_norm_with_update_functional.default",
        lambda x, *p: aten._batch_norm_with_update_functional(x, *p, 0.1, 1e-3)[:3],
        (IMAGE, *C, *RUNNING),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batch_norm(case: Case) -> None:
    run(case)
