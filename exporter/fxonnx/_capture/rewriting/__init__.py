"""Rewriting of Python control flow on tensors to ``torch.cond`` and ``torch.while_loop``, by source transformation."""

from __future__ import annotations

from .attempts import Rewritten, capture_with_loops, capture_with_rewrites
from .operators.helpers import Rewrite

__all__ = ["Rewrite", "Rewritten", "capture_with_loops", "capture_with_rewrites"]
