"""Output of a benchmark: a table for people, JSON for programs."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import onnxruntime
import onnxscript
import torch
from rich.console import Console
from rich.table import Table

__all__ = ["environment", "geometric_mean", "print_table", "text", "with_means", "write_json"]


def geometric_mean(values: Sequence[float]) -> float:
    """The mean that fits ratios."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def environment() -> dict[str, str]:
    """The machine and the versions of the libraries."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "onnx": onnx.__version__,
        "onnx_ir": onnx_ir.__version__,
        "onnxscript": onnxscript.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Not narrower than its content: output that goes to a file or a log has no window to fit into.
    Console(width=max(160, Console().width)).print(table)


def text(value: Any) -> str:
    """A cell of a table."""
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def with_means(rows: Sequence[Mapping[str, Any]], ratios: Sequence[str]) -> list[Mapping[str, Any]]:
    """The rows, and one of the geometric means of the columns that are ratios."""
    values = {key: [row[key] for row in rows if row.get(key) is not None] for key in ratios}
    return [*rows, {"model": "geometric mean"} | {key: geometric_mean(found) for key, found in values.items() if found}]


def write_json(path: str | None, content: dict[str, Any]) -> None:
    """Writes ``content`` and the environment to ``path``, if there is one."""
    if path is not None:
        Path(path).write_text(json.dumps({"environment": environment(), **content}, indent=2) + "\n")
