"""Model of mutated memory: the current value of each alias of a storage.

The aliases of a storage form a tree of views with the tensor that owns the storage as root. A write records the new
value of the alias written through; the other aliases are updated lazily, when they are read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fxonnx_translations._torch_compat import OpOverload, has_kernel

from ..._nodes import schema_of
from .emit import Emitter, refuse
from .view_inverses import View, ViewBase, disjoint

__all__ = [
    "Alias",
    "AliasInfo",
    "Memory",
    "MemoryEffects",
    "analyze_aliases",
    "argument_at",
    "memory_effects",
    "replace_resizes",
    "returns_input",
    "returns_new_tensors",
    "storage_id",
    "view_overload",
]

aten = torch.ops.aten


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


# In-place ops that change a tensor's metadata, not its memory. In the captured graph their result is a new value, so
# they are equivalent to the views of the same name.
_RESTRIDING = frozenset({"t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_"})
_IDENTITIES = frozenset({"detach_", "requires_grad_"})

# Composite ops that return new tensors. Capture patches their kernels, which read data or need sizes that are plain
# integers: they cannot be run again on fake tensors.
_WITHOUT_ALIASES = frozenset(
    {
        *("_shape_as_tensor", "batch_norm", "cdist", "combinations", "corrcoef", "cov", "ctc_loss", "gru", "kron"),
        *("linalg_lstsq", "lstm", "max_pool1d", "max_pool1d_with_indices", "pad_sequence", "rnn_relu"),
        *("rnn_tanh", "scaled_dot_product_attention", "take_along_dim"),
    }
)


@dataclass(frozen=True)
class MemoryEffects:
    """The effects of an operator overload on the memory of its arguments.

    Attributes:
        written: Positions of the mutated arguments.
        is_view: Whether it only returns a view, although its schema declares a mutation, as ``transpose_``.
        aliases: Whether its results may alias an argument.
    """

    written: tuple[int, ...]
    is_view: bool
    aliases: bool


@dataclass(frozen=True)
class AliasInfo:
    """The aliasing of a graph's values.

    Attributes:
        effects: The effects of each operator overload of the graph.
        values: The fake value of each node; tensors that share memory share a storage.
        written: Ids (see :func:`storage_id`) of the mutated storages.
    """

    effects: Mapping[Any, MemoryEffects]
    values: Mapping[Node, Any]
    written: frozenset[int]

    def is_written(self, val: Any) -> bool:
        """Whether a value is a tensor whose storage is mutated by some node."""
        key = storage_id(val)
        return key is not None and key in self.written

    def writes(self, node: Node) -> tuple[int, ...]:
        """Positions of the arguments that the node mutates."""
        found = self.effects.get(node.target) if node.op == "call_function" else None
        return () if found is None or found.is_view else found.written


def storage_id(val: Any) -> int | None:
    """An id of the storage of a strided fake tensor, or None for other values."""
    if not isinstance(val, torch.Tensor) or val.layout is not torch.strided:
        return None
    return int(val.untyped_storage()._cdata)


def memory_effects(graph: Graph) -> dict[Any, MemoryEffects] | None:
    """The effects of all operators of a graph, or None if none of them mutates its arguments."""
    effects: dict[Any, MemoryEffects] = {}
    for node in graph.nodes:
        target = node.target
        if node.op == "call_function" and target not in effects and isinstance(target, OpOverload):
            effects[target] = _effects(target)
    return effects if any(found.written for found in effects.values()) else None


def replace_resizes(graph: Graph) -> None:
    """Replace resizes of contiguous tensors to the same number of elements by views, which change no memory either."""
    for target in (aten.resize_.default, aten.resize_as_.default):
        for node in graph.find_nodes(op="call_function", target=target):
            before, after = node.args[0].meta["val"], node.meta["val"]
            numbers = (*before.shape, *before.stride(), before.storage_offset(), *after.shape)
            if (
                all(type(number) is int for number in numbers)
                and before.numel() == after.numel()
                and before.is_contiguous()
                and after.is_contiguous()
            ):
                node.target = aten.view.default
                node.args, node.kwargs = (node.args[0], list(after.shape)), {}


def _effects(target: OpOverload) -> MemoryEffects:
    schema = target._schema
    written = tuple(
        position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    name = schema.name.partition("::")[2]
    name_of_kernel = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    aliases = any(argument.alias_info is not None for argument in schema.arguments) or (
        name not in _WITHOUT_ALIASES
        and not name.lstrip("_").startswith("upsample_")
        and has_kernel(name_of_kernel, "CompositeImplicitAutograd")
    )
    return MemoryEffects(written, name in _RESTRIDING or name in _IDENTITIES, aliases)


def analyze_aliases(graph: Graph, effects: Mapping[Any, MemoryEffects]) -> AliasInfo:
    """Determine which values share memory.

    A captured graph records shared storages in its fake tensors. A program that was saved and loaded has lost them, and
    torch records a copy for a dropout that returns its input; operators that may alias are then run again on fake
    tensors.
    """
    values = {node: node.meta.get("val") for node in graph.nodes}
    for copy in graph.find_nodes(op="call_function", target=aten.lift_fresh_copy.default):
        # torch records that the copy of a constant, as torch.tensor(...) in forward makes one, shares its memory.
        constant = copy.args[0]
        if storage_id(values[copy]) is not None and storage_id(values[copy]) == storage_id(values[constant]):
            values[constant] = torch.empty_like(values[constant])
    writing = [
        (node, argument_at(node, effects[node.target].written[0]))
        for node in graph.nodes
        if node.op == "call_function" and node.target in effects and effects[node.target].written
    ]
    changed = {storage_id(values.get(first)) for _, first in writing}
    is_lost = any(
        storage_id(values[node]) is not None and storage_id(values[node]) != storage_id(values.get(first))
        for node, first in writing
    )
    if is_lost or any(
        returns_input(node) and not changed.isdisjoint((storage_id(values[node]), storage_id(values[node.args[0]])))
        for node in graph.find_nodes(op="call_function", target=aten.dropout.default)
    ):
        values = _rerun(graph, effects, is_lost=is_lost)
    written = {
        storage_id(values.get(argument_at(node, position)))
        for node, _ in writing
        if not effects[node.target].is_view
        for position in effects[node.target].written
    }
    return AliasInfo(effects, values, frozenset(key for key in written if key is not None))


def argument_at(node: Node, position: int) -> Any:
    """The argument of a node for the parameter at a position of the schema; None if it is absent."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(schema_of(node).arguments[position].name)


def returns_new_tensors(schema: torch.FunctionSchema) -> bool:
    """Whether no result aliases an argument."""
    return bool(schema.returns) and all(result.alias_info is None for result in schema.returns)


def view_overload(target: OpOverload) -> OpOverload:
    """The view operator of an in-place op that changes metadata only: ``t`` for ``t_``."""
    name = target._schema.name.partition("::")[2]
    if name in _IDENTITIES:
        return aten.detach.default
    packet = getattr(aten, name[:-1])
    overload = "int" if name == "transpose_" else target._overloadname
    found: OpOverload = getattr(packet, overload)
    return found


def returns_input(dropout: Node) -> bool:
    """Whether a dropout changes nothing: eager torch then returns the input itself."""
    return bool(dropout.args[2] is False or dropout.args[1] == 0)


def _shares_memory(node: Node) -> bool:
    """Whether a captured graph records that a result of a node shares memory with an input."""
    val = node.meta.get("val")
    results = {storage_id(one) for one in (val if isinstance(val, (list, tuple)) else [val])} - {None}
    return any(storage_id(source.meta.get("val")) in results for source in node.all_input_nodes)


def _rerun(graph: Graph, effects: Mapping[Any, MemoryEffects], *, is_lost: bool) -> dict[Node, Any]:
    """Run the operators that may alias again on fake tensors."""
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        values[node] = val = node.meta.get("val")
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            sources = values[node.args[0]]
            values[node] = sources[node.args[1]] if isinstance(sources, (list, tuple)) else val
            continue
        if node.target is aten.dropout.default and returns_input(node):
            values[node] = values[node.args[0]]
            continue
        found = effects.get(node.target)
        if found is None or not found.aliases or val is None:
            continue
        # Operators that return new memory may need sizes that are plain integers.
        if not found.written and not is_lost and not _shares_memory(node):
            continue
        if found.written and not found.is_view:
            if returns_new_tensors(node.target._schema):
                continue
            results = [values.get(argument_at(node, position)) for position in found.written]
            values[node] = tuple(results) if isinstance(val, (list, tuple)) else results[0]
            continue
        target = view_overload(node.target) if found.is_view else node.target
        first = val if isinstance(val, torch.Tensor) else val[0] if isinstance(val, (list, tuple)) and val else None
        mode = getattr(first, "fake_mode", None)
        if mode is None:
            continue
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        with mode, torch.no_grad():
            values[node] = _with_sizes(target(*args, **kwargs), val)
    return values


def _with_sizes(result: Any, recorded: Any) -> Any:
    """A view with the sizes that the capture has found: here, torch computes a part for the example alone."""
    is_dynamic = isinstance(recorded, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in recorded.shape)
    return result.as_strided(recorded.shape, result.stride()) if is_dynamic else result
