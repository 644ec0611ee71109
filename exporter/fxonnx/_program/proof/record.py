"""The record of a proof: what departs from torch.export, what was compared, and what was not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..._capture import Assumption, AssumptionKind
from ..._capture.constraints.constraint import SizeLimits
from ..._capture.constraints.guard_recorder import SourceLine
from ..._capture.patches import PatchKind
from ..._capture.patches.installed import MissingTarget
from ..._capture.suspicions.departures import Departure, DepartureKind
from ..._display import printable
from ..._lower.metadata import relative_file
from ..._paths import parse_json
from ..._public import public
from ...errors import ArgumentError

__all__ = ["CANNOT_RUN", "PROOF_KEY", "Proof", "ProofRun", "unproved"]

CANNOT_RUN = "torch cannot run the captured program"
"""The beginning of the message of a skipped run."""
PROOF_KEY = "pkg.fxonnx.proof"
"""Key of the proof in the model's metadata, as JSON; only models whose capture departs from torch.export have it."""


@public
@dataclass(frozen=True)
class ProofRun:
    """One run of the model and of the captured program on the same inputs.

    Attributes:
        inputs: The inputs: "example", "negated", "batch = 1, seq = 7"; of calls in a row, "example; then negated".
        status: "equal", or "skipped" if the model fails for these inputs or does not return the same values twice.
        max_abs: Largest absolute difference of an output or a mutated tensor; None if the run was skipped.
        message: The reason for which it was skipped.
        calls: The number of calls in a row that were compared, each with the state that the one before left.
    """

    inputs: str
    status: Literal["equal", "skipped"]
    max_abs: float | None = None
    message: str = ""
    calls: int = 1

    def __str__(self) -> str:
        if self.status == "skipped":
            return f"{self.inputs}: skipped, {self.message}"
        return f"{self.inputs}: equal, largest difference {self.max_abs:.0e}"


@public
@dataclass(frozen=True)
class Proof:
    """The comparison of the captured program with the model, in torch; see ``ONNXProgram.proof``.

    Attributes:
        departures: The places in which the capture departs from plain torch.export.
        runs: The inputs at which both were compared.
        unexercised: The branches and loops that no input reached; they are also in ``ONNXProgram.assumptions``.
        skipped: The reason for which nothing was compared, or "".
        sequence: With ``export(state="io")``, the comparison of calls in a row; None if the model has no state.
    """

    departures: tuple[Departure, ...] = ()
    runs: tuple[ProofRun, ...] = ()
    unexercised: tuple[Assumption, ...] = ()
    skipped: str = ""
    sequence: ProofRun | None = None

    @property
    def is_left_to_file(self) -> bool:
        """Whether torch cannot run the captured program at the example, so that the file has to be compared."""
        return any(run.inputs == "example" and run.message.startswith(CANNOT_RUN) for run in self.runs)

    @property
    def is_plain(self) -> bool:
        """Whether the captured program is plain torch.export's."""
        return not self.departures

    def metadata(self) -> dict[str, str]:
        """The model's metadata: the record as JSON, with relative paths and the order of magnitude of differences."""
        if self.is_plain:
            return {}
        content = {
            "departures": [
                {"kind": one.kind.value, "detail": one.detail, "line": _relative(one.line)} for one in self.departures
            ],
            "runs": [
                {"inputs": one.inputs, "status": one.status, "difference": _magnitude(one.max_abs)}
                | ({"message": one.message} if one.message else {})
                for one in self.runs
            ],
            "unexercised": [{"line": _relative(str(one.line or "")), "part": one.answer} for one in self.unexercised],
        }
        return {PROOF_KEY: json.dumps(content | ({"skipped": self.skipped} if self.skipped else {}))}

    @classmethod
    def of_metadata(cls, text: str) -> Proof:
        """Read the record from the metadata of a model; differences are orders of magnitude.

        Raises:
            ArgumentError: If it is not such a record.
        """
        try:
            content = parse_json(text)
            return cls(
                tuple(
                    Departure(DepartureKind(one["kind"]), _text(one["detail"]), _text(one["line"]))
                    for one in content["departures"]
                ),
                tuple(_run_of(one) for one in content["runs"]),
                tuple(unproved(_text(one["line"]), _text(one["part"])) for one in content["unexercised"]),
                _text(content.get("skipped", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError("model", f"its metadata {PROOF_KEY} is not a record of fxonnx: {error!r}") from error

    def __str__(self) -> str:
        in_a_row = [] if self.sequence is None else ["calls in a row, compared with the model:", f"  {self.sequence}"]
        if self.is_plain:
            return "\n".join(["the capture is that of plain torch.export", *in_a_row])
        lines = ["departures from torch.export:", *(f"  {one}" for one in self.departures)]
        lines += ["compared with the model:", *(f"  {one}" for one in self.runs)]
        if self.skipped:
            lines.append(f"  nothing: {self.skipped}")
        lines += in_a_row
        if self.unexercised:
            lines += ["not exercised:", *(f"  {one}" for one in self.unexercised)]
        return "\n".join(lines)


def unproved(place: str, part: str) -> Assumption:
    """The entry for a part of the model that no input reached."""
    return Assumption(SourceLine(place, "") if place else None, part, AssumptionKind.UNPROVED)


def unproved_for_untested(missing: Iterable[MissingTarget], limits: SizeLimits) -> list[Assumption]:
    """The entries of an export without patches for soundness: each of them, and each constraint of the program."""
    found = [unproved("", str(one)) for one in missing if one.kind is PatchKind.SOUND]
    return found + [unproved(one.line or "", f"constraint {one.text}") for one in limits.constraints if found]


def _run_of(content: Mapping[str, Any]) -> ProofRun:
    difference = content["difference"]
    largest = None if difference is None else float(difference)
    status = content["status"]
    if status not in ("equal", "skipped") or (status == "equal" and largest is None):
        raise ValueError(f"a run with the status {status!r} and the difference {difference!r}")
    return ProofRun(_text(content["inputs"]), status, largest, _text(content.get("message", "")))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return printable(value)


def _relative(line: str) -> str:
    """A line with a path that does not depend on the machine."""
    file, separator, rest = line.partition(":")
    return f"{relative_file(file)}:{rest}" if separator else line


def _magnitude(difference: float | None) -> str | None:
    """The next power of ten: rounding depends on the machine."""
    if difference is None:
        return None
    if difference == 0 or not math.isfinite(difference):
        return str(difference)
    return f"1e{math.ceil(math.log10(difference)):+03d}"
