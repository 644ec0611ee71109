"""Adapter weights: parameters that become graph inputs, whose default values are those at export."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from fnmatch import fnmatchcase

import torch
from torch.export.graph_signature import InputKind

from fxonnx_translations._builder.initializers import storage_key

from .._capture.data_dependence.weight_reads import WeightReads
from .._export_signature import Signature
from ..errors import ArgumentError, did_you_mean

__all__ = ["find_adapters"]

_KINDS = frozenset({InputKind.PARAMETER, InputKind.BUFFER})


def find_adapters(
    exported_program: torch.export.ExportedProgram,
    signature: Signature,
    patterns: Collection[str],
    reads: WeightReads | None = None,
) -> frozenset[str]:
    """Find the placeholders of the parameters and buffers that patterns select and the program uses.

    Args:
        exported_program: The captured program.
        signature: Its signature.
        patterns: FQNs or glob patterns for them.
        reads: The values that Python read from weights; None without any.

    Raises:
        ArgumentError: If a pattern matches none of the used weights, only one of two tied weights is selected, or
            Python read a selected weight during the capture.
    """
    if not patterns:
        return frozenset()
    used = {node.name for node in exported_program.graph.find_nodes(op="placeholder") if node.users}
    weights = {str(record.target): record.name for record in signature.inputs if record.kind in _KINDS}
    selected: dict[str, None] = {}
    for pattern in patterns:
        matches = [fqn for fqn in weights if fqn == pattern or fnmatchcase(fqn, pattern)]
        tied = _with_tied_weights(exported_program, weights, matches)
        if reads is not None:
            _reject_read(reads, matches)
        if not any(weights[fqn] in used for fqn in tied):
            problem = f"{pattern!r} matches no parameter of the model"
            if matches:
                problem = f"{pattern!r} matches only parameters that forward does not use, as {matches[0]!r}"
            hint = did_you_mean(
                pattern, weights, 'for example, adapters="*.lora_*" selects the weights of PEFT\'s LoRA'
            )
            raise ArgumentError("adapters", problem, hint=hint)
        selected.update(dict.fromkeys(matches))
    for fqn, other in _with_tied_weights(exported_program, weights, selected).items():
        if fqn not in selected:
            raise ArgumentError(
                "adapters",
                f"{other!r} and {fqn!r} are tied weights, but only the first is selected",
                hint="select both or none of them",
            )
    return frozenset(weights[fqn] for fqn in selected if weights[fqn] in used)


def _reject_read(reads: WeightReads, selected: Collection[str]) -> None:
    """Raise an ArgumentError for a weight that Python read: the program contains its value, not an input."""
    for fqn in selected:
        read = reads.of(fqn)
        if read is not None:
            raise ArgumentError(
                "adapters",
                f"Python read {fqn!r} during the capture, and its value is a constant of the program:\n  {read}",
                hint="compute the result with operators of torch, as torch.where, or do not select this weight",
            )


def _with_tied_weights(
    exported_program: torch.export.ExportedProgram, weights: Collection[str], selected: Collection[str]
) -> dict[str, str]:
    """Map the selected weights and the weights tied to them, also as transposes, to a selected weight."""

    def tensor(fqn: str) -> torch.Tensor | None:
        found = exported_program.state_dict.get(fqn, exported_program.constants.get(fqn))
        return found if isinstance(found, torch.Tensor) else None

    storages: dict[Hashable, str] = {}
    for fqn in selected:
        found = tensor(fqn)
        if found is not None:
            views = [found, found.t()] if found.dim() == 2 else [found]
            storages.update({storage_key(view, fqn): fqn for view in views})
    tied = {fqn: fqn for fqn in selected}
    for fqn in weights:
        found = tensor(fqn)
        if fqn not in tied and found is not None and (other := storages.get(storage_key(found, fqn))) is not None:
            tied[fqn] = other
    return tied
