"""Prepare a release: versions, changelog, files to upload, tag.

    python -m tests.release 0.1.0a1      # as make release VERSION=0.1.0a1

The commit is made beside the checkout, in a worktree of its own. Wheel and sdist are built there, checked, installed one after the
other without their dependencies, and export a model. Only then the commit gets the tag ``v0.1.0a1`` and becomes the head of the
present branch, and ``build/release`` has the files. Nothing is pushed or uploaded; after an error nothing has changed.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from packaging.version import InvalidVersion, Version

from .changelog import cut, release_notes

__all__ = ["EXPORT", "ReleaseError", "build", "installed_export", "main", "prepare", "release"]

ROOT = Path(__file__).parent.parent
VERSIONED = {
    "pyproject.toml": r'(?<=^version = ")[^"]+',
    "exporter/fxonnx/__init__.py": r'(?<=^__version__ = ")[^"]+',
    "CITATION.cff": r"(?<=^version: ).+",
    "recipe/recipe.yaml": r'(?<=^  version: ")[^"]+',
}
"""File to the place of the version in it."""

EXPORT = """
import sys
import torch
import fxonnx
import fxonnx_translations

assert fxonnx.__file__.startswith(sys.argv[1]) and fxonnx_translations.__file__.startswith(sys.argv[1])
x = torch.rand(2, 4)
program = fxonnx.export(torch.nn.Linear(4, 3).eval(), (x,), "model.onnx", verify=True)
print(fxonnx.__version__, len(program.model.graph))
"""
"""A script that exports with the packages below the directory in its argument, and prints their version."""


class ReleaseError(Exception):
    """A release that cannot be made; nothing has changed."""


def build(source: Path, output: Path) -> tuple[Path, Path]:
    """Build wheel and sdist of a source tree, which gets files as well: (wheel, sdist)."""
    # No isolation: the build must not need the network.
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), cwd=source)
    (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
    return wheel, sdist


def installed_export(folder: Path, *install: str, cwd: Path | None = None) -> str:
    """Install something into an empty directory, and export there with it.

    Args:
        folder: An empty directory; "site" in it gets the packages.
        *install: Arguments of ``pip install``. Dependencies come from the running interpreter.
        cwd: The directory in which pip runs.

    Returns:
        The version of the installed package, and the number of nodes of a linear layer.
    """
    site = folder / "site"
    flags = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--target", str(site))
    _run(sys.executable, "-m", "pip", "install", *flags, *install, cwd=cwd or folder)
    return _run(sys.executable, "-c", EXPORT, str(site), cwd=folder, PYTHONPATH=str(site))


def prepare(root: Path, version: str, date: str) -> None:
    """Write the version into the files that have it, and make a section of "Unreleased" in the changelog."""
    for name, place in VERSIONED.items():
        text, count = re.subn(place, version, (root / name).read_text(), count=1, flags=re.MULTILINE)
        if not count:
            raise ReleaseError(f"{name} has no version")
        (root / name).write_text(text)
    changelog = root / "CHANGELOG.md"
    changelog.write_text(cut(changelog.read_text(), version, date))


def release(root: Path, version: str, check: Callable[[Path, Path], None]) -> None:
    """Make a release of the head of the present branch.

    Args:
        root: The checkout.
        version: The new version.
        check: Called with the source tree of the release and an empty directory, to which it writes the files to upload.

    Raises:
        ReleaseError: If the version or the checkout does not allow it.
    """
    _refuse(root, version)
    with _worktree(root) as copy, tempfile.TemporaryDirectory() as files:
        prepare(copy, version, datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat())
        _run("git", "commit", "--quiet", "--all", "--message", f"Release {version}", cwd=copy)
        commit = _run("git", "rev-parse", "HEAD", cwd=copy)
        check(copy, Path(files))
        _run("git", "merge", "--quiet", "--ff-only", commit, cwd=root)
        _run("git", "tag", "--annotate", f"v{version}", "--message", f"fxonnx {version}", commit, cwd=root)
        output = root / "build/release"
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(files, output)


def _refuse(root: Path, version: str) -> None:
    """Raise an error for a version or checkout of which no release can be made."""
    try:
        written = str(Version(version))
    except InvalidVersion:
        raise ReleaseError(f"{version!r} is not a version; write it as 0.1.0a1") from None
    if written != version:
        raise ReleaseError(f"write the version {version!r} as {written}")
    if changed := _run("git", "status", "--porcelain", cwd=root):
        raise ReleaseError(f"the checkout has changes; commit or remove them first:\n{changed}")
    if _run("git", "tag", "--list", f"v{version}", cwd=root):
        raise ReleaseError(f"the tag v{version} exists")
    try:
        release_notes((root / "CHANGELOG.md").read_text(), "Unreleased")
    except ValueError as error:
        raise ReleaseError(str(error)) from None
    if address := re.search(r'"(https://[^"/]+\.invalid\b[^"]*)"', (root / "pyproject.toml").read_text()):
        raise ReleaseError(f"{address[1]} is not an address; write the project's to [project.urls] in pyproject.toml")


@contextmanager
def _worktree(root: Path) -> Iterator[Path]:
    """A copy of the head of a checkout, which is removed in the end."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "source")
        _run("git", "worktree", "add", "--quiet", "--detach", str(copy), cwd=root)
        try:
            yield copy
        finally:
            _run("git", "worktree", "remove", "--force", str(copy), cwd=root)


def _check(source: Path, files: Path) -> None:
    """Build wheel and sdist, check their descriptions, and export with each of them installed."""
    version = re.findall(VERSIONED["CITATION.cff"], (source / "CITATION.cff").read_text(), re.MULTILINE)[0]
    archives = build(source, files)
    print(_run(sys.executable, "-m", "twine", "check", "--strict", *map(str, archives), cwd=files))
    for archive in archives:
        with tempfile.TemporaryDirectory() as folder:
            if (found := installed_export(Path(folder), str(archive))) != f"{version} 1":
                raise ReleaseError(f"{archive.name} is version and nodes {found}, expected {version} and 1")
        print(f"{archive.name}: installed, exports")


def _run(*command: str, cwd: Path, **environment: str) -> str:
    """The output of a command; ReleaseError with it if it fails."""
    variables = os.environ | environment
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout.strip()


def main(arguments: list[str]) -> None:
    """The command line: one version."""
    if len(arguments) != 1:
        sys.exit("usage: python -m tests.release VERSION")
    (version,) = arguments
    try:
        release(ROOT, version, _check)
    except ReleaseError as error:
        sys.exit(f"no release: {error}")
    print(f"v{version} is tagged, build/release has the files; push the tag and upload them, see docs/release.md")


if __name__ == "__main__":
    main(sys.argv[1:])
