"""The language of the project: plain technical English with the field's terms, see docs/glossary.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = sorted([*ROOT.glob("exporter/**/*.py"), *ROOT.glob("translations/**/*.py")])
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.*")])
TESTS = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])

QUIRKS = {
    # Quirk: its pattern, and how often it may occur in 10,000 words.
    "what as a relative pronoun": (r"\bwhat\b(?! (to|if|about)\b)(?!\?)", 3.0),
    "can not": (r"\bcan not\b", 0.0),
    "say for specify or declare": (r"\b(say|says|said|saying)\b", 1.0),
    "is no X for is not an X": (r"(?<!there )\b(is|are|was|were|be) no\b(?! (longer|more|less)\b)", 1.0),
    "behind for after": (r"\bbehind\b", 0.0),
    ", too": (r", too\b", 0.0),
    "leave out for omit": (r"\b(leaves?|left|leaving) out\b", 3.0),
    "tells if for reports whether": (r"\btells (if|whether)\b", 0.1),
    "question for a data-dependent guard": (r"\b(questions?(?!-answering)|rungs?|ladders?|known values)\b", 1.9),
    "that of for a possessive": (r"\b(that|those) of\b", 6.0),
    "another number of for a different number of": (r"\banother number of\b", 0.5),
}


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings, comments and messages of a module: strings of at least three words."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 3:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


@cache
def _lines(path: Path) -> tuple[tuple[int, str], ...]:
    text = path.read_text()
    if path.suffix == ".py" and path != Path(__file__):
        return tuple(_prose(text))
    return () if path.suffix == ".py" else tuple(enumerate(text.splitlines(), 1))


def findings(paths: list[Path], pattern: str) -> list[str]:
    """The lines with a quirk, as ``file:line: text``."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in _lines(path)
        if re.search(pattern, line, re.IGNORECASE)
    ]


def words(paths: list[Path]) -> int:
    """The number of words of prose."""
    return sum(len(re.findall(r"[A-Za-z]+", line)) for path in paths for _, line in _lines(path))


@pytest.mark.parametrize("paths", [PACKAGES, PAGES, TESTS], ids=["packages", "pages", "tests"])
@pytest.mark.parametrize("quirk", QUIRKS)
def test_quirks_do_not_come_back(paths: list[Path], quirk: str) -> None:
    pattern, allowed = QUIRKS[quirk]
    found = findings(paths, pattern)
    assert len(found) <= allowed * words(paths) / 10_000, "\n".join(found)
