"""Name allocator: every name of a model comes from one allocator, so that names are unique."""

from __future__ import annotations

__all__ = ["NameAllocator"]


class NameAllocator:
    """Allocates the names of one model; a name that is taken gets the first free suffix ``_1``, ``_2`` ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def unique(self, name: str) -> str:
        """Reserve and return ``name``, or the first free variant of it."""
        candidate = name
        while candidate in self._taken:
            count = self._next.get(name, 0) + 1
            self._next[name] = count
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate

    def helper(self) -> str:
        """Reserve a name for an intermediate value within a translation."""
        return self._counted("val")

    def constant(self) -> str:
        """Reserve a name for a literal."""
        return self._counted("const")

    def _counted(self, prefix: str) -> str:
        while True:
            count = self._next.get(prefix, 0)
            self._next[prefix] = count + 1
            candidate = f"{prefix}_{count}"
            if candidate not in self._taken:
                self._taken.add(candidate)
                return candidate
