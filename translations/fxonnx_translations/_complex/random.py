"""Complex normal distributions: each part has half of the variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from .._aten.random import normal_samples
from .._builder.op import Op
from .._builder.symbolic_dims import Dim
from .._registry import translates
from .parts import Pair, part_dtype

aten = torch.ops.aten


def _parts(op: Op, std: float = 1.0) -> Pair:
    dtype = part_dtype(op)
    real, imaginary = (
        op.Mul(normal_samples(op, op.result.shape, dtype), std * math.sqrt(0.5)) for _ in ("real", "imaginary")
    )
    return real, imaginary


@translates("aten::randn", complex=True)
def randn(op: Op, size: Sequence[Dim], **options: Any) -> ir.Value:
    """aten::randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""
    return op.join(*_parts(op))


@translates("aten::randn_like", complex=True)
def randn_like(op: Op, self: ir.Value, **options: Any) -> ir.Value:
    """aten::randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"""
    if not op.result.torch_dtype.is_complex:
        return normal_samples(op, op.result.shape, op.result.dtype)
    return op.join(*_parts(op))


@translates("aten::normal_functional", complex=True)
def normal_functional(op: Op, self: ir.Value, mean: float = 0.0, std: float = 1.0, generator: None = None) -> ir.Value:
    """aten::normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor"""
    real, imaginary = _parts(op, float(std))
    # torch adds it to both parts.
    return op.join(op.Add(real, float(mean)), op.Add(imaginary, float(mean)))
