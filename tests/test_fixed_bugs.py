"""Every mended bug has a test that still exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = [
    tuple(cell.strip() for cell in line.strip("|\n").split(" | "))
    for line in (ROOT / "tests" / "fixed_bugs.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "::" in line
]


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0][:40]) for row in ROWS])
def test_the_test_of_a_bug_exists(row: tuple[str, str, str]) -> None:
    _, test, words = row
    path, name = test.split("::")
    assert name in functions_of(ROOT / path)
    assert words in (ROOT / path).read_text(encoding="utf-8")


def test_the_table_is_complete() -> None:
    """Rows are only added."""
    assert len(ROWS) >= 109
    assert len({row[0] for row in ROWS}) == len(ROWS)
