"""Lists to which a loop adds chunks of a dim: items of the same size but for the last one, which may be smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
import torch

from fxonnx_translations._torch_compat import FloorDiv, Max, Min, check, sym_max, sym_min

from ....errors import CaptureError
from .memory import shares
from .sequences import Elements, StackedList, chunks

__all__ = ["ChunkedList", "Chunks", "check_not_empty"]

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

        Args:
            like: The items that one iteration adds.
            index: The index of the iteration.
            count: The number of iterations, a dynamic size.
            span: Length and step of a range of as many elements, if they are known.

        Returns:
            None if the items are not known to have the same size but for the last one.
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
        """The buffer with the items of an iteration.

        Args:
            buffer: The buffer.
            items: The items.
            index: The index of the iteration.
        """
        rows = torch.cat([item.movedim(self.dim, 0) for item in items])
        positions = index * self.size + torch.arange(rows.shape[0], device=index.device)
        return shares(torch.index_put(buffer, (positions.to(buffer.device),), rows), buffer, *items)

    def extended(self, items: Sequence[torch.Tensor], buffer: torch.Tensor, count: Any) -> ChunkedList:
        """The items before a loop and the ones that it added.

        Args:
            items: The list before the loop.
            buffer: The added items.
            count: The number of iterations.
        """
        joined = shares(buffer.movedim(0, self.dim), buffer)
        size = self.size if self.added == 1 and not items else None
        return ChunkedList([*items, joined], self.dim, len(items) + self.added * sym_max(count, 0), size)


def check_not_empty(index: Any, count: Any, span: tuple[Any, int] | None) -> None:
    """Record that no chunk ``x[i : i + 32]`` for ``i in range(0, x.shape[0], 32)`` is empty.

    Args:
        index: The index of the chunk.
        count: The number of chunks.
        span: Length and step of a range of as many elements, if they are known.
    """
    for length, step in _Range.all_of(count, span) if isinstance(count, torch.SymInt) else ():
        check(sym_max(sym_min(length, index * step + step) - sym_min(length, index * step), 0) > 0)


def _without(shape: Sequence[Any], dim: int) -> list[Any]:
    return [*shape[:dim], *shape[dim + 1 :]]


def _expression(number: Any) -> sympy.Expr:
    return number.node.expr if isinstance(number, torch.SymInt) else sympy.Integer(number)


def _full_and_last(rows: sympy.Expr, span: _Range) -> tuple[int, int, int] | None:
    """The size of all items but the last one, and two numbers: the last one's is ``factor * rows + added``.

    Args:
        rows: The size of an item, for the index of its iteration.
        span: The range of the iterations.

    Returns:
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

    Args:
        parts: The items before the loop, and the joined items of the loop.
        dim: The dim.
        length: The number of items.
        size: The size of all items but the last one; None if there are others.
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
