"""The description on an index page: README.md with absolute links, since an index has none of the files beside it.

Everything else is in ``pyproject.toml``, also the address of the repository: nothing else names it.
"""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def value_of(key: str) -> str:
    """The text of a key of pyproject.toml; Python 3.10 has no tomllib."""
    return re.findall(rf'^{key} = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[0]


def description() -> str:
    """README.md, whose links lead to the files of this version in the repository."""
    repository, tag = value_of("Repository"), f"v{value_of('version')}"

    def absolute(link: re.Match[str]) -> str:
        mark, text, path = link.groups()
        return f"{mark}[{text}]({repository}/{'raw' if mark else 'blob'}/{tag}/{path})"

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", absolute, text)


setup(long_description=description(), long_description_content_type="text/markdown")
