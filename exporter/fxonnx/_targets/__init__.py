"""Targets: one profile for each runtime that models are exported for and checked against."""

from __future__ import annotations

from .builtin import DEFAULT_PROFILE, PROFILES, Target, profile_of
from .profile import TargetProfile

__all__ = ["DEFAULT_PROFILE", "PROFILES", "Target", "TargetProfile", "profile_of"]
