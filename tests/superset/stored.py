"""The verdicts of torch's exporters, which are stored: they take most of the time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from .judge import KINDS
from .program import Program

__all__ = ["UNKNOWN", "known_verdicts", "store"]

PATH = Path(__file__).parent / "torch_onnx.json"

UNKNOWN = "?"

_PLACES = {"dynamo": 0, "torchscript": 1}


def known_verdicts() -> dict[str, dict[str, str]]:
    """The stored kinds of verdicts: exporter to name of the program to kind, without those that are unknown."""
    if not PATH.exists():
        return {exporter: {} for exporter in _PLACES}
    kinds = {letter: kind for kind, letter in KINDS.items()}
    stored = json.loads(PATH.read_text())["verdicts"]
    return {
        exporter: {name: kinds[letters[place]] for name, letters in stored.items() if letters[place] != UNKNOWN}
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
            letters[name] = "".join(UNKNOWN if kind is None else KINDS[kind] for kind in kinds)
    content = {
        "versions": {package: version(package) for package in ("torch", "onnxscript", "onnxruntime")},
        "letters": {letter: kind for kind, letter in KINDS.items()},
        "verdicts": letters,
    }
    PATH.write_text(json.dumps(content, indent=0) + "\n")
