"""Departures from plain torch.export: rewritten, resolved, interpreted or replaced code, which has to be proved."""

from __future__ import annotations

import ast
import enum
import linecache
import re
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import FrameType

from ..._context_values import activated, active
from ..._public import public
from ...errors import CaptureError
from ..constraints.guard_recorder import SourceLine, user_line

__all__ = [
    "Departure",
    "DepartureKind",
    "Evidence",
    "is_recording",
    "numbers_in_conditions",
    "record_departure",
    "recorded_departures",
    "refused",
    "sizes_in_source",
]


_PLACE = re.compile(r"(.+?):(\d+) in ")
_INTEGER = re.compile(r"(?<![\w.])[0-9]{1,4}(?![\w.])")
_MOST_SIZES = 6
_LARGEST_SIZE = 4096


@public
class DepartureKind(enum.Enum):
    """How a capture departs from plain torch.export."""

    REWRITTEN = "rewritten control flow"
    """Python control flow that was captured as an operator."""
    RESOLVED = "resolved guard"
    """A data-dependent guard that was resolved without the values of the inputs."""
    SCRIPT = "interpreted TorchScript"
    """A scripted function or module that was interpreted, or a scripted function that ran in its Python form."""
    TRANSFORM = "function transform"
    """A ``torch.func`` transform that was traced as plain operators."""
    REPLACED = "replaced function"
    """A function of torch or of a library that was replaced for this model."""
    STRICT = "strict mode"
    """TorchDynamo captured the model."""
    LAST = "last attempt"
    """Plain torch.export captured a model that every other attempt refused or could not capture."""
    INTROSPECTION = "Python introspection"
    """Code that asks for Python types, identities or modes, which may differ between the capture and eager torch."""


class Evidence(enum.Enum):
    """The runs of the proof, besides those at the example and at other sizes, that show the effect of a departure."""

    COVERAGE = "until each branch and each loop body has run"
    VALUES = "all changes of the values of the inputs"
    SIZES_IN_TEXTS = "these, and the sizes in the texts of the file"
    SIZES_IN_CODE = "these, and the sizes among the integers of the file"


@public
@dataclass(frozen=True)
class Departure:
    """One place in which a capture departs from plain torch.export, or is suspected to: the proof decides.

    Attributes:
        kind: The way in which it departs.
        detail: The construct or function.
        line: The line of user code, ``file.py:12 in forward: code``; "" if there is none.
        evidence: The runs that decide.
        refusal: The error if a run shows a difference, or if none shows that there is none at the example; by default,
            the error shows the values that differ, and a departure without a run is an assumption.
    """

    kind: DepartureKind
    detail: str
    line: str = ""
    evidence: Evidence | None = field(default=None, compare=False, repr=False)
    refusal: CaptureError | None = field(default=None, compare=False, repr=False)

    @property
    def decided_by(self) -> Evidence:
        """The runs that decide: without coverage, results may agree by accident."""
        return self.evidence or (Evidence.VALUES if self.kind is DepartureKind.INTROSPECTION else Evidence.COVERAGE)

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" + (f" ({self.line})" if self.line else "")


class _Departures(dict[Departure, None]):
    """The departures of a capture, in order and without repetitions."""


def recorded_departures() -> AbstractContextManager[dict[Departure, None]]:
    """Record departures inside the context, after the departures so far of an outer context.

    Yields:
        The departures, in order and without repetitions; filled while the context is active.
    """
    return activated(_Departures(active(_Departures) or {}))


def is_recording() -> bool:
    """Whether departures are recorded."""
    return active(_Departures) is not None


def record_departure(
    kind: DepartureKind,
    detail: str,
    frame: FrameType | None = None,
    line: SourceLine | str | None = None,
    evidence: Evidence | None = None,
    refusal: CaptureError | None = None,
) -> None:
    """Record a departure for the innermost line of user code; without effect outside of a capture.

    Args:
        kind: The way in which the capture departs.
        detail: The construct or function.
        frame: The frame from which the line is searched; by default the caller's.
        line: The line, if it is known; "" if there is none.
        evidence: The runs that decide; by default, as for others of the kind.
        refusal: The error if the program is not proved.
    """
    found = active(_Departures)
    if found is not None:
        if line is None:
            line = user_line(sys._getframe(1) if frame is None else frame)
        found.setdefault(Departure(kind, detail, "" if line is None else str(line), evidence, refusal))


def refused(departures: Iterable[Departure], error: CaptureError) -> tuple[Departure, ...]:
    """Departures of the last attempt, which is wrong with the error of the attempts before unless it is proved."""
    return tuple(replace(one, refusal=error) if one.kind is DepartureKind.LAST else one for one in departures)


def numbers_in_conditions(departures: Iterable[Departure]) -> list[int]:
    """The integers in the lines of rewritten control flow and of introspection, with which a count may be compared."""
    found: dict[int, None] = {}
    for departure in departures:
        place = _PLACE.match(departure.line)
        if place is not None and departure.kind in (DepartureKind.REWRITTEN, DepartureKind.INTROSPECTION):
            texts = _INTEGER.findall(linecache.getline(place[1], int(place[2])))
            found |= dict.fromkeys(number for text in texts if 1 <= (number := int(text)) <= _LARGEST_SIZE)
    return list(found)


def sizes_in_source(departures: Iterable[Departure]) -> list[int]:
    """The sizes for which code may differ, by the numbers in its file: those next to the line of a departure first."""
    distances: dict[int, int] = {}
    for departure in departures:
        place = _PLACE.match(departure.line)
        if place is None or departure.decided_by not in (Evidence.SIZES_IN_TEXTS, Evidence.SIZES_IN_CODE):
            continue
        for number, line in _numbers(place[1], are_texts=departure.decided_by is Evidence.SIZES_IN_TEXTS):
            distance = abs(line - int(place[2]))
            distances[number] = min(distance, distances.get(number, distance))
    return sorted(distances, key=lambda number: (distances[number], number))[:_MOST_SIZES]


def _numbers(file: str, *, are_texts: bool) -> list[tuple[int, int]]:
    """The numbers of a file that may be sizes, with their lines: those in its string constants, or its integers."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # no file of Python
        return []
    nodes = list(ast.walk(tree))
    # The capacity of a cache is compared with the number of its entries, and never with a size.
    capacities = {id(one) for node in nodes if _makes_cache(node) for one in ast.walk(node)}
    found = [
        (int(number), node.lineno)
        for node in nodes
        if isinstance(node, ast.Constant) and id(node) not in capacities
        if (isinstance(node.value, str) if are_texts else type(node.value) is int)
        for number in re.findall(r"[0-9]+", str(node.value))
        if len(number) <= len(str(_LARGEST_SIZE))
    ]
    return [(number, line) for number, line in found if 1 <= number <= _LARGEST_SIZE]


def _makes_cache(node: ast.AST) -> bool:
    """Whether a node is the call ``functools.lru_cache(1024)``, without the function that gets the cache."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("lru_cache", "functools.lru_cache")
