"""The variables of a transformed function that a branch or a loop may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fxonnx_translations._torch_compat import TreeSpec, pytree

from ..source.transformer import Site
from .values import UNBOUND

__all__ = ["Slot", "State", "read_value"]


@dataclass(frozen=True)
class Slot:
    """The value of a variable at one point of the execution.

    Attributes:
        value: The value; ``UNBOUND`` if the variable has none.
        content: A copy of its items if it is a list or a dict, which may be modified later.
    """

    value: Any
    content: Any = None

    @property
    def is_container(self) -> bool:
        """Whether it is a list or a dict."""
        return type(self.value) in (list, dict)

    def flatten(self) -> tuple[list[Any], TreeSpec]:
        """The leaves of the value."""
        return pytree.tree_flatten(self.content if self.is_container else self.value)

    def with_leaves(self, leaves: Sequence[Any], spec: TreeSpec, *, keep: bool) -> Slot:
        """The slot with other leaves.

        Args:
            leaves: The leaves.
            spec: The structure.
            keep: Whether a list or a dict is the same object with other items.
        """
        value = pytree.tree_unflatten(list(leaves), spec)
        return Slot(self.value, value) if keep and self.is_container else Slot.of(value)

    @staticmethod
    def of(value: Any) -> Slot:
        """The slot of a value."""
        is_container = type(value) in (list, dict)
        return Slot(value, pytree.tree_map(lambda leaf: leaf, value) if is_container else None)


class State:
    """Reads and writes the variables of a construct.

    Args:
        site: The construct.
        get: Returns the values of its variables.
        put: Sets the values of its variables.
    """

    def __init__(self, site: Site, get: Callable[[], Sequence[Any]], put: Callable[[Sequence[Any]], None]) -> None:
        self.site = site
        self.names = site.names
        self._get, self._put = get, put

    def read(self) -> list[Slot]:
        """The current values."""
        return [Slot.of(value) for value in self._get()]

    def write(self, slots: Sequence[Slot]) -> None:
        """Set the values, and the items of lists and dicts."""
        for slot in slots:
            if isinstance(slot.value, list) and slot.is_container:
                slot.value[:] = pytree.tree_map(lambda leaf: leaf, slot.content)
            elif isinstance(slot.value, dict) and slot.is_container:
                slot.value.clear()
                slot.value.update(pytree.tree_map(lambda leaf: leaf, slot.content))
        self._put([slot.value for slot in slots])


def read_value(read: Callable[[], Any]) -> Any:
    """The value of a variable or an attribute; ``UNBOUND`` if it has none."""
    try:
        return read()
    except (NameError, AttributeError):
        return UNBOUND
