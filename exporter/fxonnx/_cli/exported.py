"""``fxonnx export``: the written file as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from .._analysis import typed_name
from .._program import ONNXProgram
from .._program.references import reference_of
from .._program.saving import check_destination
from ..errors import SaveError
from .messages import size_text

__all__ = ["Exported", "check_destinations"]


@dataclass(frozen=True)
class Exported:
    """An exported file.

    Attributes:
        path: The file.
        program: The program.
        is_verified: Whether it was compared with the model.
    """

    path: Path
    program: ONNXProgram
    is_verified: bool

    @property
    def opset(self) -> int | None:
        """The opset."""
        return self.program.model.opset_imports.get("")

    def record(self) -> dict[str, Any]:
        """The facts for JSON."""
        model, record = self.program.model, self.program.record
        return {
            "output": self.path,
            "bytes": self.path.stat().st_size,
            "opset": self.opset,
            "nodes": len(model.graph),
            "functions": len(model.functions),
            "inputs": [typed_name(value) for value in model.graph.inputs],
            "outputs": [typed_name(value) for value in model.graph.outputs],
            "constraints": [str(each) for each in record.constraints],
            "guards": list(record.guards),
            "verified_against": reference_of(self.program).name if self.is_verified else None,
            "seconds": dict(record.timings),
        }

    def __str__(self) -> str:
        model = self.program.model
        calls = f"{len(model.functions)} functions, " if model.functions else ""
        checked = ""
        if self.is_verified:
            name = reference_of(self.program).name
            checked = ", verified" if name == "model" else f", verified against the {name}"
        size = size_text(self.path.stat().st_size)
        return f"wrote {self.path}: {size}, {len(model.graph)} nodes, {calls}opset {self.opset}{checked}"

    def stages(self) -> Table:
        """The seconds of each stage."""
        timings = self.program.record.timings
        table = Table("stage", "seconds")
        for stage, seconds in (*timings.items(), ("total", sum(timings.values()))):
            table.add_row(stage, f"{seconds:.3f}")
        return table


def check_destinations(path: Path, report: Path | None) -> None:
    """Fail before the export, not after it, if a file cannot be written.

    Args:
        path: The ONNX file.
        report: Directory of the report, which is created.

    Raises:
        SaveError: If one cannot.
    """
    check_destination(path)
    if report is None:
        return
    try:
        report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"--report: directory {report} cannot be created: {error.strerror or error}"
        raise SaveError(problem, hint="specify a directory") from error
