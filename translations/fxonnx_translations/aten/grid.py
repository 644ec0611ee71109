"""Sampling at the positions of a grid."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ..op import Op, Unsupported
from ..registry import translates

aten = torch.ops.aten

_MODES = {0: "linear", 1: "nearest", 2: "cubic"}
_PADDING = {0: "zeros", 1: "border", 2: "reflection"}


@translates(aten.grid_sampler_3d.default)
def grid_sampler_3d(
    op: Op, input: ir.Value, grid: ir.Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ir.Value:
    """aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"""
    if op.opset < 20:
        raise Unsupported(f"GridSample of volumes exists from opset 20 on, and has no form at opset {op.opset}")
    return op.GridSample(
        input,
        grid,
        mode=_MODES[interpolation_mode],
        padding_mode=_PADDING[padding_mode],
        align_corners=int(align_corners),
    )
