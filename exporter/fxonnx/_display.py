"""How results show themselves: text in a terminal, tables in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, ClassVar, TypeVar

__all__ = ["Displayed", "Table", "TableList", "TableTuple", "html_table", "text_table"]

_Item = TypeVar("_Item")
_CELL = "text-align: left; vertical-align: top"


def text_table(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells in aligned columns, indented by two spaces."""
    cells = list(lines)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def html_table(caption: str, rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """An HTML table whose first column names its rows.

    Args:
        caption: Its caption, "" for none.
        rows: The cells of each row.
        head: The titles of the columns, if they have any.
    """
    lines = [f"<caption>{escape(caption)}</caption>"] if caption else []
    if head:
        lines.append(f"<tr>{''.join(map(_head_cell, head))}</tr>")
    for first, *others in rows:
        lines.append(f"<tr>{_head_cell(first)}{''.join(map(_cell, others))}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _head_cell(text: str) -> str:
    return f'<th style="{_CELL}">{_escaped(text)}</th>'


def _cell(text: str) -> str:
    return f'<td style="{_CELL}">{_escaped(text)}</td>'


def _escaped(text: str) -> str:
    return escape(text).replace("\n", "<br/>")


class Displayed:
    """A result with a text, which is also its repr."""

    def __repr__(self) -> str:
        return str(self)


class Table(Displayed):
    """A list or tuple whose text is a table."""

    _head: ClassVar[Sequence[str]]

    @staticmethod
    def _cells(item: Any) -> Sequence[str]:
        """The cells of an item."""
        raise NotImplementedError

    def _rows(self) -> list[Sequence[str]]:
        return [self._cells(item) for item in self]  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return text_table([self._head, *self._rows()])

    def _repr_html_(self) -> str:
        return html_table("", self._rows(), self._head)


class TableList(Table, list[_Item]):
    """A list whose text is a table."""


class TableTuple(Table, tuple[_Item, ...]):
    """A tuple whose text is a table."""

    __slots__ = ()
