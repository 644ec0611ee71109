"""The memory of a program while its writes are replayed on values.

Every memory that is written is a :class:`Base`, the tree of the aliases of one tensor. A write only notes the new value
of the alias it went through; other aliases of the memory are brought up to date when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from .emit import Emitter
from .views import Source, View, disjoint

__all__ = ["Alias", "Base", "Memory"]


class Alias:
    """One way to look at a memory.

    Attributes:
        base: The memory.
        parent: What it is a view of; None for the tensor that owns the memory.
        view: The view itself; None for the owner.
        val: Fake tensor of its shape and dtype.
        value: A node that holds its content as of ``version``; None when it was never needed.
        version: How many writes of the memory ``value`` knows of.
    """

    __slots__ = ("base", "depth", "parent", "val", "value", "version", "view")

    def __init__(self, base: Base, parent: Alias | None, view: View | None, val: torch.Tensor) -> None:
        self.base = base
        self.parent = parent
        self.view = view
        self.val = val
        self.value: Node | None = None
        self.version = -1
        self.depth: int = 0 if parent is None else parent.depth + 1

    def path_from(self, ancestor: Alias) -> list[Alias]:
        """The aliases below ``ancestor`` down to this one."""
        path: list[Alias] = []
        current = self
        while current is not ancestor and current.parent is not None:
            path.append(current)
            current = current.parent
        path.reverse()
        return path

    def is_within(self, ancestor: Alias) -> bool:
        """Whether this is ``ancestor`` or a view of it."""
        current: Alias = self
        while current.depth > ancestor.depth and current.parent is not None:
            current = current.parent
        return current is ancestor


@dataclass(frozen=True)
class _Write:
    alias: Alias
    value: Node
    version: int


@dataclass(eq=False)
class Base:
    """One memory.

    Attributes:
        root: The tensor that owns it.
        version: How many writes there were.
        log: The writes that the root's value does not contain, oldest first, none of which a later one covers.
    """

    root: Alias = field(init=False)
    version: int = 0
    log: list[_Write] = field(default_factory=list)

    @classmethod
    def of(cls, node: Node, val: torch.Tensor) -> Base:
        """The memory owned by the tensor that ``node`` holds."""
        base = cls()
        base.root = Alias(base, None, None, val)
        base.root.value, base.root.version = node, 0
        return base


def _common(left: Alias, right: Alias) -> Alias:
    while left is not right:
        if left.depth >= right.depth and left.parent is not None:
            left = left.parent
        elif right.parent is not None:
            right = right.parent
    return left


def _overlap(left: Alias, right: Alias) -> bool:
    common = _common(left, right)
    if common is left or common is right:
        return True
    first, second = left.path_from(common)[0], right.path_from(common)[0]
    return not (
        first.view is not None
        and second.view is not None
        and disjoint(first.view.span(common.val), second.view.span(common.val))
    )


class Memory:
    """Reads and writes of aliases.

    Args:
        emitter: Where the nodes go that bring an alias up to date.
        resolve: Gives the node that holds the current content of any node of the graph.
    """

    def __init__(self, emitter: Emitter, resolve: Callable[[Node], Node]) -> None:
        self._emitter = emitter
        self._resolve = resolve

    def write(self, alias: Alias, value: Node) -> None:
        """Replaces the content of an alias by ``value``, a node of the same shape and dtype."""
        base = alias.base
        base.version += 1
        alias.value, alias.version = value, base.version
        self._note(alias, base.version)

    def read(self, alias: Alias) -> Node:
        """A node that holds the current content of the alias."""
        base = alias.base
        if alias.value is not None and alias.version == base.version:
            return alias.value
        relevant = [write for write in base.log if _overlap(write.alias, alias)]
        newest = max((write.version for write in relevant), default=0)
        if alias.value is not None and alias.version >= newest:
            return alias.value
        covers = [index for index, write in enumerate(relevant) if alias.is_within(write.alias)]
        partial = relevant[covers[-1] + 1 :] if covers else relevant
        covered = relevant[covers[-1]].version if covers else 0
        if not partial:
            return self._fetch(alias, covered)
        top = alias
        for write in partial:
            top = _common(top, write.alias)
        if top is not alias:
            self.read(top)
            return self.read(alias)
        value = self._fetch(alias, covered)
        for write in partial:
            if write.version > alias.version:
                value = self._scatter(alias, value, write)
        alias.value, alias.version = value, base.version
        self._note(alias, newest)
        return value

    def glimpse(self, alias: Alias) -> Node:
        """A node of the shape and dtype of the alias, whatever its content."""
        return self.read(alias) if alias.value is None else alias.value

    def _note(self, alias: Alias, version: int) -> None:
        base = alias.base
        if alias.value is None:
            raise RuntimeError("only a value can be noted")
        base.log[:] = [write for write in base.log if not write.alias.is_within(alias)]
        base.log.append(_Write(alias, alias.value, version))

    def _fetch(self, alias: Alias, needed: int) -> Node:
        """The content of an alias, given that no write after ``needed`` matters to who asks."""
        if alias.value is not None and alias.version >= needed:
            return alias.value
        if alias.parent is None or alias.view is None:
            raise RuntimeError("the owner of a memory always has a value that is new enough")
        parent = self._fetch(alias.parent, needed)
        alias.value = alias.view.apply(self._emitter, parent, self._resolve)
        alias.version = alias.parent.version
        return alias.value

    def _scatter(self, top: Alias, value: Node, write: _Write) -> Node:
        """The content of ``top`` after a write to a view of it, ``value`` being the content before."""
        path = write.alias.path_from(top)

        def put(depth: int, before: Callable[[], Node]) -> Node:
            if depth == len(path):
                return write.value
            alias = path[depth]
            if alias.parent is None or alias.view is None:
                raise RuntimeError("the owner of a memory is nobody's view")
            view = alias.view
            after = put(depth + 1, lambda: self._before(alias, write, before))
            source = Source(alias.parent.val, before, lambda: self._witness(alias.parent, before))
            return view.write_back(self._emitter, source, after)

        return put(0, lambda: value)

    @staticmethod
    def _witness(alias: Any, before: Callable[[], Node]) -> Node:
        return before() if alias.value is None else alias.value

    def _before(self, alias: Alias, write: _Write, parent: Callable[[], Node]) -> Node:
        """The content of an alias just before ``write``, from its own or from its parent's content then."""
        earlier = [other.version for other in alias.base.log if other.version < write.version]
        if alias.value is not None and alias.version >= max(earlier, default=0):
            return alias.value
        if alias.view is None:
            raise RuntimeError("the owner of a memory is nobody's view")
        return alias.view.apply(self._emitter, parent(), self._resolve)
