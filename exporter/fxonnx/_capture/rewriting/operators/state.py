"""The variables of a transformed function that a branch or a loop may change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fxonnx_translations._torch_compat import TreeSpec, pytree

from ..source.transformer import Site
from .chunks import ChunkedList
from .growing_lists import GrowingList, Parts
from .sequences import StackedList
from .side_effects import has_items
from .values import UNBOUND

__all__ = ["Slot", "State", "containers_in", "read_value"]


@dataclass(frozen=True)
class Slot:
    """The value of a variable at one point of the execution.

    Attributes:
        value: The value; ``UNBOUND`` if the variable has none.
        content: A copy of its items if it is a list or a dict, which may be modified later.
        containers: The lists and dicts in it, and itself, with their items.
    """

    value: Any
    content: Any = None
    containers: tuple[tuple[Any, Any], ...] = ()

    @property
    def is_container(self) -> bool:
        """Whether it is a list or a dict."""
        return type(self.value) in (list, dict) or _is_stacked(self.value) or isinstance(self.value, GrowingList)

    @property
    def items(self) -> Any:
        """The items of a list, or the parts of a list of dynamic length."""
        return self.content.parts if isinstance(self.content, Parts) else self.content

    def flatten(self) -> tuple[list[Any], TreeSpec]:
        """The leaves of the value."""
        return pytree.tree_flatten(self.content if self.is_container else self.value)

    @property
    def is_changed(self) -> bool:
        """Whether the items of its lists or dicts have changed."""
        return any(not has_items(container, items) for container, items in self.containers)

    def with_leaves(self, leaves: Sequence[Any], spec: TreeSpec, *, keep: bool) -> Slot:
        """The slot with other leaves.

        Args:
            leaves: The leaves.
            spec: The structure.
            keep: Whether a list or a dict is the same object with other items.
        """
        value = pytree.tree_unflatten(list(leaves), spec)
        if keep and self.is_container:
            return Slot(self.value, value, self.containers)
        return Slot.of(StackedList(value.parts) if isinstance(value, Parts) else value)

    @staticmethod
    def of(value: Any) -> Slot:
        """The slot of a value."""
        if _is_stacked(value):
            return Slot(value, Parts(list(value.parts), [True] * len(value.parts)))
        if isinstance(value, GrowingList):
            return Slot(value, Parts(list(value.added), list(value.kept)))
        is_container = type(value) in (list, dict)
        if not is_container:
            return Slot(value)
        return Slot(
            value,
            pytree.tree_map(lambda leaf: leaf, value),
            tuple((item, item.copy()) for item in containers_in(value)),
        )


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

    def shared(self) -> list[bool]:
        """Whether there are references to the values besides the variables."""
        return [count > _UNSHARED for count in _reference_counts(tuple(self._get()))]

    @property
    def values(self) -> Sequence[Any]:
        """The current values of the variables."""
        return self._get()

    def read(self) -> list[Slot]:
        """The current values."""
        return [Slot.of(value) for value in self._get()]

    def write(self, slots: Sequence[Slot]) -> None:
        """Set the values, and the items of lists and dicts."""
        for slot in slots:
            if _is_stacked(slot.value):
                slot.value.parts = list(slot.content.parts)
            elif isinstance(slot.value, GrowingList):
                slot.value.added, slot.value.kept = map(list, slot.content)
            elif slot.is_container:
                for container, items in slot.containers:
                    _set_items(container, items)
                _fill(slot.value, slot.content)
        self._put([slot.value for slot in slots])


def _is_stacked(value: Any) -> bool:
    """Whether a value is a list of dynamic length, which may change."""
    return isinstance(value, StackedList) and not isinstance(value, ChunkedList)


def containers_in(value: Any) -> Iterator[Any]:
    """The lists and dicts in a value, itself included."""
    if type(value) in (list, dict):
        yield value
    if isinstance(value, tuple) or type(value) in (list, dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers_in(item)


def _fill(container: Any, content: Any) -> None:
    """Set the items of a list or a dict; lists and dicts in it remain the same objects, which others may refer to."""

    def item(key: Any, new: Any) -> Any:
        if type(new) not in (list, dict):
            return new
        known = key in container if isinstance(container, dict) else key < len(container)
        old = container[key] if known and type(container[key]) is type(new) else type(new)()
        _fill(old, new)
        return old

    if isinstance(container, dict):
        _set_items(container, {key: item(key, new) for key, new in content.items()})
    else:
        _set_items(container, [item(index, new) for index, new in enumerate(content)])


def _set_items(container: Any, items: Any) -> None:
    if isinstance(container, dict):
        items = dict(items)
        container.clear()
        container.update(items)
    else:
        container[:] = items


def _reference_counts(values: tuple[Any, ...]) -> list[int]:
    return [sys.getrefcount(value) for value in values]


_UNSHARED = _reference_counts(([],))[0] + 1
"""The number of references to an object that only a variable refers to."""


def read_value(read: Callable[[], Any]) -> Any:
    """The value of a variable or an attribute; ``UNBOUND`` if it has none."""
    try:
        return read()
    except (NameError, AttributeError):
        return UNBOUND
