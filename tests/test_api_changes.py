"""The check of the public API against a release, and the release notes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .changelog import CHANGELOG, release_notes

pytest.importorskip("griffe", reason="griffe is installed with the extra docs, which needs Python 3.11")

from . import api_changes
from .api_changes import BreakingChange, breaking_changes, unlisted

OLD = {
    "__init__": """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import tools as tools
    from ._work import Result, former, removed, run, unchanged

__all__ = ["Result", "former", "removed", "run", "unchanged"]
""",
    "_work": """
from dataclasses import dataclass

@dataclass(frozen=True)
class Result:
    size: int
    name: str

    def save(self, path): ...
    def _private(self, path): ...

def run(model, args, verbose=False): ...
def unchanged(x): ...
def removed(): ...
def former(x): ...
def private(x, y): ...
""",
    "tools": """
__all__ = ["tool"]

def tool(a): ...
""",
}
NEW = {
    "__init__": """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import tools as tools
    from ._moved import Result
    from ._work import run, unchanged

__all__ = ["Result", "run", "unchanged"]

def __getattr__(name): ...
""",
    "_moved": """
from dataclasses import dataclass

@dataclass(frozen=True)
class Result:
    size: int

    def save(self, path, *, atomic=True): ...
    def _private(self): ...
""",
    "_work": """
def run(model, args, *, target=None): ...
def unchanged(x, y=None): ...
def private(x): ...
""",
    "tools": """
__all__ = ["tool"]

def tool(a, b): ...
""",
}
FOUND = {
    "src/pack/_work.py:2: pack.run(verbose): Parameter was removed",
    "before: src/pack/_work.py:14: pack.removed: Public object was removed",
    "before: src/pack/_work.py:15: pack.former: Public object was removed",
    "before: src/pack/_work.py:7: pack.Result.name: Public object was removed",
    "src/pack/_moved.py:4: pack.Result.__init__(name): Parameter was removed",
    "src/pack/tools.py:4: pack.tools.tool(b): Parameter was added as required",
}
PACKAGES = {"src": ("pack", "pack.tools")}


def tree(root: Path, files: dict[str, str]) -> Path:
    folder = root / "src" / "pack"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return root


@pytest.fixture
def changes(tmp_path: Path) -> list[BreakingChange]:
    return breaking_changes(tree(tmp_path / "old", OLD), tree(tmp_path / "new", NEW), PACKAGES)


def test_breaking_changes_are_found(changes: list[BreakingChange]) -> None:
    """Optional parameters, private names and the move of a definition break nothing."""
    assert {str(change) for change in changes} == FOUND


def test_a_removed_module_is_found(tmp_path: Path) -> None:
    without = {name: text for name, text in OLD.items() if name != "tools"}
    (found,) = breaking_changes(tree(tmp_path / "old", OLD), tree(tmp_path / "new", without), PACKAGES)
    assert str(found) == "before: src/pack/tools.py:1: pack.tools: Public object was removed"
    assert not breaking_changes(tree(tmp_path / "before", without), tree(tmp_path / "after", OLD), PACKAGES)


CHANGES = """# Changelog

## [Unreleased]

## [0.2.0] - 2027-01-01

### Added

- `run` has `verbose`, which does not count here.

### Changed

- `pack.tools.tool(a, b)`: `b` is required.
- `run` in general.

### Removed

- `removed()` and the field `Result.name` (also `Result(name=...)`),
  without a replacement.

### Deprecated

- `pack.former`: use `run`.

## [0.1.0] - 2026-01-01

### Removed

- `run(verbose=)`

[0.1.0]: https://example.org
"""


def test_the_changelog_lists_changes(changes: list[BreakingChange]) -> None:
    """An entry names the function and the parameter."""
    assert [change.detail for change in unlisted(changes, CHANGES)] == ["verbose"]
    assert unlisted(changes, CHANGES.replace("`run` in general", "`run(verbose=...)` has no effect")) == []
    assert set(unlisted(changes, "# Changelog\n")) == set(changes)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    tree(tmp_path, OLD)
    monkeypatch.setattr(api_changes, "ROOT", tmp_path)
    monkeypatch.setattr(api_changes, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(api_changes, "PACKAGES", PACKAGES)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "release")
    assert api_changes.main([]) == 2
    assert capsys.readouterr().err == "the repository has no tag: pass a git ref, python -m tests.api_changes REF\n"
    assert api_changes.main(["v9"]) == 2
    assert capsys.readouterr().err.startswith("v9: fatal: ")
    git("tag", "v0.1.0")
    assert api_changes.main([]) == 0
    assert capsys.readouterr().out == "0 breaking changes since v0.1.0, 0 not in CHANGELOG.md\n"
    for name, text in NEW.items():
        (tmp_path / "src" / "pack" / f"{name}.py").write_text(text)
    assert api_changes.main(["v0.1.0"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"{len(FOUND)} breaking changes since v0.1.0, 1 not in CHANGELOG.md"
    assert [line for line in printed[:-1] if line.endswith("(not in CHANGELOG.md)")] == [
        "src/pack/_work.py:2: pack.run(verbose): Parameter was removed (not in CHANGELOG.md)"
    ]


def test_release_notes() -> None:
    assert release_notes(CHANGES, "0.1.0") == "### Removed\n\n- `run(verbose=)`\n"
    assert release_notes(CHANGES, "0.2.0").startswith("### Added\n\n- `run` has")
    with pytest.raises(ValueError, match=r"has no section 0\.3\.0, only Unreleased, 0\.2\.0, 0\.1\.0"):
        release_notes(CHANGES, "0.3.0")
    with pytest.raises(ValueError, match=r"the section Unreleased of CHANGELOG\.md is empty"):
        release_notes(CHANGES, "Unreleased")


def test_the_command_for_release_notes() -> None:
    command = [sys.executable, "-m", "tests.changelog"]
    done = subprocess.run([*command, "Unreleased"], cwd=CHANGELOG.parent, capture_output=True, text=True, check=True)
    assert "### Added\n" in done.stdout
    assert "## [" not in done.stdout
    wrong = subprocess.run([*command, "9.9"], cwd=CHANGELOG.parent, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr.partition(",")[0]) == (1, "CHANGELOG.md has no section 9.9")
