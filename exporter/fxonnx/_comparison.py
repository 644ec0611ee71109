"""Comparison of two lists of outputs, with tolerances by dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import torch

from fxonnx_translations._builder.sub_byte import as_codes

from ._display import TableList
from ._public import public
from ._warnings import warn_user
from .errors import ArgumentError, VerificationError

__all__ = [
    "NEGATIVE_ZERO",
    "NOT_VERIFIED",
    "REFERENCE_TEXTS",
    "TOLERANCES",
    "UNSTABLE",
    "OutputComparison",
    "OutputRows",
    "ReferenceName",
    "compare",
    "format_rows",
    "report_skipped",
]

ReferenceName = Literal["model", "exported program", "captured program"]
"""The reference that outputs are compared with."""

REFERENCE_TEXTS: Mapping[ReferenceName, str] = MappingProxyType(
    {
        "model": "eager torch",
        "exported program": "the exported program",
        "captured program": "the captured program",
    }
)
"""Each reference in messages."""

TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {
        # The relative tolerance, and, times the scale of the output, the absolute one.
        torch.float64: 1e-8,
        torch.float32: 1e-4,
        torch.float16: 1e-2,
        torch.bfloat16: 4e-2,
        # Two steps: float8 has 3 or 2 mantissa bits.
        torch.float8_e4m3fn: 0.25,
        torch.float8_e4m3fnuz: 0.25,
        torch.float8_e5m2: 0.5,
        torch.float8_e5m2fnuz: 0.5,
    }
)


NOT_VERIFIED = "the export is not verified:"
"""The beginning of the warning about outputs that were not compared."""
NEGATIVE_ZERO = "by pi, the angle of -0.0"
"""The end of the message of elements that are the angles of zeros of different signs."""
UNSTABLE = "unstable, not compared: "
"""The beginning of the messages of outputs that small changes of the inputs or weights change as much."""


@public
@dataclass(frozen=True)
class OutputComparison:
    """The comparison of one graph output with the reference's.

    Attributes:
        name: Name of the graph output; "-" for all of them.
        index: Its position among the graph outputs; -1 for all of them.
        status: The outcome; "skipped" if there is nothing to compare with: the model fails at these sizes, has no
            values, is not deterministic, or unstable.
        dtype: Dtype of the reference's output; complex outputs are compared as pairs of real numbers.
        shape: Shape of the reference's output.
        max_abs: Largest absolute difference of finite elements; None if dtypes or shapes differ.
        max_rel: Largest difference relative to the reference's value; None if dtypes or shapes differ.
        wrong: Number of elements that differ by more than the tolerance, or, if shapes differ, that are missing or too
            many; None if dtypes differ.
        message: Description of the mismatch, or why the output was skipped, or "".
        sizes: Name and size of each dynamic dim, if several sizes were verified.
        reference: What ONNX Runtime was compared with: "model", the user's model in eager torch; "exported program",
            if an ``ExportedProgram`` is the model; "captured program", if the model is not known.
    """

    name: str
    index: int
    status: Literal["ok", "mismatch", "skipped"]
    dtype: str
    shape: tuple[int, ...]
    max_abs: float | None = None
    max_rel: float | None = None
    message: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    reference: ReferenceName = "model"
    wrong: int | None = None


def compare(
    names: Sequence[str],
    expected: Sequence[Any],
    actual: Sequence[Any],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    reference: ReferenceName = "model",
) -> list[OutputComparison]:
    """Compare the outputs of ONNX Runtime with the reference's; see ``fxonnx.verify``.

    Args:
        names: Names of the graph outputs.
        expected: Outputs of the reference: tensors or Python numbers; for a list of tensors, the list or the stacked
            tensor.
        actual: Outputs of ONNX Runtime: tensors or lists of tensors.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        reference: The reference.

    Raises:
        VerificationError: If the number of outputs differs.
    """
    if not len(names) == len(expected) == len(actual):
        raise VerificationError(
            f"{REFERENCE_TEXTS[reference]} returns {len(expected)} outputs, ONNX Runtime {len(actual)}, "
            f"and the graph has {len(names)}: {', '.join(names)}"
        )
    return [
        replace(_row(index, name, value, tensor, rtol, atol), reference=reference)
        for index, (name, value, tensor) in enumerate(zip(names, expected, actual, strict=True))
    ]


def _row(index: int, name: str, value: Any, actual: Any, rtol: float | None, atol: float | None) -> OutputComparison:
    if isinstance(actual, list):
        return _list_row(index, name, value, actual, rtol, atol)
    expected = _as_tensor(value, actual)
    if expected is None:
        kind = type(value).__name__
        return OutputComparison(name, index, "mismatch", kind, (), message=f"a tensor instead of {kind}")
    dtype, shape = str(expected.dtype).removeprefix("torch."), tuple(expected.shape)
    if actual.dtype != expected.dtype:
        return OutputComparison(
            name, index, "mismatch", dtype, shape, message=f"dtype {actual.dtype} instead of {expected.dtype}"
        )
    if actual.shape != expected.shape:
        message, wrong = f"shape {list(actual.shape)} instead of {list(shape)}", abs(actual.numel() - expected.numel())
        return OutputComparison(name, index, "mismatch", dtype, shape, message=message, wrong=wrong)
    (max_abs, max_rel), (wrong, message) = _differences(expected, actual, rtol, atol)
    status: Literal["ok", "mismatch"] = "mismatch" if message else "ok"
    return OutputComparison(name, index, status, dtype, shape, max_abs, max_rel, message, wrong=wrong)


def _list_row(
    index: int, name: str, value: Any, actual: list[torch.Tensor], rtol: float | None, atol: float | None
) -> OutputComparison:
    """The comparison of two lists of tensors: the first mismatch, with the largest differences of all items."""
    if not isinstance(value, torch.Tensor | list | tuple):
        kind = type(value).__name__
        return OutputComparison(name, index, "mismatch", kind, (), message=f"a list instead of {kind}")
    if len(value) != len(actual):
        message = f"a list of {len(actual)} tensors instead of {len(value)}"
        return OutputComparison(name, index, "mismatch", "list", (len(value),), message=message)
    rows = [_row(index, name, one, other, rtol, atol) for one, other in zip(value, actual, strict=True)]
    if not rows:
        return OutputComparison(name, index, "ok", "list", (0,), 0.0, 0.0)
    position, first = next(((at, row) for at, row in enumerate(rows) if row.status != "ok"), (0, rows[0]))
    return replace(
        first,
        shape=(len(rows), *first.shape),
        max_abs=max((row.max_abs for row in rows if row.max_abs is not None), default=None),
        max_rel=max((row.max_rel for row in rows if row.max_rel is not None), default=None),
        message=f"item {position}: {first.message}" if first.message else "",
        wrong=None if any(row.wrong is None for row in rows) else sum(row.wrong or 0 for row in rows),
    )


def _as_tensor(value: Any, actual: torch.Tensor) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if isinstance(value, float):
        # Python floats have no dtype.
        dtype = actual.dtype if actual.is_floating_point() else torch.float32
        return torch.tensor(value, dtype=dtype, device="cpu")
    return torch.tensor(value, device="cpu") if isinstance(value, (bool, int)) else None


def _differences(
    expected: torch.Tensor, actual: torch.Tensor, rtol: float | None, atol: float | None
) -> tuple[tuple[float, float], tuple[int, str]]:
    """Return the largest absolute and relative difference, the number of wrong elements and a description or ""."""
    expected, actual = as_codes(expected), as_codes(actual)
    if not expected.is_floating_point():
        # Integers are compared exactly; float64 is only for the reported differences.
        wrong = expected != actual
        return _largest(expected.double(), actual.double(), wrong), _mismatch(wrong, "elements differ")
    expected64, actual64 = expected.double(), actual.double()
    nan = expected64.isnan() != actual64.isnan()
    infinite = (expected64.isinf() | actual64.isinf()) & (expected64 != actual64) & ~nan
    differs = (expected64 != actual64) & expected64.isfinite() & actual64.isfinite()
    largest = _largest(expected64, actual64, differs)
    if nan.any():
        return largest, _mismatch(nan, "elements are NaN on one side only")
    if infinite.any():
        return largest, _mismatch(infinite, "elements are infinite on one side only or differ in sign")
    relative = TOLERANCES.get(expected.dtype, TOLERANCES[torch.float32]) if rtol is None else rtol
    if atol is None:
        # Elements that are equal, such as masks of -1e9, must not raise the tolerance of the others.
        scale = expected64[differs].abs().max().item() if differs.any() else 0.0
        atol = TOLERANCES.get(expected.dtype, TOLERANCES[torch.float32]) * scale
    allowed = atol + relative * expected64.abs()
    wrong = differs & ((expected64 - actual64).abs() > allowed)
    reason = _sign_of(expected64[wrong], actual64[wrong], allowed[wrong]) if wrong.any() else ""
    return largest, _mismatch(wrong, f"elements differ by more than {atol:.2g} + {relative:.2g} * |expected|{reason}")


def _sign_of(expected: torch.Tensor, actual: torch.Tensor, allowed: torch.Tensor) -> str:
    """Whether a sign is the only difference of wrong elements: their own, or that of a zero whose angle they are."""
    if ((expected + actual).abs() <= allowed).all():
        return ", by their signs alone"
    is_angle = (torch.minimum(expected.abs(), actual.abs()) == 0) & ((expected - actual).abs() - math.pi).abs().le(1e-2)
    return f", {NEGATIVE_ZERO}" if is_angle.all() else ""


def _largest(expected: torch.Tensor, actual: torch.Tensor, where: torch.Tensor) -> tuple[float, float]:
    if not where.any():
        return 0.0, 0.0
    difference = (expected[where] - actual[where]).abs()
    relative = difference / expected[where].abs()
    return difference.max().item(), relative.max().item()


def _mismatch(mismatch: torch.Tensor, problem: str) -> tuple[int, str]:
    """The number of wrong elements, and their description."""
    count = int(mismatch.sum())
    if not count:
        return 0, ""
    return count, f"{count} of {mismatch.numel()} {problem}, first at {mismatch.nonzero()[0].tolist()}"


class OutputRows(TableList[OutputComparison]):
    """The rows of a verification."""

    _head = ("output", "status", "reference", "dtype", "shape", "max abs", "max rel", "", "")

    @staticmethod
    def _cells(item: OutputComparison) -> Sequence[str]:
        return (
            item.name,
            item.status,
            item.reference,
            item.dtype,
            str(list(item.shape)),
            _number(item.max_abs),
            _number(item.max_rel),
            item.message,
            f"[{', '.join(f'{name} = {size}' for name, size in item.sizes)}]" if item.sizes else "",
        )


def format_rows(rows: Sequence[OutputComparison]) -> str:
    """Format rows as an aligned plain-text table."""
    return str(OutputRows(rows))


def report_skipped(rows: Sequence[OutputComparison]) -> None:
    """Warn about the outputs that were not compared at any size, and about those that are unstable at one."""
    compared = {row.name for row in rows if row.status != "skipped"}
    skipped = {row.name: row.message for row in rows if row.name not in compared and (row.name != "-" or not compared)}
    skipped |= {row.name: row.message for row in rows if row.message.startswith(UNSTABLE)}
    if skipped:
        text = "\n".join(f"  {message}" if name == "-" else f"  {name}: {message}" for name, message in skipped.items())
        warn_user(f"{NOT_VERIFIED}\n{text}")


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2e}"


@dataclass(frozen=True)
class Tolerance:
    """Tolerances, as in ``verify``.

    Attributes:
        rtol: Relative tolerance; None for the dtype's.
        atol: Absolute tolerance; None for the relative one times the scale of the values.
    """

    rtol: float | None
    atol: float | None

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is None or (isinstance(value, int | float) and 0 <= value < math.inf):
                continue
            raise ArgumentError(
                name, f"expected a number of at least 0, got {value!r}", hint=f"{name}=1e-3, for example"
            )

    def difference(self, expected: torch.Tensor, actual: torch.Tensor) -> tuple[float | None, str]:
        """Return the largest absolute difference, and the description of a difference beyond the tolerance, or "".

        Args:
            expected: PyTorch's value, which may be computed in float32 instead of half precision.
            actual: The ONNX value.
        """
        rtol, expected, actual = self.rtol, expected.cpu(), actual.cpu()
        if actual.dtype != expected.dtype:
            rtol = TOLERANCES[actual.dtype] if rtol is None and actual.dtype in TOLERANCES else rtol
            actual = actual.to(expected.dtype)
        (row,) = compare(["value"], [expected], [actual], rtol=rtol, atol=self._absolute(rtol, expected, actual))
        return row.max_abs, row.message

    def _absolute(self, rtol: float | None, expected: torch.Tensor, actual: torch.Tensor) -> float | None:
        if self.atol is not None or rtol is None or self.rtol is not None or not expected.is_floating_point():
            return self.atol
        finite = expected[expected.isfinite() & (expected != actual)]
        return rtol * finite.abs().max().item() if finite.numel() else 0.0
