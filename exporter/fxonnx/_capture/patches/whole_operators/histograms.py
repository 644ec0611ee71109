"""Shapes of histograms, which torch does not compute for fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..patch import KernelPatch, Patch, ShapePatch

__all__ = ["HISTOGRAM_PATCHES"]


def _counts(original: Callable[..., Any], self: Tensor, bins: int = 100, **options: Any) -> tuple[Tensor, Tensor]:
    """``aten::histogram.bin_ct``: the counts and the edges of the bins."""
    return self.new_empty([bins]), self.new_empty([bins + 1])


def _counts_of_edges(original: Callable[..., Any], self: Tensor, bins: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """``aten::histogram.bins_tensor``: the counts, one less than the edges of the bins, and the edges."""
    return self.new_empty([bins.shape[0] - 1]), self.new_empty(bins.shape)


def _edges_of_points(original: Callable[..., Any], self: Tensor, bins: Sequence[int], **options: Any) -> list[Tensor]:
    """``aten::_histogramdd_bin_edges``: the edges of the bins of each coordinate."""
    return [self.new_empty([count + 1]) for count in bins]


def _counts_of_points(original: Callable[..., Any], self: Tensor, bins: Sequence[Any], **options: Any) -> Tensor:
    """``aten::_histogramdd_from_bin_cts`` and ``from_bin_tensors``: one count of each combination of bins."""
    return self.new_empty([one if isinstance(one, int) else one.shape[0] - 1 for one in bins])


def _counts_and_edges(
    original: Callable[..., Any], self: Tensor, bins: int, **options: Any
) -> tuple[Tensor, list[Tensor]]:
    """``aten::histogramdd.int_bins``: the same number of bins of each coordinate."""
    counts = [bins] * int(self.shape[-1])
    return _counts_of_points(original, self, counts), _edges_of_points(original, self, counts)


HISTOGRAM_PATCHES: tuple[Patch, ...] = (
    KernelPatch("aten::histogramdd.int_bins", _counts_and_edges, "its kernel specializes the number of points"),
    *(
        ShapePatch(f"aten::{name}", function, "it has no meta kernel")
        for name, function in (
            ("histogram.bin_ct", _counts),
            ("histogram.bins_tensor", _counts_of_edges),
            ("_histogramdd_bin_edges", _edges_of_points),
            ("_histogramdd_from_bin_cts", _counts_of_points),
            ("_histogramdd_from_bin_tensors", _counts_of_points),
        )
    ),
)
"""Rows of the table of patches."""
