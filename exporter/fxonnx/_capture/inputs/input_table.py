"""The leaves of the example inputs that the captured program takes in another form than the model, and the way back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from .pytree_objects import unflatten_objects

__all__ = ["InputTable", "with_lists"]


@dataclass(frozen=True)
class InputTable:
    """The leaves of the example inputs that the captured program takes in another form than the model.

    An index is the position among the leaves of ``(args, kwargs)``, in the order of the graph inputs.

    Attributes:
        objects: The original positional and keyword inputs, if objects among them were flattened.
        lists: Indices of the stacked tensors in the place of lists of a dynamic number of tensors.
        numbers: Indices of the numbers that were converted to tensors.
        frozen: Index to value of the frozen tensors, in the place of which the program has None.
        constants: Label to value of the numbers, strings and frozen tensors that are constants of the program.
        repeated: Index of a leaf that is the same tensor as an earlier one, to the index of that one.
        paths: Placeholder name to path, for inputs inside of objects.
    """

    objects: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    lists: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()
    frozen: Mapping[int, torch.Tensor] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    repeated: Mapping[int, int] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)

    def for_model(self, given: Any) -> Any:
        """Arguments of the program as the model takes them: with Python numbers, lists and objects.

        Args:
            given: Positional and keyword arguments, with the values of frozen tensors.
        """
        given = with_lists(_with_numbers(given, self.numbers), self.lists)
        return given if self.objects is None else unflatten_objects(self.objects, given)

    def with_repeated(self, given: Any) -> Any:
        """Arguments in which a tensor that the example has twice is one object."""
        if not self.repeated:
            return given
        leaves, structure = pytree.tree_flatten(given)
        same = [leaves[self.repeated.get(index, index)] for index in range(len(leaves))]
        return pytree.tree_unflatten(same, structure)


def with_lists(given: Any, positions: Collection[int]) -> Any:
    """Replace the stacked tensors at the given leaf positions by lists, as ``forward`` takes them."""
    if not positions:
        return given
    leaves, structure = pytree.tree_flatten(given)
    listed = [list(leaf.unbind(0)) if index in positions else leaf for index, leaf in enumerate(leaves)]
    return pytree.tree_unflatten(listed, structure)


def _with_numbers(given: Any, positions: Collection[int]) -> Any:
    """Replace the tensors at the given leaf positions by the Python numbers that the model expects."""
    if not positions:
        return given
    leaves, structure = pytree.tree_flatten(given)
    numbers = [leaf.item() if index in positions else leaf for index, leaf in enumerate(leaves)]
    return pytree.tree_unflatten(numbers, structure)
