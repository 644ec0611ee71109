"""Removal of metadata from a serialized model, down to a level of ``export(metadata=...)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx

from .._lower.metadata import FX_VALUE_KEY, LEVELS, PROVENANCE_KEYS, TRACE_KEYS, MetadataLevel
from ..errors import ArgumentError, did_you_mean

__all__ = ["check_level", "reduce_metadata"]


def check_level(level: Any, exported: MetadataLevel) -> None:
    """Check a level of metadata for a file.

    Args:
        level: The level; None for the model's.
        exported: The level of the export.

    Raises:
        ArgumentError: If it is not a level, or the model does not have the metadata.
    """
    if level is None:
        return
    if level not in LEVELS:
        expected = ", ".join(map(repr, LEVELS))
        raise ArgumentError("metadata", f"expected {expected}, got {level!r}", hint=did_you_mean(level, LEVELS))
    if LEVELS.index(level) > LEVELS.index(exported):
        hint = f"export with metadata={level!r}"
        raise ArgumentError("metadata", f"the program was exported with metadata={exported!r}", hint=hint)


def reduce_metadata(proto: onnx.ModelProto, level: MetadataLevel) -> None:
    """Remove metadata of nodes and values in place, in functions and subgraphs as well.

    Args:
        proto: The model.
        level: "names" removes FX nodes and stack traces, "none" all provenance.
    """
    if level == "full":
        return
    keys = TRACE_KEYS if level == "names" else PROVENANCE_KEYS
    _reduce(proto.graph, keys.__contains__)
    for function in proto.functions:
        _reduce(function, keys.__contains__)


def _reduce(owner: Any, is_removed: Callable[[str], bool]) -> None:
    """Remove entries from the nodes and values of a graph or function."""
    for node in owner.node:
        _remove(node.metadata_props, is_removed)
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _reduce(body, is_removed)
    if is_removed(FX_VALUE_KEY):
        values: Iterable[Any] = owner.value_info
        if isinstance(owner, onnx.GraphProto):
            values = (*values, *owner.input, *owner.output, *owner.initializer)
        for value in values:
            _remove(value.metadata_props, is_removed)


def _remove(entries: Any, is_removed: Callable[[str], bool]) -> None:
    kept = [entry for entry in entries if not is_removed(entry.key)]
    if len(kept) < len(entries):
        del entries[:]
        entries.extend(kept)
