"""Model of mutated memory: the current value of each alias of a storage.

The aliases of a storage form a tree of views with the tensor that owns the storage as root. A write records the new
value of the alias written through; the other aliases are updated lazily, when they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .emit import Emitter, refuse
from .view_inverses import View, ViewBase, disjoint

__all__ = ["Alias", "Memory"]


@dataclass(eq=False)
class _Log:
    """The writes to one storage.

    Attributes:
        version: Number of writes so far.
        writes: The writes not covered by a later one; of two overlapping writes, the newer comes later.
    """

    version: int = 0
    writes: list[_Write] = field(default_factory=list)


class Alias:
    """A tensor that shares a mutated storage: its owner or a view.

    Attributes:
        parent: The alias it is a view of; the owner of the storage is its own parent.
        view: The view operation applied to the parent.
        val: Fake tensor of its shape and dtype.
        value: A node with its content as of ``version``; None if it was never needed.
        version: Number of writes that ``value`` takes into account, as far as they overlap.
        log: The writes to the storage.
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
        """The owner of a storage, with ``node`` as its content before all writes."""
        alias = cls(None, View(node, val), val)
        alias.value, alias.version = node, 0
        return alias

    @property
    def owner_alias(self) -> Alias:
        """The owner of the storage."""
        current = self
        while current.depth:
            current = current.parent
        return current

    @property
    def is_untouched(self) -> bool:
        """Whether the storage has not been written yet."""
        return not self.log.version

    def path_from(self, ancestor: Alias) -> list[Alias]:
        """The chain of aliases from ``ancestor``, exclusive, down to this one."""
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


def _common_ancestor(left: Alias, right: Alias) -> Alias:
    while left is not right:
        if left.depth >= right.depth:
            left = left.parent
        else:
            right = right.parent
    return left


def _overlap(left: Alias, right: Alias) -> bool:
    common = _common_ancestor(left, right)
    if common is left or common is right:
        return True
    first, second = left.path_from(common)[0], right.path_from(common)[0]
    return not disjoint(first.view.span(common.val), second.view.span(common.val))


class Memory:
    """Reads and writes of aliases.

    Args:
        emitter: Inserts the nodes that update an alias.
        resolve: Returns the node with the current content of any node of the graph.
    """

    def __init__(self, emitter: Emitter, resolve: Callable[[Node], Node]) -> None:
        self._emitter = emitter
        self._resolve = resolve

    def write(self, alias: Alias, value: Node) -> None:
        """Set the content of an alias to ``value``, a node of the same shape and dtype."""
        alias.log.version += 1
        alias.value, alias.version = value, alias.log.version
        self._record(_Write(alias, value, alias.log.version))

    def read(self, alias: Alias) -> Node:
        """A node with the current content of the alias."""
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
            return self._view_at(alias, covered)
        top = alias
        for write in partial:
            top = _common_ancestor(top, write.alias)
        if top is not alias:
            # Some writes went through aliases that are not views of this one: update the common ancestor first.
            self.read(top)
            return self.read(alias)
        value = self._view_at(alias, covered)
        for write in partial:
            if write.version > alias.version:
                value = self._write_through(alias, value, write)
        alias.value, alias.version = value, log.version
        self._record(_Write(alias, value, newest))
        return value

    def witness_of(self, alias: Alias) -> Node:
        """A node with the shape and dtype of the alias, with any content."""
        return self.read(alias) if alias.value is None else alias.value

    @staticmethod
    def _record(write: _Write) -> None:
        writes = write.alias.log.writes
        writes[:] = [earlier for earlier in writes if not earlier.alias.is_within(write.alias)]
        writes.append(write)

    def _view_at(self, alias: Alias, needed: int) -> Node:
        """The content of an alias as of at least version ``needed``, derived from its parent if necessary."""
        if alias.value is None or alias.version < needed:
            parent = self._view_at(alias.parent, needed)
            try:
                alias.value = alias.view.apply(self._emitter, parent, self._resolve)
            except GuardOnDataDependentSymNode:
                # Whether a tensor is contiguous, for example.
                refuse(alias.view.node, "the form of a view of a mutated tensor depends on values")
            alias.version = alias.parent.version
        return alias.value

    def _write_through(self, top: Alias, value: Node, write: _Write) -> Node:
        """The content of ``top`` after a write through a view of it; ``value`` is its content before the write."""
        path = write.alias.path_from(top)

        def apply_from(depth: int, before: Callable[[], Node]) -> Node:
            if depth == len(path):
                return write.value
            alias = path[depth]
            after = apply_from(depth + 1, lambda: self._content_before(alias, write, before))
            if alias.version < write.version:
                alias.value, alias.version = after, write.version
            source = ViewBase(alias.parent.val, before, lambda: alias.parent.value or before())
            return alias.view.write_back(self._emitter, source, after)

        return apply_from(0, lambda: value)

    def _content_before(self, alias: Alias, write: _Write, parent: Callable[[], Node]) -> Node:
        """The content of an alias just before ``write``: the recorded one, or a view of its parent's content then."""
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
