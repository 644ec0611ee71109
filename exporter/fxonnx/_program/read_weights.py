"""Weights whose values Python read during the capture: other weights must give the same values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fxonnx_translations._builder.initializers import values_of

from .._capture.data_dependence.weight_reads import WeightReads
from .._lower.metadata import relative_file
from ..errors import ArgumentError

__all__ = ["WEIGHT_READS_KEY", "check_weight_reads", "reads_metadata"]

WEIGHT_READS_KEY = "pkg.fxonnx.weight_reads"
"""Key of the reads in the model's metadata: JSON, a list of lines with the names of weights and the values."""

_LISTED_VALUES = 16
"""Number of values of one line up to which the metadata lists them; of more it has a digest."""


def check_weight_reads(
    reads: WeightReads, current: Mapping[str, Any], given: Mapping[str, Any], argument: str = "weights"
) -> None:
    """Check that the values that Python read from weights are the same for other weights.

    Args:
        reads: The values.
        current: FQN to weight of the program.
        given: FQN to the weight that replaces it: a tensor, or one in a file.
        argument: Name of the argument with these weights.

    Raises:
        ArgumentError: If one is not; the error has the line that reads it.
    """
    if not reads.reads or reads.names.isdisjoint(given):
        return

    def at_export(names: Sequence[str]) -> torch.Tensor:
        weight: torch.Tensor = next(current[name] for name in names if name in current)
        return weight.detach()

    def value_of(names: Sequence[str]) -> torch.Tensor:
        old = at_export(names)
        name = next((name for name in names if name in given), None)
        return old if name is None else _loaded(name, given[name], old, argument)

    found = reads.difference(value_of)
    if found is None:
        return
    used = [names for names in reads.ties if names[0] in found.read.weights and not given.keys().isdisjoint(names)]
    changed = [names for names in used if not torch.equal(value_of(names), at_export(names))] or used
    names = [next(name for name in names if name in given) for names in changed]
    raise ArgumentError(
        argument,
        f"Python read {_listed_names(names)} during the capture, and the value is a constant of the program:"
        f"\n  {found}",
        hint="export the model again with these weights, or compute the result with operators of torch",
    )


def _listed_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f", ... ({len(names)} weights)" if len(names) > 3 else "")


def _loaded(name: str, given: Any, old: torch.Tensor, argument: str) -> torch.Tensor:
    """A weight that is given, in the dtype and on the device of the one at export."""
    tensor: torch.Tensor = given
    if not isinstance(given, torch.Tensor):
        real = old.real.dtype if old.is_complex() else old.dtype
        tensor = values_of(given.initializer(name, real))
        tensor = torch.view_as_complex(tensor) if old.is_complex() else tensor
    if tensor.shape != old.shape:
        raise ArgumentError(
            argument,
            f"{name!r} has the shape {list(tensor.shape)}, expected {list(old.shape)}",
            hint="re-export the model with weights of that shape and dtype",
        )
    return tensor.detach().to(old.device, old.dtype)


def reads_metadata(reads: WeightReads) -> dict[str, str]:
    """The reads as an entry of the model's metadata; empty without any."""
    values: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
    for read in reads.reads:
        file, separator, rest = str(read.line or "").partition(":")
        found = values.setdefault((f"{relative_file(file)}:{rest}" if separator else file, read.weights), [])
        if read.value not in found[-_LISTED_VALUES:]:
            found.append(read.value)
    content = [{"line": line, "weights": list(weights), **_listed(found)} for (line, weights), found in values.items()]
    return {WEIGHT_READS_KEY: json.dumps(content)} if content else {}


def _listed(values: Sequence[Any]) -> dict[str, Any]:
    """The values of a line, or their digest if there are many."""
    if len(values) > _LISTED_VALUES:
        return {"sha256": hashlib.sha256(repr(values).encode()).hexdigest()}
    return {"values": [str(one) if isinstance(one, complex) or not _is_finite(one) else one for one in values]}


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
