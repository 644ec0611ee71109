"""Sequences whose length is not known during the capture: ranges, rows of tensors, and lists that loops append to."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from ....errors import CaptureError
from ...questions.known_values import active_values
from .values import is_dynamic_size

__all__ = [
    "Elements",
    "GrowingList",
    "StackedList",
    "elements_of",
    "hits_of",
    "integer",
    "join",
    "reject_returned_lists",
    "replacement_of",
]


class Elements:
    """A sequence given by its length and a function from index to element.

    Args:
        count: The length: an int or a symbolic size; negative lengths are empty.
        at: Returns the element at an index.
    """

    def __init__(self, count: Any, at: Callable[[Any], Any]) -> None:
        self.count = count
        self.at = at

    def __iter__(self) -> Iterator[Any]:
        return (self.at(index) for index in builtins.range(self.count))

    def __len__(self) -> int:
        return max(int(self.count), 0)

    def __getitem__(self, index: Any) -> Any:
        return self.at(index)


def elements_of(iterable: Any) -> Elements | None:
    """The elements of an iterable whose length is not known during the capture; None for other iterables."""
    if isinstance(iterable, Elements):
        return iterable if is_dynamic_size(iterable.count) else None
    if isinstance(iterable, StackedList):
        return rows(iterable.stacked, 0)
    if isinstance(iterable, torch.Tensor) and iterable.dim() and is_dynamic_size(iterable.shape[0]):
        return rows(iterable, 0)
    return None


def hits_of(iterable: Any) -> torch.Tensor | None:
    """The vector of static length whose ``nonzero`` an iterable is; None for other iterables."""
    values = active_values()
    hits = None if values is None or not isinstance(iterable, torch.Tensor) else values.mask_of(iterable)
    return hits if hits is not None and hits.dim() == 1 and isinstance(hits.shape[0], int) else None


def rows(tensor: torch.Tensor, dim: int) -> Elements:
    """The slices of a tensor along a dim."""
    return Elements(tensor.shape[dim], lambda index: tensor.select(dim, index))


def as_elements(iterable: Any) -> Elements | None:
    """The elements of an iterable of any length that supports symbolic indices; None for other iterables."""
    found = elements_of(iterable)
    if found is not None:
        return found
    if isinstance(iterable, builtins.range):
        start, step = iterable.start, iterable.step
        return Elements(len(iterable), lambda index: start + index * step)
    if isinstance(iterable, torch.Tensor) and iterable.dim():
        return rows(iterable, 0)
    return iterable if isinstance(iterable, Elements) else None


def integer(value: Any) -> Any:
    """``int(value)`` of a tensor or a symbolic number."""
    if isinstance(value, torch.Tensor):
        return value.reshape(()).to(torch.int64).item()
    return value


def _range(*limits: Any) -> Any:
    if not any(isinstance(limit, torch.Tensor) or is_dynamic_size(limit) for limit in limits):
        return builtins.range(*limits)
    start, stop, step, *_ = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)
    start, stop = integer(start), integer(stop)
    if not isinstance(step, int):
        return builtins.range(*limits)
    distance = stop - start if step > 0 else start - stop
    count = distance if abs(step) == 1 else (distance + abs(step) - 1) // abs(step)
    return Elements(count, lambda index: start + index * step)


def _int(*given: Any) -> Any:
    (value, *_) = given or (0,)
    if len(given) == 1 and (isinstance(value, torch.Tensor) or is_dynamic_size(value)):
        return integer(value)
    return builtins.int(*given)


def _len(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim():
        return value.shape[0]
    if isinstance(value, StackedList):
        return value.stacked.shape[0]
    return value.count if isinstance(value, Elements) else builtins.len(value)


def _enumerate(iterable: Any, start: int = 0) -> Any:
    elements = elements_of(iterable)
    if elements is None:
        return builtins.enumerate(iterable, start)
    return Elements(elements.count, lambda index: (index + start, elements.at(index)))


def _reversed(iterable: Any) -> Any:
    if isinstance(iterable, StackedList):
        return iterable[::-1]
    elements = elements_of(iterable)
    if elements is None:
        return builtins.reversed(iterable)
    return Elements(elements.count, lambda index: elements.at(elements.count - 1 - index))


def _zip(*iterables: Any, **options: Any) -> Any:
    parts = [as_elements(iterable) for iterable in iterables]
    known = [part for part in parts if part is not None]
    is_dynamic = any(elements_of(iterable) is not None for iterable in iterables)
    if options.get("strict") or not is_dynamic or len(known) < len(parts):
        return builtins.zip(*iterables, **options)  # noqa: B905 - the user's call
    count = known[0].count
    for part in known[1:]:
        if str(part.count) != str(count):
            count = torch.sym_min(count, part.count)  # type: ignore[no-untyped-call]
    return Elements(count, lambda index: tuple(part.at(index) for part in known))


def _list(*given: Any) -> Any:
    (items,) = given or ((),)
    return items[:] if isinstance(items, StackedList) else builtins.list(items)


def _tuple(*given: Any) -> Any:
    (items,) = given or ((),)
    return items[:] if isinstance(items, StackedList) else builtins.tuple(items)


def _sum(iterable: Any, /, start: Any = 0) -> Any:
    elements = iterable.stacked if isinstance(iterable, StackedList) else iterable
    if not isinstance(elements, torch.Tensor) or elements_of(elements) is None:
        return builtins.sum(iterable, start)
    # The sum of Python keeps the dtype of integers, except for bool.
    return start + elements.sum(0, dtype=None if elements.dtype == torch.bool else elements.dtype)


_REPLACEMENTS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        builtins.range: _range,
        builtins.int: _int,
        builtins.len: _len,
        builtins.enumerate: _enumerate,
        builtins.reversed: _reversed,
        builtins.zip: _zip,
        builtins.list: _list,
        builtins.tuple: _tuple,
        builtins.sum: _sum,
    }
)


def replacement_of(function: Any) -> Any:
    """The function in place of a builtin function that requires Python numbers."""
    return _REPLACEMENTS.get(function, function) if isinstance(function, type | type(len)) else function


class GrowingList(list[Any]):
    """A list inside a loop of unknown length: items can be added at one end, but not read.

    Attributes:
        added: The items of one iteration, in the order in which the list contains them.
        at_front: Whether they are inserted before the others; None without items.
    """

    def __init__(self) -> None:
        super().__init__()
        self.added: list[Any] = []
        self.at_front: bool | None = None

    def append(self, item: Any) -> None:
        """Append an item."""
        self.extend([item])

    def extend(self, items: Any) -> None:
        """Append items."""
        self._grow(at_front=False)
        self.added.extend(items)

    def insert(self, index: Any, item: Any) -> None:
        """Insert an item before the others."""
        if type(index) is not int or index != 0:
            self._refuse()
        self._grow(at_front=True)
        self.added.insert(0, item)

    def _grow(self, *, at_front: bool) -> None:
        if self.at_front not in (None, at_front):
            raise CaptureError(
                "a loop of unknown length adds items to both ends of a list", hint="use one list for each end"
            )
        self.at_front = at_front

    def _refuse(self, *_: Any) -> Any:
        raise CaptureError(
            "a list that a loop of unknown length appends to is read inside the loop",
            hint="keep the last item in a variable of its own",
        )

    __len__ = __getitem__ = __iter__ = __contains__ = __bool__ = pop = __setitem__ = __delitem__ = reverse = _refuse


class StackedList(list[Any]):
    """A list to which a loop of unknown length has added items: ``torch.stack`` and ``torch.cat`` accept it."""

    def __init__(self, parts: list[Any]) -> None:
        super().__init__()
        self.parts = parts

    @classmethod
    def extended(cls, items: Any, buffers: list[torch.Tensor], length: Any, *, at_front: bool) -> StackedList:
        """The items before a loop and the items that it added.

        Args:
            items: The list before the loop.
            buffers: The added items; several are added in turn.
            length: The number of iterations; None if they fill the buffers.
            at_front: Whether they are before the others, the last iteration's first.
        """
        if length is not None:
            buffers = [buffer[buffer.shape[0] - length :] if at_front else buffer[:length] for buffer in buffers]
        stacked = buffers[0] if len(buffers) == 1 else torch.stack(buffers, 1).flatten(0, 1)
        before = items.parts if isinstance(items, StackedList) else [item.unsqueeze(0) for item in items]
        return cls([stacked, *before] if at_front else [*before, stacked])

    def append(self, item: Any) -> None:
        """Append an item."""
        self.parts.append(item.unsqueeze(0))

    def insert(self, index: Any, item: Any) -> None:
        """Insert an item."""
        stacked = self.stacked
        self.parts = [stacked[:index], item.unsqueeze(0), stacked[index:]]

    def reverse(self) -> None:
        """Reverse the order."""
        self.parts = [self.stacked.flip(0)]

    @property
    def stacked(self) -> torch.Tensor:
        """All items, along a new first dim."""
        return self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts)

    def __len__(self) -> int:
        length: Any = self.stacked.shape[0]
        return length  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self.stacked[index]
        if index.step is not None and index.step < 0:
            if (index.start, index.stop, index.step) != (None, None, -1):
                raise CaptureError(
                    "a slice of a list that a loop of unknown length has added items to has a negative step",
                    hint="slice the result of torch.stack, or use [::-1]",
                )
            return StackedList([self.stacked.flip(0)])
        return StackedList([self.stacked[index]])

    def __iter__(self) -> Iterator[Any]:
        raise CaptureError(
            "the items of a list that a loop of unknown length has added items to cannot be iterated over here",
            hint="join them with torch.stack or torch.cat, or iterate in a for statement",
        )


def reject_returned_lists(outputs: Any) -> None:
    """Reject lists to which a loop has added items among the results of the model.

    Raises:
        CaptureError: If there is one: the number of outputs of the program is fixed.
    """
    if any(isinstance(leaf, StackedList) for leaf in pytree.tree_leaves(outputs)):
        raise CaptureError(
            "the model returns a list whose number of tensors depends on its inputs",
            hint="return torch.stack of the list; if sizes differ, pad the tensors first and return their lengths",
        )


def join(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.stack`` or ``torch.cat`` of a list that a loop has added items to."""
    items, dim, *_ = (*args, 0) if len(args) < 2 else args
    dim = kwargs.get("dim", dim)
    stacked = items.stacked
    if function is torch.stack:
        return stacked.movedim(0, dim)
    dim = dim % (stacked.dim() - 1)
    return stacked.movedim(0, dim).flatten(dim, dim + 1)
