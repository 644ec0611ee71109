"""Lists to which loops of unknown length, or only one branch of a condition, add items or chunks of a dim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
import torch

from fxonnx_translations._torch_compat import FloorDiv, Max, Min, check, sym_max, sym_min

from ...._context_values import activated, active
from ....errors import CaptureError
from .sequences import JOINING, Elements, StackedList, chunks, join
from .values import UNBOUND, as_condition, same_shape, shares

__all__ = [
    "ChunkedList",
    "Chunks",
    "GrowingList",
    "Padding",
    "Parts",
    "check_not_empty",
    "grows_in_a_loop",
    "joining",
    "selected",
    "tried_lists",
]


class Parts(NamedTuple):
    """The content of a list of dynamic length, or the items that an iteration has added to one.

    pytree distinguishes it from a list of the same tensors.

    Attributes:
        parts: The items.
        kept: For each, whether it is in the list: True, or a boolean tensor of one element.
    """

    parts: list[Any]
    kept: list[Any]


class GrowingList(list[Any]):
    """A list inside a loop of unknown length: items can be added at one end, and the last one can be read.

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
        """The content of the list after one branch with absent items."""
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

    The list before the condition has items, or parts that are items along a dim.
    """
    rows = content.parts if isinstance(items, StackedList) else [item.unsqueeze(0) for item in content.parts]
    return StackedList([_selected(row, kept) for row, kept in zip(rows, content.kept, strict=True)])


def _selected(rows: torch.Tensor, kept: Any) -> torch.Tensor:
    if kept is True:
        return rows
    return shares(rows[as_condition(kept).to(rows.device).reshape(1).expand(rows.shape[0])], rows)


_INDEX, _ROWS = sympy.Symbol("index", integer=True), sympy.Symbol("rows", integer=True)
_Bounds = Mapping[sympy.Symbol, tuple[sympy.Expr, sympy.Expr]]


class _Range(NamedTuple):
    """``range(0, length, step)``, whose elements are the iterations of a loop."""

    length: Any
    step: int

    @classmethod
    def all_of(cls, count: torch.SymInt, span: tuple[Any, int] | None) -> list[_Range]:
        """The ranges of ``count`` elements: ``span``, and ``range(0, n, 32)`` for ``(n + 31) // 32``."""
        made = [cls(*(span or (count, 1)))]
        expression, environment = _expression(count), count.node.shape_env
        for quotient in sorted(expression.atoms(FloorDiv), key=str):
            others = expression - quotient
            dividend, divisor = quotient.args
            if others.is_Integer and divisor.is_Integer and divisor > 0:
                length = sympy.expand(dividend + others * divisor - divisor + 1)
                hint = length.xreplace(environment.backed_var_to_val)
                number = environment.create_symintnode(length, hint=int(hint) if hint.is_Integer else None)
                made.append(cls(number, int(divisor)))
        return made

    def with_length(self, expression: sympy.Expr, length: sympy.Expr) -> sympy.Expr | None:
        """An expression with another expression for the length; None if the length has no symbol to solve for."""
        own = _expression(self.length)
        terms = own.as_coefficients_dict()
        for term in sorted(terms.keys() - {sympy.S.One}, key=str):
            value = sympy.expand((length - own + terms[term] * term) / terms[term])
            if sympy.expand(own.xreplace({term: value}) - length) == 0:
                return sympy.expand(expression.xreplace({term: value}))
        return None


@dataclass(frozen=True)
class Chunks:
    """The sizes of items along the dim in which they differ.

    Attributes:
        dim: The dim.
        size: The size of all items but the last one. Several items that an iteration adds count as one.
        total: The sum of the sizes.
        added: The number of items that an iteration adds.
    """

    dim: int
    size: int
    total: Any
    added: int

    @classmethod
    def of(cls, like: Sequence[torch.Tensor], index: Any, count: Any, span: tuple[Any, int] | None) -> Chunks | None:
        """The sizes of the items that the iterations of a loop add to a list.

        None if the items are not known to have the same size but for the last one. ``span`` is the length and the step
        of a range of as many elements, if they are known.
        """
        symbol = _expression(index)
        dims = {dim for item in like for dim, size in enumerate(item.shape) if symbol in _expression(size).free_symbols}
        if len(dims) != 1 or len({item.dim() for item in like}) != 1 or not isinstance(count, torch.SymInt):
            return None
        (dim,) = dims
        others = {(item.dtype, item.device, *map(_expression, _without(item.shape, dim))) for item in like}
        rows = sum(_expression(item.shape[dim]) for item in like).xreplace({symbol: _INDEX})
        for one in _Range.all_of(count, span) if len(others) == 1 else ():
            found = _full_and_last(rows, one)
            if found is not None:
                size, factor, added = found
                return cls(dim, size, factor * sym_max(one.length, 0) + added * sym_max(count, 0), len(like))
        return None

    def buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros for all items, with the dim first."""
        return torch.zeros((self.total, *_without(like.shape, self.dim)), dtype=like.dtype, device=like.device)

    def stored(self, buffer: torch.Tensor, items: Sequence[torch.Tensor], index: torch.Tensor) -> torch.Tensor:
        """The buffer with the items of an iteration."""
        rows = torch.cat([item.movedim(self.dim, 0) for item in items])
        positions = index * self.size + torch.arange(rows.shape[0], device=index.device)
        return shares(torch.index_put(buffer, (positions.to(buffer.device),), rows), buffer, *items)

    def extended(self, items: Sequence[torch.Tensor], buffer: torch.Tensor, count: Any) -> ChunkedList:
        """The items before a loop and the ones that it added."""
        joined = shares(buffer.movedim(0, self.dim), buffer)
        size = self.size if self.added == 1 and not items else None
        return ChunkedList([*items, joined], self.dim, len(items) + self.added * sym_max(count, 0), size)


def check_not_empty(index: Any, count: Any, span: tuple[Any, int] | None) -> None:
    """Record that no chunk ``x[i : i + 32]`` for ``i in range(0, x.shape[0], 32)`` is empty.

    ``span`` is the length and the step of a range of as many elements, if they are known.
    """
    for length, step in _Range.all_of(count, span) if isinstance(count, torch.SymInt) else ():
        check(sym_max(sym_min(length, index * step + step) - sym_min(length, index * step), 0) > 0)


def _without(shape: Sequence[Any], dim: int) -> list[Any]:
    return [*shape[:dim], *shape[dim + 1 :]]


def _expression(number: Any) -> sympy.Expr:
    return number.node.expr if isinstance(number, torch.SymInt) else sympy.Integer(number)


def _full_and_last(rows: sympy.Expr, span: _Range) -> tuple[int, int, int] | None:
    """The size of all items but the last one, and two numbers: the last one's is ``factor * rows + added``.

    None if they are not known, or if the last item's size is another one where its range has all ``step`` elements.
    """
    step, no_limit = sympy.Integer(span.step), sympy.oo
    full = span.with_length(rows, step * (_INDEX + 1) + _ROWS)
    last = span.with_length(rows, step * _INDEX + _ROWS)
    if full is None or last is None:
        return None
    index = (sympy.S.Zero, no_limit)
    size = _decided(full, {_INDEX: index, _ROWS: (sympy.S.One, no_limit)})
    last = sympy.expand(_decided(last, {_INDEX: index, _ROWS: (sympy.S.One, step)}))
    factor = last.coeff(_ROWS)
    added = sympy.expand(last - factor * _ROWS)
    if not all(number.is_Integer and number >= 0 for number in (size, factor, added)) or factor * step + added != size:
        return None
    return int(size), int(factor), int(added)


def _decided(expression: sympy.Expr, bounds: _Bounds) -> sympy.Expr:
    """An expression without the minima and maxima that the bounds of its symbols decide."""
    if not expression.args:
        return expression
    args = [_decided(one, bounds) for one in expression.args]
    if isinstance(expression, Min | Max | sympy.Min | sympy.Max):
        sign = -1 if isinstance(expression, Min | sympy.Min) else 1
        for one in args:
            if all(_is_nonnegative(sympy.expand(sign * (one - other)), bounds) for other in args):
                return one
    return expression.func(*args)


def _is_nonnegative(difference: sympy.Expr, bounds: _Bounds) -> bool:
    """Whether a linear expression has no value below 0."""
    lowest: sympy.Expr = sympy.S.Zero
    for term, factor in difference.as_coefficients_dict().items():
        if term == 1:
            lowest += factor
            continue
        if term not in bounds:
            return False
        lowest += factor * bounds[term][0 if factor > 0 else 1]
    return bool(lowest >= 0)


class ChunkedList(StackedList):
    """A list of dynamic length whose items differ in their size along a dim: it can be joined along this dim.

    All items but the last one have the size; None if there are others.
    """

    def __init__(self, parts: list[Any], dim: int, length: Any, size: int | None) -> None:
        super().__init__(parts)
        self._dim = dim
        self._length = length
        self._size = size

    def joined(self, dim: int, *, is_stack: bool) -> torch.Tensor:
        """``torch.cat`` of the list, whose memory is not the list's."""
        if is_stack or dim % self.parts[0].dim() != self._dim:
            self._refuse()
        return torch.cat(self.parts, self._dim) if len(self.parts) > 1 else self.parts[0].clone()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise CaptureError(
            "a list whose items are chunks of a dynamic size is read, modified or joined along another dim: its last "
            "item may be smaller than the others",
            hint=f"join it with torch.cat(items, {self._dim}), and use the result",
        )

    @property
    def stacked(self) -> torch.Tensor:
        """Rejects that the items are read."""
        refused: torch.Tensor = self._refuse()
        return refused

    @property
    def symbolic_length(self) -> Any:
        """The length, which Python's ``len`` would specialize."""
        return self._length

    @property
    def elements(self) -> Elements:
        """The items."""
        return chunks(self.parts[0], self._dim, self._size) if self._size else self._refuse()

    def __getitem__(self, index: Any) -> Any:
        if index != slice(None):
            self._refuse()
        return ChunkedList(self.parts, self._dim, self._length, self._size)

    append = extend = insert = reverse = __add__ = __radd__ = __iadd__ = __setitem__ = _refuse


def joining(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.stack`` or ``torch.cat`` that accepts a list to which a loop has appended."""

    def joined(*args: Any, **kwargs: Any) -> Any:
        items = args[0] if args else kwargs.get("tensors")
        if isinstance(items, GrowingList):
            items.refuse()
        if not isinstance(items, StackedList):
            return function(*args, **kwargs)
        return join(function, items, *args[1:], **{key: value for key, value in kwargs.items() if key != "tensors"})

    return joined if function in JOINING else function
