"""``fxonnx verify``: a saved model against the PyTorch model, at the example and at the inputs of its proof."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from .._comparison import OutputComparison, format_rows
from .._model_files import load_model
from .._program.proof import PROOF_KEY, Proof, repeated_inputs
from .._program.verification import verify
from .loading import LoadedModel

__all__ = ["run_verification"]


def run_verification(path: Path, source: LoadedModel) -> str:
    """Compare a file with a model.

    Args:
        path: The ONNX file.
        source: The model with its example inputs.

    Returns:
        The record of the proof, if the file has one, and the rows of all comparisons.

    Raises:
        ArgumentError: If the file cannot be loaded or does not take the inputs.
        VerificationError: If an output differs.
    """
    model = load_model(path)
    text = model.metadata_props.get(PROOF_KEY)
    proof = None if text is None else Proof.of_metadata(text)
    lines = [] if proof is None else str(proof).splitlines()
    for label, args, kwargs in _inputs(proof, model, source):
        rows = verify(path, source.model, args, kwargs)
        lines += [f"ONNX Runtime at {label}:", *_table(rows)]
    return "\n".join(lines)


def _inputs(proof: Proof | None, model: ir.Model, source: LoadedModel) -> Iterator[tuple[str, Any, Any]]:
    """The example, and the inputs at which the export compared the capture with the model."""
    yield "the example", source.args, source.kwargs
    for run in () if proof is None else proof.runs:
        if run.status == "equal" and run.inputs != "example":
            made = repeated_inputs(run.inputs, model.graph, source.args, source.kwargs)
            if made is not None:
                yield run.inputs, *made


def _table(rows: list[OutputComparison]) -> list[str]:
    return format_rows(rows).splitlines()
