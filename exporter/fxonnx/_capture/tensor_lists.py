"""Lists of a dynamic number of tensors during the capture: the captured program takes and returns stacked tensors."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from fxonnx_translations._torch_compat import pytree

from .._context_values import activated, active
from .inputs.pytree_objects import flatten_objects, is_object
from .rewriting.operators.sequences import StackedList

__all__ = ["ListResults", "recorded_list_results", "stacked_results", "with_pieces"]


@dataclass
class ListResults:
    """The lists among the results of the current capture.

    Attributes:
        positions: Their indices among the leaves of the results.
    """

    positions: frozenset[int] = frozenset()


def recorded_list_results() -> AbstractContextManager[ListResults]:
    """Record the results that are lists of a dynamic number of tensors inside the context.

    Yields:
        The record; filled while the context is active.
    """
    return activated(ListResults())


def with_pieces(tree: Any, positions: Collection[int]) -> Any:
    """Replace the stacked tensors at the given leaf positions by lists of their pieces."""
    if not positions:
        return tree
    leaves, structure = pytree.tree_flatten(tree)
    return pytree.tree_unflatten(
        [StackedList([leaf]) if index in positions else leaf for index, leaf in enumerate(leaves)], structure
    )


def stacked_results(outputs: Any) -> Any:
    """The results as a pytree of tensors: objects are flattened, and lists of dynamic length stacked and recorded."""
    found: list[Any] = []

    def stack(leaf: Any) -> Any:
        if not isinstance(leaf, StackedList):
            return leaf
        found.append(leaf.stacked)
        return found[-1]

    stacked = flatten_objects(pytree.tree_map(stack, outputs, is_leaf=_is_leaf))
    results = active(ListResults)
    if results is not None:
        leaves = pytree.tree_leaves(stacked)
        results.positions = frozenset(
            index for index, leaf in enumerate(leaves) if any(leaf is tensor for tensor in found)
        )
    return stacked


def _is_leaf(value: Any) -> bool:
    # In this order: the search for tensors in an object would iterate over a list, which fixes its length.
    return isinstance(value, StackedList) or is_object(value)
