"""Every operator of torch's core ATen set is translated, decomposed, or excused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxonnx._prepare.tracing import decompositions
from fxonnx_translations._builtin import default_registry

from .harness import Case, T, run

aten = torch.ops.aten

_BACKWARD = "computes a gradient; models are exported for inference"
_SIZE = "gives a size, which the lowering follows as an expression"

EXCUSED = {
    aten._adaptive_avg_pool2d_backward.default: _BACKWARD,
    aten.avg_pool2d_backward.default: _BACKWARD,
    aten.convolution_backward.default: _BACKWARD,
    aten.embedding_dense_backward.default: _BACKWARD,
    aten.max_pool2d_with_indices_backward.default: _BACKWARD,
    aten.native_group_norm_backward.default: _BACKWARD,
    aten.native_layer_norm_backward.default: _BACKWARD,
    aten._local_scalar_dense.default: _SIZE,
    aten.sym_is_contiguous.default: _SIZE,
    aten.sym_numel.default: _SIZE,
    aten.sym_size.int: _SIZE,
    aten.sym_storage_offset.default: _SIZE,
    aten.sym_stride.int: _SIZE,
    aten.resize_.default: "changes the memory of a tensor, which an ONNX tensor does not have",
    aten.atan2.out: "writes to an argument; torch.export gives the other overload",
}

IMAGE = T(("n", 4, "h", "w"))
WEIGHT, BIAS = torch.linspace(0.5, 2.0, 4), torch.linspace(-1.0, 1.0, 4)
MEAN, VAR = torch.linspace(-1.0, 1.0, 4), torch.linspace(0.5, 2.0, 4)


def _row(target: torch._ops.OpOverload, function: Callable[..., Any], *inputs: Any) -> Case:
    return Case(str(target), function, inputs)


# Operators without a row in other tables, because they are decomposed.
DECOMPOSED = (
    _row(aten.empty_strided.default, lambda x: aten.empty_strided([2, 3], [1, 2]).zero_() + x, T((2, 3))),
    _row(aten.grid_sampler_2d.default, lambda x, g: aten.grid_sampler_2d(x, g, 0, 0, False), IMAGE, T(("n", 5, 6, 2))),
    _row(aten.native_layer_norm.default, lambda x: aten.native_layer_norm(x, [4], WEIGHT, BIAS, 1e-5), T(("n", 4))),
    _row(
        aten.native_group_norm.default,
        lambda x: aten.native_group_norm(x, WEIGHT, BIAS, x.shape[0], 4, x.shape[2], 2, 1e-5),
        T(("n", 4, "w")),
    ),
    _row(
        aten._native_batch_norm_legit_no_training.default,
        lambda x: aten._native_batch_norm_legit_no_training(x, WEIGHT, BIAS, MEAN, VAR, 0.1, 1e-5)[0],
        IMAGE,
    ),
    _row(
        aten._native_batch_norm_legit.default,
        lambda x: aten._native_batch_norm_legit(x, WEIGHT, BIAS, MEAN.clone(), VAR.clone(), False, 0.1, 1e-5)[0],
        IMAGE,
    ),
    _row(
        aten._native_batch_norm_legit.no_stats,
        lambda x: aten._native_batch_norm_legit.no_stats(x, WEIGHT, BIAS, True, 0.1, 1e-5)[0],
        IMAGE,
    ),
    _row(aten.log1p.default, torch.log1p, T(("n",), low=-0.5)),
    _row(aten.expm1.default, torch.expm1, T(("n",))),
    _row(aten.col2im.default, lambda x: aten.col2im(x, [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]), T(("n", 8, 12))),
    _row(aten.native_dropout.default, lambda x: aten.native_dropout(x, 0.0, True)[0], T(("n", 3))),
    _row(aten.randn.default, lambda x: aten.randn([3]) * 0 + x, T(("n", 3))),
)


def _core() -> list[torch._ops.OpOverload]:
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, operator = name.partition("::")
        packet, _, overload = operator.partition(".")
        if namespace == "aten":
            target = getattr(getattr(aten, packet), overload or "default")
            if torch.Tag.core in target.tags:
                found.append(target)
    return sorted(found, key=str)


@pytest.mark.parametrize("target", _core(), ids=str)
def test_is_accounted_for(target: torch._ops.OpOverload) -> None:
    registry = default_registry()
    # Operators that always have complex tensors are in the registry's table of complex calls.
    translated = target in registry or target.name() in registry.complex_table
    if target in EXCUSED:
        assert not translated, "translated by now: remove the excuse"
    elif not translated:
        assert decompositions(target), "neither translated nor decomposed"
        assert str(target) in {case.target for case in DECOMPOSED}, "decomposed, but no row shows that it works"


@pytest.mark.parametrize("case", DECOMPOSED, ids=str)
def test_decomposed_against_eager(case: Case) -> None:
    run(case)
