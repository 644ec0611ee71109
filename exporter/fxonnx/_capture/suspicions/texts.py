"""Texts of sizes and tensors in user code, which differ between a capture and eager torch, and are departures.

Code that uses such a text as the key of a cache computes the same as in eager torch. Code that compares it with other
texts, as in ``f"grid_{n}" == "grid_7"``, does not: it may differ at the sizes in these texts.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from fxonnx_translations._torch_compat import FakeTensor, recording_mode

from ..._user_files import OWN, is_user_code
from .departures import DepartureKind, Evidence, record_departure

__all__ = ["text_of_number", "text_of_tensor"]


_CHECKS = frozenset({"_assert", "_check"})
"""Functions of torch that take a message, which is computed even if the check passes."""

_UNKNOWN = ((0, 0), (0, 0))
"""Range of instructions in code that was compiled without columns."""


def text_of_number(original: Callable[..., str], self: Any) -> str:
    """``SymInt.__repr__`` and the like: the text of a size is an expression in symbols."""
    _record_text(sys._getframe(2), "the text of a size", Evidence.SIZES_IN_TEXTS)
    return original(self)


def text_of_tensor(original: Callable[..., str], self: torch.Tensor, *args: Any, **kwargs: Any) -> str:
    """``Tensor.__repr__`` and ``__format__``: the text of a fake tensor has no values."""
    if isinstance(self, FakeTensor) and recording_mode() is not None:
        _record_text(sys._getframe(2), "the text of a tensor", Evidence.VALUES)
    return original(self, *args, **kwargs)


def _record_text(frame: FrameType, detail: str, evidence: Evidence) -> None:
    """Record the text of a value if user code asks for it, except for the message of a check."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back  # other patches of the same method
    if is_user_code(frame.f_code, frame.f_globals) and not _is_message(frame):
        record_departure(DepartureKind.INTROSPECTION, detail, frame, evidence=evidence)


def _is_message(frame: FrameType) -> bool:
    """Whether a frame evaluates an argument of ``torch._assert`` or ``torch._check``."""
    if _CHECKS.isdisjoint(frame.f_code.co_names) or sys.version_info < (3, 11):
        return False
    instructions = list(dis.get_instructions(frame.f_code))
    place = next((_range(item) for item in instructions if item.offset == frame.f_lasti), _UNKNOWN)
    if place == _UNKNOWN:
        return False
    checks = {_range(item)[0] for item in instructions if item.argval in _CHECKS}
    calls = [_range(item) for item in instructions if item.opname.startswith("CALL")]
    return any(start in checks and start <= place[0] and place[1] <= end for start, end in calls)


def _range(item: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last line and column of the expression that an instruction evaluates."""
    found = item.positions  # type: ignore[attr-defined,unused-ignore]  # since Python 3.11
    return (found.lineno or 0, found.col_offset or 0), (found.end_lineno or 0, found.end_col_offset or 0)
