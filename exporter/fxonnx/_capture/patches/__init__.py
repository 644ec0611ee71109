"""Patches of torch: the only place where torch is changed, under one lock and for the exporting thread only."""

from __future__ import annotations

from .fast_paths import SPEED_PATCHES
from .patch import Patch, PatchKind, applied, is_tracing, not_tracing
from .table import (
    CAPTURE_PATCHES,
    SEED_PATCHES,
    TRACING_PATCHES,
    VALUE_PATCHES,
    all_patches,
    capture_patches,
    missing_targets,
    tracing_patches,
    value_patches,
)
from .tracing_state import LOADING_PATCHES, REWRITING_PATCHES, copying_operands, loading_patches, rewriting_patches

__all__ = [
    "CAPTURE_PATCHES",
    "LOADING_PATCHES",
    "REWRITING_PATCHES",
    "SEED_PATCHES",
    "SPEED_PATCHES",
    "TRACING_PATCHES",
    "VALUE_PATCHES",
    "Patch",
    "PatchKind",
    "all_patches",
    "applied",
    "capture_patches",
    "copying_operands",
    "is_tracing",
    "loading_patches",
    "missing_targets",
    "not_tracing",
    "rewriting_patches",
    "tracing_patches",
    "value_patches",
]
