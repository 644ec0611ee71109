"""Restore the user's model and inputs after a capture: their attributes, and the values of their tensors."""

from __future__ import annotations

import ast
import enum
import itertools
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils import parametrize

from fxonnx_translations._torch_compat import (
    DisableTorchFunction,
    FakeTensor,
    functorch,
    no_dispatch,
    set_version_counters,
)

from ..._inner_tensors import is_wrapper
from ..._turns import undone_in_forks
from ..suspicions.process_state import (
    ABSENT,
    GENERATORS,
    ProcessState,
    drawn_numbers_are_constant,
    process_generators,
    set_state,
    state_of,
)
from .pytree_objects import slot_names

__all__ = ["Change", "Snapshot", "TensorValues", "changed_attributes", "preserve_model"]

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_WORD = 8
"""Bytes that are compared at once."""


class _Record(NamedTuple):
    """A tensor and its state.

    Attributes:
        tensor: The tensor.
        data: Another tensor in its memory, with a version of its own; None for tensors whose memory cannot be replaced.
        version: Its version, by which autograd knows that the values it keeps have been written to.
        hooks: Its hooks, with their content.
    """

    tensor: torch.Tensor
    data: torch.Tensor | None
    version: int
    hooks: tuple[tuple[str, Any, dict[Any, Any]], ...]


class _Memory(NamedTuple):
    """A part of a storage with a copy of its bytes.

    Attributes:
        storage: The storage.
        start: The first byte of the part.
        size: The size of the storage in bytes.
        copied: The bytes.
    """

    storage: torch.UntypedStorage
    start: int
    size: int
    copied: torch.Tensor


class TensorValues:
    """Tensors with their versions, their memory and, of those that are copied, their values.

    The bytes of each storage are copied once, so that views and tied weights still share them.
    """

    def __init__(self) -> None:
        self._records: list[_Record] = []
        self._memory: list[_Memory] = []
        self._others: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        """Sparse tensors and wrappers, which have no memory of their own, with a copy and the version."""

    def record(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record tensors without their values."""
        with _outside_of_modes():  # in one of fake tensors, data would be a fake tensor too
            for tensor in tensors:
                if not tensor.is_inference():
                    data = tensor.data if _has_memory(tensor) else None
                    found = ((name, getattr(tensor, name, None)) for name in _HOOKS)
                    hooks = tuple((name, hook, dict(hook)) if hook else (name, hook, {}) for name, hook in found)
                    self._records.append(_Record(tensor, data, tensor._version, hooks))

    def copy(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the values of tensors."""
        parts: dict[tuple[torch.device, int], tuple[torch.UntypedStorage, int, int]] = {}
        for tensor in tensors:
            if _has_memory(tensor) and tensor.numel():
                storage = tensor.untyped_storage()
                key = tensor.device, storage.data_ptr()
                _, start, end = parts.get(key, (storage, storage.nbytes(), 0))
                own = _bytes_of(tensor)
                parts[key] = storage, min(start, own[0]), max(end, own[1])
            elif not (tensor.is_meta or tensor.is_inference() or isinstance(tensor, FakeTensor) or _is_of_vmap(tensor)):
                self._others.append((tensor, tensor.detach().clone(), tensor._version))
        if not parts:
            return
        with _outside_of_modes():
            for storage, start, end in parts.values():
                bits = _bits(storage, start, end)
                self._memory.append(_Memory(storage, start, storage.nbytes(), bits.clone()))

    def restore(self) -> None:
        """Restore everything that has changed, without a new version: autograd may keep the values of a call before."""
        for tensor, data, _, hooks in self._records:
            if data is not None and not _is_same_memory(tensor, data):
                with _outside_of_modes():
                    tensor.data = data
            for name, hook, items in hooks:
                if getattr(tensor, name, None) is not hook:
                    setattr(tensor, name, hook)
                if hook is not None and hook != items:
                    hook.clear()
                    hook.update(items)
        with torch.no_grad():
            for tensor, copied, version in self._others:
                if tensor._version != version:
                    tensor.copy_(copied)
        if self._memory:
            self._restore_values()
        written = [(tensor, version) for tensor, _, version, _ in self._records if tensor._version != version]
        if written:
            set_version_counters(*zip(*written, strict=True))

    def _restore_values(self) -> None:
        """Write the copied bytes where they differ."""
        with _outside_of_modes(), torch.no_grad():
            for storage, start, size, copied in self._memory:
                if storage.nbytes() != size:
                    storage.resize_(size)
                bits = _bits(storage, start, start + copied.numel())
                if not _is_equal(bits, copied):
                    bits.copy_(copied)


@contextmanager
def _outside_of_modes() -> Iterator[None]:
    """Modes, such as one of fake tensors or a default device, and subclasses see nothing of the body."""
    with no_dispatch(), DisableTorchFunction():
        yield


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor are in a storage of its own that can be copied and written."""
    return not (
        tensor.is_meta
        or tensor.is_inference()
        or tensor.layout != torch.strided
        or is_wrapper(tensor)
        or isinstance(tensor, FakeTensor)
        or _is_of_vmap(tensor)
    )


def _is_of_vmap(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a call of ``vmap`` or ``grad``, which a model has kept in an attribute."""
    return functorch.is_functorch_wrapped_tensor(tensor)


def _is_same_memory(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    # A capture may have given the tensor the data of a fake one, which has no address.
    return (
        tensor.device == data.device
        and tensor.data_ptr() == data.data_ptr()
        and tensor.shape == data.shape
        and tensor.stride() == data.stride()
        and tensor.dtype == data.dtype
    )


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor with elements in its storage, a multiple of a word, and the one after the last."""
    start = int(tensor.storage_offset()) * tensor.element_size()
    steps = sum((size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start - start % _WORD, start + (steps + 1) * tensor.element_size()


def _bits(storage: torch.UntypedStorage, start: int, end: int) -> torch.Tensor:
    """The bytes of a part of a storage as a tensor in its memory."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, start, (end - start,), (1,))


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether bytes are equal; most of them are compared as words, which is faster."""
    whole = one.numel() - one.numel() % _WORD
    words = [bits[:whole].view(torch.int64) for bits in (one, other)]
    return torch.equal(*words) and torch.equal(one[whole:], other[whole:])


class Change(NamedTuple):
    """A change of an attribute, an item or the content of a container.

    Attributes:
        owner: The object with the attribute, the container, or the namespace of a function.
        name: The attribute or key; None for the content of a list or a set.
        old: The value before; ``ABSENT`` if there was none.
        new: The value after.
        variable: The name of the global or class variable that holds the owner; "" if the model holds it.
        is_constant: Whether the new value is known to depend on weights alone.
    """

    owner: Any
    name: Any
    old: Any
    new: Any
    variable: str = ""
    is_constant: bool = False


# Depth to which attributes of plain objects are followed: enough for caches and configurations of a module, and a
# limit on the cost of a reference to a logger or a data set.
OBJECT_DEPTH = 3

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, enum.Enum)
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size})
_CONTAINERS = frozenset({dict, OrderedDict, list, set, deque})

_CONTAINER_WRITES = frozenset(
    f"aten::{name}"
    for name in (
        *("Delete", "_set_item", "add_", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse"),
        *("setdefault", "sort", "update"),
    )
)
"""Operators of TorchScript that change a list or a dict; ``add_`` is also one of tensors."""


@dataclass
class Snapshot:
    """Attributes and containers of a module tree. Of the tensors, only those that are plain attributes are copied."""

    model: torch.nn.Module
    attributes: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    mappings: list[tuple[Any, dict[Any, Any]]] = field(default_factory=list)
    sequences: list[tuple[Any, list[Any]]] = field(default_factory=list)
    sets: list[tuple[Any, frozenset[Any]]] = field(default_factory=list)
    empty: list[Any] = field(default_factory=list)
    """Containers without elements: most of a module's, which are compared faster than the others."""
    arrays: list[tuple[Any, Any]] = field(default_factory=list)
    """Arrays of NumPy and of bytes, with copies."""
    slots: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    """Objects with ``__slots__``, and the values of these."""
    tensors: list[torch.Tensor] = field(default_factory=list)
    """The tensors that are plain attributes or parts of these."""
    values: TensorValues = field(default_factory=TensorValues)
    requires_grad: list[tuple[torch.Tensor, bool]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    tensor_tables: set[int] = field(default_factory=set)
    process: ProcessState = field(default_factory=ProcessState)
    marked: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    """Parameters and buffers on which the user has set attributes, with their names."""
    generators: list[tuple[Any, bytes, str]] = field(default_factory=list)
    """Generators of random numbers, their state, and the name of those that the process shares."""
    scripts: list[tuple[Any, str, Any]] = field(default_factory=list)
    """Attributes that methods of scripted modules change: module, name and value."""
    counters: list[tuple[Any, str, itertools.count[Any], str]] = field(default_factory=list)
    """Iterators that count, which cannot be set back: owner, attribute, iterator and text."""

    def take(self) -> None:
        """Record the model, its submodules, and the objects reachable from their attributes."""
        model = self.model
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            # torch.export traces fake copies of these, so their values cannot change.
            self.seen.add(id(tensor))
            self.requires_grad.append((tensor, tensor.requires_grad))
            self.attributes.append((tensor, dict(vars(tensor))))
            if tensor.is_leaf and tensor.grad is not None:
                # TorchDynamo marks all tensors.
                self.attributes.append((tensor.grad, dict(vars(tensor.grad))))
            if vars(tensor):
                self.marked.append((name, tensor))
        scripts: list[Any] = []
        for module in model.modules():
            self.tensor_tables.update((id(module._parameters), id(module._buffers)))
            if isinstance(module, torch.jit.ScriptModule):
                scripts.append(module._c)
        names = sorted({name for script in scripts for name in changed_attributes(script)})
        self.scripts += [(one, name, one.getattr(name)) for one in scripts for name in names if one.hasattr(name)]
        self._visit(model, OBJECT_DEPTH)
        for value in self.process.take(model):
            self._visit(value, 1)
        self.generators += [(value, state_of(value), name) for name, value in process_generators().items()]
        # In-place ops on tensors that are plain attributes do change them during tracing.
        self.values.copy(self.tensors)
        self.values.record(tensor for tensor, _ in self.requires_grad)

    def _visit(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in _ATOMS or id(value) in self.seen or isinstance(value, _OPAQUE):
            return
        self.seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if not value.is_inference():
                self.tensors.append(value)
                self.requires_grad.append((value, value.requires_grad))
                self.attributes.append((value, dict(vars(value))))
            return
        if isinstance(value, dict):
            self.mappings.append((value, dict(_base(value).items(value))))
            self._visit_all(self.mappings[-1][1].values(), depth)
        elif isinstance(value, list | deque):
            self.sequences.append((value, list(value)))
            self._visit_all(value, depth)
        elif isinstance(value, tuple):
            self._visit_all(value, depth)
        elif isinstance(value, set):
            self.sets.append((value, frozenset(value)))
        elif isinstance(value, np.ndarray | bytearray):
            self.arrays.append((value, value.copy()))
        elif isinstance(value, GENERATORS):
            self.generators.append((value, state_of(value), ""))
        if isinstance(value, torch.nn.Module):
            self._visit_attributes(value, OBJECT_DEPTH)
        elif depth and kind.__module__.partition(".")[0] not in ("torch", "builtins"):
            if hasattr(value, "__dict__"):
                self._visit_attributes(value, depth - 1)
            if names := slot_names(kind):
                self.slots.append((value, {name: getattr(value, name, ABSENT) for name in names}))
                self._visit_all(self.slots[-1][1].values(), depth - 1)

    def _visit_attributes(self, owner: Any, depth: int) -> None:
        attributes = vars(owner)
        self.attributes.append((owner, dict(attributes)))
        self.counters += [
            (owner, name, value, repr(value)) for name, value in attributes.items() if type(value) is itertools.count
        ]
        self._visit_all(attributes.values(), depth)

    def _visit_all(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            kind = type(value)
            if kind in _ATOMS:
                continue
            if kind in _CONTAINERS and not value:
                self.empty.append(value)
            else:
                self._visit(value, depth)

    @contextmanager
    def shown_marks(self) -> Iterator[None]:
        """Set the attributes of the marked tensors on the copies that torch.export traces, and take them back."""
        pairs = []
        for name, tensor in self.marked:
            copied = operator.attrgetter(name)(self.model)
            own = frozenset(vars(copied))
            if copied is not tensor:
                pairs.append((tensor, copied, own))
                vars(copied).update((key, value) for key, value in vars(tensor).items() if key not in own)
        yield
        for tensor, copied, own in pairs:
            attributes = {key: value for key, value in vars(copied).items() if key not in own}
            _refill(vars(tensor), {**{key: value for key, value in vars(tensor).items() if key in own}, **attributes})

    def changes(self) -> Iterator[Change]:
        """The changes since the snapshot, without the values of tensors and the tensors of parameters and buffers."""
        tables = [(owner, vars(owner), before) for owner, before in self.attributes]
        tables += [(mapping, mapping, before) for mapping, before in self.mappings]
        variables = self.process.variables
        for owner, now, before in tables:
            if not _is_same(now, before):
                for name in {**before, **now}:
                    old, new = before.get(name, ABSENT), now.get(name, ABSENT)
                    if old is not new and not (id(owner) in self.tensor_tables and isinstance(old, torch.Tensor)):
                        yield Change(owner, name, old, new, variables.get(id(owner), ""))
        for container in filter(None, self.empty):
            if isinstance(container, dict):
                for name, new in container.items():
                    yield Change(container, name, ABSENT, new, variables.get(id(container), ""))
            else:
                kind: Any = set if isinstance(container, set) else list
                yield Change(container, None, kind(), kind(container), variables.get(id(container), ""))
        for sequence, elements in self.sequences:
            if len(sequence) != len(elements) or not all(map(is_, sequence, elements)):
                yield Change(sequence, None, elements, list(sequence), variables.get(id(sequence), ""))
        for members, originals in self.sets:
            if members != originals:
                yield Change(members, None, originals, set(members), variables.get(id(members), ""))
        for array, before in self.arrays:
            if not _is_same_array(array, before):
                yield Change(array, None, before, array.copy(), variables.get(id(array), ""))
        for owner, before in self.slots:
            now = {name: getattr(owner, name, ABSENT) for name in before}
            yield from (Change(owner, name, old, now[name]) for name, old in before.items() if now[name] is not old)
        for owner, name, old, new in self.process.changes():
            yield Change(owner, name, old, new)
        for owner, name, counter, text in self.counters:
            if repr(counter) != text:
                yield Change(owner, name, _counter(text), counter)

    def draws(self) -> Iterator[Change]:
        """The generators that draw constants in a capture, with their states in the snapshot and now."""
        for generator, state, name in self.generators:
            if drawn_numbers_are_constant(generator):
                yield Change(generator, "state", state, state_of(generator), name)

    def restore(self) -> None:
        """Restore everything that has changed."""
        self.process.restore()
        for owner, attributes in self.attributes:
            _refill(vars(owner), attributes)
        for mapping, items in self.mappings:
            _refill(mapping, items)
        for container in filter(None, self.empty):
            container.clear()
        for sequence, elements in self.sequences:
            if len(sequence) != len(elements) or not all(map(is_, sequence, elements)):
                sequence.clear()
                sequence.extend(elements)
        for members, originals in self.sets:
            if members != originals:
                members.clear()
                members.update(originals)
        for array, content in self.arrays:
            if not _is_same_array(array, content):
                array[slice(None) if isinstance(array, bytearray) else ...] = content
        for owner, slots in self.slots:
            for name, value in slots.items():
                # Frozen dataclasses refuse setattr.
                if getattr(owner, name, ABSENT) is not value and value is ABSENT:
                    object.__delattr__(owner, name)
                elif getattr(owner, name, ABSENT) is not value:
                    object.__setattr__(owner, name, value)
        for generator, state, _ in self.generators:
            if state_of(generator) != state:
                set_state(generator, state)
        for script, name, value in self.scripts:
            script.setattr(name, value)
        for owner, name, counter, text in self.counters:
            if repr(counter) != text:
                vars(owner)[name] = _counter(text)
        for tensor, required in self.requires_grad:
            # Values that require grad, written into a buffer, make it one of autograd's results.
            if tensor.requires_grad != required and not tensor.is_leaf and not tensor._is_view():
                tensor.detach_()
            if tensor.requires_grad != required and tensor.is_leaf:
                tensor.requires_grad_(required)
        self.values.restore()


def changed_attributes(script: Any) -> Iterator[str]:
    """The names of the attributes that the methods of a scripted module may change; names may repeat.

    These are the attributes that they assign, and the lists and dicts that they read, if they write to any.

    Args:
        script: The module in C++.
    """
    blocks = [script._get_method(name).graph for name in script._method_names()]
    containers: list[str] = []
    writes = False
    while blocks:
        for node in blocks.pop().nodes():
            blocks += node.blocks()
            writes |= node.kind() in _CONTAINER_WRITES
            if node.kind() == "prim::SetAttr":
                yield node.s("name")
            elif node.kind() == "prim::GetAttr" and node.output().type().kind() in ("ListType", "DictType"):
                containers.append(node.s("name"))
    if writes:
        yield from containers


def _counter(text: str) -> itertools.count[Any]:
    """The iterator with a text such as ``count(3)`` or ``count(3, 2)``."""
    return itertools.count(*ast.literal_eval(f"{text.removeprefix('count').removesuffix(')')},)"))


def _base(mapping: dict[Any, Any]) -> type[dict[Any, Any]]:
    """The class with the stored items: subclasses may return others, as transformers' table of activations does."""
    return OrderedDict if isinstance(mapping, OrderedDict) else dict


def _refill(mapping: dict[Any, Any], items: dict[Any, Any]) -> None:
    if not _is_same(mapping, items):
        base = _base(mapping)
        base.clear(mapping)
        for key, value in items.items():
            base.__setitem__(mapping, key, value)


def _is_same(mapping: dict[Any, Any], items: dict[Any, Any]) -> bool:
    values = _base(mapping).values(mapping)
    return len(mapping) == len(items) and all(map(is_, mapping, items)) and all(map(is_, values, items.values()))


def _is_same_array(array: Any, before: Any) -> bool:
    """Whether an array of NumPy, or of bytes, has the same content; that of objects is the same objects."""
    if isinstance(array, bytearray):
        return bool(array == before)
    if array.shape != before.shape or array.dtype != before.dtype:
        return False
    if array.dtype.hasobject:
        return all(map(is_, array.flat, before.flat))
    return bool(array.tobytes() == before.tobytes())


@contextmanager
def _own_parametrizations() -> Iterator[None]:
    """Compute parametrized weights anew inside ``parametrize.cached()``: those of a capture are fake tensors."""
    before = parametrize._cache_enabled, parametrize._cache
    parametrize._cache_enabled, parametrize._cache = 0, {}
    try:
        yield
    finally:
        parametrize._cache_enabled, parametrize._cache = before


@contextmanager
def preserve_model(model: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> Iterator[Snapshot]:
    """Restore the model and the inputs on exit, including exit by an exception.

    Covers the attributes of all submodules, the containers and plain objects they hold, the values of tensors that are
    plain attributes, ``requires_grad``, hooks and versions of all tensors, and attributes of the inputs; besides the
    model, the attributes of its classes, the variables that its functions share, the generators of random numbers of
    Python and NumPy, the grad mode and the default dtype.

    Args:
        model: The user's model.
        tensors: The example inputs.

    Yields:
        The snapshot, which finds the changes.
    """
    snapshot = Snapshot(model)
    snapshot.take()
    marks = [(tensor, dict(vars(tensor))) for tensor in tensors]
    grad_mode, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        with _own_parametrizations(), undone_in_forks(snapshot.restore):
            yield snapshot
    finally:
        torch.set_grad_enabled(grad_mode)
        torch.set_default_dtype(dtype)
        snapshot.restore()
        for tensor, attributes in marks:
            _refill(vars(tensor), attributes)


_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def register_compressed_attributes(snapshot: Snapshot) -> None:
    """Make buffers of the modules' attributes that are compressed sparse tensors; the snapshot restores them.

    Args:
        snapshot: The state of the model before the capture.
    """
    if not any(tensor.layout in _COMPRESSED for tensor in snapshot.tensors):
        return
    for owner, attributes in snapshot.attributes:
        if isinstance(owner, torch.nn.Module):
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) and value.layout in _COMPRESSED:
                    delattr(owner, name)
                    owner.register_buffer(name, value, persistent=False)
