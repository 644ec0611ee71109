"""Shapes whose number of elements, ``x.shape[:2].numel()``, stays symbolic: ``torch.Size.numel`` returns a number."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from ...._user_files import is_user_code
from ..patch import Patch, ValuePatch, is_tracing

__all__ = ["SHAPE_PATCHES"]

_WHY = "the number of elements of a torch.Size is a number, which specializes the sizes"


class _Shape(tuple[Any, ...]):
    """A shape, and its slices and sums. ``torch.Size`` has no subclasses, and its methods cannot be replaced."""

    __slots__ = ()

    def numel(self) -> Any:
        """The product of the sizes."""
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Shape(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return _Shape(super().__add__(tuple(other)))


def _with_numel(found: Any, depth: int) -> Any:
    """A shape for user code, whose frame is the one after this many other frames."""
    if not (is_tracing() and isinstance(found, torch.Size)):
        return found
    frame = sys._getframe(depth + 1)
    return _Shape(found) if is_user_code(frame.f_code, frame.f_globals) else found


def _shape_of_tensor(original: Any) -> property:
    """``Tensor.shape``."""
    return property(lambda tensor: _with_numel(original.__get__(tensor), 1))


def _size_of_tensor(original: Callable[..., Any], self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.size``; the frame of the patch is between this one and the caller's."""
    return _with_numel(original(self, *args, **kwargs), 2)


SHAPE_PATCHES: tuple[Patch, ...] = (
    ValuePatch("torch:Tensor.shape", _shape_of_tensor, _WHY, strict=False),
    Patch("torch:Tensor.size", _size_of_tensor, _WHY, strict=False),
)
"""Applied where ``numel`` specializes a dynamic dim."""
