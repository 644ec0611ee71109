"""Sliding-window caches of transformers: mask sizes that are valid for every length of the past."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["make_mask_sizes_symbolic"]


def make_mask_sizes_symbolic(layer: Any) -> None:
    """Replace ``get_mask_sizes`` of a copied sliding-window cache layer by a version without a branch on the length.

    transformers branches on whether the window is full, which would be a guard for the example's length.
    """
    if not all(hasattr(layer, name) for name in ("sliding_window", "cumulative_length", "get_mask_sizes")):
        return
    if not isinstance(layer.cumulative_length, torch.SymInt):
        return

    def get_mask_sizes(query_length: int) -> tuple[int, int]:
        past, window = layer.cumulative_length, layer.sliding_window
        kept = torch.sym_min(past, window - 1)  # type: ignore[no-untyped-call]
        return kept + query_length, past - kept

    layer.get_mask_sizes = get_mask_sizes
