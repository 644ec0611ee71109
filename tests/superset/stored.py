"""The verdicts of torch's exporters, which are stored: they take most of the time."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from .judge import KINDS
from .program import Program

__all__ = ["known_verdicts", "open_programs", "store", "store_open"]

_OPEN = Path(__file__).parent / "open.txt"

_PATH = Path(__file__).parent / "torch_onnx.json"

_UNKNOWN = "?"

_PLACES = {"dynamo": 0, "torchscript": 1}


@functools.cache
def _stored() -> dict[str, str]:
    verdicts: dict[str, str] = json.loads(_PATH.read_text())["verdicts"] if _PATH.exists() else {}
    return verdicts


def known_verdicts() -> dict[str, dict[str, str]]:
    """The stored kinds of verdicts: exporter to name of the program to kind, without those that are unknown."""
    kinds = {letter: kind for kind, letter in KINDS.items()}
    return {
        exporter: {name: kinds[letters[place]] for name, letters in _stored().items() if letters[place] != _UNKNOWN}
        for exporter, place in _PLACES.items()
    }


def store(verdicts: Mapping[str, Mapping[str, str]], programs: Iterable[Program]) -> None:
    """Write the verdicts of the programs that exist, with the versions that gave them.

    Args:
        verdicts: Those of ``known_verdicts``.
        programs: All programs.
    """
    letters = {}
    for name in sorted(program.name for program in programs):
        kinds = [verdicts[exporter].get(name) for exporter in _PLACES]
        if any(kinds):
            letters[name] = "".join(_UNKNOWN if kind is None else KINDS[kind] for kind in kinds)
    content = {
        "versions": {package: version(package) for package in ("torch", "onnxscript", "onnxruntime")},
        "letters": {letter: kind for kind, letter in KINDS.items()},
        "verdicts": letters,
    }
    _PATH.write_text(json.dumps(content, indent=0) + "\n")
    _stored.cache_clear()


@functools.cache
def open_programs() -> frozenset[str]:
    """The names of programs that torch exports right and fxonnx does not yet."""
    lines = _OPEN.read_text().splitlines() if _OPEN.exists() else []
    return frozenset(line.split()[0] for line in lines if not line.startswith("#"))


def store_open(found: Mapping[str, str], judged: Iterable[str]) -> None:
    """Write the programs that torch exports right and fxonnx does not.

    Args:
        found: Their names, to the message of fxonnx.
        judged: The names of all programs that were judged; lines of others stay.
    """
    lines = _OPEN.read_text().splitlines() if _OPEN.exists() else []
    others = [line for line in lines if not line.startswith("#") and line.split()[0] not in set(judged)]
    title = "# Right in torch.onnx and not yet in fxonnx; written by python -m tests.superset --open"
    _OPEN.write_text("\n".join([title, *sorted([*others, *(f"{name} {text}" for name, text in found.items())])]) + "\n")
    open_programs.cache_clear()
