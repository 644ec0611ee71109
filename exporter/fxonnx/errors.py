"""Exception hierarchy of fxonnx.

::

    OnnxExporterError (torch.onnx, a RuntimeError)
    └── ExportError                FX000  a library is missing or too old; base of everything below
        ├── ArgumentError              FX001  an argument of a public call is wrong (also a ValueError)
        ├── CaptureError               FX002  torch.export could not capture the model
        ├── ConversionError            base of the errors between capture and the finished model
        │   ├── PrepareError               FX003  functionalization of the captured graph failed
        │   ├── UnsupportedOperatorError   FX004  operators without translation and without decomposition
        │   └── TranslationError           FX005  a translation failed or returned an invalid result
        ├── SaveError                  FX006  a file cannot be written
        ├── RuntimeSessionError        FX007  ONNX Runtime cannot load or run the model
        ├── VerificationError          FX008  ONNX Runtime and the model disagree
        ├── StateError                 FX009  forward mutates buffers or inputs, and state="error"
        └── UntestedTorchError         FX010  the installed torch lacks a function that fxonnx must replace

The text of an error begins with its code, ``error[FX004]: ``. Codes are stable: scripts and bug reports may rely on
them, and docs/errors has a page for each. The message describes the failure and its location; how to fix it follows
``hint:``.

The names of torch.onnx are aliases: ``TorchExportError`` is CaptureError, ``DispatchError`` is
UnsupportedOperatorError and ``GraphConstructionError`` is TranslationError. UnsupportedOperatorError is also a subclass
of torch.onnx's error of that name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch.onnx import OnnxExporterError, errors

from fxonnx_translations._suggestions import did_you_mean as did_you_mean

from ._display import printable
from ._public import public
from ._user_files import only_own_lines

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
    "UntestedTorchError",
    "VerificationError",
]


_MOST_CHARACTERS = 200


def kind_of(value: object) -> str:
    """The class of a value with its article, for messages: ``an int``, ``a list``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def are_names(value: object) -> bool:
    """Whether a value is a collection of texts, and no text itself."""
    if isinstance(value, str) or not isinstance(value, Collection):
        return False
    return all(isinstance(name, str) for name in value)


def check_choice(argument: str, value: Any, choices: Sequence[Any]) -> None:
    """Reject a value that is not one of the choices."""
    if not isinstance(value, str | int | None) or value not in choices:
        problem = f"expected one of {', '.join(map(repr, choices))}, got {value!r}"
        raise ArgumentError(argument, problem, hint=did_you_mean(value, choices))


def node_line(node: str) -> str:
    """The line of a message that shows an FX node, whose arguments may be any number of nodes."""
    return f"  node: {node}" if len(node) <= _MOST_CHARACTERS else f"  node: {node[: _MOST_CHARACTERS - 4]} ..."


def one_line(error: BaseException) -> str:
    """The class and the first line of an error of other code, for messages."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


@public
class ExportError(OnnxExporterError):
    """Base class of all errors raised by fxonnx.

    Args:
        message: Description of the failure, in terms of the user's code.
        hint: Remedy; appended on a line of its own that begins with ``hint:``.

    Attributes:
        code: Stable code of the class, such as ``FX004``; ``str(error)`` begins with ``error[FX004]: ``.
        message: The message without code and hint.
        report: Path of the report on the failed export, if one was requested.
    """

    code: ClassVar[str] = "FX000"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = printable(message, lines=True)
        self.hint = None if hint is None else printable(hint, lines=True)
        self.report: Path | None = None
        text = f"error[{self.code}]: {self.message}"
        # Not super(): some of these classes also derive from errors of torch.onnx, which compose their own text.
        OnnxExporterError.__init__(self, text if hint is None else f"{text}\nhint: {self.hint}")

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.report is None else f"{text}\nreport: {self.report}"

    def _render_traceback_(self) -> list[str]:
        """The traceback that IPython and notebooks print: the user's lines and the message."""
        return only_own_lines(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would pass the finished text to __init__, whose parameters differ between the classes.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(cls: type[ExportError], args: tuple[Any, ...], state: dict[str, Any]) -> ExportError:
    """Create an error from its pickled state."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


@public
class ArgumentError(ExportError, ValueError):
    """Invalid argument of a public call.

    Args:
        argument: Name of the argument as the user wrote it.
        problem: Why its value is invalid.
        hint: A valid value.
    """

    code = "FX001"

    def __init__(self, argument: str, problem: str, *, hint: str | None = None) -> None:
        self.argument = argument
        super().__init__(f"{argument}: {problem}", hint=hint)


@public
class CaptureError(ExportError):
    """Capture with torch.export failed; ``__context__`` is torch's error."""

    code = "FX002"


@public
class ConversionError(ExportError):
    """Conversion of the captured graph failed."""


@public
class PrepareError(ConversionError):
    """Functionalization of the captured graph failed."""

    code = "FX003"


NO_DECOMPOSITION = "torch has no decomposition for it"
"""The reason of an operator without a translation, of which torch has no decomposition."""

REASON_HINT = "change the call in the model so that the reason does not apply"
"""The hint for an operator of which other calls can be exported."""

FACTORIZATION_HINT = (
    "return the matrix and factorize it outside of the graph, or call what can be exported: eigh, svd, qr and "
    "ldl_factor of real matrices; lu_factor, cholesky and solve of complex ones as well"
)
"""The hint for a factorization whose results are those of LAPACK's iterations."""


@public
@dataclass(frozen=True)
class UnsupportedOperator:
    """Operator without a usable translation or decomposition.

    Attributes:
        name: Qualified overload name, for example ``aten.cummax.default``.
        count: Number of FX nodes that call it.
        location: First source line of the user's code that calls it, or ``""``.
        reasons: Reason given by each candidate translation that declined; empty without a candidate.
        lowest_opset: Lowest opset that can express all of its calls in the graph; None if no opset can.
    """

    name: str
    count: int
    location: str
    reasons: tuple[str, ...] = ()
    lowest_opset: int | None = None

    @property
    def is_factorization(self) -> bool:
        """Whether it is a factorization of matrices that operators of ONNX do not reproduce."""
        return re.match(r"aten\.(linalg_|geqrf|ormqr|svd|qr|pinverse)", self.name) is not None and not self.is_declined

    @property
    def is_declined(self) -> bool:
        """Whether it is an operator of torch that can be exported, but not this call of it."""
        declined = [reason for reason in self.reasons if not reason.endswith(NO_DECOMPOSITION)]
        return bool(declined) and self.name.startswith("aten.")


@public
class UnsupportedOperatorError(ConversionError, errors.UnsupportedOperatorError):
    """Operators of the model that cannot be translated, all of them in one error.

    Attributes:
        operators: The operators without translation.
        opset: The target opset.
        lowest_opset: Lowest opset that can express all of them; None if no opset can.
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
                lines.append(f"    is supported from opset {operator.lowest_opset}")
        if self.lowest_opset is not None:
            hint = f"pass opset_version={self.lowest_opset}"
        else:
            hints, own = [], []
            for one in self.operators:
                if one.is_declined:
                    hints.append(REASON_HINT)
                elif one.is_factorization:
                    hints.append(FACTORIZATION_HINT)
                else:
                    own.append(f"torch.ops.{one.name}: my_function")
            hints = list(dict.fromkeys(hints))
            if own:
                table = ", ".join(own)
                hints.append(f"pass a translation of your own: export(..., custom_translation_table={{{table}}})")
            hint = "; ".join(hints)
        super().__init__("\n".join(lines), hint=hint)


@public
class TranslationError(ConversionError):
    """A translation failed, or its result disagrees with the fake tensor that torch recorded for the node.

    Args:
        message: Description of the failure.
        target: Qualified name of the operator being translated.
        node: The FX node as text.
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
            parts.append(node_line(node))
        if location:
            parts.append(f"  at: {location}")
        super().__init__("\n".join(parts), hint=hint)


@public
class SaveError(ExportError):
    """A file cannot be written; no partial file remains."""

    code = "FX006"


@public
class RuntimeSessionError(ExportError):
    """ONNX Runtime cannot load or run the model."""

    code = "FX007"


@public
class VerificationError(ExportError):
    """ONNX Runtime and the model disagree.

    Attributes:
        rows: The comparison (``fxonnx.OutputComparison``) of every output, equal ones included.
        comparison: With ``verify(locate=True)``, the comparison of all values (``fxonnx.Comparison``).
    """

    code = "FX008"

    def __init__(
        self, message: str, *, rows: Sequence[Any] = (), comparison: Any = None, hint: str | None = None
    ) -> None:
        self.rows = tuple(rows)
        self.comparison = comparison
        super().__init__(message, hint=hint)


@public
class StateError(ExportError):
    """forward mutates state although ``state="error"`` forbids it, or state that the next call cannot take."""

    code = "FX009"


@public
class UntestedTorchError(ExportError):
    """The installed torch lacks a function that fxonnx replaces so that no result is silently wrong."""

    code = "FX010"


TorchExportError = CaptureError
DispatchError = UnsupportedOperatorError
GraphConstructionError = TranslationError
