"""Dims with the same name: one symbolic dim if their sizes agree in the examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guarding_hint_or_throw, has_guarding_hint

from fxonnx_translations._torch_compat import pytree

from .dim_specs import dim_label, name_of_spec
from .dynamic_shapes import Leaf, SharedDim

__all__ = ["add_equality_guards", "differing_dims", "shared_dims"]


def shared_dims(leaves: Sequence[Leaf], others: Sequence[Any] = ()) -> tuple[SharedDim, ...]:
    """Group the dims by name and by their sizes in the examples; groups of one dim are omitted.

    Args:
        leaves: The leaves of the inputs, with the first example.
        others: Additional examples, as pytrees with the same leaves.
    """
    return tuple(group for group in _groups(leaves, others) if len(group.places) > 1)


def differing_dims(leaves: Sequence[Leaf], others: Sequence[Any] = ()) -> tuple[str, ...]:
    """Names shared by dims whose sizes differ in an example, with these sizes, for a warning."""
    by_name: dict[str, list[SharedDim]] = defaultdict(list)
    for group in _groups(leaves, others):
        by_name[group.name].append(group)
    texts = []
    for name, groups in by_name.items():
        if len(groups) > 1:
            firsts = [(leaves[index], axis, group) for group in groups for index, axis in group.places[:1]]
            sizes = ", ".join(
                f"{dim_label(leaf.label, axis)} is {_sizes_text(group.sizes)}" for leaf, axis, group in firsts
            )
            texts.append(f"{name!r}: {sizes}")
    return tuple(texts)


def add_equality_guards(shared: Sequence[SharedDim], arguments: Any) -> None:
    """Add guards that dims with the same name are equal, so that torch replaces their symbols by one.

    Args:
        shared: The groups of dims.
        arguments: The inputs of the traced call, as a pytree with the leaves of the examples.
    """
    if not shared:
        return
    leaves = pytree.tree_leaves(arguments)
    for group in shared:
        first, *rest = [_size(leaves[index], axis) for index, axis in group.places]
        for other in rest:
            if isinstance(first, torch.SymInt) and isinstance(other, torch.SymInt):
                bool(first == other)


def _groups(leaves: Sequence[Leaf], others: Sequence[Any]) -> list[SharedDim]:
    examples = [[leaf.value for leaf in leaves], *(pytree.tree_leaves(other) for other in others)]
    places: dict[tuple[str, tuple[int, ...]], list[tuple[int, int | None]]] = defaultdict(list)
    for index, leaf in enumerate(leaves):
        for axis, spec in leaf.dims.items():
            name = name_of_spec(spec)
            sizes = [_size_hint(_size(example[index], axis)) for example in examples]
            if name is not None and None not in sizes:
                places[name, tuple(size for size in sizes if size is not None)].append((index, axis))
    return [SharedDim(name, sizes, tuple(found)) for (name, sizes), found in places.items()]


def _size(value: Any, axis: int | None) -> Any:
    if axis is None:
        return value
    return value.shape[axis] if isinstance(value, torch.Tensor) and axis < value.dim() else None


def _size_hint(size: Any) -> int | None:
    """The size in an example, or the hint of a symbolic size in an ExportedProgram."""
    if isinstance(size, torch.SymInt):
        return int(guarding_hint_or_throw(size)) if has_guarding_hint(size) else None
    return size if isinstance(size, int) else None


def _sizes_text(sizes: Sequence[int]) -> str:
    return " and ".join(map(str, dict.fromkeys(sizes)))
