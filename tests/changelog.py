"""Release notes: the section of a version in ``CHANGELOG.md``.

python -m tests.changelog 0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["CHANGELOG", "cut", "entries", "release_notes"]

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"


def _sections(text: str) -> dict[str, str]:
    """Version to its section, the newest first, without links at the end of the file."""
    parts = re.split(r"^## \[([^\]]+)\].*\n", text, flags=re.MULTILINE)
    bodies = (re.sub(r"^\[[^\]]+\]: \S+\n?", "", body, flags=re.MULTILINE).strip() for body in parts[2::2])
    return dict(zip(parts[1::2], bodies, strict=True))


def release_notes(text: str, version: str) -> str:
    """The section of a version.

    Args:
        text: The changelog, in the form of Keep a Changelog.
        version: The version, ``Unreleased`` for the next one.

    Raises:
        ValueError: If it has no section, or an empty one.
    """
    sections = _sections(text)
    if version not in sections:
        raise ValueError(f"CHANGELOG.md has no section {version}, only {', '.join(sections)}")
    if not sections[version]:
        raise ValueError(f"the section {version} of CHANGELOG.md is empty")
    return f"{sections[version]}\n"


def cut(text: str, version: str, date: str) -> str:
    """The changelog with the section "Unreleased" as the section of a version, and an empty new one."""
    return text.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{version}] - {date}\n", 1)


def entries(text: str, headings: tuple[str, ...]) -> str:
    """The text below some headings, such as "Removed", in the newest section that is not empty."""
    newest = next((body for body in _sections(text).values() if body), "")
    parts = re.split(r"^### (\w+)\n", newest, flags=re.MULTILINE)
    return "".join(body for heading, body in zip(parts[1::2], parts[2::2], strict=True) if heading in headings)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.changelog VERSION")
    try:
        print(release_notes(CHANGELOG.read_text(), sys.argv[1]), end="")
    except ValueError as error:
        sys.exit(str(error))
