"""The search of the scales of blocks, whose error is smaller than with the whole range of the weights."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["searched_scales"]

_SHARES = (1.1, 0.9, 0.8, 0.7)
"""Scales that are tried, as shares of the one whose codes represent the whole range of a block."""
_PIECE_ELEMENTS = 2**17
"""Number of weights that are searched at once: what the cache of a core holds."""


def searched_scales(
    blocks: Tensor, scales: Tensor, zero_points: Tensor, bits: int, importance: Tensor | None = None
) -> Tensor:
    """Search the scale of each block with the least sum of squared errors.

    A scale is tried by rounding all weights ``w`` to codes, of which ``q`` is the distance from the zero point. With
    these codes the best scale ``s`` is ``sum(w q) / sum(q q)``, by least squares, and the error is
    ``sum(w w) - 2 s sum(w q) + s s sum(q q)``. The best scale of all is tried again: a step of Lloyd's algorithm (IEEE
    Transactions on Information Theory 28, 1982, page 129). No error is larger than with the given scale, up to the
    rounding of sums. Zero points remain: searched ones reduce errors by less than 1 percent more.

    Args:
        blocks: The weights, float32 or float64 of shape (rows, blocks, size).
        scales: The scales to begin with, of shape (rows, blocks), in the dtype that they are stored in.
        zero_points: The codes of zero, uint8 of a shape that broadcasts to that of the scales.
        bits: The codes are 0 to ``2 ** bits - 1``.
        importance: Factors of the squared errors, of shape (blocks, size), the same for all rows; None for 1. With the
            mean square of each input feature, the sum is the expected squared error of an output, if the features are
            independent.

    Returns:
        Scales in the shape and dtype of the given ones.
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
