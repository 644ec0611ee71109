"""The operator that stands for a recognized weight, with its codes, scales and zero points as operands."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._own_operators import define_operator
from ..._prepare.weight_folding import recipe

__all__ = ["unchanged", "values_of_blocks"]


def _dequantize(
    codes: Tensor, scale: Tensor, zero_point: Tensor | None, table: Tensor | None, low: int, high: int, block: list[int]
) -> Tensor:
    def expanded(parameter: Tensor) -> Tensor:
        for axis, size in enumerate(block):
            parameter = parameter.repeat_interleave(size, dim=axis)
        return parameter

    values = codes if table is None else table[codes.long()]
    shifted = values if zero_point is None else values - expanded(zero_point)
    return shifted.to(scale.dtype) * expanded(scale)


_OPERATOR = define_operator(
    "fxonnx::dequantize(Tensor codes, Tensor scale, Tensor? zero_point, Tensor? table, int low, int high, int[] block) "
    "-> Tensor",
    _dequantize,
)


@recipe("blocks")
def values_of_blocks(parameter: Tensor, positions: Tensor, *checked: Tensor) -> Tensor:
    """Select one scale or zero point for each block.

    Args:
        parameter: The scales or zero points.
        positions: The position of each block's.
        *checked: Pairs of an index tensor of the model, and its elements at the export.

    Raises:
        ValueError: If the weights have other index tensors.
    """
    for index, expected in zip(checked[::2], checked[1::2], strict=True):
        if not index.is_meta and not torch.equal(index, expected):
            raise ValueError("the groups of a quantized weight differ from those at the export: export the model again")
    return parameter.reshape(-1)[positions]


@recipe("scale")
def unchanged(scale: Tensor, *checked: Tensor) -> Tensor:
    """Return the scale of a quantizer.

    Args:
        scale: The scale.
        *checked: Pairs of a limit or zero point of the model, and its value at the export.

    Raises:
        ValueError: If the weights have other limits or zero points.
    """
    for number, expected in zip(checked[::2], checked[1::2], strict=True):
        if not number.is_meta and not torch.equal(number, expected):
            raise ValueError("the limits of a quantizer differ from those at the export: export the model again")
    return scale
