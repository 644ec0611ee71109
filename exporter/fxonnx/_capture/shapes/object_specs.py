"""Specs of objects, such as caches, in the forms in which people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from ...errors import ArgumentError

__all__ = ["object_part_specs"]


def object_part_specs(parts: Mapping[str, Any], spec: Any, label: str) -> list[Any]:
    """One spec for each tensor of an object; a pattern, or one spec for all, is not about numbers and 0-dim tensors.

    Args:
        parts: The tensors by where they are in the object: ``0.key``, ``0.value``, ``1.key``.
        spec: By these paths or patterns for them, ``{"*.key": {2: "past"}}``; or ``{axis: dim}`` for all of them; or
            one spec for each, in pairs for each layer or as all keys and all values, which is how torch writes a cache.
        label: What to call the object in messages.

    Raises:
        ArgumentError: If it is none of these, or if the order of several specs is not clear.
    """
    keys = list(parts)
    has_axes = {key: isinstance(part, torch.Tensor) and part.dim() > 0 for key, part in parts.items()}
    if not spec:
        return [None] * len(keys)
    if isinstance(spec, Mapping) and all(isinstance(key, int) for key in spec):
        return [spec if has_axes[key] else None for key in keys]
    if isinstance(spec, Mapping):
        return _by_path(has_axes, spec, label)
    if isinstance(spec, list | tuple):
        return _in_order(keys, spec, label)
    raise _wrong(keys, label, f"its spec is {spec!r}")


def _wrong(keys: Sequence[str], label: str, problem: str) -> ArgumentError:
    return ArgumentError(
        "dynamic_shapes",
        f"{label} is an object with {len(keys)} tensors, but {problem}",
        hint="pass {axis: dim} for all of them, or a dict by paths and patterns, such as "
        f"{{'*': {{0: 'batch'}}}}; the paths are: {', '.join(keys)}",
    )


def _by_path(has_axes: Mapping[str, bool], spec: Mapping[Any, Any], label: str) -> list[Any]:
    keys = list(has_axes)
    unknown = [path for path in spec if not any(fnmatchcase(key, str(path)) for key in keys)]
    if unknown:
        raise _wrong(keys, label, f"none is at {unknown[0]!r}")
    found: list[Any] = []
    for key in keys:
        patterns = [path for path in spec if has_axes[key] and fnmatchcase(key, str(path))]
        found.append(spec[key] if key in spec else spec[patterns[0]] if patterns else None)
    return found


def _in_order(keys: Sequence[str], spec: Sequence[Any], label: str) -> list[Any]:
    if not all(isinstance(part, list | tuple) and len(part) == len(spec[0]) for part in spec):
        rows: list[list[Any]] = [list(spec)]
    else:
        rows = [list(part) for part in spec]
    direct = [one for row in rows for one in row]
    if len(direct) != len(keys):
        raise _wrong(keys, label, f"its spec has {len(direct)}")
    if all(one == direct[0] for one in direct):
        return direct
    transposed = [one for column in zip(*rows, strict=True) for one in column]
    layers = len(keys) // 2
    if len(rows) == layers and len(rows[0]) == 2 and (layers != 2 or direct == transposed):
        return direct
    if len(rows) == 2 and len(rows[0]) == layers:
        if layers == 2 and direct != transposed:
            raise _wrong(keys, label, "whether its spec is by layer, or keys before values, is not clear")
        return transposed
    raise _wrong(keys, label, f"its spec is {spec!r}")
