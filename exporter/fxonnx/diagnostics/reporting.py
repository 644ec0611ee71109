"""Reports on a model, a program or an export, successful or failed: an HTML page, and the same facts in Markdown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from .._diagnostics import Report
from .._display import printable
from .._model_files import check_external_data, load_model
from .._paths import not_written, path_of
from .._program import ONNXProgram
from .._program.value_comparison import Comparison
from .._public import public
from ..errors import ArgumentError, ExportError, VerificationError
from .html_page import PageSubject, render_page
from .markdown_page import markdown_page
from .page_data import example_inputs
from .printing import artifact_path
from .runtime_profile import runtime_profile

if TYPE_CHECKING:
    import onnx

__all__ = ["report", "reporting", "write_page"]


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


_AnyModel: TypeAlias = "str | os.PathLike[str] | ir.Model | onnx.ModelProto | ONNXProgram"


@public
def report(
    model: _AnyModel, path: str | os.PathLike[str], *, compare: bool = False, profile_runtime: bool = False
) -> Path:
    """Write a report on a model: one self-contained HTML page, readable without network.

    The page has the inputs and outputs, the operators and the graph by module, with the lines of source that the nodes
    come from. The page of a program has the times of its stages, the constraints with their source, the fusions and the
    captured graph as well.

    Args:
        model: A program, or an ONNX model of any exporter: a path, an ``onnx_ir.Model`` or a ``ModelProto``.
        path: Path of the page.
        compare: Whether to compare a program with PyTorch for its example inputs; see ``ONNXProgram.compare``.
        profile_runtime: Whether to run the model in ONNX Runtime's profiler: the page has the time of each module and
            operator. The inputs are the example inputs of a program, and random ones for other models.

    Returns:
        The path.

    Raises:
        ArgumentError: If the file does not exist or is not an ONNX model, ``path`` is not the name of a file, or
            ``compare`` is set without a program.
        RuntimeSessionError: With ``profile_runtime``, if ONNX Runtime cannot load or run the model.
        SaveError: If the page cannot be written.
    """
    page = path_of(path, "path")
    program = model if isinstance(model, ONNXProgram) else None
    if compare and program is None:
        problem = "only a program can be compared with PyTorch, not a file"
        raise ArgumentError("compare", problem, hint="pass the program that fxonnx.export returns as model")
    loaded = load_model(model if program is None else program.model)
    title = Path(model).name if isinstance(model, (str, os.PathLike)) else ""
    if profile_runtime:
        check_external_data(loaded)
    profile = runtime_profile(loaded if program is None else program) if profile_runtime else None
    if program is None:
        subject = PageSubject(title, loaded, profile=profile)
    else:
        comparison = program.compare() if compare else None
        attempts = program.record.capture.attempts
        subject = PageSubject(title, loaded, program, None, program.record.timings, attempts, None, comparison, profile)
    write_page(page, render_page(subject))
    return page
