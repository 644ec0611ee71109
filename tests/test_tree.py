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


# Of both packages; it only goes down.
IGNORED_TYPES = 50


def test_few_types_are_ignored() -> None:
    found = {short(path): path.read_text().count("# type: ignore") for path in PACKAGES}
    shown = "\n".join(f"{path}: {count}" for path, count in found.items() if count)
    assert sum(found.values()) <= IGNORED_TYPES, shown


# Of both packages; it only goes down.
DESCRIBED_PRIVATE_FUNCTIONS = 62
_SECTIONS = re.compile(r"(?m)^ *(Args|Returns|Yields|Raises):$")


def _described_private_functions(path: Path) -> Iterator[str]:
    functions = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.FunctionDef))
    private = (node for node in functions if node.name[0] == "_" and not node.name.startswith("__"))
    yield from (node.name for node in private if _SECTIONS.search(ast.get_docstring(node) or ""))


def test_private_functions_have_one_line_of_documentation() -> None:
    """More only for facts that the signature does not have, as a paragraph."""
    found = _broken(_described_private_functions, PACKAGES)
    assert len(found) <= DESCRIBED_PRIVATE_FUNCTIONS, "\n".join(found)


BROAD = ("Exception", "BaseException")


def _broad_handlers(path: Path) -> Iterator[str]:
    """Handlers of any error: ``except Exception``, ``except (Exception, ...)``, ``except``, ``suppress(Exception)``."""
    for node in ast.walk(_tree(path)):
        caught: list[ast.expr | None] = []
        if isinstance(node, ast.ExceptHandler):
            caught = [*node.type.elts] if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            caught = [*node.args]
        if any(error is None or ast.unparse(error) in BROAD for error in caught):
            yield f"line {node.lineno}"  # type: ignore[attr-defined]


def test_any_error_is_caught_at_documented_borders_only() -> None:
    page = (
        (ROOT / "docs/architecture.md").read_text().partition("## Where any error is caught\n")[2].partition("\n## ")[0]
    )
    documented = {path: int(count) for path, count in re.findall(r"(?m)^\| `([^`]+)` \| (\d+) \|", page)}
    places = {short(path): list(_broad_handlers(path)) for path in PACKAGES}
    assert documented == {path: len(found) for path, found in places.items() if found}, places


def test_broad_handlers_are_found(tmp_path: Path) -> None:
    broad = ["except:", "except Exception:", "except (KeyError, BaseException) as error:"]
    narrow = ["except KeyError:", "except (KeyError, ValueError):"]
    path = tmp_path / "code.py"
    path.write_text("".join(f"try:\n    f()\n{handler}\n    pass\n" for handler in (*broad, *narrow)))
    assert list(_broad_handlers(path)) == ["line 3", "line 7", "line 11"]
    path = tmp_path / "suppressed.py"
    path.write_text("with contextlib.suppress(Exception):\n    f()\nwith suppress(OSError):\n    f()\n")
    assert list(_broad_handlers(path)) == ["line 1"]


# Functions of _prepare/sizes.py, which know that a size may be symbolic.
SIZE_FUNCTIONS = {"element_count", "expression", "is_known", "known_size", "same_shape", "same_size", "size_expression"}
# The comparisons of shapes in which no size is symbolic, and the reason.
NUMBERS = {
    "_prepare/redundant_nodes.py": "constants",
    "_prepare/constant_folding.py": "tensors of static shape",
    "_prepare/functionalize/aliases.py": "only where all sizes are int",
    "_prepare/training_nodes.py": "flags of observers",
    "_prepare/patterns/flatten_token_matmuls.py": "texts of sizes",
    "_prepare/tensor_subclasses.py": "weights",
    "_prepare/weight_folding.py": "expressions of weights",
    "_lower/lowering.py": "dims of the ONNX model",
    "_lower/model.py": "weights",
    "_lower/regions.py": "weights",
}


def _reads_size(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Attribute) and one.attr in ("shape", "numel", "nelement", "size") for one in ast.walk(node)
    )


def _compared_sizes(path: Path) -> Iterator[str]:
    """Comparisons and conversions of sizes by Python's operators, which decide a symbolic size for the example."""
    open_nodes: list[ast.AST] = [_tree(path)]
    while open_nodes:
        node = open_nodes.pop()
        called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if called in SIZE_FUNCTIONS:
            continue
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if called in ("int", "bool", "float") and isinstance(node, ast.Call):
            compared = [*node.args]
        # Identity asks for a type or for None.
        is_identity = isinstance(node, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
        if not is_identity and any(_reads_size(one) and not _asks_sizes(one) for one in compared):
            yield f"line {node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]
        open_nodes += ast.iter_child_nodes(node)


def _asks_sizes(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in SIZE_FUNCTIONS


def test_passes_ask_for_sizes_by_functions() -> None:
    """A comparison of symbolic sizes is a guard of the example, and an error where a size depends on data."""
    passes = [*ROOT.glob("exporter/fxonnx/_prepare/**/*.py"), *ROOT.glob("exporter/fxonnx/_lower/**/*.py")]
    passes = [path for path in passes if path.name != "sizes.py"]
    excepted = {ROOT / "exporter/fxonnx" / name for name in NUMBERS}
    assert excepted == {path for path in excepted if _broken(_compared_sizes, [path])}
    found = _broken(_compared_sizes, sorted({*passes} - excepted))
    assert not found, "use the functions of _prepare/sizes.py:\n" + "\n".join(found)


def test_compared_sizes_are_found(tmp_path: Path) -> None:
    wrong = ["x.numel() != 1", "x.shape[0] < y", "int(x.shape[0])", "known_size(x) == x.size(0)"]
    right = ["x.shape is None", "known_size(x.shape[0]) == 1", "is_known(x.numel() >= 2)", "x.dim() == 1"]
    path = tmp_path / "code.py"
    path.write_text("\n".join(wrong + right))
    assert [place.partition(": ")[2] for place in _compared_sizes(path)] == wrong[::-1]


OWN = ("fxonnx", "fxonnx_translations")
# The modules with imports of our own packages that are not at the top, and the reason.
DELAYED = {
    "exporter/fxonnx/__init__.py": "names are imported on first use",
    "exporter/fxonnx/_cli/commands.py": "--help does not import torch",
    "exporter/fxonnx/_cli/messages.py": "--help does not import torch",
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
        "suspicions",
        "data_dependence",
        "rewriting",
    }
    assert all(len(list(room.glob("*.py"))) <= 13 for room in rooms)
    assert len(list((ROOT / "translations/fxonnx_translations/_aten").rglob("[!_]*.py"))) <= 34


# The rooms whose private functions have one line of documentation, and more only for facts beyond the signature.
BRIEF = ("exporter/fxonnx/_capture/patches", "exporter/fxonnx/_capture/rewriting")


def _sections(path: Path) -> Iterator[str]:
    """Sections of arguments and results in docstrings; attributes of records may have one."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found = re.findall(r"(?m)^(Args|Returns|Yields|Raises):$", ast.get_docstring(node) or "")
            yield from (f"{node.name} has a section {section!r}" for section in found)


def test_private_functions_are_documented_in_prose() -> None:
    assert not _broken(_sections, [path for path in PACKAGES if short(path).startswith(BRIEF)])


def test_sections_of_docstrings_are_found(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(
        'def f(x):\n    """Text.\n\n    Args:\n        x: A number.\n    """\ndef g():\n    """Args: none."""\n'
    )
    assert list(_sections(path)) == ["f has a section 'Args'"]
