"""Rewriting of Python control flow on tensors to ``torch.cond`` and ``torch.while_loop``, by source transformation."""

from __future__ import annotations

from .operators.helpers import SIZE_BRANCH, Rewrite
from .rewritten_functions import Rewriting, branches_at, functions_at, is_refusal, rewritten_functions

__all__ = ["SIZE_BRANCH", "Rewrite", "Rewriting", "branches_at", "functions_at", "is_refusal", "rewritten_functions"]
