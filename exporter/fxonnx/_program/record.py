"""``ExportRecord``: the facts about the export that made a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .._capture import Assumption, Capture
from .._capture.constraints.constraint import Constraint, Constraints
from .._capture.inputs.example_inputs import with_lists
from .._capture.rewriting import Rewrite
from .._prepare.fusions import Fusion, FusionRecord, NearMiss
from .._public import public
from .._request import Request
from .proof import Proof

__all__ = ["ExportRecord"]


@public
@dataclass(frozen=True, eq=False)
class ExportRecord:
    """The facts about the export that made a program.

    Attributes:
        capture: The captured program, its example inputs and constraints.
        timings: Stage name to wall-clock seconds, in the order of the stages.
        matches: The matches and near misses of the fusion patterns.
        proof: The departures from plain torch.export, and the inputs at which the capture was compared with the model.
        quantization: The quantized layers, and the model before the quantization.
        guards: The limits of the inputs that the graph checks itself, as the names of the nodes that fail.
    """

    capture: Capture
    timings: Mapping[str, float] = field(default_factory=dict)
    matches: FusionRecord = field(default_factory=FusionRecord)
    proof: Proof = field(default_factory=Proof)
    quantization: Any = None
    guards: tuple[str, ...] = ()

    def __repr__(self) -> str:
        counts = {
            "constraint": len(self.constraints),
            "assumption": len(self.assumptions),
            "rewrite": len(self.rewrites),
            "fusion": len(self.fusions),
            "comparison": len(self.proof.runs),
        }
        texts = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items()]
        return f"ExportRecord(opset {self.options.opset}, {', '.join(texts)}, {sum(self.timings.values()):.2f} s)"

    @property
    def options(self) -> Request:
        """The arguments of the export, validated."""
        return self.capture.request

    @property
    def frozen_arguments(self) -> Mapping[str, Any]:
        """Label to value of the numbers, strings and frozen tensors that are constants of the model."""
        return MappingProxyType(dict(self.capture.inputs.constants))

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The answers that the export gave where the model asks a tensor for its value, as in ``if mask.all():``.

        Those with ``AssumptionKind.EXAMPLE`` are checked in every call of the program. They are also in the report.
        """
        return self.capture.assumptions

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """The Python control flow on tensors that became If and Loop nodes: file, line, function and construct."""
        return self.capture.rewrites

    @property
    def patterns(self) -> Mapping[str, int]:
        """Name of each fusion pattern to its number of matches."""
        return MappingProxyType(dict(self.matches.counts))

    @property
    def fusions(self) -> tuple[Fusion, ...]:
        """The matches of fusion patterns by pattern and module."""
        return self.matches.fusions

    @property
    def near_misses(self) -> tuple[NearMiss, ...]:
        """The subgraphs that nearly match an enabled fusion pattern, with the line of code and the reason for each."""
        return self.matches.near_misses

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints on dynamic dims: those that the model requires and the ranges declared in ``dynamic_shapes``.

        They are also in the metadata of the model, as JSON under ``pkg.fxonnx.constraints``, together with the sizes
        that must not be 0.
        """
        return Constraints(self.capture.limits.constraints)

    @property
    def forward(self) -> Callable[..., Any] | None:
        """The ``forward`` of the exported module; None if an ``ExportedProgram`` was exported."""
        return None if self.capture.source is None else self.capture.source.forward

    @property
    def example_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The positional and keyword example inputs; None if an ``ExportedProgram`` has none."""
        examples = self.capture.exported_program.example_inputs
        if examples is not None:
            # torch.export needs distinct tensors.
            examples = self.capture.inputs.with_repeated(examples)
        return with_lists(examples, self.capture.inputs.lists)  # type: ignore[no-any-return]
