"""The address of the documentation, which the metadata of the package has from ``[project.urls]`` in pyproject.toml."""

from __future__ import annotations

from importlib.metadata import metadata

__all__ = ["documentation_address", "page_address"]


def documentation_address() -> str:
    """The address of the documentation, "" as long as there is none."""
    urls = dict(entry.split(", ", 1) for entry in metadata("fxonnx").get_all("Project-URL", []))
    address = urls.get("Documentation", "")
    return "" if ".invalid/" in address else address


def page_address(page: str) -> str:
    """The address of a page of the documentation; as long as there is none, its file in the repository.

    Args:
        page: The page without suffix, for example ``errors/FX001``.
    """
    site = documentation_address()
    return f"{site}/{page}.html" if site else f"docs/{page}.md"
