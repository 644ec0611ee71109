"""``Diagnostics``: reports, times and dumps of an export."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ._capture.plan import Attempt
from ._comparison import OutputComparison
from ._public import public
from ._request import Request
from .errors import ArgumentError, check_choice

__all__ = ["Diagnostics", "Report", "read_diagnostics"]


@public
@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """Reports, times and dumps of an export; ``diagnostics=True`` stands for ``Diagnostics(report=True)``.

    Attributes:
        report: Write a report on the export, or on its failure, to ``artifacts_dir``: an HTML page, and a short one in
            Markdown.
        profile: Print the seconds of each stage.
        profile_runtime: Write the report with the time of each module and operator in ONNX Runtime.
        dump_exported_program: Save the captured program to ``artifacts_dir``.
        artifacts_dir: Directory of the report and the captured program.
        verbose: Print the graph with types, module scopes and source lines; and let torch print its own log, which the
            report has otherwise, and forward print.
        on_stage: Called with the name of each stage as it begins.
    """

    report: bool = False
    profile: bool = False
    profile_runtime: bool = False
    dump_exported_program: bool = False
    artifacts_dir: str | os.PathLike[str] = "."
    verbose: bool = False
    on_stage: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Raise an ArgumentError if an attribute is not of its type."""
        for name in ("report", "profile", "profile_runtime", "dump_exported_program", "verbose"):
            check_choice(name, getattr(self, name), (False, True))
        if self.on_stage is not None and not callable(self.on_stage):
            raise ArgumentError("on_stage", f"expected a function, got {self.on_stage!r}", hint="write on_stage=print")
        if not isinstance(self.artifacts_dir, str | os.PathLike):
            hint = 'write artifacts_dir="reports"'
            raise ArgumentError("artifacts_dir", f"expected a path, got {self.artifacts_dir!r}", hint=hint)

    @property
    def writes_report(self) -> bool:
        """Whether a report is written."""
        return self.report or self.profile_runtime


def read_diagnostics(diagnostics: Diagnostics | bool) -> Diagnostics:
    """The argument ``diagnostics`` of an export.

    Raises:
        ArgumentError: If it is neither a bool nor a ``Diagnostics``.
    """
    if isinstance(diagnostics, bool):
        return Diagnostics(report=diagnostics)
    if not isinstance(diagnostics, Diagnostics):
        hint = "pass True for a report"
        raise ArgumentError("diagnostics", f"expected an fxonnx.Diagnostics or a bool, got {diagnostics!r}", hint=hint)
    return diagnostics


@dataclass
class Report:
    """The subject of the report, as far as it is known.

    Attributes:
        request: The export as it was asked for.
        exported_program: The captured program, set as soon as it exists.
        program: The exported program, set as soon as it exists.
        rows: The comparison of the outputs, if they were verified.
        profile_runtime: Whether to measure the time of each module in ONNX Runtime.
        attempts: The calls of torch.export, filled during the capture.
    """

    request: Request
    exported_program: torch.export.ExportedProgram | None = None
    program: Any = None
    rows: tuple[OutputComparison, ...] = ()
    profile_runtime: bool = False
    attempts: list[Attempt] = field(default_factory=list)
