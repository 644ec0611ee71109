"""fxonnx: PyTorch to ONNX from the torch.export graph.

import fxonnx

program = fxonnx.export(model, args, dynamic_shapes=({0: "batch"},))
program.save("model.onnx")
program(*args)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import export
    from .capture.constraints import Constraint
    from .drop_in import (
        ExportableModule,
        enable_fake_mode,
        export_to_pretty_string,
        install,
        installed,
        select_model_mode_for_export,
        uninstall,
    )
    from .errors import (
        ArgumentError,
        CaptureError,
        ConversionError,
        ExportError,
        PrepareError,
        RuntimeSessionError,
        SaveError,
        StateError,
        TranslationError,
        UnsupportedOperator,
        UnsupportedOperatorError,
        VerificationError,
    )
    from .observer import InputObserver
    from .program import ONNXProgram
    from .program.several import save_all
    from .program.sides import REFERENCE
    from .program.weights import weights_of
    from .state import is_in_onnx_export
    from .symbolics import register_custom_op_symbolic, unregister_custom_op_symbolic
    from .verification import Row, verify

__all__ = [  # noqa: RUF022 - grouped
    # The export
    "Constraint",
    "ONNXProgram",
    "REFERENCE",
    "export",
    "save_all",
    "is_in_onnx_export",
    "weights_of",
    # In the place of torch.onnx
    "ExportableModule",
    "enable_fake_mode",
    "export_to_pretty_string",
    "install",
    "installed",
    "register_custom_op_symbolic",
    "select_model_mode_for_export",
    "uninstall",
    "unregister_custom_op_symbolic",
    # What to export with
    "InputObserver",
    # Comparison with eager torch
    "Row",
    "verify",
    # Errors
    "ArgumentError",
    "CaptureError",
    "ConversionError",
    "ExportError",
    "PrepareError",
    "RuntimeSessionError",
    "SaveError",
    "StateError",
    "TranslationError",
    "UnsupportedOperator",
    "UnsupportedOperatorError",
    "VerificationError",
]  # fmt: skip

# A name must not be that of its module: importing the module would put it in the name's place.
_ROOMS = {
    "ExportableModule": "drop_in",
    "enable_fake_mode": "drop_in",
    "export_to_pretty_string": "drop_in",
    "install": "drop_in",
    "installed": "drop_in",
    "select_model_mode_for_export": "drop_in",
    "uninstall": "drop_in",
    "Constraint": "capture.constraints",
    "InputObserver": "observer",
    "ONNXProgram": "program",
    "REFERENCE": "program.sides",
    "save_all": "program.several",
    "Row": "verification",
    "export": "api",
    "is_in_onnx_export": "state",
    "register_custom_op_symbolic": "symbolics",
    "unregister_custom_op_symbolic": "symbolics",
    "verify": "verification",
    "weights_of": "program.weights",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: torch, onnxscript and sympy take much longer to import than the whole of fxonnx."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_ROOMS.get(name, 'errors')}", __name__), name)
