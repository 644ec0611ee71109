"""The hints of errors, as they are in the code: those of the capture, and those of the other rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["capture_hints", "other_hints"]

PACKAGE = Path(__file__).parent.parent / "exporter" / "fxonnx"
TRANSLATIONS = PACKAGE.parent.parent / "translations" / "fxonnx_translations"
_RAISES = ("CaptureError", "refuse")


def capture_hints() -> Iterator[tuple[str, str]]:
    """Each hint of the capture with its place, ``torch_export.py:174``; ``{}`` stands for a value."""
    for path in sorted((PACKAGE / "_capture").rglob("*.py")):
        tree = ast.parse(path.read_text())
        named = {
            node.targets[0].id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] not in _RAISES:
                continue
            given = next((keyword.value for keyword in call.keywords if keyword.arg == "hint"), None)
            if given is None and ast.unparse(call.func) == "refuse" and len(call.args) > 1:
                given = call.args[1]
            if isinstance(given, ast.Name):
                given = named.get(given.id)
            for text in _texts(given):
                yield f"{path.name}:{call.lineno}", text


def other_hints() -> Iterator[tuple[str, str]]:
    """Each hint outside of the capture with its place; ``{}`` stands for a value. Suggestions of names have no text."""
    for root in (PACKAGE, TRANSLATIONS):
        for path in sorted(root.rglob("*.py")):
            if "_capture" not in path.relative_to(root).parts:
                yield from _hints_of_file(path, root)


def _hints_of_file(path: Path, root: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text())
    named: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.FunctionDef):
            named.setdefault(node.name, []).extend(_returned(node))
    for call in ast.walk(tree):
        for keyword in call.keywords if isinstance(call, ast.Call) else ():
            if keyword.arg == "hint":
                place = f"{path.relative_to(root).as_posix()}:{keyword.value.lineno}"
                yield from ((place, text) for value in _values(keyword.value, named) for text in _texts(value))


def _returned(function: ast.FunctionDef) -> Sequence[ast.expr]:
    return [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]


def _values(node: ast.expr, named: dict[str, list[ast.expr]]) -> Sequence[ast.expr]:
    """The expressions that a name of the file may stand for, or a function of it may return; any other expression itself."""
    if isinstance(node, ast.Call):
        node = node.func
    return named.get(node.id, []) if isinstance(node, ast.Name) else [node]


def _texts(node: ast.expr | None) -> Iterator[str]:
    """The texts that an expression may have; none for the attributes and arguments of others."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.BinOp):
        texts = [*_texts(node.left), *_texts(node.right)]
        if texts:
            yield "".join(texts)
