"""Rules of the house that a look at the tree can check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = sorted([*ROOT.glob("exporter/**/*.py"), *ROOT.glob("translations/**/*.py")])
FILES = [*PACKAGES, *sorted(ROOT.glob("tests/**/*.py")), *sorted(ROOT.glob("benchmarks/**/*.py"))]


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=short)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            first = node.body[0]
            documented = ast.get_docstring(node) is not None and first.end_lineno is not None
            described = first.end_lineno - first.lineno + 1 if documented else 0
            assert node.end_lineno - node.lineno - described < 80, f"{node.name} has more than 80 lines of code"


@pytest.mark.parametrize("path", PACKAGES, ids=short)
def test_the_incumbent_is_not_called(path: Path) -> None:
    code = "\n".join(line for line in path.read_text().splitlines() if not line.strip().startswith("#"))
    for forbidden in (
        r"torch\.onnx\._internal",
        r"onnxscript\.function_libs",
        r"torch\.onnx\.export\(",
        r"\.run_decompositions\(",
    ):
        assert not re.search(forbidden, code), forbidden


ASSIGNED = r"(?m)^\s*(torch|F|nn|math|builtins)\.[\w.]+ = "


@pytest.mark.parametrize("path", PACKAGES, ids=short)
def test_torch_is_patched_in_one_room(path: Path) -> None:
    if "_capture/patches" in short(path):
        return
    code = path.read_text()
    for forbidden in (r"unittest|\bmock\b", r"py_kernels", r"setattr\(torch(?!\.onnx,)", r"catch_warnings", ASSIGNED):
        assert not re.search(forbidden, code), f"{forbidden}: a row of the table in _capture/patches/table.py does it"


@pytest.mark.parametrize("path", sorted(ROOT.glob("translations/**/*.py")), ids=short)
def test_translations_know_nothing_of_the_exporter(path: Path) -> None:
    names = [
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    assert not [name for name in names if name == "fxonnx" or name.startswith("fxonnx.")]


# Written with an underscore, but described to users.
NOT_PRIVATE = {"torch._check"}


def _dotted_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


@pytest.mark.parametrize("path", [path for path in PACKAGES if path.name != "_torch_compat.py"], ids=short)
def test_private_names_of_torch_are_imported_in_one_module(path: Path) -> None:
    names = {name for name in _dotted_names(ast.parse(path.read_text())) if re.match(r"torch\b.*\._[a-zA-Z]", name)}
    # An operator is part of a program, whatever its name.
    private = {name for name in names if not name.startswith("torch.ops.")}
    assert private <= NOT_PRIVATE, "import them in fxonnx_translations/_torch_compat.py"
