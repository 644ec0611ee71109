"""Breaking changes of the public API since a release, which ``CHANGELOG.md`` must list.

    python -m tests.api_changes          # since the last tag
    python -m tests.api_changes v0.1.0

griffe reads the sources of both versions; nothing is imported. Each change is a line with the place of the definition.
A change is listed if an entry below "Changed", "Removed" or "Deprecated" in the newest section of the changelog names the
function, class or attribute in backticks, and the parameter: a deprecated name that only ``__getattr__`` knows looks removed.
The exit code is 1 if a change is not listed, and 2 if the release does not exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import griffe

from .changelog import CHANGELOG, entries

__all__ = ["BreakingChange", "breaking_changes", "main"]

ROOT = Path(__file__).parent.parent
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "exporter": ("fxonnx", "fxonnx.errors", "fxonnx.genai", "fxonnx.huggingface"),
    "translations": ("fxonnx_translations",),
}
"""Folder to the modules in it whose ``__all__`` is public, see docs/stability.md; the first one is the package."""
HEADINGS = ("Changed", "Removed", "Deprecated")


@dataclass(frozen=True)
class BreakingChange:
    """A difference that may break a user's program.

    Attributes:
        name: Public name of the function, class or attribute.
        kind: The kind, in griffe's words.
        detail: The parameter, or "".
        place: File and line, of the old version for a name that was removed.
    """

    name: str
    kind: str
    detail: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}: {self.name}{self.detail and f'({self.detail})'}: {self.kind}"

    def is_listed(self, listed: Iterable[str]) -> bool:
        """Whether one of the entries of a changelog names the function, class or attribute, and the parameter."""
        short_name = self.name.removesuffix(".__init__").rpartition(".")[2]
        wanted = {short_name, self.detail} - {""}
        return any(wanted <= {*re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", one)))} for one in listed)


def breaking_changes(old: Path, new: Path, packages: Mapping[str, Sequence[str]]) -> list[BreakingChange]:
    """Compare the public API of two trees.

    Args:
        old: Root of the tree of the release.
        new: Root of the other tree.
        packages: Folder to the names of the modules in it.
    """
    found: dict[BreakingChange, None] = {}
    for folder, modules in packages.items():
        before, after = (
            griffe.load(modules[0], search_paths=[root / folder], allow_inspection=False) for root in (old, new)
        )
        for module in modules:
            path = module.partition(".")[2]
            if path and not (path in before.members and path in after.members):
                continue  # a module that was removed is a change of its package
            pair = [package[path] if path else package for package in (before, after)]
            names = {path: name for one in pair for path, name in _public_names(one, module).items()}
            found.update(dict.fromkeys(_change(one, names, (old, new)) for one in griffe.find_breaking_changes(*pair)))
    return list(found)


def _public_names(module: griffe.Object | griffe.Alias, name: str) -> dict[str, str]:
    """Path of each definition to its public name."""
    return {member.canonical_path: f"{name}.{key}" for key, member in module.members.items() if member.is_public}


def _change(breakage: griffe.Breakage, names: Mapping[str, str], roots: Sequence[Path]) -> BreakingChange:
    changed = breakage.obj
    path = changed.canonical_path
    owner = next((one for one in names if path == one or path.startswith(f"{one}.")), path)
    parameter = next(
        (one for one in (breakage.old_value, breakage.new_value) if isinstance(one, griffe.Parameter)), None
    )
    file = Path(str(changed.filepath))
    root = next(root for root in roots if file.is_relative_to(root))
    origin = "before: " if root == roots[0] else ""
    return BreakingChange(
        names.get(owner, owner) + path.removeprefix(owner),
        breakage.kind.value,
        parameter.name if parameter is not None else "",
        f"{origin}{file.relative_to(root)}:{_line(changed)}",
    )


def _line(changed: griffe.Object | griffe.Alias) -> int:
    """The line of a definition; the constructor of a dataclass has none of its own, and a module is a whole file."""
    owner = changed if changed.lineno else changed.parent
    return (owner.lineno if owner is not None else None) or 1


def _last_tag() -> str | None:
    done = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def _extract(ref: str, folder: Path) -> None:
    """Write the packages of a commit to a folder."""
    command = ["git", "archive", ref, *PACKAGES]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def unlisted(changes: Sequence[BreakingChange], changelog: str) -> list[BreakingChange]:
    """The changes that the newest section of a changelog does not list."""
    listed = re.split(r"^- ", entries(changelog, HEADINGS), flags=re.MULTILINE)
    return [change for change in changes if not change.is_listed(listed)]


def main(arguments: Sequence[str]) -> int:
    """Print the changes since a release.

    Args:
        arguments: The git ref of the release, or nothing for the last tag.

    Returns:
        The exit code.
    """
    ref = arguments[0] if arguments else _last_tag()
    if ref is None:
        print("the repository has no tag: pass a git ref, python -m tests.api_changes REF", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        try:
            _extract(ref, Path(folder))
        except subprocess.CalledProcessError as error:
            print(f"{ref}: {error.stderr.decode().strip()}", file=sys.stderr)
            return 2
        changes = breaking_changes(Path(folder), ROOT, PACKAGES)
    missing = unlisted(changes, CHANGELOG.read_text())
    for change in changes:
        print(f"{change}{' (not in CHANGELOG.md)' if change in missing else ''}")
    print(f"{len(changes)} breaking changes since {ref}, {len(missing)} not in CHANGELOG.md")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
