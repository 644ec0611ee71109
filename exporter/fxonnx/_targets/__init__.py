"""Targets: one profile for each runtime that models are exported for and checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from .profile import CPU_KERNELS, TargetProfile

__all__ = ["DEFAULT_PROFILE", "PROFILES", "Target", "TargetProfile", "profile_of"]

Target: TypeAlias = Literal["onnxruntime"]

_ONNXRUNTIME = TargetProfile(
    name="onnxruntime",
    runtime="ONNX Runtime on the CPU",
    kernels=CPU_KERNELS,
    default_opset=23,
    newest_opset=26,
    domains=frozenset({"ai.onnx.ml", "com.microsoft"}),
    patterns=MappingProxyType({"flat_tokens": True}),
    falls_back_to_cpu=True,
)

PROFILES: Mapping[Target, TargetProfile] = MappingProxyType({"onnxruntime": _ONNXRUNTIME})
"""Target to profile."""

DEFAULT_PROFILE = replace(_ONNXRUNTIME, default_opset=20, patterns=MappingProxyType({}))
"""Without a target: a plain graph for any runtime, which ONNX Runtime's CPU execution provider runs."""


def profile_of(target: Target | None) -> TargetProfile:
    """Return the profile of a target, or the default profile."""
    return DEFAULT_PROFILE if target is None else PROFILES[target]
