"""Restore the user's model and inputs after a capture."""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch

__all__ = ["preserve_model"]

# Depth to which attributes of plain objects are followed: enough for caches and configurations of a module, and a
# limit on the cost of a reference to a logger or a data set.
OBJECT_DEPTH = 3

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, enum.Enum)
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size})


@dataclass
class _Snapshot:
    """Attributes and containers of a module tree. Only tensors that are plain attributes are copied."""

    attributes: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    mappings: list[tuple[Any, dict[Any, Any]]] = field(default_factory=list)
    sequences: list[tuple[Any, list[Any]]] = field(default_factory=list)
    sets: list[tuple[Any, frozenset[Any]]] = field(default_factory=list)
    tensors: list[tuple[torch.Tensor, torch.Tensor, int]] = field(default_factory=list)
    requires_grad: list[tuple[torch.Tensor, bool]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def take(self, model: torch.nn.Module) -> None:
        """Record the model, its submodules, and the objects reachable from their attributes."""
        for tensor in (*model.parameters(), *model.buffers()):
            # torch.export traces fake copies of these, so their values cannot change.
            self.seen.add(id(tensor))
            self.requires_grad.append((tensor, tensor.requires_grad))
        self._visit(model, OBJECT_DEPTH)

    def _visit(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in _ATOMS or id(value) in self.seen or isinstance(value, _OPAQUE):
            return
        self.seen.add(id(value))
        if isinstance(value, torch.Tensor):
            # In-place ops on tensors that are plain attributes do change them during tracing.
            if not value.is_inference():
                self.tensors.append((value, value.detach().clone(), value._version))
            return
        if isinstance(value, dict):
            self.mappings.append((value, dict(value)))
            self._visit_all(value.values(), depth)
        elif isinstance(value, list | deque):
            self.sequences.append((value, list(value)))
            self._visit_all(value, depth)
        elif isinstance(value, tuple):
            self._visit_all(value, depth)
        elif isinstance(value, set):
            self.sets.append((value, frozenset(value)))
        if isinstance(value, torch.nn.Module):
            self._visit_attributes(value, OBJECT_DEPTH)
        elif depth and hasattr(value, "__dict__") and kind.__module__.partition(".")[0] != "torch":
            self._visit_attributes(value, depth - 1)

    def _visit_attributes(self, owner: Any, depth: int) -> None:
        attributes = vars(owner)
        self.attributes.append((owner, dict(attributes)))
        self._visit_all(attributes.values(), depth)

    def _visit_all(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            if type(value) not in _ATOMS:
                self._visit(value, depth)

    def restore(self) -> None:
        """Restore everything that has changed."""
        for owner, attributes in self.attributes:
            _refill(vars(owner), attributes)
        for mapping, items in self.mappings:
            _refill(mapping, items)
        for sequence, elements in self.sequences:
            if len(sequence) != len(elements) or not all(map(is_, sequence, elements)):
                sequence.clear()
                sequence.extend(elements)
        for members, originals in self.sets:
            if members != originals:
                members.clear()
                members.update(originals)
        for tensor, values, version in self.tensors:
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(values)
        for tensor, required in self.requires_grad:
            if tensor.requires_grad != required:
                tensor.requires_grad_(required)


def _refill(mapping: dict[Any, Any], items: dict[Any, Any]) -> None:
    if len(mapping) == len(items) and all(map(is_, mapping, items)) and all(map(is_, mapping.values(), items.values())):
        return
    mapping.clear()
    mapping.update(items)


@contextmanager
def preserve_model(model: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Restore the model and the inputs on exit, including exit by an exception.

    Covers the attributes of all submodules, the containers and plain objects they hold, the values of tensors that are
    plain attributes, ``requires_grad`` of parameters and buffers, and attributes of the inputs; besides the model, the
    grad mode and the default dtype.

    Args:
        model: The user's model.
        tensors: The example inputs.
    """
    snapshot = _Snapshot()
    snapshot.take(model)
    marks = [(tensor, dict(vars(tensor))) for tensor in tensors]
    grad_mode, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad_mode)
        torch.set_default_dtype(dtype)
        snapshot.restore()
        for tensor, attributes in marks:
            _refill(vars(tensor), attributes)
