"""The table of model types in docs/reference/huggingface-types.md: ``python -m tests.huggingface.types_table``."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import fxonnx.huggingface
from fxonnx.huggingface import ExportedModel

from .small_models import TYPES, main_task, make_model, make_vocoder

__all__ = ["PAGE", "export_small", "row_of", "rows_of_page"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "huggingface-types.md"

_HEAD = """# Model types of `fxonnx hf`

Small models with random weights of transformers 5.23, exported by `fxonnx.huggingface.export` for their main task, and
compared with eager torch at two batch sizes and lengths, or image sizes where the model allows them; models that generate
also in 12 tokens of a padded batch. Outputs that are random are not compared. `python -m tests.huggingface.types_table` writes this page, and
tests/huggingface/test_export.py compares its rows with new exports. Sizes that a model does not accept follow from the
small configuration. Of the types of optimum-onnx 0.1, two have no row: transformers 5 has no mctct, and internlm2 is code in its
checkpoints, which `--trust-remote-code` runs.

| Model type | Task | Files | Only for |
|---|---|---|---|
"""


def export_small(model_type: str, directory: Path) -> ExportedModel:
    """Export and check a small model of a type."""
    task = main_task(model_type)
    vocoder = make_vocoder() if model_type == "speecht5" else None
    return fxonnx.huggingface.export(make_model(model_type, task), directory, task=task.name, vocoder=vocoder)


def row_of(model_type: str, exported: ExportedModel) -> str:
    """The line of the table for an export."""
    limits = list(dict.fromkeys(limit for each in exported.limits.values() for limit in each))
    shown = ", ".join(f"`{limit}`" for limit in sorted(limits, key=len)[:2])
    more = f" and {len(limits) - 2} more" if len(limits) > 2 else ""
    files = ", ".join(f"`{file.stem}`" for file in exported.files)
    return f"| {model_type} | {exported.task} | {files} | {shown}{more} |"


def rows_of_page() -> dict[str, str]:
    """The lines of the table on the page, by model type."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0][2:]: line for line in lines[1:]}


def main() -> None:
    """Export all types and write the page."""
    rows = []
    for model_type in TYPES:
        with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append(row_of(model_type, export_small(model_type, Path(directory))))
        sys.stdout.write(f"{rows[-1]}\n")
    PAGE.write_text(_HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
