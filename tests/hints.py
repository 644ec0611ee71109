"""The hints of errors of the capture, as they are in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["capture_hints"]

PACKAGE = Path(__file__).parent.parent / "exporter" / "fxonnx"
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
