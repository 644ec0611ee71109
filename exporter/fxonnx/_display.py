"""How results show themselves: text in a terminal, tables in notebooks; texts of files without control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, ClassVar, TypeVar

__all__ = ["Displayed", "Table", "TableList", "TableTuple", "bytes_text", "html_table", "printable", "text_table"]

_Item = TypeVar("_Item")
_CELL = "text-align: left; vertical-align: top"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal or page obeys instead of showing them: control characters, line separators, overrides of
the direction of text. No encoding has half of a surrogate pair, of which the name of a file may consist."""
_CONTROL_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""The same without line breaks and tabs."""


def printable(text: str, *, lines: bool = False) -> str:
    """A text in which control characters are escaped as in a string of Python.

    Names in files may have any characters: those of a terminal move its cursor, clear it or write its clipboard.

    Args:
        text: A name, or a text that contains names.
        lines: Whether the text consists of lines, whose breaks and tabs are kept.
    """
    return (_CONTROL_IN_LINES if lines else _CONTROL).sub(_escape_sequence, text)


def _escape_sequence(match: re.Match[str]) -> str:
    return ascii(match.group())[1:-1]


def text_table(lines: Iterable[Sequence[str]]) -> str:
    """Lines of cells in aligned columns, indented by two spaces."""
    cells = [[printable(cell) for cell in line] for line in lines]
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
    return escape(printable(text, lines=True)).replace("\n", "<br/>")


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


def bytes_text(count: int) -> str:
    """A number of bytes for people: ``1.5 MiB``."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
