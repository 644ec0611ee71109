"""The installed libraries, for ``fxonnx --version --verbose``."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions

from .._capture.patches import missing_targets

__all__ = ["Installation", "find_installation"]

_LIBRARIES = (
    *("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime"),
    *("transformers", "torchvision", "torchao", "diffusers", "onnxruntime-genai"),
)


@dataclass(frozen=True)
class Installation:
    """The installed libraries.

    Attributes:
        python: Version of Python.
        libraries: Name to version.
        missing_patches: The functions that fxonnx replaces and the installed libraries lack, with the loss.
    """

    python: str
    libraries: Mapping[str, str]
    missing_patches: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"Python {self.python}", *(f"{name} {version}" for name, version in self.libraries.items())]
        lines.append("patches that do not apply:" if self.missing_patches else "all patches apply")
        return "\n".join([*lines, *(f"  {one}" for one in self.missing_patches)])


def find_installation() -> Installation:
    """Find the installed libraries."""
    found = {one.metadata["Name"].lower(): one.version for one in distributions()}
    libraries = {library: found[library] for library in _LIBRARIES if library in found}
    missing = tuple(f"{one} ({one.kind.value})" for one in missing_targets())
    return Installation(platform.python_version(), libraries, missing)
