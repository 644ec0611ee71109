"""Captures of models without the other stages of an export."""

from __future__ import annotations

from typing import Any

from fxonnx._capture import Capture
from fxonnx._capture import capture as capture_request
from fxonnx._request import Request

__all__ = ["capture"]


def capture(model: Any, args: Any = (), kwargs: Any = None, dynamic_shapes: Any = None) -> Capture:
    """Capture a model as an export does."""
    return capture_request(Request(model=model, args=args, kwargs=kwargs, dynamic_shapes=dynamic_shapes))
