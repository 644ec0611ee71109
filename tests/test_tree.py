"""Rules for the source tree: sizes of files and functions, imports, patches, names."""

from __future__ import annotations

import ast
import graphlib
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
def test_torch_onnx_export_is_not_called(path: Path) -> None:
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
    if "_cli/" in short(path):  # the command line is the whole process
        code = code.replace("catch_warnings", "")
    for forbidden in (r"unittest|\bmock\b", r"py_kernels", r"setattr\(torch(?!\.onnx,)", r"catch_warnings", ASSIGNED):
        assert not re.search(forbidden, code), f"{forbidden}: a row of the table in _capture/patches/table.py does it"


@pytest.mark.parametrize("path", sorted(ROOT.glob("translations/**/*.py")), ids=short)
def test_translations_do_not_import_the_exporter(path: Path) -> None:
    names = [
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    assert not [name for name in names if name == "fxonnx" or name.startswith("fxonnx.")]


# Documented by torch despite the underscore.
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
    # Operators appear in graphs under their names, private or not.
    private = {name for name in names if not name.startswith("torch.ops.")}
    assert private <= NOT_PRIVATE, "import them in fxonnx_translations/_torch_compat.py"


OWN = ("fxonnx", "fxonnx_translations")
# The modules with imports of our own packages that are not at the top, and the reason.
DELAYED = {
    "exporter/fxonnx/__init__.py": "names are imported on first use",
    "exporter/fxonnx/_cli/commands.py": "--help does not import torch",
    "exporter/fxonnx/_cli/main.py": "typer and rich are optional",
    "exporter/fxonnx/_cli/loading.py": "--help does not import torch",
    "exporter/fxonnx/_lower/lowering.py": "only exports with user translations import onnxscript",
    "translations/fxonnx_translations/__init__.py": "names are imported on first use",
}


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _own_imports(path: Path) -> Iterator[tuple[ast.ImportFrom, str]]:
    """The imports of our own packages, with the absolute names that they import."""
    package = _module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            if origin.split(".")[0] in OWN:
                yield from ((node, f"{origin}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("path", PACKAGES, ids=short)
def test_imports_are_at_the_top(path: Path) -> None:
    at_the_top = set(ast.parse(path.read_text()).body)
    lines = {node.lineno for node, _ in _own_imports(path)}
    top = {node.lineno for node in at_the_top if isinstance(node, ast.ImportFrom)}
    assert lines <= top or short(path) in DELAYED


def test_no_import_circle() -> None:
    modules = {_module_name(path): path for path in PACKAGES if short(path) not in DELAYED}
    graph = {
        name: {origin if origin in modules else origin.rpartition(".")[0] for _, origin in _own_imports(path)} - {name}
        for name, path in modules.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises a CycleError that names the circle


def test_rooms_of_capture_stay_small() -> None:
    rooms = [path for path in (ROOT / "exporter/fxonnx/_capture").iterdir() if path.is_dir() and path.name[0] != "_"]
    assert {room.name for room in rooms} == {
        "inputs",
        "shapes",
        "constraints",
        "patches",
        "quantized_modules",
        "questions",
        "rewriting",
        "script",
    }
    assert all(len(list(room.glob("*.py"))) <= 13 for room in rooms)
    assert len(list((ROOT / "translations/fxonnx_translations/_aten").rglob("[!_]*.py"))) <= 31
