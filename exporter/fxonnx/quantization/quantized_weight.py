"""The representation of a quantized weight, and its rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["QuantizedWeight", "WeightScheme", "blocks_of", "quantize_rows"]

_CHUNK_ELEMENTS = 2**22
"""Number of weights that are rounded at once: temporaries stay far smaller than the weight."""


@dataclass(frozen=True)
class WeightScheme:
    """How a weight is quantized.

    Attributes:
        bits: 4 or 8.
        block_size: Number of consecutive weights of an output feature that share a scale; 0 for all of them.
        symmetric: Whether the zero point of every block is the middle code, ``2 ** (bits - 1)``.
        scale_dtype: dtype of the scales.
        negative_scales: Whether the scale of a symmetric block may be negative, so that the weight with the largest
            magnitude always has the smallest code, as in ONNX Runtime's own quantization. Other runtimes than
            ONNX Runtime require positive scales.
        searches_scales: Whether scales of 4-bit blocks are searched: ``searched_scales``.
        has_offsets: Whether a number is added to each block, with which it need not contain zero; for symmetric ones.
    """

    bits: int
    block_size: int
    symmetric: bool
    scale_dtype: torch.dtype
    negative_scales: bool = False
    searches_scales: bool = False
    has_offsets: bool = False


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight of a linear layer, or consecutive rows of it, as integers.

    The weight is ``(codes - zero_points) * scales + offsets``, where each block of a row has one scale, one zero point
    and one offset. It has the layout of ``nn.Linear``: one row for each output feature.

    Attributes:
        codes: Unsigned codes, 0 to ``2 ** bits - 1``, uint8 of shape (out_features, in_features), one per element.
        scales: Floating-point scales of shape (out_features, blocks).
        zero_points: Codes of zero, uint8 of shape (out_features, blocks); None for ``2 ** (bits - 1)``.
        bits: 4 or 8.
        block_size: Number of weights in a block; the last block of a row may be incomplete.
        offsets: Floating-point numbers as the scales; None for zeros.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor | None
    bits: int
    block_size: int
    offsets: torch.Tensor | None = None

    def dequantize(self) -> torch.Tensor:
        """Return the weight in the dtype of the scales, computed in float32 or wider."""
        dtype = torch.promote_types(self.scales.dtype, torch.float32)
        rows, columns = self.codes.shape
        # The codes of the columns that complete the last block do not matter.
        codes = _in_blocks(self.codes, self.block_size).to(dtype)
        middle = 2 ** (self.bits - 1)
        points = middle if self.zero_points is None else self.zero_points.to(dtype).unsqueeze(2)
        blocks = (codes - points) * self.scales.to(dtype).unsqueeze(2)
        if self.offsets is not None:
            blocks += self.offsets.to(dtype).unsqueeze(2)
        return blocks.reshape(rows, -1)[:, :columns].to(self.scales.dtype)


def blocks_of(columns: int, block_size: int) -> tuple[int, int]:
    """Return the number of blocks in a row and their size.

    Args:
        columns: Length of the row.
        block_size: The size of a ``WeightScheme``; 0 for one block.
    """
    size = block_size or max(columns, 1)
    return -(-columns // size), size


def quantize_rows(
    weight: torch.Tensor, scheme: WeightScheme, *, codes: bool = True, importance: torch.Tensor | None = None
) -> Iterator[QuantizedWeight]:
    """Round a weight and yield consecutive groups of rows, an even number of rows in all but the last.

    Args:
        weight: The weight, of shape (out_features, in_features).
        scheme: How to quantize it.
        codes: Whether the codes are needed; otherwise they are empty.
        importance: Factors of the squared errors of the input features, for searched scales.

    Raises:
        ValueError: If a weight is infinite or not a number.
    """
    step = max(2, _CHUNK_ELEMENTS // max(weight.shape[1], 1) // 2 * 2)
    for start in range(0, max(weight.shape[0], 1), step):
        yield _quantize(weight[start : start + step], scheme, codes, importance)


def _quantize(
    weight: torch.Tensor, scheme: WeightScheme, wants_codes: bool, importance: torch.Tensor | None
) -> QuantizedWeight:
    """Round some rows."""
    rows, columns = weight.shape
    _, size = blocks_of(columns, scheme.block_size)
    blocks = _in_blocks(weight.to(torch.promote_types(weight.dtype, torch.float32)), size)
    middle, largest = 2 ** (scheme.bits - 1), 2**scheme.bits - 1
    if scheme.has_offsets:
        low, high = torch.aminmax(blocks, dim=2)
        offsets = (low + (high - low) * (middle / largest)).to(scheme.scale_dtype)
        without = replace(scheme, has_offsets=False, negative_scales=True, block_size=size)
        remainder = (blocks - offsets.to(blocks.dtype).unsqueeze(2)).reshape(rows, -1)
        found = _quantize(remainder, without, wants_codes, importance)
        return replace(found, codes=found.codes[:, :columns] if wants_codes else found.codes, offsets=offsets)
    # Zero is representable in every block, also in one that is completed with zeros.
    low, high = torch.aminmax(blocks, dim=2)
    low, high = low.clamp(max=0), high.clamp(min=0)
    if not scheme.symmetric:
        scales = (high - low) / largest
    elif scheme.negative_scales:
        scales = torch.where(high > -low, high, low) / -middle
    else:
        scales = torch.maximum(high / (middle - 1), low / -middle)
    scales = scales.to(scheme.scale_dtype)
    if not bool(torch.isfinite(scales).all()):
        raise ValueError("it has elements that are not finite, or too large for its scales")
    # A block of zeros, or of numbers too small for the dtype of the scales. With a larger scale, kernels that sum codes
    # and zero points separately would return rounding errors.
    scales = torch.where(scales == 0, torch.finfo(scheme.scale_dtype).tiny, scales)
    zero_points = None
    if not scheme.symmetric:
        zero_points = (-low / scales.to(blocks.dtype)).round_().clamp_(0, largest).to(torch.uint8)
    if scheme.searches_scales and scheme.bits == 4:
        points = torch.tensor(middle, dtype=torch.uint8) if zero_points is None else zero_points
        factors = None if importance is None else _in_blocks(importance[None], size)[0]
        scales = _searched_scales(blocks, scales, points, scheme.bits, factors)
    exact = scales.to(blocks.dtype)
    codes = torch.empty(0, dtype=torch.uint8)
    if wants_codes:
        rounded = (blocks * (1 / exact).unsqueeze(2)).round_()
        rounded += middle if zero_points is None else zero_points.to(blocks.dtype).unsqueeze(2)
        codes = rounded.clamp_(0, largest).to(torch.uint8).reshape(rows, -1)[:, :columns]
    return QuantizedWeight(codes, scales, zero_points, scheme.bits, size)


def _in_blocks(matrix: torch.Tensor, size: int) -> torch.Tensor:
    """Return a matrix as (rows, blocks, size), the last block completed with zeros."""
    rows, columns = matrix.shape
    missing = -columns % size
    if missing:
        matrix = torch.nn.functional.pad(matrix, (0, missing))
    return matrix.reshape(rows, -1, size)


_SHARES = (1.1, 0.9, 0.8, 0.7)
"""Scales that are tried, as shares of the one whose codes represent the whole range of a block."""
_PIECE_ELEMENTS = 2**17
"""Number of weights that are searched at once: as many as the cache of a core holds."""


def _searched_scales(
    blocks: Tensor, scales: Tensor, zero_points: Tensor, bits: int, importance: Tensor | None = None
) -> Tensor:
    """Search the scale of each block with the least sum of squared errors.

    A scale is tried by rounding all weights ``w`` to codes, of which ``q`` is the distance from the zero point. With
    these codes the best scale ``s`` is ``sum(w q) / sum(q q)``, by least squares, and the error is
    ``sum(w w) - 2 s sum(w q) + s s sum(q q)``. The best scale of all is tried again: a step of Lloyd's algorithm (IEEE
    Transactions on Information Theory 28, 1982, page 129). No error is larger than with the given scale, up to the
    rounding of sums. Zero points remain: searched ones reduce errors by less than 1 percent more.
    """
    rows, count, size = blocks.shape
    step = max(1, _PIECE_ELEMENTS // max(count * size, 1))
    points = zero_points.to(blocks.dtype).expand(scales.shape)
    factors = None if importance is None else importance.to(blocks.dtype)
    pieces = zip(torch.split(blocks, step), torch.split(scales, step), torch.split(points, step), strict=True)
    return torch.cat([_searched(*piece, 2**bits - 1, factors) for piece in pieces]) if rows else scales


def _searched(blocks: Tensor, scales: Tensor, points: Tensor, largest: int, factors: Tensor | None) -> Tensor:
    least_codes, largest_codes = -points[..., None], (largest - points)[..., None]
    weighted = blocks if factors is None else blocks * factors

    def sums(scale: Tensor) -> tuple[Tensor, Tensor]:
        codes = (blocks * (1 / scale)[..., None]).round_().clamp_(least_codes, largest_codes)
        products = (weighted * codes).sum(-1)
        codes.square_()
        return products, (codes if factors is None else codes.mul_(factors)).sum(-1)

    def error(scale: Tensor, products: Tensor, squares: Tensor) -> Tensor:
        """The error without ``sum(w w)``."""
        return scale * (scale * squares - 2 * products)

    def better(best: Tensor, least: Tensor, products: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        # A scale that is zero or infinite in its dtype gives NaN, with which comparisons are false.
        fit = (products / squares).to(scales.dtype).to(blocks.dtype)
        new = error(fit, products, squares)
        return torch.where(new < least, fit, best), torch.where(new < least, new, least)

    whole = scales.to(blocks.dtype)
    found = sums(whole)
    best, least = better(whole, error(whole, *found), *found)
    for share in _SHARES:
        best, least = better(best, least, *sums(share * whole))
    return better(best, least, *sums(best))[0].to(scales.dtype)
