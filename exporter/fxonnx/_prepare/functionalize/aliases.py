"""The memory of a program while its writes are replayed on values.

Every memory that is written is the tree of the aliases of one tensor. A write only notes the new value of the alias it
went through; the other aliases are brought up to date when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from .emit import Emitter
from .view_inverses import Source, View, disjoint

__all__ = ["Alias", "Memory"]


@dataclass(eq=False)
class _Log:
    """The writes to one memory.

    Attributes:
        version: How many there were.
        writes: Those whose effect is not covered by a later one, such that of two that overlap the newer comes later.
    """

    version: int = 0
    writes: list[_Write] = field(default_factory=list)


class Alias:
    """One way to look at a memory.

    Attributes:
        parent: What it is a view of; the tensor that owns the memory is its own parent.
        view: How the parent is looked at.
        val: Fake tensor of its shape and dtype.
        value: A node that holds its content as of ``version``; None when it was never needed.
        version: ``value`` knows of this many writes, as far as they overlap.
        log: The writes to the memory.
        depth: Number of views between it and the owner.
    """

    __slots__ = ("depth", "log", "parent", "val", "value", "version", "view")

    def __init__(self, parent: Alias | None, view: View, val: torch.Tensor) -> None:
        self.parent = parent or self
        self.view = view
        self.val = val
        self.value: Node | None = None
        self.version = -1
        self.log: _Log = parent.log if parent else _Log()
        self.depth: int = parent.depth + 1 if parent else 0

    @classmethod
    def owner(cls, node: Node, val: torch.Tensor) -> Alias:
        """The tensor that owns a memory, with ``node`` as its content before all writes."""
        alias = cls(None, View(node, val), val)
        alias.value, alias.version = node, 0
        return alias

    @property
    def owner_alias(self) -> Alias:
        """The tensor that owns the memory."""
        current = self
        while current.depth:
            current = current.parent
        return current

    @property
    def is_untouched(self) -> bool:
        """Whether the memory was not written so far."""
        return not self.log.version

    def path_from(self, ancestor: Alias) -> list[Alias]:
        """The aliases below ``ancestor`` down to this one."""
        path = []
        current = self
        while current is not ancestor:
            path.append(current)
            current = current.parent
        path.reverse()
        return path

    def is_within(self, ancestor: Alias) -> bool:
        """Whether this is ``ancestor`` or a view of it."""
        current = self
        while current.depth > ancestor.depth:
            current = current.parent
        return current is ancestor


@dataclass(frozen=True)
class _Write:
    alias: Alias
    value: Node
    version: int


def _common(left: Alias, right: Alias) -> Alias:
    while left is not right:
        if left.depth >= right.depth:
            left = left.parent
        else:
            right = right.parent
    return left


def _overlap(left: Alias, right: Alias) -> bool:
    common = _common(left, right)
    if common is left or common is right:
        return True
    first, second = left.path_from(common)[0], right.path_from(common)[0]
    return not disjoint(first.view.span(common.val), second.view.span(common.val))


class Memory:
    """Reads and writes of aliases.

    Args:
        emitter: Adds the nodes that bring an alias up to date.
        resolve: Gives the node that holds the current content of any node of the graph.
    """

    def __init__(self, emitter: Emitter, resolve: Callable[[Node], Node]) -> None:
        self._emitter = emitter
        self._resolve = resolve

    def write(self, alias: Alias, value: Node) -> None:
        """Replaces the content of an alias by ``value``, a node of the same shape and dtype."""
        alias.log.version += 1
        alias.value, alias.version = value, alias.log.version
        self._note(_Write(alias, value, alias.log.version))

    def read(self, alias: Alias) -> Node:
        """A node that holds the current content of the alias."""
        log = alias.log
        if alias.value is not None and alias.version == log.version:
            return alias.value
        relevant = [write for write in log.writes if _overlap(write.alias, alias)]
        newest = max((write.version for write in relevant), default=0)
        if alias.value is not None and alias.version >= newest:
            return alias.value
        covering = max((at for at, write in enumerate(relevant) if alias.is_within(write.alias)), default=-1)
        covered = relevant[covering].version if covering >= 0 else 0
        partial = relevant[covering + 1 :]
        if not partial:
            return self._fetch(alias, covered)
        top = alias
        for write in partial:
            top = _common(top, write.alias)
        if top is not alias:
            # The writes went through relatives, not through views of this alias: what contains them all comes first.
            self.read(top)
            return self.read(alias)
        value = self._fetch(alias, covered)
        for write in partial:
            if write.version > alias.version:
                value = self._scatter(alias, value, write)
        alias.value, alias.version = value, log.version
        self._note(_Write(alias, value, newest))
        return value

    def glimpse(self, alias: Alias) -> Node:
        """A node of the shape and dtype of the alias, whatever its content."""
        return self.read(alias) if alias.value is None else alias.value

    @staticmethod
    def _note(write: _Write) -> None:
        writes = write.alias.log.writes
        writes[:] = [earlier for earlier in writes if not earlier.alias.is_within(write.alias)]
        writes.append(write)

    def _fetch(self, alias: Alias, needed: int) -> Node:
        """The content of an alias, given that no write after ``needed`` matters to who asks."""
        if alias.value is None or alias.version < needed:
            parent = self._fetch(alias.parent, needed)
            alias.value = alias.view.apply(self._emitter, parent, self._resolve)
            alias.version = alias.parent.version
        return alias.value

    def _scatter(self, top: Alias, value: Node, write: _Write) -> Node:
        """The content of ``top`` after a write to a view of it, ``value`` being its content before."""
        path = write.alias.path_from(top)

        def put(depth: int, before: Callable[[], Node]) -> Node:
            if depth == len(path):
                return write.value
            alias = path[depth]
            after = put(depth + 1, lambda: self._before(alias, write, before))
            if alias.version < write.version:
                alias.value, alias.version = after, write.version
            source = Source(alias.parent.val, before, lambda: alias.parent.value or before())
            return alias.view.write_back(self._emitter, source, after)

        return put(0, lambda: value)

    def _before(self, alias: Alias, write: _Write, parent: Callable[[], Node]) -> Node:
        """The content of an alias just before ``write``: the one it has, else a view of its parent's content then."""
        needed = max(
            (
                earlier.version
                for earlier in alias.log.writes
                if earlier.version < write.version and _overlap(earlier.alias, alias)
            ),
            default=0,
        )
        if alias.value is not None and alias.version >= needed:
            return alias.value
        return alias.view.apply(self._emitter, parent(), self._resolve)
