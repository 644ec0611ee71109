"""Rewriting of Python control flow on tensors to ``torch.cond`` and ``torch.while_loop``, by source transformation."""

from __future__ import annotations

from .operators.helpers import Rewrite
from .rewritten_functions import Rewriting, functions_at, is_refusal, rewritten_functions

__all__ = ["Rewrite", "Rewriting", "functions_at", "is_refusal", "rewritten_functions"]
