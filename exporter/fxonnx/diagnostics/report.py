"""The report on an ONNX file or a program as an HTML page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from .._model_files import check_external_data, load_model
from .._paths import path_of
from .._program import ONNXProgram
from .._public import public
from ..errors import ArgumentError
from .html_page import PageSubject, render_page
from .reporting import write_page
from .runtime_profile import runtime_profile

if TYPE_CHECKING:
    import onnx

__all__ = ["report"]

_AnyModel: TypeAlias = "str | os.PathLike[str] | ir.Model | onnx.ModelProto | ONNXProgram"


@public
def report(
    model: _AnyModel, path: str | os.PathLike[str], *, compare: bool = False, profile_runtime: bool = False
) -> Path:
    """Write a report on a model: one self-contained HTML page, readable without network.

    The page has the inputs and outputs, the operators and the graph by module, with the lines of source that the nodes
    come from. That of a program has the times of its stages, the constraints with their source, the fusions and the
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
