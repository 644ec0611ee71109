"""Normalization layers and norms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .harness import Case, T, run

F16, F64, BF16 = torch.float16, torch.float64, torch.bfloat16


def _trained(layer: nn.Module) -> nn.Module:
    """The layer with parameters and statistics other than the neutral ones it is made with."""
    generator = torch.Generator().manual_seed(1)
    for tensor in layer.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return layer


def _batch_statistics(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, weight, training=True)


_IMAGE = T(("n", 4, "h", "w"))


def _with_statistics() -> Iterator[Case]:
    """Layer and group normalization that also return the mean and the reciprocal deviation."""
    layer, group = "aten.native_layer_norm.default", "aten.native_group_norm.default"
    weight = torch.linspace(0.5, 1.5, 4)

    def layer_norm(x, dims=(4,), parameter=None):
        return torch.ops.aten.native_layer_norm(x, dims, parameter, parameter, 1e-5)

    def group_norm(x, parameter=None):
        return torch.ops.aten.native_group_norm(x, parameter, parameter, x.shape[0], 4, x.shape[2] * 3, 2, 1e-5)

    affine = partial(layer_norm, parameter=weight)
    yield Case(layer, affine, (T(("n", 4)),), ops=("LayerNormalization",))
    yield Case(layer, partial(layer_norm, dims=(3, 4)), (T(("n", 3, 4)),), "two axes, not affine")
    yield Case(layer, affine, (T(("n", 4)),), "opset 16", opset=16)
    yield Case(layer, lambda x: layer_norm(x, (4,), weight.double()), (T(("n", 4), F64),), "float64")
    yield Case(layer, lambda x: layer_norm(x, (4,), weight.bfloat16())[0], (T(("n", 4), torch.bfloat16),), "bfloat16")
    yield Case(layer, lambda x: layer_norm(x, (4,), weight.half())[0], (T(("n", 4), torch.float16),), "float16")
    yield Case(group, group_norm, (T(("n", 4, "h", 3)),))
    yield Case(group, partial(group_norm, parameter=weight), (T(("n", 4, "h", 3)),), "affine")
    yield Case(group, partial(group_norm, parameter=weight.double()), (T(("n", 4, "h", 3), F64),), "float64")
    yield Case(group, lambda x: group_norm(x)[0], (T((2, 4, 5, 3), torch.bfloat16),), "bfloat16")


CASES = (
    Case(
        "aten.batch_norm.default", _trained(nn.BatchNorm2d(4, eps=1e-3)), (_IMAGE,), "2d", ops=("BatchNormalization",)
    ),
    Case("aten.batch_norm.default", _trained(nn.BatchNorm1d(4)), (T(("n", 4, "t")),), "1d"),
    Case("aten.batch_norm.default", _trained(nn.BatchNorm1d(4)), (T(("n", 4)),), "no spatial axis"),
    Case("aten.batch_norm.default", _trained(nn.BatchNorm3d(4)), (T((2, 4, 3, 4, "w")),), "3d"),
    Case("aten.batch_norm.default", nn.BatchNorm2d(4, affine=False), (_IMAGE,), "no parameters"),
    Case("aten.batch_norm.default", _trained(nn.BatchNorm2d(4)).double(), (T((2, 4, 3, 3), F64),), "float64"),
    Case("aten.batch_norm.default", _trained(nn.BatchNorm2d(4)).half(), (T((2, 4, 3, 3), F16),), "float16"),
    Case("aten.batch_norm.default", _trained(nn.BatchNorm2d(4)).bfloat16(), (T((2, 4, 3, 3), BF16),), "bfloat16"),
    Case("aten.batch_norm.default", _trained(nn.BatchNorm2d(4)), (_IMAGE,), "opset 11", opset=11),
    Case("aten.batch_norm.default", _batch_statistics, (_IMAGE,), "training"),
    Case("aten.batch_norm.default", _batch_statistics, (T(("n", 4, 3), F64),), "training float64"),
    Case("aten.batch_norm.default", _batch_statistics, (_IMAGE, T((4,))), "training with weight and bias"),
    Case("aten.batch_norm.default", _batch_statistics, (T(("n", 4)),), "training 2d opset 12", opset=12),
    Case(
        "aten.layer_norm.default", _trained(nn.LayerNorm(6)), (T(("n", "m", 6)),), "1 axis", ops=("LayerNormalization",)
    ),
    Case("aten.layer_norm.default", _trained(nn.LayerNorm([5, 6], eps=1e-2)), (T(("n", 5, 6)),), "2 axes"),
    Case("aten.layer_norm.default", _trained(nn.LayerNorm(6, bias=False)), (T(("n", 6)),), "no bias"),
    Case("aten.layer_norm.default", nn.LayerNorm([5, 6], elementwise_affine=False), (T(("n", 5, 6)),), "no parameters"),
    Case("aten.layer_norm.default", lambda x: F.layer_norm(x, x.shape[1:]), (T((2, "n", "m")),), "symbolic axes"),
    Case("aten.layer_norm.default", lambda x, b: F.layer_norm(x, (6,), None, b), (T((2, 6)), T((6,))), "bias only"),
    Case("aten.layer_norm.default", _trained(nn.LayerNorm(6)).double(), (T(("n", 6), F64),), "float64"),
    Case("aten.layer_norm.default", _trained(nn.LayerNorm(6)).half(), (T(("n", 6), F16),), "float16"),
    Case("aten.layer_norm.default", _trained(nn.LayerNorm(6)).bfloat16(), (T(("n", 6), BF16),), "bfloat16"),
    Case("aten.layer_norm.default", _trained(nn.LayerNorm(6)), (T(("n", 6)),), "opset 16", opset=16),
    Case("aten.layer_norm.default", _trained(nn.LayerNorm(6)).double(), (T(("n", 6), F64),), "f64 opset 16", opset=16),
    Case("aten.layer_norm.default", _trained(nn.LayerNorm([5, 6])), (T(("n", 5, 6)),), "opset 11", opset=11),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(2, 4)), (_IMAGE,), "2d"),
    Case(
        "aten.group_norm.default",
        _trained(nn.GroupNorm(2, 4)),
        (_IMAGE,),
        "opset 21",
        opset=21,
        ops=("GroupNormalization",),
    ),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(4, 4)), (T(("n", 4, "t")),), "1 channel per group"),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(2, 6)), (T(("n", 6)),), "no spatial axis"),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(2, 6)), (T(("n", 6)),), "no spatial axis opset 21", opset=21),
    Case(
        "aten.group_norm.default",
        nn.GroupNorm(2, 4, affine=False),
        (T((2, 4, 3, 5)),),
        "no parameters",
        ops=("Reshape", "InstanceNormalization", "Reshape"),
    ),
    Case("aten.group_norm.default", nn.GroupNorm(2, 4, affine=False), (_IMAGE,), "no parameters opset 21", opset=21),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(2, 4)).double(), (T((2, 4, 3), F64),), "float64"),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(2, 4)).double(), (T((2, 4, 3), F64),), "f64 21", opset=21),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(2, 4)).half(), (T((2, 4, 3), F16),), "float16"),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(2, 4)).bfloat16(), (T((2, 4, 3), BF16),), "bfloat16"),
    Case("aten.group_norm.default", _trained(nn.GroupNorm(2, 4)), (_IMAGE,), "opset 11", opset=11),
    Case(
        "aten.instance_norm.default",
        _trained(nn.InstanceNorm2d(4, affine=True)),
        (_IMAGE,),
        "2d",
        ops=("InstanceNormalization",),
    ),
    Case("aten.instance_norm.default", nn.InstanceNorm1d(4), (T(("n", 4, "t")),), "no parameters"),
    Case("aten.instance_norm.default", nn.InstanceNorm3d(4), (T((4, 2, 3, "w")),), "unbatched"),
    Case(
        "aten.instance_norm.default",
        _trained(nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
        (_IMAGE,),
        "running statistics",
    ),
    Case(
        "aten.instance_norm.default",
        _trained(nn.InstanceNorm2d(4, affine=True)).double(),
        (T((2, 4, 3, 3), F64),),
        "float64",
    ),
    Case("aten.instance_norm.default", nn.InstanceNorm2d(4), (_IMAGE,), "opset 11", opset=11),
    Case("aten.rms_norm.default", _trained(nn.RMSNorm(6)), (T(("n", "m", 6)),), "default eps"),
    Case("aten.rms_norm.default", nn.RMSNorm(6), (torch.full((2, 6), 1e-4),), "eps counts"),
    Case("aten.rms_norm.default", nn.RMSNorm(6).half(), (torch.full((2, 6), 1e-4, dtype=F16),), "eps counts half"),
    Case("aten.rms_norm.default", _trained(nn.RMSNorm([5, 6], eps=1e-2)), (T(("n", 5, 6)),), "2 axes"),
    Case("aten.rms_norm.default", nn.RMSNorm(6, elementwise_affine=False), (T(("n", 6)),), "no weight"),
    Case("aten.rms_norm.default", nn.RMSNorm(6, elementwise_affine=False), (T(("n", 6)),), "no weight 23", opset=23),
    Case("aten.rms_norm.default", _trained(nn.RMSNorm(6)), (T(("n", 6)),), "23", opset=23, ops=("RMSNormalization",)),
    Case("aten.rms_norm.default", _trained(nn.RMSNorm([5, 6])), (T(("n", 5, 6)),), "2 axes 23", opset=23),
    Case("aten.rms_norm.default", _trained(nn.RMSNorm(6)).double(), (T(("n", 6), F64),), "float64"),
    Case("aten.rms_norm.default", _trained(nn.RMSNorm(6)).double(), (T(("n", 6), F64),), "float64 23", opset=23),
    Case("aten.rms_norm.default", _trained(nn.RMSNorm(6)).bfloat16(), (T(("n", 6), BF16),), "bfloat16"),
    Case("aten.rms_norm.default", _trained(nn.RMSNorm(6)), (T(("n", 6)),), "opset 11", opset=11),
    *(
        Case(
            "aten.linalg_vector_norm.default", lambda x, p=p: torch.linalg.vector_norm(x, p, -1), (T(("n", 5)),), f"{p}"
        )
        for p in (2, 1, 0, 3, 2.5, -1, math.inf, -math.inf)
    ),
    Case("aten.linalg_vector_norm.default", torch.linalg.vector_norm, (T(("n", 5)),), "all", ops=("ReduceL2",)),
    Case(
        "aten.linalg_vector_norm.default",
        lambda x: torch.linalg.vector_norm(x, 2, (0, -1), keepdim=True),
        (T(("n", 2, "m")),),
        "keepdim",
    ),
    Case(
        "aten.linalg_vector_norm.default",
        lambda x: torch.linalg.vector_norm(x, dtype=F64),
        (T(("n", 5)),),
        "float64 of float32",
    ),
    Case("aten.linalg_vector_norm.default", lambda x: torch.linalg.vector_norm(x, 3), (T(()),), "0-dim"),
    Case("aten.linalg_vector_norm.default", lambda x: torch.linalg.vector_norm(x, 0), (T(()),), "0-dim count"),
    Case(
        "aten.linalg_vector_norm.default",
        lambda x: torch.linalg.vector_norm(x, math.inf, 1),
        (torch.tensor([[1.0, math.nan, 3.0], [-4.0, 2.0, -math.inf]]),),
        "NaN",
        numerics="exact",
    ),
    Case("aten.linalg_vector_norm.default", torch.linalg.vector_norm, (torch.zeros(0),), "empty"),
    Case("aten.linalg_vector_norm.default", torch.linalg.vector_norm, (T(("n", 5), F16),), "float16"),
    Case("aten.linalg_vector_norm.default", lambda x: F.normalize(x, dim=1), (_IMAGE,), "normalize"),
    Case("aten.linalg_vector_norm.default", torch.linalg.vector_norm, (T(("n", 5)),), "opset 11", opset=11),
    *_with_statistics(),
    Case("aten.norm.Scalar", torch.ops.aten.norm.Scalar, (T(("n", 5)),)),
    Case("aten.norm.ScalarOpt_dim", lambda x: torch.ops.aten.norm.ScalarOpt_dim(x, None, [-1], True), (T(("n", 5)),)),
    Case("aten.norm.ScalarOpt_dtype", lambda x: torch.ops.aten.norm.ScalarOpt_dtype(x, 1, dtype=F64), (T(("n", 5)),)),
    Case(
        "aten.norm.ScalarOpt_dim_dtype",
        lambda x: torch.ops.aten.norm.ScalarOpt_dim_dtype(x, 3, [0], False, dtype=F64),
        (T(("n", 5)),),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_norm(case: Case) -> None:
    run(case)
