"""Reject programs in which a tensor is written whose memory another one shares in eager torch only."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxonnx_translations._torch_compat import OpOverload, pytree

from ..._nodes import input_of, schema_of, written_arguments
from ...errors import CaptureError
from ..constraints.guard_recorder import line_of_node
from .operators.state import has_items
from .operators.values import SharedMemory, storage_of

__all__ = ["reject_written_copies"]

# They change the shape or the autograd state of their argument.
_WITHOUT_WRITES = frozenset(
    {
        *("aten::t_", "aten::transpose_", "aten::squeeze_", "aten::unsqueeze_", "aten::swapaxes_", "aten::swapdims_"),
        *("aten::as_strided_", "aten::detach_", "aten::requires_grad_"),
    }
)
_WITHOUT_READS = frozenset(
    {
        *("aten::sym_size", "aten::sym_numel", "aten::sym_stride", "aten::sym_storage_offset"),
        "aten::_assert_tensor_metadata",
    }
)


@dataclass(frozen=True)
class _Write:
    """A write that a copy lacks.

    Attributes:
        shared: The line at which the copy was made.
        written: The line of the write.
    """

    shared: str
    written: str


@dataclass
class _Outcome:
    """The effects of a subgraph.

    Attributes:
        written: Index of a placeholder to the write that its argument lacks.
        results: For each result, the indices of the placeholders whose memory it shares, and of the results.
    """

    written: dict[int, _Write] = field(default_factory=dict)
    results: list[tuple[set[int], set[int]]] = field(default_factory=list)

    def add(self, other: _Outcome) -> None:
        """Add the effects of another branch, or of another iteration."""
        self.written = other.written | self.written
        while len(self.results) < len(other.results):
            self.results.append((set(), set()))
        for (arguments, results), (more, others) in zip(self.results, other.results, strict=False):
            arguments |= more
            results |= others


def reject_written_copies(program: GraphModule, memory: SharedMemory) -> None:
    """Reject a captured program in which a write to a tensor is missing in a copy of it that is read later.

    The error has the lines that share the memory, write and read it.
    """
    for container, items, refuse in memory.containers:
        if not has_items(container, items):
            refuse(
                f"a {type(container).__name__} that is one object with its result changes later",
                "change a copy: items = [*items, item]",
            )
    if not memory.copies:
        return
    graph = _Graph(program, memory)
    outcome = graph.run({}, ())
    for write in outcome.written.values():
        raise _error(write, "as an input, a parameter or a buffer, after the call")


class _Graph:
    """The analysis of one graph."""

    def __init__(self, module: GraphModule, memory: SharedMemory) -> None:
        self._module, self._memory = module, memory
        self._shared: dict[int, dict[int, str]] = {}
        self._missing: dict[int, _Write] = {}
        self._seen: set[int] = set()
        self._outcomes: dict[Node, tuple[_Outcome, Sequence[Any], str]] = {}
        self._results: dict[tuple[Node, int], int] = {}

    def run(self, missing: Mapping[int, _Write], shared: Iterable[tuple[int, int, str]]) -> _Outcome:
        """Run the analysis.

        Placeholders lack the writes by index, and pairs of them share memory, with the line that made one a copy.
        """
        placeholders = [_storage(node) for node in self._module.graph.find_nodes(op="placeholder")]
        self._seen.update(key for key in placeholders if key is not None)
        for one, other, line in shared:
            self._share(placeholders[one], placeholders[other], line)
        for index, write in missing.items():
            if (key := placeholders[index]) is not None:
                self._missing[key] = write
        for node in self._module.graph.nodes:
            if node.op == "output":
                return self._outcome(node, placeholders)
            if node.op == "call_function":
                self._node(node)
        return _Outcome()

    def _outcome(self, output: Node, placeholders: Sequence[int | None]) -> _Outcome:
        self._read(output, "as a result")
        results = [_storage(node) if isinstance(node, Node) else None for node in pytree.tree_leaves(output.args[0])]
        groups = [self._group(key) for key in results]
        found = _Outcome()
        for group in groups:
            arguments = {index for index, key in enumerate(placeholders) if key in group}
            found.results.append((arguments, {index for index, key in enumerate(results) if key in group}))
        for index, key in enumerate(placeholders):
            if key in self._missing:
                found.written[index] = self._missing[key]
        return found

    def _node(self, node: Node) -> None:
        subgraphs = [item for item in node.all_input_nodes if item.op == "get_attr" and self._subgraph(item)]
        if subgraphs:
            self._operator(node, subgraphs)
            return
        schema = node.target._schema if isinstance(node.target, OpOverload) else None
        if schema is not None and schema.name in _WITHOUT_READS:
            return
        written = [] if schema is None or schema.name in _WITHOUT_WRITES else _written(node)
        key = _storage(node)
        if node.target is operator.getitem and node.args[0] in self._outcomes:
            self._result(node, key)
            return
        complete: set[int] = set()
        if written and _is_copied_back(node, self._memory):
            self._missing.pop(_storage(written[0]) or 0, None)
            complete = self._results_beside(node.args[1])
        elif written or key is None or all(_storage(item) != key for item in node.all_input_nodes):
            self._read(node)
        if key is not None and key not in self._seen:
            self._create(key, _line(node))
        for argument in written:
            self._write(_storage(argument), _line(node), complete)

    def _create(self, key: int, line: str) -> None:
        """Add a new storage, with the storages whose memory it shares."""
        self._seen.add(key)
        self._missing.pop(key, None)
        for other in self._memory.copies.get(key, ()):
            if other in self._seen:
                self._share(key, other, line)

    def _result(self, node: Node, key: int | None) -> None:
        """Add a result of an operator with subgraphs."""
        source, index = input_of(node), node.args[1]
        outcome, arguments, line = self._outcomes[source]
        if key is None or not isinstance(index, int) or index >= len(outcome.results):
            return
        self._create(key, line)
        self._results[source, index] = key
        own, others = outcome.results[index]
        for argument in own:
            self._share(key, _storage(arguments[argument]), line)
        for other in others:
            self._share(key, self._results.get((source, other)), line)

    def _results_beside(self, value: Any) -> set[int]:
        """The results of a branch that also returns a value: those that share memory with it have its writes."""
        source = value.args[0] if isinstance(value, Node) and value.target is operator.getitem else None
        is_branch = isinstance(source, Node) and source.target is torch.ops.higher_order.cond
        return {key for (node, _), key in self._results.items() if is_branch and node is source}

    def _operator(self, node: Node, subgraphs: Sequence[Node]) -> None:
        """Follow the subgraphs of an operator."""
        is_loop = node.target is torch.ops.higher_order.while_loop
        is_branch = node.target is torch.ops.higher_order.cond
        if is_branch:
            arguments = pytree.tree_leaves(node.args[3])
        elif is_loop:
            arguments = pytree.tree_leaves(node.args[2:])
        else:
            leaves = pytree.tree_leaves((node.args, node.kwargs))
            arguments = [leaf for leaf in leaves if isinstance(leaf, Node) and leaf not in subgraphs]
        carried = len(pytree.tree_leaves(node.args[2])) if is_loop else 0
        outcome = _Outcome()
        if is_loop:
            self._loop(subgraphs, arguments, carried, outcome, _line(node))
        else:
            for subgraph in subgraphs:
                outcome.add(self._follow(subgraph, arguments, set(), {}))
        if is_branch:
            self._check(node.args[0], node)
        for index, write in outcome.written.items():
            argument = _storage(arguments[index]) if index < len(arguments) else None
            for key in self._group(argument):
                if is_loop or is_branch or key != argument:
                    self._missing.setdefault(key, write)
        for index in range(carried):
            outcome.results[index][0].add(index)
        self._outcomes[node] = outcome, arguments, _line(node)

    def _loop(
        self, subgraphs: Sequence[Node], arguments: Sequence[Any], carried: int, outcome: _Outcome, line: str
    ) -> None:
        """Follow iterations until they add no effect: later ones see the memory that earlier ones share."""
        shared: set[tuple[int, int, str]] = set()
        test, body = subgraphs
        while True:
            missing = {index: write for index, write in outcome.written.items() if index >= carried}
            found = self._follow(body, arguments, shared, missing)
            before = len(shared), len(outcome.written)
            outcome.add(found)
            for index, (own, others) in enumerate(found.results):
                shared |= {(index, other, line) for other in (*others, *(key for key in own if key >= carried))}
            if (len(shared), len(outcome.written)) == before:
                break
        self._follow(test, arguments, shared, missing)

    def _follow(
        self,
        subgraph: Node,
        arguments: Sequence[Any],
        shared: Iterable[tuple[int, int, str]],
        missing: Mapping[int, _Write],
    ) -> _Outcome:
        keys = [_storage(argument) for argument in arguments]
        groups = [self._group(key) for key in keys]
        pairs = [
            (one, other, self._line_of(keys[one], keys[other]))
            for one, group in enumerate(groups)
            for other, key in enumerate(keys)
            if one < other and key in group
        ]
        before = {index: self._missing[key] for index, key in enumerate(keys) if key in self._missing}
        graph = _Graph(self._subgraph(subgraph) or self._module, self._memory)
        return graph.run({**missing, **before}, [*pairs, *shared])

    def _subgraph(self, node: Node) -> GraphModule | None:
        found: Any = self._module
        for part in str(node.target).split("."):
            found = getattr(found, part, None)
        return found if isinstance(found, GraphModule) else None

    def _share(self, one: int | None, other: int | None, line: str) -> None:
        if one is not None and other is not None and one != other:
            self._shared.setdefault(one, {}).setdefault(other, line)
            self._shared.setdefault(other, {}).setdefault(one, line)

    def _group(self, key: int | None) -> set[int]:
        """The storages that share their memory in eager torch."""
        if key is None:
            return set()
        found, pending = {key}, [key]
        while pending:
            pending += (new := self._shared.get(pending.pop(), {}).keys() - found)
            found |= new
        return found

    def _line_of(self, one: int | None, other: int | None) -> str:
        """The line that made one storage a copy of the memory of another one."""
        lines = [*self._shared.get(one or 0, {}).values(), *self._shared.get(other or 0, {}).values()]
        return self._shared.get(one or 0, {}).get(other or 0, lines[0] if lines else "")

    def _write(self, key: int | None, line: str, complete: Collection[int] = ()) -> None:
        """A write to a storage is missing in its copies, but for those that were made after it."""
        for other in self._group(key).difference(complete):
            if other != key or key in self._memory.repeated:
                self._missing.setdefault(other, _Write(self._line_of(key, other), line))

    def _read(self, node: Node, how: str = "") -> None:
        for source in node.all_input_nodes:
            self._check(source, node, how)

    def _check(self, source: Any, node: Node, how: str = "") -> None:
        write = self._missing.get(_storage(source) or 0)
        if write is not None:
            raise _error(write, how or _line(node))


def _storage(node: Any) -> int | None:
    """The id of the storage of a node's tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return storage_of(value)


def _written(node: Node) -> list[Node]:
    """The arguments that an operator writes."""
    leaves = pytree.tree_leaves([*written_arguments(schema_of(node), node.args, node.kwargs)])
    return [leaf for leaf in leaves if isinstance(leaf, Node)]


def _is_copied_back(node: Node, memory: SharedMemory) -> bool:
    """Whether a node copies the result of an operator to the tensor that the operator's body writes."""
    return node.target is torch.ops.aten.copy_.default and _storage(node.args[1]) in memory.copied_back


def _line(node: Node) -> str:
    line = line_of_node(node)
    return "an unknown line" if line is None else str(line)


def _error(write: _Write, read: str) -> CaptureError:
    return CaptureError(
        "a tensor that shares memory with another one is written in place, and the operator of a branch or a loop has "
        f"made a copy of it, which lacks the write\n  shared at: {write.shared}\n  written at: {write.written}\n"
        f"  read at: {read}",
        hint="write to a clone() of the tensor, or compute a new one: y = y + 1 in place of y += 1",
    )
