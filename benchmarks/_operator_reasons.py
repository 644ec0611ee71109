"""Reasons for operators with more than 1.5 times as many nodes as in torch.onnx's graphs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["REASONS"]

REASONS: Mapping[str, str] = MappingProxyType({})
"""Entry of torch's operator database to the reason."""
