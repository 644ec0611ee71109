"""The installed libraries, for ``fxonnx --version --verbose``."""

from __future__ import annotations

import platform
from importlib.metadata import distributions

from .._capture.patches import missing_targets

__all__ = ["installation_text"]

_LIBRARIES = (
    *("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime"),
    *("transformers", "torchvision", "torchao", "diffusers", "onnxruntime-genai"),
)


def installation_text() -> str:
    """One line for each library, and for each function that fxonnx replaces and the library lacks."""
    found = {one.metadata["Name"].lower(): one.version for one in distributions()}
    lines = [f"Python {platform.python_version()}"]
    lines += [f"{library} {found[library]}" for library in _LIBRARIES if library in found]
    missing = [f"  {one} ({one.kind.value})" for one in missing_targets()]
    if missing:
        lines += ["patches that do not apply:", *missing]
    else:
        lines.append("all patches apply")
    return "\n".join(lines)
