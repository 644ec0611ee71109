"""Reports on an export, successful or failed: an HTML page, and the same facts in Markdown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .._diagnostics import Report
from .._display import printable
from .._paths import not_written
from .._program.value_comparison import Comparison
from ..errors import ExportError, VerificationError
from .artifacts import artifact_path
from .example_inputs import example_inputs
from .html_page import PageSubject, render_page
from .markdown_page import markdown_page
from .runtime_profile import runtime_profile

__all__ = ["reporting", "write_page"]


@contextmanager
def reporting(report: Report, directory: str | os.PathLike[str], timings: Mapping[str, float]) -> Iterator[None]:
    """Write a report on the export inside the context when it ends, also if it fails.

    Args:
        report: Its subject, filled inside the context.
        directory: The directory to write to; it is created if it does not exist.
        timings: Stage name to seconds, filled inside the context.

    Raises:
        SaveError: If the report cannot be written.
    """
    try:
        yield
    except ExportError as error:
        error.report = _write(directory, timings, report, error)
        raise
    _write(directory, timings, report)


def _write(
    directory: str | os.PathLike[str], timings: Mapping[str, float], report: Report, error: ExportError | None = None
) -> Path:
    """Write ``onnx_export_<time>_success.html`` or ``..._error.html`` and the same as ``.md``; return the first."""
    comparison = Comparison(report.rows) if report.rows else None
    if isinstance(error, VerificationError):
        comparison = error.comparison
    program = report.program
    profile = None if program is None or error or not report.profile_runtime else runtime_profile(program)
    model = None if program is None else program.model
    inputs = None if error is None else example_inputs(report.request)
    subject = PageSubject(
        *(type(report.request.model).__name__, model, program, report.exported_program, timings),
        *(report.attempts, error, comparison, profile, inputs),
    )
    path = artifact_path(directory, f"_{'success' if error is None else 'error'}.html")
    write_page(path, render_page(subject))
    write_page(path.with_suffix(".md"), markdown_page(timings, report.attempts, report.program, error, inputs))
    return path


def write_page(path: Path, text: str) -> None:
    """Write a report.

    Raises:
        SaveError: If it cannot be written.
    """
    try:
        path.write_text(printable(text, lines=True), encoding="utf-8")
    except OSError as error:
        raise not_written(f"the report cannot be written to {path}", path, error) from error
