"""The peak of a process's resident memory, as Linux counts it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

__all__ = ["peak_of"]

T = TypeVar("T")


def peak_of(run: Callable[[], T]) -> tuple[int, T]:
    """Bytes of the peak during a call above the memory just before it, and the call's result."""
    gc.collect()
    # Memory that was freed into malloc's pools would hide the allocations of the call.
    ctypes.CDLL(None).malloc_trim(0)
    before = _bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    result = run()
    return _bytes("VmHWM") - before, result


def _bytes(field: str) -> int:
    """``VmRSS`` is the resident memory, ``VmHWM`` its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no field {field}")
