"""Specs of objects, such as caches: by path, for all tensors, or as a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from ...errors import ArgumentError, did_you_mean
from ..inputs.pytree_objects import COUNTERS

__all__ = ["object_part_specs"]


def object_part_specs(parts: Mapping[str, Any], spec: Any, label: str) -> list[Any]:
    """Distribute the spec of an object to its tensors.

    A pattern, or one spec for all tensors, does not apply to numbers and 0-dim tensors.

    Args:
        parts: Path (``0.key``, ``0.value``, ``1.key``) to tensor.
        spec: A mapping by path or pattern, ``{"*.key": {2: "past"}}``; or ``{axis: dim}`` for all tensors; or one spec
            per tensor, in pairs by layer or as a list of all keys and a list of all values, torch's form for caches.
        label: Name of the object in messages.

    Returns:
        One spec, or None, per tensor.

    Raises:
        ArgumentError: If the spec has a different form, or the order of a list is ambiguous.
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
        tensors = [key for key in keys if key.rpartition(".")[2] not in COUNTERS]
        specs = dict(zip(tensors, _in_order(tensors, spec, label), strict=True))
        return [specs.get(key) for key in keys]
    raise _spec_error(keys, label, f"its spec is {spec!r}")


def _spec_error(keys: Sequence[str], label: str, problem: str, path: object = None) -> ArgumentError:
    hint = "pass {axis: dim} for all of them, or a dict by path or pattern, such as "
    hint += f"{{'*': {{0: 'batch'}}}}; the paths are: {', '.join(keys)}"
    return ArgumentError(
        "dynamic_shapes",
        f"{label} is an object with {len(keys)} tensors, but {problem}",
        hint=did_you_mean(path, keys, hint),
    )


def _by_path(has_axes: Mapping[str, bool], spec: Mapping[Any, Any], label: str) -> list[Any]:
    keys = list(has_axes)
    unknown = [path for path in spec if not any(fnmatchcase(key, str(path)) for key in keys)]
    if unknown:
        raise _spec_error(keys, label, f"no path matches {unknown[0]!r}", unknown[0])
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
        raise _spec_error(keys, label, f"its spec has {len(direct)}")
    if all(one == direct[0] for one in direct):
        return direct
    transposed = [one for column in zip(*rows, strict=True) for one in column]
    layers = len(keys) // 2
    if len(rows) == layers and len(rows[0]) == 2 and (layers != 2 or direct == transposed):
        return direct
    if len(rows) == 2 and len(rows[0]) == layers:
        if layers == 2 and direct != transposed:
            raise _spec_error(keys, label, "its spec is ambiguous: by layer, or keys before values")
        return transposed
    raise _spec_error(keys, label, f"its spec is {spec!r}")
