"""The size of the product per room, in tokens and statements: lines would reward long lines.

    python -m tests.size

Tokens are those of Python's ``tokenize`` without comments, docstrings and blank lines; statements are nodes of
``ast.stmt``, with docstrings.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

__all__ = ["Size", "sizes"]

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("exporter/fxonnx", "translations/fxonnx_translations")
_LAYOUT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})
_OUTSIDE = frozenset({*_LAYOUT, tokenize.ENCODING, tokenize.ENDMARKER})


@dataclass
class Size:
    """How large some files are.

    Attributes:
        files: The number of files.
        lines: Their lines.
        tokens: Their tokens without comments, docstrings and blank lines.
        statements: Their statements.
        context_variables: The context variables that they create.
    """

    files: int = 0
    lines: int = 0
    tokens: int = 0
    statements: int = 0
    context_variables: int = 0

    def add(self, text: str) -> None:
        """Add a file by its text."""
        tree = ast.parse(text)
        docstrings = set(_docstrings(tree))
        self.files += 1
        self.lines += len(text.splitlines())
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        self.tokens += sum(token.type not in _OUTSIDE and token.start[0] not in docstrings for token in tokens)
        self.statements += sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.context_variables += sum(isinstance(func, ast.Name) and func.id == "ContextVar" for func in calls)


def _docstrings(tree: ast.Module) -> Iterator[int]:
    """The lines on which strings begin that are statements: docstrings, and those below attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno


def sizes() -> dict[str, Size]:
    """The size of each room, a folder of a package or the files beside its folders, and of everything under ``total``."""
    found: defaultdict[str, Size] = defaultdict(Size)
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            room = "/".join(path.relative_to(_ROOT / package).parts[:-1][:1])
            text = path.read_text()
            for name in (f"{package.partition('/')[2]}/{room}".rstrip("/"), "total"):
                found[name].add(text)
    return dict(sorted(found.items(), key=lambda item: (item[0] == "total", item[0])))


def main() -> None:
    """Print the table."""
    print(f"{'room':40}{'files':>7}{'lines':>9}{'tokens':>9}{'statements':>12}{'context variables':>19}")
    for room, size in sizes().items():
        files, lines, tokens, statements, variables = astuple(size)
        print(f"{room:40}{files:7}{lines:9}{tokens:9}{statements:12}{variables:19}")


if __name__ == "__main__":
    main()
