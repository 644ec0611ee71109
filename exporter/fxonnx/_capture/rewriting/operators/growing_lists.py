"""Lists inside of loops of unknown length, and lists to which only one branch of a condition adds items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from ...._context_values import activated, active
from ....errors import CaptureError
from .memory import shares
from .sequences import StackedList
from .values import UNBOUND, as_condition, same_shape

__all__ = ["GrowingList", "Padding", "Parts", "grows_in_a_loop", "selected", "tried_lists"]


class Parts(NamedTuple):
    """The content of a list of dynamic length, or what an iteration has added to one.

    pytree distinguishes it from a list of the same tensors.

    Attributes:
        parts: The items.
        kept: For each, whether it is in the list: True, or a boolean tensor of one element.
    """

    parts: list[Any]
    kept: list[Any]


class GrowingList(list[Any]):
    """A list inside a loop of unknown length: items can be added at one end, and the last one can be read.

    Args:
        last: The last item before the iteration; None if it is not known.

    Attributes:
        added: The items of one iteration, in the order in which the list contains them.
        kept: For each, whether it was added: True, or a boolean tensor where a branch did not add it.
        at_front: Whether they are inserted before the others; None without items.
        is_last_read: Whether the last item before the iteration is read.
    """

    def __init__(self, last: torch.Tensor | None = None) -> None:
        super().__init__()
        self._last = last
        self.is_last_read = False
        self.added: list[Any] = []
        self.kept: list[Any] = []
        self.at_front: bool | None = None

    def append(self, item: Any) -> None:
        """Append an item."""
        self.extend([item])

    def extend(self, items: Any) -> None:
        """Append items."""
        self._grow(at_front=False)
        self.added.extend(items)
        self.kept += [True] * (len(self.added) - len(self.kept))

    def __iadd__(self, items: Any) -> GrowingList:  # type: ignore[misc]
        self.extend(items)
        return self

    def insert(self, index: Any, item: Any) -> None:
        """Insert an item before the others."""
        if type(index) is not int or index != 0:
            self.refuse()
        self._grow(at_front=True)
        self.added.insert(0, item)
        self.kept.insert(0, True)

    def _grow(self, *, at_front: bool) -> None:
        if self.at_front not in (None, at_front):
            raise CaptureError(
                "a loop of unknown length adds items to both ends of a list", hint="use one list for each end"
            )
        self.at_front = at_front

    def refuse(self, *_: Any) -> Any:
        """Reject that the list is read."""
        raise CaptureError(
            "a list that a loop of unknown length appends to is read inside the loop",
            hint="read its last item, outputs[-1], if it is not empty before the loop and the loop appends to it; keep "
            "other items, and the number of items, in variables of their own",
        )

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int or index != -1 or self.at_front:
            return self.refuse()
        if not any(kept is True for kept in self.kept):
            self.is_last_read = True
        value = self.last()
        return self.refuse() if value is None else value

    def last(self) -> Any:
        """The last item after the iteration; None if it is not known."""
        value = self._last
        if self.at_front:
            return value
        for item, kept in zip(self.added, self.kept, strict=True):
            if kept is True:
                value = item
            elif value is None or not same_shape(value, item) or value.dtype != item.dtype:
                return None
            else:
                value = torch.where(kept.to(item.device), item, value)
        return value

    def like_last(self) -> torch.Tensor | None:
        """A tensor of the shape and dtype of the last item; None if it is not known."""
        return self.added[-1] if self.added and not self.at_front else self._last

    __len__ = __iter__ = __contains__ = __bool__ = pop = __setitem__ = __delitem__ = reverse = refuse


class _Tried(tuple[Any, ...]):
    """The lists of the iterations that run on trial."""


def tried_lists(lists: Iterable[Any]) -> AbstractContextManager[Any]:
    """Inside the context, an iteration runs on trial to find out which of these lists grow."""
    return activated(_Tried((*(active(_Tried) or ()), *lists)))


def grows_in_a_loop(items: Any) -> bool:
    """Whether a list is one to which an iteration on trial adds items."""
    return any(items is tried for tried in active(_Tried) or ())


class Padding(NamedTuple):
    """Absent items of a list to which only one branch of a condition adds items.

    Attributes:
        size: The number of items with the absent ones.
        at_front: Whether the added items are before the others.
    """

    size: int
    at_front: bool

    @classmethod
    def of(cls, items: Any, before: Sequence[Any], sides: Sequence[Sequence[Any]]) -> Padding | None:
        """The padding of a list after a condition.

        Args:
            items: The list.
            before: Its items before the condition.
            sides: Its items after each branch.

        Returns:
            None if the branches do not add tensors of one shape and dtype at the same end.
        """
        size = max(map(len, sides))
        tensors = [item for side in sides for item in side]
        if not all(isinstance(item, torch.Tensor) for item in tensors):
            return None
        if type(items) is list and not grows_in_a_loop(items):
            # The items become the rows of one tensor.
            first = tensors[0]
            if not all(same_shape(item, first) and item.dtype == first.dtype for item in tensors):
                return None
        for at_front in (False, True):
            if all(_extends(side, before, at_front=at_front) for side in sides):
                return cls(size, at_front)
        return None

    def content(self, content: Any) -> Parts:
        """The content of the list after one branch with absent items.

        Args:
            content: Its items, or the parts.
        """
        parts, kept = content if isinstance(content, Parts) else (list(content), [True] * len(content))
        missing = self.size - len(parts)
        values, flags = [UNBOUND] * missing, [False] * missing
        if self.at_front:
            return Parts([*values, *parts], [*flags, *kept])
        return Parts([*parts, *values], [*kept, *flags])


def _extends(items: Sequence[Any], before: Sequence[Any], *, at_front: bool) -> bool:
    """Whether a list has the items of before, and others at its end or its beginning."""
    kept = items[len(items) - len(before) :] if at_front else items[: len(before)]
    return len(items) >= len(before) and all(one is other for one, other in zip(before, kept, strict=True))


def selected(items: Any, content: Parts) -> StackedList:
    """The items of a list that are kept.

    Args:
        items: The list before the condition: of items, or of parts that are items along a dim.
        content: Its content.
    """
    rows = content.parts if isinstance(items, StackedList) else [item.unsqueeze(0) for item in content.parts]
    return StackedList([_selected(row, kept) for row, kept in zip(rows, content.kept, strict=True)])


def _selected(rows: torch.Tensor, kept: Any) -> torch.Tensor:
    if kept is True:
        return rows
    return shares(rows[as_condition(kept).to(rows.device).reshape(1).expand(rows.shape[0])], rows)
