"""The result of one check: defects, refusals and limits."""

from __future__ import annotations

from dataclasses import dataclass

from tests.untouched import State

__all__ = ["Finding", "Outcome", "first_line", "touched"]


@dataclass(frozen=True)
class Finding:
    """A defect found in one program.

    Attributes:
        kind: "wrong", "run", "load", "checker", "recorded", "refused", "internal", "changed", "touched",
            "unreported", "timeout" or "crash".
        text: Description.
        sizes: The sizes, or the case of a Python program, at which it occurred; None if it does not depend on them.
    """

    kind: str
    text: str
    sizes: tuple[int | str, ...] | None = None

    @property
    def key(self) -> str:
        """A key shared by findings with the same cause."""
        return f"{self.kind} at 0" if self.sizes is not None and 0 in self.sizes else self.kind


@dataclass(frozen=True)
class Outcome:
    """The result of one check.

    Attributes:
        findings: The defects found.
        status: "compared" or "right", or the clear error of the export.
        refused: Sizes or cases excluded by the program's constraints and assumptions.
        unstable: Sizes or cases at which eager torch also differs from itself.
        limited: The reasons for which other differences are not findings.
    """

    findings: tuple[Finding, ...] = ()
    status: str = "compared"
    refused: tuple[tuple[int | str, ...], ...] = ()
    unstable: tuple[tuple[int | str, ...], ...] = ()
    limited: tuple[str, ...] = ()


def first_line(error: BaseException) -> str:
    """The text of an error without its hint."""
    return str(error).partition("\nhint:")[0][:500]


def touched(state: State) -> tuple[Finding, ...]:
    """A finding if the objects of a state, or the process, have changed since."""
    changes = state.changes()
    return (Finding("touched", "; ".join(changes)[:500]),) if changes else ()
