"""Every error fxonnx raises on purpose.

The tree::

    OnnxExporterError (torch.onnx, a RuntimeError)
    └── ExportError                    base of everything below
        ├── ArgumentError              FX001  an argument of a public call is wrong (also a ValueError)
        ├── CaptureError               FX002  torch.export could not capture the model
        ├── ConversionError            base of what can go wrong between capture and model
        │   ├── PrepareError               FX003  the captured graph can not be made functional
        │   ├── UnsupportedOperatorError   FX004  operators without translation and without decomposition
        │   └── TranslationError           FX005  a translation failed or returned the wrong thing
        ├── SaveError                  FX006  the file can not be written
        ├── RuntimeSessionError        FX007  ONNX Runtime can not load or run the model
        ├── VerificationError          FX008  ONNX Runtime and eager torch disagree
        └── StateError                 FX009  forward writes to buffers or inputs, and state="error"

``code`` is stable: scripts and bug reports may rely on it. A message says what happened, where, and, after
``hint:``, what to do about it. The errors of torch.onnx are here by its names, too: ``TorchExportError`` is
CaptureError, ``DispatchError`` UnsupportedOperatorError, ``GraphConstructionError`` TranslationError, and an
UnsupportedOperatorError is one of ``torch.onnx.errors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch.onnx import OnnxExporterError, errors

__all__ = [
    "ArgumentError",
    "CaptureError",
    "ConversionError",
    "DispatchError",
    "ExportError",
    "GraphConstructionError",
    "PrepareError",
    "RuntimeSessionError",
    "SaveError",
    "StateError",
    "TorchExportError",
    "TranslationError",
    "UnsupportedOperator",
    "UnsupportedOperatorError",
    "VerificationError",
]


class ExportError(OnnxExporterError):
    """Base class of all errors raised by fxonnx.

    Args:
        message: What happened and where, in the user's words.
        hint: What the user can do about it; appended to the message behind ``hint:``.

    Attributes:
        report: The page that was written about the failed export, if one was asked for.
    """

    code: ClassVar[str] = "FX000"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.hint = hint
        self.report: Path | None = None
        # Not super(): the errors of torch.onnx that some of ours are, too, make texts of their own.
        OnnxExporterError.__init__(self, message if hint is None else f"{message}\nhint: {hint}")

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.report is None else f"{text}\nreport: {self.report}"


class ArgumentError(ExportError, ValueError):
    """An argument of a public call is wrong.

    Args:
        argument: Name of the argument as the user wrote it.
        problem: What is wrong with its value.
        hint: What to pass instead.
    """

    code = "FX001"

    def __init__(self, argument: str, problem: str, *, hint: str | None = None) -> None:
        self.argument = argument
        super().__init__(f"{argument}: {problem}", hint=hint)


class CaptureError(ExportError):
    """torch.export could not capture the model; ``__cause__`` is torch's own error."""

    code = "FX002"


class ConversionError(ExportError):
    """The captured graph can not become a model."""


class PrepareError(ConversionError):
    """The captured graph can not be brought into functional form."""

    code = "FX003"


@dataclass(frozen=True)
class UnsupportedOperator:
    """One operator that has neither a usable translation nor a decomposition.

    Attributes:
        name: Qualified overload name, for example ``aten.cummax.default``.
        count: How many nodes of the graph call it.
        location: First source line of the user's code that led to it, or ``""``.
        reasons: Why each candidate translation declined; empty when there is none.
        lowest_opset: The lowest opset that can express all of its calls in the graph; None if none can.
    """

    name: str
    count: int
    location: str
    reasons: tuple[str, ...] = ()
    lowest_opset: int | None = None


class UnsupportedOperatorError(ConversionError, errors.UnsupportedOperatorError):
    """Operators of the model that can not be translated, all at once.

    Attributes:
        operators: What can not be translated.
        opset: The target opset.
        lowest_opset: The lowest opset at which all of them can be; None if there is none.
    """

    code = "FX004"

    def __init__(self, operators: Sequence[UnsupportedOperator], opset: int) -> None:
        self.operators = tuple(operators)
        self.opset = opset
        lowest = [operator.lowest_opset for operator in operators if operator.lowest_opset is not None]
        self.lowest_opset = max(lowest) if len(lowest) == len(self.operators) else None
        noun = "operator has" if len(self.operators) == 1 else "operators have"
        lines = [f"{len(self.operators)} {noun} no ONNX translation and no decomposition at opset {opset}:"]
        for operator in self.operators:
            times = "once" if operator.count == 1 else f"{operator.count} times"
            lines.append(f"  {operator.name}, used {times}, first at {operator.location or 'an unknown source line'}")
            lines.extend(f"    declined: {reason}" for reason in operator.reasons)
            if operator.lowest_opset is not None:
                lines.append(f"    can be written from opset {operator.lowest_opset} on")
        if self.lowest_opset is not None:
            hint = f"pass opset_version={self.lowest_opset}"
        else:
            table = ", ".join(f"torch.ops.{operator.name}: my_function" for operator in self.operators)
            hint = f"pass a translation of your own: export(..., custom_translation_table={{{table}}})"
        super().__init__("\n".join(lines), hint=hint)


class TranslationError(ConversionError):
    """A translation raised, or its result disagrees with what torch says the operator returns.

    Args:
        message: What went wrong.
        target: Qualified name of the operator being translated.
        node: The FX node, formatted.
        location: The user's source line, or ``""``.
    """

    code = "FX005"

    def __init__(
        self, message: str, *, target: str = "", node: str = "", location: str = "", hint: str | None = None
    ) -> None:
        self.target = target
        self.node = node
        self.location = location
        parts = [f"translating {target}: {message}" if target else message]
        if node:
            parts.append(f"  node: {node}")
        if location:
            parts.append(f"  at: {location}")
        super().__init__("\n".join(parts), hint=hint)


class SaveError(ExportError):
    """The model file can not be written; nothing was left half-written."""

    code = "FX006"


class RuntimeSessionError(ExportError):
    """ONNX Runtime can not load or run the model."""

    code = "FX007"


class VerificationError(ExportError):
    """ONNX Runtime and eager torch disagree.

    Attributes:
        rows: The comparison rows (``fxonnx.Row``) of all outputs, the good ones included.
    """

    code = "FX008"

    def __init__(self, message: str, *, rows: Sequence[Any] = (), hint: str | None = None) -> None:
        self.rows = tuple(rows)
        super().__init__(message, hint=hint)


class StateError(ExportError):
    """The model writes to its own buffers or to its inputs, which was not to be."""

    code = "FX009"


TorchExportError = CaptureError
DispatchError = UnsupportedOperatorError
GraphConstructionError = TranslationError
