"""Buffers to which forward assigns another tensor: ``self.k = torch.cat([self.k, x], 1)``.

torch.export copies the new tensors into the buffers of the model itself, one after the other: not into those of its
submodules, and wrongly if a buffer receives another one's tensor. Here all of them become writes at the end of forward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from fxonnx_translations._torch_compat import get_proxy_mode, get_proxy_slot

from .._written_parameters import written_placeholders
from .constraints.guard_recorder import SourceLine, line_of_node
from .suspicions.attribute_uses import SourceFiles, methods_of

__all__ = ["AssignedBuffers", "Reassignment", "merge_tied_tensors"]

_PLACE = re.compile(r"(.+):(\d+) in (.+)")


@dataclass(frozen=True)
class Reassignment:
    """A buffer whose value after forward cannot be its value before the next call of a program.

    Attributes:
        name: FQN of the buffer.
        problem: The change by forward.
        line: The line, if it is known.
    """

    name: str
    problem: str
    line: str

    def __str__(self) -> str:
        return f"{self.name!r}: {self.problem}" + (f" at {self.line}" if self.line else "")


class AssignedBuffers:
    """The buffers of a model before a traced call of forward.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._tables: list[tuple[dict[str, Any], dict[str, Any], str]] = []
        self._model = model
        seen: set[int] = set()
        for path, module in model.named_modules():
            table = module._buffers
            if table and id(table) not in seen:
                seen.add(id(table))
                self._tables.append((table, dict(table), f"{path}." if path else ""))

    def write(self) -> list[Reassignment]:
        """Write the assigned tensors to the buffers of before, which are those of the model again.

        Returns:
            The buffers that have no such value, or one of another kind.
        """
        changed = [
            (f"{path}{name}", old, table.get(name))
            for table, before, path in self._tables
            for name, old in before.items()
            if isinstance(old, torch.Tensor) and table.get(name) is not old
        ]
        if not changed:
            return []
        kept = {
            id(old): name for table, before, _ in self._tables for name, old in before.items() if table.get(name) is old
        }
        for table, before, _ in self._tables:
            table.update(before)
        refused: list[Reassignment] = []
        writes: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
        for name, old, new in changed:
            problem = _problem(old, new, [other for _, tensor, other in changed if tensor is old])
            if problem is None and id(old) in kept:
                problem = f"it is also {kept[id(old)]!r} before the call only"
            if problem is not None:
                refused.append(Reassignment(name, problem, str(self._line(name, new) or "")))
            if isinstance(new, torch.Tensor) and new.dtype == old.dtype:
                writes[id(old)] = name, old, new
        memory = {_memory(old) for _, old, _ in writes.values()}
        # The values of all of them first: one may be the tensor of another.
        values = [new.clone() if _memory(new) in memory else new for _, _, new in writes.values()]
        for (name, old, new), value in zip(writes.values(), values, strict=True):
            written = _node(_written(old, value))
            for node in () if written is None else (written, *written.all_input_nodes):
                if node.op == "call_function" and line_of_node(node) is None:
                    node.meta["stack_trace"] = self._stack_trace(name, new)
        return refused

    def _line(self, name: str, new: Any) -> SourceLine | None:
        """The line that computes the new tensor of a buffer, or else the one that assigns it."""
        node = _node(new) if isinstance(new, torch.Tensor) else None
        found = None if node is None else line_of_node(node)
        if found is None:
            path, _, attribute = name.rpartition(".")
            owner = self._model.get_submodule(path)
            found = SourceFiles({type(owner): None}).changing_line(attribute, methods_of(owner))
        return found

    def _stack_trace(self, name: str, new: torch.Tensor) -> str:
        """The stack trace of the write of a buffer: that of the new tensor, if an operator computes it."""
        node = _node(new)
        if node is not None and line_of_node(node) is not None:
            return str(node.meta["stack_trace"])
        line = self._line(name, new)
        match = None if line is None else _PLACE.fullmatch(line.place)
        return "" if match is None else f'File "{match[1]}", line {match[2]}, in {match[3]}'


def _problem(old: torch.Tensor, new: Any, others: list[Any]) -> str | None:
    """Why a tensor cannot be the next value of a buffer; None if it can."""
    if not isinstance(new, torch.Tensor):
        return f"it becomes {'None' if new is None else type(new).__name__}"
    if new.dtype != old.dtype:
        return f"its dtype becomes {new.dtype} instead of {old.dtype}"
    if new.dim() != old.dim():
        return f"its rank becomes {new.dim()} instead of {old.dim()}"
    if any(other is not new for other in others):
        return "it is a tensor with several names, which become different tensors"
    return None


def _written(old: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Record the write of a tensor to a buffer."""
    target = old.detach() if old.requires_grad and old.is_leaf else old
    if target.dim() == value.dim() and statically_known_true(sym_eq(tuple(target.shape), tuple(value.shape))):
        return target.copy_(value)
    # Of another shape, the tensor becomes the buffer; a clone, since torch compares the size with a view's memory.
    result: torch.Tensor = target.set_(value.clone())  # type: ignore[call-overload]
    return result


def _node(tensor: torch.Tensor) -> torch.fx.Node | None:
    """The node of a traced tensor."""
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    proxy = getattr(slot, "proxy", slot)
    return proxy.node if isinstance(proxy, torch.fx.Proxy) else None


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def merge_tied_tensors(program: ExportedProgram) -> None:
    """Let a program that writes a tensor with several names read and write it under the first one.

    Args:
        program: The captured program; it changes in place.
    """
    stored: Mapping[str, Any] = program.state_dict
    if len({id(tensor) for tensor in stored.values()}) == len(stored):
        return
    named: dict[int, list[torch.fx.Node]] = {}
    nodes = program.graph.find_nodes(op="placeholder")
    for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
        if spec.target in stored:
            named.setdefault(id(stored[spec.target]), []).append(node)
    tied = [found for found in named.values() if len(found) > 1]
    written = written_placeholders(program.graph) if tied else set()
    for first, *others in tied:
        if not written.isdisjoint(node.name for node in (first, *others)):
            for node in others:
                node.replace_all_uses_with(first)
