"""``fxonnx verify``: a saved model against the PyTorch model, at the example and at the inputs of its proof."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from .._comparison import OutputComparison, format_rows
from .._model_files import load_model
from .._program.proof import PROOF_KEY, Proof, repeated_inputs
from .._program.verification import verify
from ..errors import VerificationError
from .loading import LoadedModel
from .messages import error_record

__all__ = ["VerificationResult", "run_verification"]


@dataclass(frozen=True)
class VerificationResult:
    """Result of a verification.

    Attributes:
        proof: The record of the proof, as text; None if the file has none.
        comparisons: Description of the inputs to the rows of the outputs.
        error: The error for an output that differs, if one does; further inputs are not compared then.
    """

    proof: str | None
    comparisons: Mapping[str, list[OutputComparison]]
    error: VerificationError | None

    @property
    def _is_partial(self) -> bool:
        return any(row.status == "skipped" for rows in self.comparisons.values() for row in rows)

    def record(self) -> dict[str, Any]:
        """The result for JSON."""
        return {
            "equal": None if self.error is None and self._is_partial else self.error is None,
            "comparisons": [{"inputs": label, "outputs": rows} for label, rows in self.comparisons.items()],
            "proof": None if self.proof is None else json.loads(self.proof),
            "error": None if self.error is None else error_record(self.error),
        }

    def __str__(self) -> str:
        lines = [] if self.proof is None else str(Proof.of_metadata(self.proof)).splitlines()
        for label, rows in self.comparisons.items():
            lines += [f"ONNX Runtime at {label}:", *format_rows(rows).splitlines()]
        return "\n".join(lines)


def run_verification(path: Path, source: LoadedModel) -> VerificationResult:
    """Compare a file with a model."""
    model = load_model(path)
    text = model.metadata_props.get(PROOF_KEY)
    proof = None if text is None else Proof.of_metadata(text)
    comparisons: dict[str, list[OutputComparison]] = {}
    for label, args, kwargs in _inputs(proof, model, source):
        comparisons[label], error = _verified(path, source, args, kwargs)
        if error is not None:
            return VerificationResult(text, comparisons, error)
    return VerificationResult(text, comparisons, None)


def _verified(
    path: Path, source: LoadedModel, args: Any, kwargs: Any
) -> tuple[list[OutputComparison], VerificationError | None]:
    try:
        return verify(path, source.model, args, kwargs), None
    except VerificationError as error:
        return [*error.rows], error


def _inputs(proof: Proof | None, model: ir.Model, source: LoadedModel) -> Iterator[tuple[str, Any, Any]]:
    """The example, and the inputs at which the export compared the capture with the model."""
    yield "the example", source.args, source.kwargs
    for run in () if proof is None else proof.runs:
        if run.status == "equal" and run.inputs != "example":
            made = repeated_inputs(run.inputs, model.graph, source.args, source.kwargs)
            if made is not None:
                yield run.inputs, *made
