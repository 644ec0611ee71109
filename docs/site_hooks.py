"""MkDocs hooks: parts of pages that are generated from the code, notebooks, and the list of error pages."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = [
    "GENERATED",
    "notebook_text",
    "on_config",
    "on_files",
    "on_page_context",
    "on_page_markdown",
    "on_page_read_source",
    "on_post_build",
    "published",
]


def on_files(files: Any, **_: Any) -> Any:
    """Make pages of the notebooks, which MkDocs takes for files to copy."""
    for file in files:
        if file.src_uri.endswith(".ipynb"):
            file.is_documentation_page = lambda: True
            file.dest_uri = f"{file.src_uri.removesuffix('.ipynb')}.html"
    return files


def on_page_read_source(page: Any, **_: Any) -> str | None:
    """Read a notebook as Markdown; None for other pages, which MkDocs reads."""
    if not page.file.src_uri.endswith(".ipynb"):
        return None
    path = Path(page.file.abs_src_path)
    link = f'<a href="{path.name}" download>Download the notebook</a>'
    return f"{notebook_text(json.loads(path.read_text()))}\n\n{link}"


def on_post_build(config: Any) -> None:
    """Put the notebooks beside their pages."""
    for path in Path(config["docs_dir"]).glob("gallery/*.ipynb"):
        shutil.copy(path, Path(config["site_dir"], "gallery"))


def notebook_text(notebook: Mapping[str, Any]) -> str:
    """The cells of a notebook and their outputs as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", ()):
            shown = "".join(output["text"] if "text" in output else output["data"]["text/plain"])
            parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts)


def on_config(config: Any) -> Any:
    """Set the addresses, and list the pages of ``docs/errors`` in the navigation, in the order of their codes."""
    if address := published("Repository"):
        config["repo_url"], config["edit_uri"] = address, "edit/main/docs/"
    if address := published("Documentation"):
        config["site_url"] = f"{address}/"
    errors = Path(config["docs_dir"], "errors")
    pages = [*errors.glob("index.md"), *sorted(errors.glob("FX*.md"))]
    entry = next(entry for entry in config["nav"] if isinstance(entry, dict) and "Error codes" in entry)
    entry["Error codes"] = ["errors/index.md", *(f"errors/{page.name}" for page in pages)]
    return config


def on_page_context(context: Any, page: Any, config: Any, **_: Any) -> Any:
    """Show the version at the end of each page, with a link to the changes."""
    from mkdocs.utils import get_relative_url

    link = get_relative_url("changelog.html", page.url)
    config["copyright"] = f'fxonnx {version("fxonnx")} · <a href="{link}">Changes</a>'
    return context


def published(key: str) -> str | None:
    """An address in ``[project.urls]`` of pyproject.toml; None as long as the project has none."""
    import tomllib  # the documentation needs Python 3.11, the tests of this file do not

    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    address: str = project["urls"][key]
    return None if ".invalid/" in address else address


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each ``<!-- generated: name -->`` by the generated part of that name."""
    return re.sub(r"<!-- generated: (\w+) -->", lambda found: GENERATED[found[1]](), markdown)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def patches() -> str:
    """The table of all patches of torch, with the reason for each."""
    from fxonnx._capture.patches import LOADING_PATCHES, SPEED_PATCHES, TRACING_PATCHES
    from fxonnx._capture.patches.table import CAPTURE_PATCHES, VALUE_PATCHES
    from fxonnx._extensions import all_extensions

    others = [patch for patch in CAPTURE_PATCHES if patch not in (*TRACING_PATCHES, *SPEED_PATCHES)]
    groups = (
        ("the stages capture and prepare", TRACING_PATCHES),
        ("`torch.export`", others),
        ("`torch.export`, for speed", SPEED_PATCHES),
        ("`torch.export`, if Python branches on values of tensors", VALUE_PATCHES),
        (
            "`torch.export`, for models to which an add-on applies",
            [row for one in all_extensions() for row in one.patches],
        ),
        ("`torch.export.load`", LOADING_PATCHES),
    )
    rows = [
        (f"`{patch.target}`", type(patch).__name__, patch.kind.value, patch.why, where)
        for where, group in groups
        for patch in group
    ]
    return _table(("target", "class", "kind", "reason", "applied during"), rows)


def patterns() -> str:
    """The table of fusion patterns, in the order in which they are applied."""
    from fxonnx._prepare.patterns import PATTERNS
    from fxonnx._targets import PROFILES

    def targets(name: str, default: bool) -> str:
        changed = [
            f"`{target}`" for target, profile in PROFILES.items() if profile.patterns.get(name, default) != default
        ]
        if not default:
            return ", ".join(changed) or "none"
        return f"any but {', '.join(changed)}" if changed else "any"

    rows = [
        (
            f"`{name}`",
            (pattern.apply.__doc__ or "").strip().partition("\n")[0],
            f"from opset {pattern.since} on" if pattern.since else "any",
            targets(name, pattern.for_all),
            f"`{pattern.apply.__module__}`",
        )
        for name, pattern in PATTERNS.items()
    ]
    return _table(("name", "rewrite", "opset", "target", "module"), rows)


def examples() -> str:
    """The scripts of ``examples/``, each under its docstring."""
    parts = []
    for path in sorted(Path(__file__).parent.parent.glob("examples/*.py")):
        source = path.read_text()
        title = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].rstrip(".")
        code = source.split('"""', 2)[2].strip()
        parts.append(f"## {title}\n\n`examples/{path.name}`\n\n```python\n{code}\n```")
    return "\n\n".join(parts)


def targets() -> str:
    """The table of targets, with the source of each table of kernels."""
    from fxonnx._targets import PROFILES

    rows = [
        (f"`{name}`", profile.runtime, str(profile.default_opset), str(profile.newest_opset), profile.kernels.source)
        for name, profile in PROFILES.items()
    ]
    return _table(("target", "runtime", "default opset", "newest opset", "source of the table of kernels"), rows)


def matrix() -> str:
    """The table of tested combinations of versions, from the results of ``make matrix``."""
    rows: list[dict[str, str]] = json.loads((Path(__file__).parent / "matrix.json").read_text())
    return _table(rows[0], (row.values() for row in rows))


def changelog() -> str:
    """``CHANGELOG.md`` without its title."""
    text = (Path(__file__).parent.parent / "CHANGELOG.md").read_text()
    return text.partition("\n\n")[2].replace("(docs/", "(")


def operators() -> str:
    """The tables of ``translations/SUPPORT.md``, with the names of operators as code."""
    page = (Path(__file__).parent.parent / "translations" / "SUPPORT.md").read_text()
    return re.sub(r"^\| (?!operator )(\w[\w.]*) \|", r"| `\1` |", page.partition("\n\n")[2], flags=re.MULTILINE)


def commands() -> str:
    """A section for each command: its help, and a table of its arguments and options."""
    import typer

    from fxonnx._cli.commands import app

    parts = []
    for name, command in typer.main.get_command(app).commands.items():
        text = "\n\n".join(
            f"    {paragraph.removeprefix('Example: ')}" if paragraph.startswith("Example: ") else paragraph
            for paragraph in (command.help or "").split("\n\n")
        )
        rows = [_parameter(one) for one in command.params if one.name != "help"]
        parts.append(f"## fxonnx {name}\n\n{text}\n\n{_table(('parameter', 'default', ''), rows)}")
    return "\n\n".join(parts)


def _parameter(parameter: Any) -> tuple[str, str, str]:
    """A row of the table of a command."""
    is_argument, shape = parameter.param_type_name == "argument", parameter.metavar
    names = [shape or parameter.name.upper()] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    if shape and not is_argument:
        names[-1] = f"{names[-1]} {shape}"
    default = "required" if parameter.required else "" if parameter.default in (None, False) else parameter.default
    shown = {True: "on"}.get(default, f"`{default}`" if default not in ("", "required") else default)
    return ", ".join(f"`{name}`" for name in names), shown, parameter.help or ""


GENERATED: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "changelog": changelog,
        "commands": commands,
        "examples": examples,
        "matrix": matrix,
        "operators": operators,
        "patches": patches,
        "patterns": patterns,
        "targets": targets,
    }
)
