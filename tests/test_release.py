"""make release: refusals, written files, and a checkout that stays as it was after a failed check."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import fxonnx

from .release import VERSIONED, ReleaseError, release

ROOT = Path(__file__).parent.parent
FILES = ("CHANGELOG.md", *VERSIONED)


def git(root: Path, *command: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *identity, *command], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the files that have the version, and a published address."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")
    root = tmp_path / "checkout"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    project = root / "pyproject.toml"
    project.write_text(project.read_text().replace("fxonnx.invalid", "example.org"))
    (root / ".gitignore").write_text("build/\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=Start")
    return root


def no_check(source: Path, files: Path) -> None:
    (files / "package.whl").touch()


def test_a_release(checkout: Path) -> None:
    notes = (checkout / "CHANGELOG.md").read_text().partition("## [Unreleased]\n")[2].strip()
    (checkout / "build/release").mkdir(parents=True)
    (checkout / "build/release/old.whl").touch()
    seen = []

    def check(source: Path, files: Path) -> None:
        seen.extend(
            re.findall(place, (source / name).read_text(), re.MULTILINE)[0] for name, place in VERSIONED.items()
        )
        assert git(source, "status", "--porcelain") == ""
        assert git(checkout, "tag") == ""
        no_check(source, files)

    release(checkout, "0.1.0a1", check)
    assert seen == ["0.1.0a1"] * 4
    assert git(checkout, "describe", "--tags") == "v0.1.0a1"
    assert git(checkout, "log", "--format=%s") == "Release 0.1.0a1\nStart"
    assert git(checkout, "branch", "--show-current") == "main"
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "worktree", "list").count("\n") == 0
    assert [path.name for path in (checkout / "build/release").iterdir()] == ["package.whl"]
    changelog = (checkout / "CHANGELOG.md").read_text()
    assert re.search(r"## \[Unreleased\]\n\n## \[0\.1\.0a1\] - \d{4}-\d\d-\d\d\n", changelog)
    assert changelog.strip().endswith(notes)
    with pytest.raises(ReleaseError, match=r"the section Unreleased of CHANGELOG\.md is empty"):
        release(checkout, "0.1.0a2", no_check)


def test_a_failed_check_leaves_the_checkout_as_it_was(checkout: Path) -> None:
    def check(source: Path, files: Path) -> None:
        raise ReleaseError("twine check failed")

    before = git(checkout, "rev-parse", "HEAD")
    with pytest.raises(ReleaseError, match="twine check failed"):
        release(checkout, "0.1.0a1", check)
    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "status", "--porcelain") == git(checkout, "tag") == ""
    assert git(checkout, "worktree", "list").count("\n") == 0
    assert not (checkout / "build").exists()


def test_refusals(checkout: Path) -> None:
    for version, match in (
        ("one", "'one' is not a version; write it as 0.1.0a1"),
        ("0.1.0-alpha.1", "write the version '0.1.0-alpha.1' as 0.1.0a1"),
    ):
        with pytest.raises(ReleaseError, match=re.escape(match)):
            release(checkout, version, no_check)
    (checkout / "new.txt").touch()
    with pytest.raises(ReleaseError, match=r"the checkout has changes; commit or remove them first:\n\?\? new\.txt"):
        release(checkout, "0.1.0a1", no_check)
    (checkout / "new.txt").unlink()
    git(checkout, "tag", "v0.1.0a1")
    with pytest.raises(ReleaseError, match=r"the tag v0\.1\.0a1 exists"):
        release(checkout, "0.1.0a1", no_check)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    git(checkout, "commit", "--quiet", "--all", "--message=Address")
    if "fxonnx.invalid" in (ROOT / "pyproject.toml").read_text():
        with pytest.raises(
            ReleaseError, match=r"https://fxonnx\.invalid/fxonnx is not an address; .*\[project\.urls\]"
        ):
            release(checkout, "0.1.0a2", no_check)


def test_all_files_have_the_version() -> None:
    found = {name: re.findall(place, (ROOT / name).read_text(), re.MULTILINE)[0] for name, place in VERSIONED.items()}
    assert set(found.values()) == {fxonnx.__version__}
