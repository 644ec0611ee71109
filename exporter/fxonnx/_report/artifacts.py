"""Files about an export beside the model, and what is printed about it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import ExportError, SaveError

if TYPE_CHECKING:
    from .._program import ONNXProgram

__all__ = ["Page", "artifact", "dump", "reported", "stage_table"]


@dataclass
class Page:
    """What a report is about.

    Attributes:
        program: What was exported, as soon as it is there.
    """

    program: ONNXProgram | None = None


@contextmanager
def reported(directory: str | os.PathLike[str], timings: Mapping[str, float], *, wanted: bool) -> Iterator[Page]:
    """Writes a report about the body, also if it fails.

    Args:
        directory: Where to.
        timings: Stage name to seconds, filled by the body.
        wanted: Whether to write it at all.
    """
    page = Page()
    try:
        yield page
    except ExportError as error:
        if wanted:
            from .page import write_report

            error.report = write_report(directory, timings, page.program, error)
        raise
    if wanted:
        from .page import write_report

        write_report(directory, timings, page.program)


def artifact(directory: str | os.PathLike[str], ending: str) -> Path:
    """A new name in the directory, which is made if it is not there."""
    moment = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S-%f")
    path = Path(directory, f"onnx_export_{moment}{ending}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"artifacts_dir {path.parent} can not be made: {error.strerror}") from error
    return path


def dump(exported_program: torch.export.ExportedProgram, directory: str | os.PathLike[str] | None) -> None:
    """Saves the captured program as ``onnx_export_<time>.pt2``, if there is a directory for it."""
    if directory is not None:
        torch.export.save(exported_program, artifact(directory, ".pt2"))


def stage_table(timings: Mapping[str, float]) -> str:
    """The seconds of each stage as lines of text."""
    rows = [*timings.items(), ("total", sum(timings.values()))]
    width = max(len(stage) for stage, _ in rows)
    return "\n".join(f"{stage.ljust(width)}  {seconds:.3f} s" for stage, seconds in rows)
