"""Output of the commands: the answer as text or JSON on stdout, and errors, warnings and progress on stderr."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console

from .._display import printable
from .._public import page_address
from .progress import showing_progress

if TYPE_CHECKING:
    from ..errors import ExportError

__all__ = [
    "error_record",
    "print_answer",
    "print_error",
    "print_json",
    "print_text",
    "progress",
    "readable_messages",
    "size_text",
]


_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


@contextmanager
def readable_messages(debug: bool, *, as_json: bool = False, exit_code: int = 1) -> Iterator[None]:
    """Print errors and warnings as one message on stderr, and exit after an error, unless ``debug`` is set.

    The exit code is 2 if an argument is wrong, in every command.
    """
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            if as_json:
                stack.enter_context(redirect_stdout(sys.stderr))
            if not debug:
                warnings.showwarning = _print_warning
                stack.enter_context(_without_logs_of_libraries())
            yield
    except Exception as error:
        if debug:
            raise
        from ..errors import ArgumentError, ExportError  # imports torch

        if isinstance(error, ExportError):
            print_error(error)
        else:
            print_text(f"error: {type(error).__name__}: {error}\nhint: --debug shows the traceback", err=True)
        if as_json:
            print_json({"error": error_record(error)})
        raise typer.Exit(2 if isinstance(error, ArgumentError) else exit_code) from error


@contextmanager
def _without_logs_of_libraries() -> Iterator[None]:
    """Show only errors among the logs of libraries without a handler: torchao logs each file it cannot load."""
    handler = logging.lastResort
    if handler is None:
        yield
        return
    level = handler.level
    handler.setLevel(logging.ERROR)
    try:
        yield
    finally:
        handler.setLevel(level)


def print_error(error: ExportError) -> None:
    """Print an error of fxonnx on stderr, with the address of its page."""
    print_text(f"{error}\nsee: {page_address(f'errors/{error.code}')}", err=True)


def error_record(error: Exception) -> dict[str, str | None]:
    """An error for JSON; the code of one that fxonnx does not raise itself is None."""
    from ..errors import ExportError  # imports torch

    if isinstance(error, ExportError):
        page = page_address(f"errors/{error.code}")
        return {"code": error.code, "message": error.message, "hint": error.hint, "page": page}
    return {"code": None, "message": f"{type(error).__name__}: {error}", "hint": None, "page": None}


def print_answer(as_json: bool, record: Mapping[str, Any], text: str) -> None:
    """Print the answer of a command, as JSON or as text."""
    if as_json:
        print_json(record)
    else:
        print_text(text)


def print_text(text: str, *, err: bool = False) -> None:
    """Print a text, which may have names from files, on stdout or stderr."""
    typer.echo(printable(text, lines=True), err=err)


def print_json(record: Mapping[str, Any]) -> None:
    """Print a record as one JSON object on stdout; dataclasses become objects, numbers that are not finite null."""
    typer.echo(json.dumps(_plain(record), indent=1, default=str).replace("\x7f", "\\u007f"))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    # JSON has no infinity and no NaN.
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def progress(stages: Sequence[str] = ()) -> Iterator[Callable[[str], None]]:
    """Show the current stage on stderr if it is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda stage: None
        return
    with showing_progress(console, stages) as on_stage:
        yield on_stage


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning without its location, which is a line of this package or of typer.

    A library that calls a deprecated function of another one is not the user's to mend.
    """
    if issubclass(category, FutureWarning | DeprecationWarning) and _PACKAGES.search(filename):
        return
    print_text(f"warning: {message}", err=True)


def size_text(count: int) -> str:
    """A number of bytes, ``1.2 MiB``."""
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
