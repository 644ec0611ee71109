"""The documentation: its scripts run, its paths exist, and its tables and pins agree with the code."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import torch

import fxonnx
import fxonnx_translations
from fxonnx._capture.patches.table import CAPTURE_PATCHES, LOADING_PATCHES, VALUE_PATCHES
from fxonnx._capture.strategies import STRATEGIES
from fxonnx._cli.commands import app
from fxonnx._prepare.patterns import PATTERNS
from fxonnx.huggingface import export as huggingface_export

from .models.torchvision_shim import import_torchvision

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SCRIPTED = sorted([DOCS / "index.md", *DOCS.glob("tutorial/*.md"), *DOCS.glob("how-to/*.md")])
PAGES = sorted([*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *DOCS.glob("**/*.md")])
TOP = {"exporter", "translations", "tests", "docs", "benchmarks", "examples", ".ci", ".github"}
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".txt"}


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", SCRIPTED, ids=short)
def test_scripts_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_torchvision()
    scripts = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert scripts
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.py"
    # torch.export and onnxscript read the source of functions.
    script.write_text("\n".join(scripts))
    exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})
    printed = capsys.readouterr().out
    assert [line for line in quoted(page) if not re.search(line, printed)] == []


def quoted(page: Path) -> list[str]:
    """The lines of the outputs that a page quotes, as patterns: ``...`` stands for any text of a line."""
    blocks = re.findall(r"^```text\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [re.escape(line).replace(r"\.\.\.", ".*") for block in blocks for line in block.splitlines()]


def code_of(path: Path) -> Iterator[str]:
    """The lines of code that the site shows from a page, a notebook or an example."""
    if path.suffix == ".py":
        yield from path.read_text().splitlines()
    elif path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        yield from "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code").splitlines()
    else:
        blocks = re.findall(r"^```(?:python|bash)[^\n]*\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
        yield from "".join(blocks).splitlines()


def test_code_is_as_wide_as_its_column() -> None:
    """tests/test_site.py measures the column, of which docs/assets/site.css sets the width, in a window of 1400 pixels."""
    paths = [*DOCS.rglob("*.md"), *DOCS.glob("gallery/*.ipynb"), *ROOT.glob("examples/*.py")]
    wide = [f"{short(path)}: {line}" for path in paths for line in code_of(path) if len(line) > 118]
    assert wide == []


OPTIONS = (
    *(fxonnx.export, fxonnx.torch_onnx_export, fxonnx.ONNXProgram.save, fxonnx.QuantizeConfig, fxonnx.ExportOptions),
    *(fxonnx.Diagnostics, huggingface_export),
)


def test_rows_of_the_page_for_users_of_other_tools_name_real_options() -> None:
    """Left: parameters of torch.onnx.export; right: parameters of fxonnx, and options of ``fxonnx hf``."""
    page = (DOCS / "how-to/coming-from.md").read_text().partition("\n```python")[0]
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    assert list(sections) == ["torch.onnx", "optimum", "coremltools"]
    rows = {name: re.findall(r"^\| (.+) \| (.+) \|$", text, re.MULTILINE)[1:] for name, text in sections.items()}
    assert all(len(found) >= 15 for found in rows.values())
    had = {name for left, _ in rows["torch.onnx"] for name in re.findall(r"\b(\w+)=", left)}
    assert had <= set(signature(torch.onnx.export).parameters)
    ours = {name for one in OPTIONS for name in signature(one).parameters}
    now = {name for found in rows.values() for _, right in found for name in re.findall(r"\b(\w+)=", right)}
    # Of torch.export.Dim, of onnxruntime.InferenceSession, and an input of a program.
    assert now - ours == {"min", "max", "x"}
    command = next(one for one in app.registered_commands if one.name == "hf")
    assert command.callback is not None
    options = {f"--{name.replace('_', '-')}" for name in signature(command.callback).parameters} | {"--no-verify"}
    named = {name for _, right in rows["optimum"] for name in re.findall(r"(--[\w-]+)", right)}
    assert named - {"--opset"} <= options


def test_messages_are_quoted() -> None:
    assert len(quoted(DOCS / "how-to/troubleshooting.md")) > 20


def paths_of(text: str) -> list[str]:
    """The paths of this repository among the words in backticks; ``<family>`` and the like stand for any name."""
    prose = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    words = re.findall(r"`([\w./<>*-]+)`", prose)
    found = [word for word in words if word.split("/")[0] in TOP or Path(word).suffix in TEXT]
    return [re.sub(r"<\w+>", "*", word) for word in found]


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_paths_exist(page: Path) -> None:
    missing = [path for path in paths_of(page.read_text()) if not any(ROOT.glob(path.rstrip("/")))]
    assert not missing


def identifiers() -> list[str]:
    """The names of the code that pages document or refer to; mkdocs resolves them as well, but not in every test run."""
    pages = "\n".join(page.read_text() for page in PAGES)
    return sorted(
        {*re.findall(r"^::: ([\w.]+)", pages, flags=re.MULTILINE), *re.findall(r"\]\[(fxonnx[\w.]*)\]", pages)}
    )


def resolved(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


@pytest.mark.parametrize("name", identifiers())
def test_identifiers_exist(name: str) -> None:
    # A Literal has its docstring in the source only.
    assert resolved(name).__doc__ or get_args(resolved(name))


@pytest.mark.parametrize("package", [fxonnx, fxonnx_translations], ids=lambda package: package.__name__)
def test_reference_is_complete(package: ModuleType) -> None:
    public = {f"{package.__name__}.{name}" for name in package.__all__ if not name.startswith("__")}
    assert {name for name in identifiers() if name.rpartition(".")[0] == package.__name__} == public


def test_parameters_of_export_are_grouped() -> None:
    rows = re.findall(r"^\| [^|]+ \| (`.+`) \|$", (DOCS / "reference/export.md").read_text(), re.MULTILINE)
    grouped = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(grouped) == sorted(signature(fxonnx.export).parameters)


def test_all_of_torch_onnx_is_in_the_guide() -> None:
    """The tables of the page on migration list torch's parameters in their order, and the members of its program."""
    tables = (DOCS / "how-to/migrate.md").read_text().partition("## Parameters\n")[2].partition("\n## Names of dims")[0]
    parameters, _, members = (re.findall(r"^\| (`.+?`) \|", part, re.MULTILINE) for part in tables.partition("\n## "))
    own = torch.onnx.ONNXProgram
    assert [name.strip("`") for name in parameters] == list(signature(torch.onnx.export).parameters)
    public = {name for name in dir(own) if name[0] != "_"} | {"model", "exported_program", "program(...)"}
    assert {name for row in members for name in re.findall(r"`([^`]+)`", row)} == public


def imports_of(example: str) -> list[tuple[str, str]]:
    """The names that an example imports: (module, name); the example begins with the path of its file."""
    path = Path(example.partition("\n")[0].removeprefix("# "))
    package = path.parent.parts[1:] if path.parts[0] in ("exporter", "translations") else path.parent.parts
    found = []
    for node in ast.walk(ast.parse(example)):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            found.extend((module, alias.name) for alias in node.names)
    return found


EXAMPLES = [
    textwrap.dedent(block)
    for block in re.findall(
        r"^ *```python\n( *# \S+\.py\n.*?)^ *```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
    )
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.partition("\n")[0])
def test_names_in_examples_exist(example: str) -> None:
    missing = [(module, name) for module, name in imports_of(example) if not hasattr(import_module(module), name)]
    assert not missing


def test_helpers_exist() -> None:
    """The table of test helpers in CONTRIBUTING: names that its last column's module defines."""
    rows = re.findall(
        r"^\|[^|]*\| (`[^|]+`) \| `(tests/[^|]+\.py)` \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert len(rows) >= 10
    for names, path in rows:
        defined = {getattr(node, "name", None) for node in ast.parse((ROOT / path).read_text()).body}
        assert set(re.findall(r"`(\w+)`", names)) <= defined


def test_issue_form_lists_all_codes() -> None:
    errors = {getattr(fxonnx, name) for name in fxonnx.__all__ if name.endswith("Error")}
    codes = {error.code for error in errors} - {fxonnx.ExportError.code}
    assert set(re.findall(r"- (FX\d+)", (ROOT / ".github/ISSUE_TEMPLATE/export-error.yml").read_text())) == codes


def site_hooks() -> ModuleType:
    spec = spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts() -> None:
    page = site_hooks().on_page_markdown((DOCS / "architecture.md").read_text())
    assert "<!-- generated" not in page
    lines = page.splitlines()
    for patch in (*CAPTURE_PATCHES, *VALUE_PATCHES, *LOADING_PATCHES):
        assert sum(line.startswith(f"| `{patch.target}` |") and patch.why in line for line in lines) == 1
    for name in PATTERNS:
        assert sum(line.startswith(f"| `{name}` |") for line in lines) == 1
    versions = site_hooks().on_page_markdown((DOCS / "stability.md").read_text())
    for row in json.loads((DOCS / "matrix.json").read_text()):
        assert f"| {row['row']} | {row['Python']} |" in versions
        assert re.fullmatch(r"\d+ passed(, \d+ skipped)?", row["result"])
    operators = site_hooks().on_page_markdown((DOCS / "reference/operators.md").read_text())
    assert "\n| operator |" in operators
    assert "\n| `__getitem__` | yes |" in operators
    command_line = site_hooks().on_page_markdown((DOCS / "reference/command-line.md").read_text())
    for command in app.registered_commands:
        assert f"## fxonnx {command.name}\n" in command_line
    assert "| `--target TARGET` | `onnxruntime` | The runtime: onnxruntime, " in command_line
    scripts = site_hooks().on_page_markdown((DOCS / "examples.md").read_text())
    assert scripts.count("```python") == len(list(ROOT.glob("examples/*.py")))


def test_pairs_of_optimum_that_are_not_valid_have_a_reason() -> None:
    page = (DOCS / "reference/optimum-types.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")][1:]
    outcomes = [(ours == "valid", bool(reason)) for _, _, ours, *_, reason in rows]
    assert all(valid != has_reason for valid, has_reason in outcomes)
    assert len(rows) >= 155
    assert f"{sum(valid for valid, _ in outcomes)} of {len(rows)} pairs are valid with fxonnx" in page


def test_notebooks_become_markdown() -> None:
    output = {"output_type": "execute_result", "data": {"text/plain": ["3\n", "4"]}}
    code = {"cell_type": "code", "source": ["x = 3\n", "x"], "outputs": [{"name": "stdout", "text": ["2\n"]}, output]}
    cells = [{"cell_type": "markdown", "source": ["# Title\n", "text"]}, code]
    blocks = ("# Title\ntext", "```python\nx = 3\nx\n```", "```text\n2\n```", "```text\n3\n4\n```")
    assert site_hooks().notebook_text({"cells": cells}) == "\n\n".join(blocks)


def test_all_strategies_of_the_capture_are_listed() -> None:
    section = (DOCS / "architecture.md").read_text().partition("## Attempts of a capture")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", section, re.MULTILINE)
    assert rows == ["change", *(strategy.name for strategy in STRATEGIES)]


def test_glossary_terms_are_used() -> None:
    entries = re.findall(
        r"^## (.+)\n\n(?:.+\n)+\nModule: `.+`$", (DOCS / "glossary.md").read_text(), flags=re.MULTILINE
    )
    assert len(entries) >= 40
    assert entries == sorted(entries, key=str.lower)
    code = "\n".join(path.read_text() for room in ("exporter", "translations") for path in (ROOT / room).rglob("*.py"))
    terms = [term for entry in entries for term in re.sub(r" \(.*\)", "", entry).split(", ")]
    assert [term for term in terms if term.lower() not in code.lower()] == []


def test_pinned_tools_agree() -> None:
    pins = dict(re.findall(r"^(\w[\w-]*)==([\w.]+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    revisions = dict(re.findall(r"repo: https://github.com/\S+/(\S+)\n +rev: v([\w.]+)", hooks))
    assert revisions == {"ruff-pre-commit": pins["ruff"]}
    assert re.findall(r"mypy==([\w.]+)", hooks) == [pins["mypy"]]
