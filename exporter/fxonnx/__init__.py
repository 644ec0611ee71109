"""Export PyTorch models to ONNX.

``export(model, args)`` returns an ``ONNXProgram``, which runs in ONNX Runtime and is saved to a file::

    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "batch"},))
    program.save("model.onnx")
    outputs = program(x)

``fxonnx.install()`` redirects ``torch.onnx.export``. Errors are subclasses of ``ExportError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import genai as genai
    from . import huggingface as huggingface
    from ._analysis import Analysis, ExportIssue, analyze
    from ._capture.constraints.constraint import Constraint
    from ._capture.data_dependence.assumption import Assumption, AssumptionKind
    from ._capture.inputs.converted_inputs import TensorList
    from ._capture.suspicions.departures import Departure, DepartureKind
    from ._comparison import OutputComparison
    from ._diagnostics import Diagnostics
    from ._export import export
    from ._export_context import is_in_onnx_export
    from ._input_observer import InputObserver
    from ._prepare.fusions import Fusion, NearMiss
    from ._program import ONNXProgram, weights_of
    from ._program.external_data import REFERENCE
    from ._program.interface import GraphInterface
    from ._program.multi_model import save_all
    from ._program.proof import Proof, ProofRun
    from ._program.quantization import LayerReport, ProgramQuantization, QuantizationReport
    from ._program.record import ExportRecord
    from ._program.value_comparison import Comparison, ValueDifference, ValueStatistics
    from ._program.verification import verify
    from ._quantize_config import QuantizeConfig
    from ._request import ExportOptions
    from ._targets import Target
    from ._targets.check import TargetFinding, check
    from .diagnostics.diff import GraphChange, ModelDiff, diff
    from .diagnostics.reporting import report
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
        UntestedTorchError,
        VerificationError,
    )
    from .torchscript.drop_in import (
        ExportableModule,
        enable_fake_mode,
        export_to_pretty_string,
        install,
        installed,
        select_model_mode_for_export,
        torch_onnx_export,
        uninstall,
    )
    from .torchscript.user_symbolics import register_custom_op_symbolic, unregister_custom_op_symbolic

__all__ = [  # noqa: RUF022 - grouped
    # Export
    "Assumption",
    "Constraint",
    "Departure",
    "DepartureKind",
    "Diagnostics",
    "ExportOptions",
    "ExportRecord",
    "Fusion",
    "GraphInterface",
    "NearMiss",
    "ONNXProgram",
    "ProgramQuantization",
    "Proof",
    "ProofRun",
    "QuantizeConfig",
    "REFERENCE",
    "AssumptionKind",
    "TensorList",
    "export",
    "save_all",
    "is_in_onnx_export",
    "weights_of",
    # Drop-in replacement for torch.onnx
    "ExportableModule",
    "enable_fake_mode",
    "export_to_pretty_string",
    "install",
    "installed",
    "register_custom_op_symbolic",
    "select_model_mode_for_export",
    "torch_onnx_export",
    "uninstall",
    "unregister_custom_op_symbolic",
    # Example inputs from calls
    "InputObserver",
    # Comparison with eager torch, and of quantized with floating-point numbers
    "Comparison",
    "LayerReport",
    "QuantizationReport",
    "OutputComparison",
    "ValueDifference",
    "ValueStatistics",
    "verify",
    # Before an export
    "Analysis",
    "ExportIssue",
    "analyze",
    # Two exports side by side, and a page about one
    "GraphChange",
    "ModelDiff",
    "diff",
    "report",
    # Other runtimes
    "TargetFinding",
    "Target",
    "check",
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
    "UntestedTorchError",
    "VerificationError",
]  # fmt: skip

__version__ = "0.1.0"

_MODULES = {
    "ExportableModule": "torchscript.drop_in",
    "enable_fake_mode": "torchscript.drop_in",
    "export_to_pretty_string": "torchscript.drop_in",
    "install": "torchscript.drop_in",
    "installed": "torchscript.drop_in",
    "select_model_mode_for_export": "torchscript.drop_in",
    "torch_onnx_export": "torchscript.drop_in",
    "uninstall": "torchscript.drop_in",
    "Assumption": "_capture.data_dependence.assumption",
    "AssumptionKind": "_capture.data_dependence.assumption",
    "Constraint": "_capture.constraints.constraint",
    "Departure": "_capture.suspicions.departures",
    "DepartureKind": "_capture.suspicions.departures",
    "TensorList": "_capture.inputs.converted_inputs",
    "InputObserver": "_input_observer",
    "Analysis": "_analysis",
    "ExportIssue": "_analysis",
    "analyze": "_analysis",
    "GraphChange": "diagnostics.diff",
    "ModelDiff": "diagnostics.diff",
    "diff": "diagnostics.diff",
    "ONNXProgram": "_program",
    "QuantizeConfig": "_quantize_config",
    "REFERENCE": "_program.external_data",
    "save_all": "_program.multi_model",
    "Proof": "_program.proof",
    "ProofRun": "_program.proof",
    "LayerReport": "_program.quantization",
    "QuantizationReport": "_program.quantization",
    "Comparison": "_program.value_comparison",
    "ValueDifference": "_program.value_comparison",
    "ValueStatistics": "_program.value_comparison",
    "OutputComparison": "_comparison",
    "TargetFinding": "_targets.check",
    "Target": "_targets",
    "check": "_targets.check",
    "Fusion": "_prepare.fusions",
    "NearMiss": "_prepare.fusions",
    "Diagnostics": "_diagnostics",
    "ExportOptions": "_request",
    "ExportRecord": "_program.record",
    "GraphInterface": "_program.interface",
    "ProgramQuantization": "_program.quantization",
    "export": "_export",
    "is_in_onnx_export": "_export_context",
    "register_custom_op_symbolic": "torchscript.user_symbolics",
    "report": "diagnostics.reporting",
    "unregister_custom_op_symbolic": "torchscript.user_symbolics",
    "verify": "_program.verification",
    "weights_of": "_program",
}
"""Public name to the module that defines it, for all names that are not in ``errors``."""

if not TYPE_CHECKING:  # a type checker would accept any attribute of a module with __getattr__

    def __getattr__(name: str) -> object:
        """Import on first use: torch, onnxscript and sympy take much longer to import than fxonnx."""
        import sys

        if name in ("genai", "huggingface"):
            return _imported(name)
        if name not in __all__:
            # With name and obj the interpreter suggests a similar name.
            hint = "; it is fxonnx.export" if name in ("convert", "dynamo_export", "onnx", "to_onnx") else ""
            hint = "; load the file with onnxruntime.InferenceSession(path)" if name == "load" else hint
            text = f"module {__name__!r} has no attribute {name!r}{hint}"
            raise AttributeError(text, name=name, obj=sys.modules[__name__])
        return getattr(_imported(_MODULES.get(name, "errors")), name)

    def _imported(module: str) -> object:
        """Import a module when it is first used."""
        from importlib import import_module

        from ._turns import without_collections

        with without_collections():
            return import_module(f".{module}", __name__)


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__version__", "errors", "genai", "huggingface"]
