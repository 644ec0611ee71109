"""Rules for the source tree: sizes of files and functions, imports, patches, names."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = sorted([*ROOT.glob("exporter/**/*.py"), *ROOT.glob("translations/**/*.py")])
FILES = [*PACKAGES, *sorted(ROOT.glob("tests/**/*.py")), *sorted(ROOT.glob("benchmarks/**/*.py"))]


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _broken(rule: Callable[[Path], Iterator[str]], paths: Iterable[Path]) -> list[str]:
    """The places of the files that break a rule."""
    return [f"{short(path)}: {place}" for path in paths for place in rule(path)]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _long(path: Path) -> Iterator[str]:
    if len(path.read_text().splitlines()) > 600:
        yield "more than 600 lines"
    for node in ast.walk(_tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            described = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            if (node.end_lineno or 0) - node.lineno - described >= 80:
                yield f"{node.name} has more than 80 lines of code"


def test_files_and_functions_stay_small() -> None:
    assert not _broken(_long, FILES)


def _calls_of_other_exporters(path: Path) -> Iterator[str]:
    code = "\n".join(line for line in path.read_text().splitlines() if not line.strip().startswith("#"))
    for forbidden in (
        r"torch\.onnx\._internal",
        r"onnxscript\.function_libs",
        r"torch\.onnx\.export\(",
        r"\.run_decompositions\(",
    ):
        if re.search(forbidden, code):
            yield forbidden


def test_torch_onnx_export_is_not_called() -> None:
    assert not _broken(_calls_of_other_exporters, PACKAGES)


ASSIGNED = r"(?m)^\s*(torch|F|nn|math|builtins)\.[\w.]+ = "


def _patches_of_torch(path: Path) -> Iterator[str]:
    if "_capture/patches" in short(path):
        return
    code = path.read_text()
    if "_cli/" in short(path):  # the command line is the whole process
        code = code.replace("catch_warnings", "")
    for forbidden in (r"unittest|\bmock\b", r"py_kernels", r"setattr\(torch(?!\.onnx,)", r"catch_warnings", ASSIGNED):
        if re.search(forbidden, code):
            yield f"{forbidden}: a row of the table in _capture/patches/table.py does it"


def test_torch_is_patched_in_one_room() -> None:
    assert not _broken(_patches_of_torch, PACKAGES)


def _imports_of_the_exporter(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                name = alias.name if isinstance(node, ast.Import) else node.module or ""
                if name == "fxonnx" or name.startswith("fxonnx."):
                    yield name


def test_translations_do_not_import_the_exporter() -> None:
    assert not _broken(_imports_of_the_exporter, sorted(ROOT.glob("translations/**/*.py")))


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


def _private_names(path: Path) -> Iterator[str]:
    for name in {name for name in _dotted_names(_tree(path)) if re.match(r"torch\b.*\._[a-zA-Z]", name)}:
        # Operators appear in graphs under their names, private or not.
        if not name.startswith("torch.ops.") and name not in NOT_PRIVATE:
            yield f"{name}: import it in fxonnx_translations/_torch_compat.py"


def test_private_names_of_torch_are_imported_in_one_module() -> None:
    assert not _broken(_private_names, [path for path in PACKAGES if path.name != "_torch_compat.py"])


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
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            if origin.split(".")[0] in OWN:
                yield from ((node, f"{origin}.{alias.name}") for alias in node.names)


def _delayed_imports(path: Path) -> Iterator[str]:
    lines = {node.lineno for node, _ in _own_imports(path)}
    top = {node.lineno for node in _tree(path).body if isinstance(node, ast.ImportFrom)}
    if short(path) not in DELAYED:
        yield from (f"line {line}" for line in lines - top)


def test_imports_are_at_the_top() -> None:
    assert not _broken(_delayed_imports, PACKAGES)


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
