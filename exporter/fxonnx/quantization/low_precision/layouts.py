"""Where the scales and zero points of a weight are: blocks of elements with one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from ..._nodes import function_of
from ..._provenance import copy_provenance

__all__ = ["Layout", "Path", "block_of", "positions_of", "replayed"]

aten = torch.ops.aten

Path: TypeAlias = tuple[Node, ...]
"""Operators that move or convert elements, each of which takes the result of the one before."""

_CASTS = frozenset({aten.to.dtype, aten._to_copy.default})


@dataclass(frozen=True)
class Layout:
    """The layout of a parameter over a weight.

    Attributes:
        base: The parameter.
        positions: For each block of ``block``, the position of its number in the parameter.
        block: The sizes of the largest blocks with one number.
        checked: Index tensors that the layout was computed from, with their contents.
    """

    base: Node
    positions: torch.Tensor
    block: tuple[int, ...]
    checked: tuple[tuple[Node, torch.Tensor], ...] = field(default=())


def positions_of(
    shape: torch.Size,
    steps: Sequence[tuple[torch.Size | None, Path]],
    indices: Mapping[Node, torch.Tensor],
    memo: dict[Any, Any],
) -> tuple[torch.Tensor, tuple[int, ...]] | None:
    """Return the positions of the numbers of a parameter over a weight, one for each of the largest blocks.

    Args:
        shape: Shape of the parameter.
        steps: Shapes to broadcast to, or None, each with the operators that follow.
        indices: Contents of the index tensors.
        memo: Earlier results: the layers of a model have the same layouts.
    """
    key = (
        shape,
        tuple((target, tuple(_signature(node, indices) for node in path)) for target, path in steps),
    )
    if key not in memo:
        found = torch.arange(shape.numel(), dtype=torch.int32).reshape(shape)
        for target, path in steps:
            found = found if target is None else found.expand(target)
            for node in path:
                if node.target not in _CASTS:
                    found = _moved(node, found, indices)
        block = tuple(_block_size(found, axis) for axis in range(found.dim()))
        memo[key] = (found[tuple(slice(None, None, size) for size in block)].long().contiguous(), block)
    result: tuple[torch.Tensor, tuple[int, ...]] = memo[key]
    return result


def _signature(node: Node, indices: Mapping[Node, torch.Tensor]) -> Any:
    def described(part: Any) -> Any:
        return indices[part].numpy().tobytes() if part in indices else None

    args = torch.fx.map_arg((node.args[1:], node.kwargs), described)
    return node.target, repr(args)


def _moved(node: Node, tensor: torch.Tensor, indices: Mapping[Node, torch.Tensor]) -> torch.Tensor:
    args, kwargs = torch.fx.map_arg((node.args[1:], node.kwargs), indices.__getitem__)
    # Contiguous: views of it have the same elements as in the model, whatever its strides are there.
    result: torch.Tensor = function_of(node)(tensor.contiguous(), *args, **kwargs)
    return result


def _block_size(positions: torch.Tensor, axis: int) -> int:
    """Return the size of the largest blocks of one axis without a change."""
    size = positions.shape[axis]
    changes = positions.narrow(axis, 1, size - 1) != positions.narrow(axis, 0, size - 1)
    others = [other for other in range(positions.dim()) if other != axis]
    changed = changes.sum(others) if others else changes
    return math.gcd(size, *(int(at) + 1 for at in changed.nonzero().flatten()))


def block_of(layout: Layout, counts: Sequence[int]) -> torch.Tensor:
    """Return the positions for smaller blocks, of which there are ``counts`` along each axis.

    An axis with one number for its whole length keeps one.
    """
    positions = layout.positions
    for axis, count in enumerate(counts):
        own = positions.shape[axis]
        if own not in (1, count):
            positions = positions.repeat_interleave(count // own, dim=axis)
    return positions.contiguous()


def replayed(node: Node, path: Path) -> Node:
    """Insert copies of operators that move elements, applied to another node; conversions are omitted."""
    for step in path:
        if step.target in _CASTS:
            continue
        source = node
        node = step.graph.call_function(function_of(step), (source, *step.args[1:]), dict(step.kwargs))
        node.meta["val"] = step.meta["val"].to(source.meta["val"].dtype)
        copy_provenance(node, step)
    return node
