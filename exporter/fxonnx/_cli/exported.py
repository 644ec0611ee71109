"""``fxonnx export`` and ``fxonnx genai``: the written files as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from .._analysis import typed_name
from .._program import ONNXProgram
from .._program.references import reference_of
from .._program.saving import check_destination
from .._public import page_address
from ..errors import SaveError
from .messages import size_text

__all__ = ["Exported", "WrittenDirectory", "check_destinations", "check_directory"]


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
    """Fail before the export, not after it, if a file cannot be written."""
    check_destination(path)
    if report is None:
        return
    try:
        report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"--report: directory {report} cannot be created: {error.strerror or error}"
        raise SaveError(problem, hint="specify a directory") from error


@dataclass(frozen=True)
class WrittenDirectory:
    """A directory for onnxruntime-genai.

    Attributes:
        path: The directory.
        is_verified: Whether the tokens were compared.
        quality: The probabilities for a text over the original's, if they were compared.
    """

    path: Path
    is_verified: bool
    quality: Any = None  # a fxonnx.genai.Quality, whose import takes 0.2 seconds

    def _files(self) -> list[Path]:
        return sorted(path for path in self.path.iterdir() if path.is_file())

    def record(self) -> dict[str, Any]:
        """The facts for JSON."""
        files = self._files()
        size = sum(path.stat().st_size for path in files)
        quality = None if self.quality is None else {"kl": self.quality.kl, "top1": self.quality.top1}
        return {
            "output": self.path,
            "bytes": size,
            "files": files,
            "verified": self.is_verified,
            "quality": quality,
        }

    def __str__(self) -> str:
        sizes = {path.name: size_text(path.stat().st_size) for path in self._files()}
        width = max(map(len, sizes), default=0)
        total = size_text(self.record()["bytes"])
        quality = "" if self.quality is None else f": {self.quality}"
        verified = f", verified{quality}" if self.is_verified else ""
        lines = [f"wrote {self.path}: {len(sizes)} files, {total}{verified}"]
        lines += [f"  {name:{width}}  {size:>10}" for name, size in sizes.items()]
        if "genai_config.json" in sizes:
            call, page = f"onnxruntime_genai.Model({str(self.path)!r})", "how-to/language-models"
        else:  # an embedding model
            call, page = f"onnxruntime.InferenceSession({str(self.path / 'model.onnx')!r})", "how-to/speech-and-vision"
        return "\n".join([*lines, f"run it: {call}", f"see: {page_address(page)}"])


def check_directory(path: Path, *, force: bool, model: str | Path | None = None) -> None:
    """Fail before the export if it would replace files of a directory."""
    if force or not path.is_dir() or not any(path.iterdir()):
        return
    is_in_place = model is not None and Path(model).is_dir() and path.samefile(model)
    if is_in_place and not any(path.glob("*.onnx")):
        return
    hint = "pass --force to replace files of it, or specify a directory that does not exist"
    raise SaveError(f"{path} cannot be written: the directory has files", hint=hint)
