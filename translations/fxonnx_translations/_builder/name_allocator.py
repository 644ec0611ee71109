"""Unique names by construction: every name of a model comes from one allocator."""

from __future__ import annotations

__all__ = ["NameAllocator"]


class NameAllocator:
    """Allocates the names of one model; a taken name gets the first free ``_1``, ``_2`` ... behind it."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def unique(self, name: str) -> str:
        """``name``, or the first free variant of it; taken from now on."""
        candidate = name
        while candidate in self._taken:
            count = self._next.get(name, 0) + 1
            self._next[name] = count
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate

    def helper(self) -> str:
        """A name for a value between the nodes of the captured graph."""
        return self._counted("val")

    def constant(self) -> str:
        """A name for a literal."""
        return self._counted("const")

    def _counted(self, prefix: str) -> str:
        while True:
            count = self._next.get(prefix, 0)
            self._next[prefix] = count + 1
            candidate = f"{prefix}_{count}"
            if candidate not in self._taken:
                self._taken.add(candidate)
                return candidate
