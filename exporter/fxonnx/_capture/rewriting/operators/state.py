"""The variables of a transformed function that a branch or a loop may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType
from typing import Any, NamedTuple, NoReturn

import torch

from fxonnx_translations._torch_compat import TreeSpec, pytree

from ..source.transformer import Site
from .sequences import StackedList
from .values import UNBOUND

__all__ = ["Slot", "State", "read_value", "unchanged_attributes"]


class Parts(NamedTuple):
    """The content of a list of dynamic length; pytree distinguishes it from a list of the same tensors."""

    parts: list[Any]


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
        return type(self.value) in (list, dict) or isinstance(self.value, StackedList)

    @property
    def items(self) -> Any:
        """The items of a list, or the parts of a list of dynamic length."""
        return self.content.parts if isinstance(self.content, Parts) else self.content

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
        if keep and self.is_container:
            return Slot(self.value, value)
        return Slot.of(StackedList(value.parts) if isinstance(value, Parts) else value)

    @staticmethod
    def of(value: Any) -> Slot:
        """The slot of a value."""
        if isinstance(value, StackedList):
            return Slot(value, Parts(list(value.parts)))
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
            if isinstance(slot.value, StackedList):
                slot.value.parts = list(slot.content.parts)
            elif isinstance(slot.value, list) and slot.is_container:
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


@contextmanager
def unchanged_attributes(
    functions: Sequence[Callable[..., Any]], refuse: Callable[[str, str], NoReturn]
) -> Iterator[None]:
    """Reject changes of the modules that branches refer to: the operator returns only the variables of a construct.

    Assignments in the branch itself are variables. Calls may change others, by ``setattr`` or ``register_buffer``.

    Args:
        functions: The branches.
        refuse: Raises the error for a construct that cannot be expressed.
    """
    before = [(tensors, dict(tensors), module) for module in _modules_of(functions) for tensors in _attributes(module)]
    yield
    for current, previous, module in before:
        names = [name for name, value in previous.items() if value is not None and current.get(name) is not value]
        if names:
            for attributes, values, _ in before:
                attributes.clear()
                attributes.update(values)
            refuse(
                f"it changes the attribute {names[0]!r} of {type(module).__name__} in a call",
                f"assign it in the branch itself: self.{names[0]} = ...",
            )


def _attributes(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    return vars(module), module._buffers, module._parameters


def _modules_of(functions: Sequence[Callable[..., Any]]) -> Iterator[torch.nn.Module]:
    """The modules among the variables of functions and of the functions that these refer to.

    Their children are left out: comparing all experts of a layer in the branch of each of them would be quadratic.
    """
    seen: set[int] = set()
    pending: list[Any] = list(functions)
    while pending:
        found = pending.pop()
        if id(found) not in seen and isinstance(found, torch.nn.Module):
            yield found
        elif id(found) not in seen:
            pending.extend(_content(cell) for cell in getattr(found, "__closure__", None) or ())
        seen.add(id(found))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable without a value
        return UNBOUND
