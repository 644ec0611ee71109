"""All rows, by library."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from . import libraries
from .reports import REPORTS
from .row import Row

__all__ = ["rows"]


@cache
def rows() -> tuple[Row, ...]:
    """The programs of reports, and the rows in ``libraries``: functions, and tuples of models that differ in little."""
    found: list[Row] = list(REPORTS)
    for module in iter_modules(libraries.__path__, f"{libraries.__name__}."):
        for value in vars(import_module(module.name)).values():
            several = value if isinstance(value, tuple) else (value,)
            found += [each for each in several if isinstance(each, Row)]
    return tuple(sorted(found, key=lambda each: each.key.lower()))
