"""Sequences whose length is not known during the capture: ranges, rows of tensors, and lists that loops append to.

Dictionaries and sets whose keys are sizes are here too, such as a cache of tables by their length.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import and_
from types import MappingProxyType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fxonnx_translations._torch_compat import sym_float, sym_int, sym_ite, sym_min

from ....errors import CaptureError
from ...constraints.guard_recorder import record_nonempty
from ...data_dependence.concrete_values import active_values
from .values import UNBOUND, as_condition, is_dynamic_size, is_symbolic, number_tensor, repeats, same_shape, shares

__all__ = [
    "JOINING",
    "Elements",
    "StackedList",
    "as_elements",
    "chunks",
    "elements_of",
    "hits_of",
    "integer",
    "join",
    "pieces",
    "repeated",
    "replacement_of",
    "rows",
    "stored_key",
    "truth",
]


class Elements:
    """A sequence given by its length and a function from index to element.

    The count is an int or a symbolic size; negative ones are empty. ``span`` is the length and the step of a range of
    as many elements: ``(n, 32)`` for the chunks of ``n`` rows.
    """

    def __init__(self, count: Any, at: Callable[[Any], Any], span: tuple[Any, int] | None = None) -> None:
        self.count = count
        self.at = at
        self.span = span

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
        return iterable.elements
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


def chunks(tensor: torch.Tensor, dim: int, size: int) -> Elements:
    """The pieces of a tensor along a dim, the last of which may be smaller."""

    def at(index: Any) -> torch.Tensor:
        place = (*[slice(None)] * (dim % tensor.dim()), slice(index * size, index * size + size))
        return tensor[place]

    return Elements((tensor.shape[dim] + size - 1) // size, at, (tensor.shape[dim], size))


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


def _map(function: Any, *iterables: Any) -> Any:
    items = _zip(*iterables)
    if not isinstance(items, Elements):
        return builtins.map(function, *iterables)
    return Elements(items.count, lambda index: function(*items.at(index)), items.span)


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
    if isinstance(step, torch.SymInt) and statically_known_true(stop - start == step):
        # One step over the whole length, which is not 0: ``range(0, n, n)`` is not valid for n == 0.
        return (start,)
    if not isinstance(step, int):
        return builtins.range(*limits)
    distance = stop - start if step > 0 else start - stop
    count = distance if abs(step) == 1 else (distance + abs(step) - 1) // abs(step)
    return Elements(count, lambda index: start + index * step, (distance, abs(step)))


def _int(*given: Any) -> Any:
    (value, *_) = given or (0,)
    if isinstance(value, torch.SymBool) and is_symbolic(value):
        return sym_ite(value, 1, 0)
    if len(given) == 1 and (isinstance(value, torch.Tensor) or is_dynamic_size(value)):
        return integer(value)
    if len(given) == 1 and isinstance(value, torch.SymFloat):
        return sym_int(value)
    return builtins.int(*given)


def _float(*given: Any) -> Any:
    match given:
        case [torch.Tensor() as value] if is_symbolic(value):
            return value.reshape(()).to(torch.float64).item()
        case [torch.SymInt() as value]:
            return sym_float(value)
        case [torch.SymFloat() as value]:
            return value
    return builtins.float(*given)


def _bool(value: Any = False, /) -> Any:
    value = truth(value)
    return as_condition(value).item() if is_symbolic(value) else builtins.bool(value)


def _len(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim():
        return value.shape[0]
    if isinstance(value, StackedList):
        return value.symbolic_length
    return value.count if isinstance(value, Elements) else builtins.len(value)


def _enumerate(iterable: Any, start: int = 0) -> Any:
    elements = elements_of(iterable)
    if elements is None:
        return builtins.enumerate(iterable, start)
    return Elements(elements.count, lambda index: (index + start, elements.at(index)), elements.span)


def _reversed(iterable: Any) -> Any:
    if isinstance(iterable, StackedList):
        return iterable[::-1]
    elements = elements_of(iterable)
    if elements is None:
        return builtins.reversed(iterable)
    return Elements(elements.count, lambda index: elements.at(elements.count - 1 - index), elements.span)


def _zip(*iterables: Any, **options: Any) -> Any:
    parts = [as_elements(iterable) for iterable in iterables]
    known = [part for part in parts if part is not None]
    is_dynamic = any(elements_of(iterable) is not None for iterable in iterables)
    if options.get("strict") or not is_dynamic or len(known) < len(parts):
        return builtins.zip(*iterables, **options)  # noqa: B905 - the user's call
    first, *others = known
    count, span = first.count, first.span
    for part in others:
        if str(part.count) != str(count):
            count, span = sym_min(count, part.count), None
    return Elements(count, lambda index: tuple(part.at(index) for part in known), span)


def _copied(function: Callable[..., Any], *given: Any) -> Any:
    """``list`` or ``tuple``."""
    (items,) = given or ((),)
    return items[:] if isinstance(items, StackedList) else function(items)


def _sum(iterable: Any, /, start: Any = 0) -> Any:
    elements = iterable.stacked if isinstance(iterable, StackedList) else iterable
    if not isinstance(elements, torch.Tensor) or elements_of(elements) is None:
        return builtins.sum(iterable, start)
    may_be_empty = elements.dim() > 1 and is_symbolic(elements.shape[0])
    if may_be_empty and not (isinstance(start, torch.Tensor) and same_shape(start, elements[0])):
        raise CaptureError(
            "sum adds the items of a list whose length depends on data: without items the result is a number, with "
            "some of them a tensor",
            hint="use torch.stack(items).sum(0), or start with a tensor, as in sum(items, torch.zeros(3))",
        )
    # The sum of Python keeps the dtype of integers, except for bool.
    return start + elements.sum(0, dtype=None if elements.dtype == torch.bool else elements.dtype)


def _decided(function: Callable[..., Any], iterable: Any, /) -> Any:
    """``any`` or ``all``."""
    truths = _truths(iterable)
    return function(iterable) if truths is None else getattr(truths, function.__name__)()


def _truths(iterable: Any) -> torch.Tensor | None:
    """The truth of items that depend on the data of tensors, as a vector; None for other items."""
    if isinstance(iterable, StackedList) and iterable.has_single_elements:
        return iterable.stacked.flatten() != 0
    if isinstance(iterable, list | tuple) and builtins.any(is_symbolic(item) for item in iterable):
        return torch.stack([as_condition(item) for item in iterable])
    return None


def _extreme(function: Callable[..., Any], reduction: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """``max`` or ``min``; a NaN is the result, as in torch."""
    match given:
        case [StackedList() as items] if items.has_single_elements and not options:
            return reduction(items.stacked, 0)
    return function(*given, **options)


_REPLACEMENTS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        builtins.range: _range,
        builtins.int: _int,
        builtins.float: _float,
        builtins.bool: _bool,
        builtins.len: _len,
        builtins.enumerate: _enumerate,
        builtins.reversed: _reversed,
        builtins.zip: _zip,
        builtins.list: partial(_copied, builtins.list),
        builtins.tuple: partial(_copied, builtins.tuple),
        builtins.sum: _sum,
        builtins.map: _map,
        builtins.any: partial(_decided, builtins.any),
        builtins.all: partial(_decided, builtins.all),
    }
)


def replacement_of(function: Any) -> Any:
    """The function in place of a builtin function that requires Python numbers."""
    # torch replaces these two during a capture.
    if function is builtins.max:
        return partial(_extreme, function, torch.amax)
    if function is builtins.min:
        return partial(_extreme, function, torch.amin)
    return _REPLACEMENTS.get(function, function) if isinstance(function, type | type(len)) else function


class _Item:
    """The content of a stacked list for torch's functions, which call ``__torch_function__`` of the items of a list."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        _types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        items = args[0] if args else given.pop("tensors", None)
        if function not in JOINING or not isinstance(items, StackedList):
            raise CaptureError(
                f"{getattr(function, '__name__', function)} is called with a list whose length is a dynamic size",
                hint="pass the result of torch.stack to a function of tensors",
            )
        return join(function, items, *args[1:], **given)


class StackedList(list[Any]):
    """A list of dynamic length, whose items a loop has added or are pieces of a tensor.

    ``torch.stack`` and ``torch.cat`` accept it. Python code that is not transformed specializes the length.
    """

    def __init__(self, parts: list[Any]) -> None:
        super().__init__([_Item()])
        self.parts = parts

    @classmethod
    def extended(
        cls, items: Any, buffers: list[torch.Tensor], length: Any, kept: torch.Tensor | None, *, at_front: bool
    ) -> StackedList:
        """The items before a loop and the items that it added.

        Several buffers are added in turn; at the front, the last iteration's items first. ``length`` is None if the
        iterations fill the buffers, ``kept`` if all have added each of the items.
        """
        if length is not None and kept is None:
            buffers = [buffer[buffer.shape[0] - length :] if at_front else buffer[:length] for buffer in buffers]
        stacked = buffers[0]
        if len(buffers) > 1:
            stacked = shares(torch.stack(buffers, 1).flatten(0, 1), *buffers)
        if kept is not None:
            stacked = shares(stacked[kept.flatten()], stacked)
        before = _parts_of(items)
        return cls([stacked, *before] if at_front else [*before, stacked])

    def __setitem__(self, index: Any, item: Any) -> None:
        if isinstance(index, slice):
            raise CaptureError(
                "a slice of a list whose length is not known is assigned", hint="assign the items one by one"
            )
        stacked = self.stacked
        position = number_tensor(index, torch.int64).reshape(1)
        self.parts = [shares(torch.index_put(stacked, (position,), item.unsqueeze(0)), stacked, item)]

    def append(self, item: Any) -> None:
        """Append an item."""
        self.parts.append(item.unsqueeze(0))

    def extend(self, items: Any) -> None:
        """Append items."""
        self.parts.extend(_parts_of(items))

    def __add__(self, items: Any) -> StackedList:
        return StackedList([*self.parts, *_parts_of(items)])

    def __radd__(self, items: Any) -> StackedList:
        return StackedList([*_parts_of(items), *self.parts])

    def __iadd__(self, items: Any) -> StackedList:
        self.extend(items)
        return self

    def copy(self) -> StackedList:
        """A copy."""
        copied: StackedList = self[:]
        return copied

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise CaptureError(
            "a list whose length is a dynamic size is modified or searched",
            hint="build it with append, insert, extend or assignments of items, and join it with torch.stack",
        )

    __contains__ = __delitem__ = __mul__ = __rmul__ = __imul__ = clear = count = index = pop = remove = sort = _refuse

    def insert(self, index: Any, item: Any) -> None:
        """Insert an item."""
        if type(index) is int and index == 0:
            self.parts.insert(0, item.unsqueeze(0))
            return
        stacked = self.stacked
        self.parts = [stacked[:index], item.unsqueeze(0), stacked[index:]]

    def __reversed__(self) -> Iterator[Any]:
        return iter(self[::-1])

    def reverse(self) -> None:
        """Reverse the order."""
        self.parts = [shares(self.stacked.flip(0), self.stacked)]

    @property
    def stacked(self) -> torch.Tensor:
        """All items, along a new first dim."""
        return self.parts[0] if len(self.parts) == 1 else shares(torch.cat(self.parts), *self.parts)

    def joined(self, dim: int, *, is_stack: bool) -> torch.Tensor:
        """``torch.stack`` or ``torch.cat`` of the list, whose memory is not the list's."""
        stacked = self.stacked.clone()
        if is_stack:
            return stacked.movedim(0, dim)
        dim = dim % (stacked.dim() - 1)
        return stacked.movedim(0, dim).flatten(dim, dim + 1)

    @property
    def elements(self) -> Elements:
        """The items."""
        return rows(self.stacked, 0)

    @property
    def has_single_elements(self) -> bool:
        """Whether each item has one element, so that it can stand for a number."""
        return math.prod(self.stacked.shape[1:]) == 1

    def __len__(self) -> int:
        length: int = self.symbolic_length
        return length

    @property
    def symbolic_length(self) -> Any:
        """The length, which Python's ``len`` would specialize."""
        return self.stacked.shape[0]

    def __bool__(self) -> bool:
        return bool(truth(self))

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self.stacked[index]
        if index.step is not None and index.step < 0:
            if (index.start, index.stop, index.step) != (None, None, -1):
                raise CaptureError(
                    "a slice of a list that a loop of unknown length has added items to has a negative step",
                    hint="slice the result of torch.stack, or use [::-1]",
                )
            return StackedList([shares(self.stacked.flip(0), self.stacked)])
        return StackedList([self.stacked[index]])

    def __iter__(self) -> Iterator[Any]:
        # Asks for the length: the function that iterates is transformed, and captured again.
        return iter(self.stacked.unbind(0))


def truth(value: Any) -> Any:
    """The condition that a list of dynamic length is not empty; other values as they are."""
    if not isinstance(value, StackedList):
        return value
    length = value.symbolic_length
    if is_dynamic_size(length) and not is_symbolic(length):
        record_nonempty(length)
    return length != 0


def _parts_of(items: Any) -> list[Any]:
    return items.parts if isinstance(items, StackedList) else [item.unsqueeze(0) for item in items]


class EmptyItems(StackedList):
    """``[None] * n`` for a dynamic size: a list whose items are assigned one by one."""

    def __init__(self, count: Any) -> None:
        super().__init__([UNBOUND])
        self._count = count

    def __setitem__(self, index: Any, item: Any) -> None:
        if self.parts[0] is UNBOUND:
            if not isinstance(item, torch.Tensor):
                raise CaptureError(
                    "an item of a list of dynamic length is not a tensor", hint="assign tensors of one shape"
                )
            self.parts = [torch.zeros((self._count, *item.shape), dtype=item.dtype, device=item.device)]
        super().__setitem__(index, item)

    def __iter__(self) -> Iterator[Any]:
        return iter([None] * self._count) if self.parts[0] is UNBOUND else super().__iter__()

    @property
    def symbolic_length(self) -> Any:
        """The length, which Python's ``len`` would specialize."""
        return self._count

    @property
    def stacked(self) -> torch.Tensor:
        """All items, along a new first dim."""
        if self.parts[0] is UNBOUND:
            raise CaptureError("a list of dynamic length is read before a loop has assigned its items")
        return super().stacked


def repeated(items: Any, count: Any) -> Any:
    """``[item] * count``, and ``(item,) * count`` that only loops read."""
    if not (is_dynamic_size(count) and not is_symbolic(count) and type(items) in (list, tuple) and len(items) == 1):
        return items * count
    (item,) = items
    if type(items) is tuple:
        return Elements(count, lambda index: item)
    if item is None:
        return EmptyItems(count)
    if isinstance(item, torch.Tensor):
        return StackedList([repeats(item.unsqueeze(0).expand(count, *item.shape).clone(), item)])
    return items * count


def pieces(function: Any, *, is_iterated: bool) -> Any:
    """``unbind``, ``split`` and ``chunk`` of a tensor, which return a list of dynamic length if a piece has size 1.

    Where a loop reads the pieces once and in order, they may have another size.
    """
    owner = getattr(function, "__self__", None)
    first = (owner,) if isinstance(owner, torch.Tensor) else ()
    if not first and function not in (torch.unbind, torch.split, torch.chunk):
        return function
    name = function.__name__

    def cut(*args: Any, **kwargs: Any) -> Any:
        tensor, *options = (*first, *args) or (kwargs.get("input", kwargs.get("tensor")),)
        sizes = [kwargs[key] for key in ("split_size", "split_size_or_sections", "chunks") if key in kwargs]
        size = None if name == "unbind" else (sizes or options[:1] or [None])[0]
        dim = kwargs.get("dim", (*options[int(name != "unbind" and not sizes) :], 0)[0])
        if not (isinstance(tensor, torch.Tensor) and isinstance(dim, int) and is_dynamic_size(tensor.shape[dim])):
            return function(*args, **kwargs)
        if name == "unbind":
            return rows(tensor, dim) if is_iterated else StackedList([tensor.movedim(dim, 0)])
        one = 1 if name == "split" else tensor.shape[dim]
        is_single = isinstance(size, int | torch.SymInt) and statically_known_true(size == one)
        is_chunked = is_iterated and name == "split" and type(size) is int and size > 1
        # An empty tensor has no rows, but split returns one empty piece: the model requires another size.
        if not (is_single or is_chunked) or (name == "split" and tensor.shape[dim] == 0):
            return function(*args, **kwargs)
        if isinstance(size, int) and is_chunked:
            return chunks(tensor, dim, size)
        return StackedList([tensor.movedim(dim, 0).unsqueeze(dim % tensor.dim() + 1)])

    return cut


JOINING = (torch.stack, torch.cat, torch.concat, torch.concatenate)
"""The functions that accept a list of dynamic length."""


def join(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.stack`` or ``torch.cat`` of a list that a loop has added items to."""
    items, dim, *_ = (*args, 0) if len(args) < 2 else args
    dim = kwargs.get("dim", dim)
    return items.joined(dim, is_stack=function is torch.stack)


class _SizeKey:
    """A key of a dictionary or set with symbolic sizes, which have no hash."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)

    def __hash__(self) -> int:
        return hash(_SizeKey)

    def __eq__(self, other: object) -> bool:
        return self is other or _is_same_key(self.value, other.value if isinstance(other, _SizeKey) else other)


def stored_key(container: Any, key: Any) -> Any:
    """The key of a dictionary or set that equals another one, or else the other one, in a form with a hash.

    Each key is compared, which is a condition on the sizes: a hash would only find the sizes of the example.
    """
    if not isinstance(container, dict | set | frozenset):
        return key
    is_symbolic_key = _has_size(key)
    if not is_symbolic_key and not any(isinstance(one, _SizeKey) for one in container):
        return key
    for one in container:
        if _is_same_key(one.value if isinstance(one, _SizeKey) else one, key):
            return one
    return _SizeKey(key) if is_symbolic_key else key


def _has_size(key: Any) -> bool:
    return any(map(_has_size, key)) if isinstance(key, tuple) else isinstance(key, torch.SymInt | torch.SymFloat)


def _is_same_key(one: Any, other: Any) -> bool:
    conditions = list(_conditions(one, other))
    # Sizes last, and as one condition: they need not be compared where a device or dtype differs.
    symbolic = [each for each in conditions if isinstance(each, torch.SymBool)]
    plain = (each for each in conditions if not isinstance(each, torch.SymBool))
    return all(map(bool, plain)) and (not symbolic or bool(reduce(and_, symbolic)))


def _conditions(one: Any, other: Any) -> Iterator[Any]:
    """Conditions that all hold if two keys are equal."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        yield len(one) == len(other)
        for pair in zip(one, other, strict=False):
            yield from _conditions(*pair)
    else:
        numbers = (int, float, torch.SymInt, torch.SymFloat)
        yield isinstance(one, numbers) == isinstance(other, numbers) and one == other
