"""fxonnx: PyTorch to ONNX from the torch.export graph.

import fxonnx

program = fxonnx.export(model, args, dynamic_shapes=({0: "batch"},))
program.save("model.onnx")
program(*args)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    ArgumentError,
    CaptureError,
    ExportError,
    PrepareError,
    RuntimeSessionError,
    SaveError,
    TranslationError,
    UnsupportedOperator,
    UnsupportedOperatorError,
    VerificationError,
)

if TYPE_CHECKING:
    from .api import export
    from .program import ONNXProgram
    from .verify import Row, verify

__all__ = [  # noqa: RUF022 - grouped
    # The export
    "ONNXProgram",
    "export",
    # Comparison with eager torch
    "Row",
    "verify",
    # Errors
    "ArgumentError",
    "CaptureError",
    "ExportError",
    "PrepareError",
    "RuntimeSessionError",
    "SaveError",
    "TranslationError",
    "UnsupportedOperator",
    "UnsupportedOperatorError",
    "VerificationError",
]  # fmt: skip

_LAZY = {"export": "api", "ONNXProgram": "program", "Row": "verify", "verify": "verify"}


def __getattr__(name: str) -> Any:
    """Imports on first use: onnxscript and sympy take longer to import than the whole of fxonnx."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
