"""Files written to ``artifacts_dir``."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import torch

from .._paths import not_written

__all__ = ["artifact_path", "save_exported_program"]


def artifact_path(directory: str | os.PathLike[str], suffix: str) -> Path:
    """A new path ``onnx_export_<time><suffix>`` in the directory, which is created if it does not exist.

    Raises:
        SaveError: If the directory cannot be created.
    """
    moment = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S-%f")
    path = Path(directory, f"onnx_export_{moment}{suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(f"artifacts_dir {path.parent} cannot be created", path.parent, error) from error
    return path


def save_exported_program(exported_program: torch.export.ExportedProgram, directory: str | os.PathLike[str]) -> None:
    """Save the captured program as ``onnx_export_<time>.pt2``."""
    torch.export.save(exported_program, artifact_path(directory, ".pt2"))
