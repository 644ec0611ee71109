"""The results that are stored: one line for each row, and the verdicts of torch's exporters, which are measured on request."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path

from .judge import Result

__all__ = ["keep", "known", "pins", "prune"]

_FOLDER = Path(__file__).parent


def known(exporter: str) -> dict[str, Result]:
    """The stored results of an exporter by the key of their row."""
    path = _FOLDER / f"{exporter}.json"
    if not path.exists():
        return {}
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return _parsed(file.read())


def _parsed(text: str) -> dict[str, Result]:
    return {key: Result(**result) for key, result in json.loads(text or "{}").items()}


def keep(exporter: str, key: str, result: Result) -> None:
    """Add a result; several processes may do so at the same time."""
    _change(exporter, lambda results: {**results, key: result})


def prune(exporter: str, keys: Collection[str]) -> None:
    """Drop the results of rows that are gone."""
    if (_FOLDER / f"{exporter}.json").exists():
        _change(exporter, lambda results: {key: result for key, result in results.items() if key in keys})


def _change(exporter: str, change: Callable[[dict[str, Result]], dict[str, Result]]) -> None:
    with (_FOLDER / f"{exporter}.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        results = change(_parsed(file.read()))
        lines = []
        for key, result in sorted(results.items()):
            told = {name: value for name, value in asdict(result).items() if value not in (None, "")}
            lines.append(f"{json.dumps(key)}: {json.dumps(told)}")
        file.truncate(0)
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def pins() -> dict[str, str]:
    """The version of each package in ``libraries.txt``."""
    lines = (_FOLDER / "libraries.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))
