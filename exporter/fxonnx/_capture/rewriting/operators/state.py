"""Changes by a branch or a loop: of its variables, which the operator returns, and of no other Python object."""

from __future__ import annotations

import copy
import operator
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NoReturn

import numpy as np
import torch

from fxonnx_translations._torch_compat import TreeSpec, pytree

from ...._context_values import active
from ...._user_files import is_user_file
from ...inputs.pytree_objects import slot_names
from ...suspicions.attribute_uses import SourceFiles
from ...suspicions.process_state import is_data, is_own_module, referred
from ..transformer import PREFIX, Site
from .growing_lists import ChunkedList, GrowingList, Parts
from .sequences import StackedList
from .values import UNBOUND, Refuse

__all__ = [
    "CHANGES",
    "Objects",
    "Slot",
    "State",
    "containers_in",
    "has_items",
    "read_value",
    "refuse_change_and_assignment",
    "unchanged_objects",
]


CHANGES = "it changes"
"""The beginning of the problems of branches that change objects which a call of the model may have made."""
_ARRAYS = (np.ndarray, array)
_CONTAINERS = (list, dict, set, deque, bytearray, *_ARRAYS)
_VALUES = (bool, int, float, complex, str, bytes)
_WARNED = "__warningregistry__"
"""The warnings that Python has shown for a module, which are no state of a model."""
_PLAIN = (*_VALUES, type(None))
_METHODS = (FunctionType, classmethod, staticmethod)
_TABLES = frozenset(vars(torch.nn.Module()))
"""The attributes that torch gives to each module."""
_LARGEST = 20_000
"""Number of objects up to which they are compared."""


@contextmanager
def unchanged_objects(functions: Sequence[Callable[..., Any]], refuse: Refuse) -> Iterator[Objects]:
    """Reject changes of the objects that branches refer to, except for those that the construct restores.

    A branch is run several times, and so is the one that is not taken. Assignments in the branch itself are variables
    of the construct. Functions that it calls may change other objects: variables of enclosing functions, global
    variables, attributes, and the items of containers.
    """
    objects = Objects(functions)
    yield objects
    objects.reject_changes(refuse)


class Objects:
    """The objects that functions refer to, with their content.

    A change of a module's attribute that no code of the model reads is undone, and not rejected.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self._cells: list[tuple[CellType, Any, str]] = []
        self._attributes: list[tuple[MutableMapping[str, Any], dict[str, Any], Any]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._iterators: list[tuple[Any, Any]] = []
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._globals: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._stacked: list[tuple[StackedList, list[Any]]] = []
        self._kept: dict[int, str] = {}
        self._seen: dict[int, Any] = {}
        self._pending: deque[Any] = deque(functions)
        while self._pending and len(self._seen) < _LARGEST:
            found = self._pending.popleft()
            if id(found) not in self._seen:
                self._seen[id(found)] = found
                self._visit(found)

    def _visit(self, found: Any) -> None:
        match found:
            case FunctionType():
                self._visit_function(found)
            case MethodType():
                self._pending += (found.__self__, found.__func__)
            case torch.nn.Module():
                self._visit_module(found)
            case StackedList():
                self._stacked.append((found, list(found.parts)))
            case GrowingList():
                pass
            case dict():
                # Items as they are: classes of users may make others when they are asked.
                items = dict(dict.items(found))
                self._containers.append((found, items))
                self._pending += items.values()
            case list() | set() | deque() | bytearray():
                self._containers.append((found, found.copy()))
                self._pending += found
            case np.ndarray() | array():
                self._containers.append((found, copy.copy(found)))
            case tuple():
                self._pending += found
            case type():
                self._visit_class(found)
            case classmethod() | staticmethod():
                self._pending.append(found.__func__)
            case GeneratorType():
                self._iterators.append((found, _position(found)))
            case torch.Tensor() | ModuleType():
                pass
            case _ if hasattr(type(found), "__next__"):
                self._iterators.append((found, _position(found)))
            case _ if _is_of_user(type(found)):
                self._visit_object(found)

    def _visit_object(self, found: Any) -> None:
        slots = _Slots(found)
        for values in (getattr(found, "__dict__", {}), slots if slots.names else {}):
            self._attributes.append((values, dict(values), found))
            self._pending += values.values()
        self._pending.append(type(found))

    def _visit_class(self, found: type) -> None:
        for owner in filter(_is_of_user, found.__mro__):
            values = _data_of(owner)
            self._classes.append((owner, values))
            self._pending += values.values()
            # Calls of a model rarely make modules.
            left_out = "__init__" if issubclass(owner, torch.nn.Module) else ""
            self._pending += (
                one for name, one in vars(owner).items() if isinstance(one, _METHODS) and name != left_out
            )

    def _visit_function(self, found: FunctionType) -> None:
        for name, cell in zip(found.__code__.co_freevars, found.__closure__ or (), strict=True):
            if not name.startswith(f"{PREFIX}helpers"):
                content = _content(cell)
                self._cells.append((cell, content, name))
                self._pending.append(content)
        self._pending += (*(found.__defaults__ or ()), *(found.__kwdefaults__ or {}).values())
        if found.__dict__:
            self._attributes.append((found.__dict__, dict(found.__dict__), found))
        # A replaced function refers to its replacement by a constant.
        self._pending += (item for item in found.__code__.co_consts if isinstance(item, FunctionType))
        variables = found.__globals__
        if not is_user_file(found.__code__.co_filename):
            return
        names = dict.fromkeys(_global_names(found.__code__))
        modules = [value for value in map(variables.get, names) if type(value) is ModuleType]
        for each in (variables, *(vars(module) for module in modules if is_own_module(module.__name__))):
            self._globals.setdefault(id(each), (each, dict(each)))
        for _, value in referred(names, variables):
            kind = value if isinstance(value, type) else type(value)
            if isinstance(value, (FunctionType, *_CONTAINERS)) or _is_of_user(kind):
                self._pending.append(value)

    def _visit_module(self, found: torch.nn.Module) -> None:
        self._pending.append(type(found))
        for tensors in (vars(found), found._buffers, found._parameters):
            self._attributes.append((tensors, dict(tensors), found))
        for name, value in vars(found).items():
            if not isinstance(value, _PLAIN) and name not in _TABLES:
                self._pending.append(value)
                self._kept[id(value)] = name
        # Modules of torch have no code that changes attributes.
        self._pending += (one for one in found._modules.values() if one is not None and _has_user_code(one))

    def contains(self, value: Any) -> bool:
        """Whether an object is one of these."""
        return id(value) in self._seen

    def reject_changes(self, refuse: Refuse) -> None:
        """Reject changes, and restore the content that they replaced."""
        changes = list(self.changes())
        if changes:
            self.restore()
        files = active(SourceFiles)
        for name, problem, hint in changes:
            if name is None or files is None or files.reads(name):
                refuse(problem, hint)

    def changes(self) -> Iterator[tuple[str | None, str, str]]:
        """The name of the module's attribute, if it is one, the problem and the hint of each difference."""
        for current, previous, owner in self._attributes:
            for name in _differences(current, previous):
                is_of_module = isinstance(owner, torch.nn.Module)
                kind = getattr(owner, "__name__", type(owner).__name__)
                yield (
                    name if is_of_module else None,
                    f"{'it assigns' if is_of_module else CHANGES} the attribute {name!r} of {kind} in a call",
                    f"assign it in the branch itself: self.{name} = ...",
                )
        for cell, content, name in self._cells:
            if not _is_same(_content(cell), content):
                yield (
                    None,
                    f"{CHANGES} the variable {name!r} of an enclosing function in a call",
                    f"return the new value, and assign it in the branch itself: {name} = ...",
                )
        for variables, previous in self._globals.values():
            for name in _differences(variables, previous):
                if name != _WARNED:
                    yield None, f"it assigns the global variable {name!r}", "use a local variable"
        for owner, previous in self._classes:
            for name in _differences(_data_of(owner), previous):
                yield None, f"it assigns the attribute {name!r} of the class {owner.__name__}", "use a local variable"
        parts = ((found.parts, items) for found, items in self._stacked)
        for container, items in (*self._containers, *parts):
            if not has_items(container, items):
                kind = f"{'an' if isinstance(container, _ARRAYS) else 'a'} {type(container).__name__}"
                yield (
                    self._kept.get(id(container)),
                    f"{CHANGES} {kind} in a call, or in a way that is not supported",
                    "assign a new value in the branch itself, such as items = [*items, item]",
                )
        for iterator, position in self._iterators:
            if _position(iterator) != position:
                yield None, f"it advances a {type(iterator).__name__}", "advance it before the condition"

    def restore(self) -> None:
        """Restore the recorded content, as far as possible."""
        for cell, content, _ in self._cells:
            if content is not UNBOUND:
                cell.cell_contents = content
        for current, previous, _ in self._attributes:
            _replace(current, previous)
        for variables, previous in self._globals.values():
            for name in _differences(variables, previous):
                if name in previous:
                    variables[name] = previous[name]
                else:
                    del variables[name]
        for owner, previous in self._classes:
            for name in _differences(_data_of(owner), previous):
                if name in previous:
                    setattr(owner, name, previous[name])
                else:
                    delattr(owner, name)
        for container, items in self._containers:
            if not has_items(container, items):
                _replace(container, items)


class _Slots(MutableMapping[str, Any]):
    """The attributes of an object in ``__slots__`` that are assigned."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self.names = slot_names(type(owner))

    def __getitem__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self._owner, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._owner, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self._owner, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _replace(container: Any, items: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = items
        return
    if isinstance(container, array):
        container[:] = items
        return
    container.clear()
    (container.extend if isinstance(container, list | deque | bytearray) else container.update)(items)


def has_items(container: Any, items: Any) -> bool:
    """Whether a container has the same items in the same order."""
    if isinstance(container, _ARRAYS):
        return bool(container.tobytes() == items.tobytes())
    if len(container) != len(items):
        return False
    if isinstance(container, dict):
        return all(map(_is_same, dict.keys(container), items)) and all(
            map(_is_same, dict.values(container), items.values())
        )
    if isinstance(container, set):
        return bool(container == items)
    return all(map(_is_same, container, items))


def _differences(current: Mapping[str, Any], previous: Mapping[str, Any]) -> Iterator[str]:
    """The names with other values; a name that is new is one."""
    for name in [*previous, *(name for name in current if name not in previous)]:
        if not _is_same(current.get(name, UNBOUND), previous.get(name, UNBOUND)):
            yield name


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _VALUES) and bool(one == other))


def _position(iterator: Any) -> Any:
    """Where an iterator is, as far as it is known."""
    if isinstance(iterator, GeneratorType):
        return None if iterator.gi_frame is None else iterator.gi_frame.f_lasti
    if type(iterator).__module__ == "itertools":
        return repr(iterator)
    return operator.length_hint(iterator, -1)


def _data_of(owner: type) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if is_data(name, value)}


def _has_user_code(module: torch.nn.Module) -> bool:
    return bool(module._modules) or _is_of_user(type(module))


def _is_of_user(kind: type) -> bool:
    """Whether a class is defined in the user's code or in a library other than torch."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or (isinstance(file, str) and is_user_file(file))


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from _global_names(item)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable without a value
        return UNBOUND


@dataclass(frozen=True)
class Slot:
    """The value of a variable at one point of the execution.

    Attributes:
        value: The value; ``UNBOUND`` if the variable has none.
        content: A copy of its items if it is a list or a dict, which may be modified later.
        containers: The lists and dicts in it, and itself, with their items.
    """

    value: Any
    content: Any = None
    containers: tuple[tuple[Any, Any], ...] = ()

    @property
    def is_container(self) -> bool:
        """Whether it is a list or a dict."""
        return type(self.value) in (list, dict) or _is_stacked(self.value) or isinstance(self.value, GrowingList)

    @property
    def items(self) -> Any:
        """The items of a list, or the parts of a list of dynamic length."""
        return self.content.parts if isinstance(self.content, Parts) else self.content

    def flatten(self) -> tuple[list[Any], TreeSpec]:
        """The leaves of the value."""
        return pytree.tree_flatten(self.content if self.is_container else self.value)

    @property
    def is_changed(self) -> bool:
        """Whether the items of its lists or dicts have changed."""
        return any(not has_items(container, items) for container, items in self.containers)

    def with_leaves(self, leaves: Sequence[Any], spec: TreeSpec, *, keep: bool) -> Slot:
        """The slot with other leaves.

        If it is kept, a list or a dict is the same object with other items.
        """
        value = pytree.tree_unflatten(list(leaves), spec)
        if keep and self.is_container:
            return Slot(self.value, value, self.containers)
        return Slot.of(StackedList(value.parts) if isinstance(value, Parts) else value)

    @staticmethod
    def of(value: Any) -> Slot:
        """The slot of a value."""
        if _is_stacked(value):
            return Slot(value, Parts(list(value.parts), [True] * len(value.parts)))
        if isinstance(value, GrowingList):
            return Slot(value, Parts(list(value.added), list(value.kept)))
        is_container = type(value) in (list, dict)
        if not is_container:
            return Slot(value)
        return Slot(
            value,
            pytree.tree_map(lambda leaf: leaf, value),
            tuple((item, item.copy()) for item in containers_in(value)),
        )


class State:
    """Reads and writes the variables of a construct."""

    def __init__(self, site: Site, get: Callable[[], Sequence[Any]], put: Callable[[Sequence[Any]], None]) -> None:
        self.site = site
        self.names = site.names
        self._get, self._put = get, put

    def shared(self) -> list[bool]:
        """Whether there are references to the values besides the variables."""
        return [count > _UNSHARED for count in _reference_counts(tuple(self._get()))]

    @property
    def values(self) -> Sequence[Any]:
        """The current values of the variables."""
        return self._get()

    def read(self) -> list[Slot]:
        """The current values."""
        return [Slot.of(value) for value in self._get()]

    def write(self, slots: Sequence[Slot]) -> None:
        """Set the values, and the items of lists and dicts."""
        for slot in slots:
            if _is_stacked(slot.value):
                slot.value.parts = list(slot.content.parts)
            elif isinstance(slot.value, GrowingList):
                slot.value.added, slot.value.kept = map(list, slot.content)
            elif slot.is_container:
                for container, items in slot.containers:
                    _set_items(container, items)
                _fill(slot.value, slot.content)
        self._put([slot.value for slot in slots])


def _is_stacked(value: Any) -> bool:
    """Whether a value is a list of dynamic length, which may change."""
    return isinstance(value, StackedList) and not isinstance(value, ChunkedList)


def containers_in(value: Any) -> Iterator[Any]:
    """The lists and dicts in a value, itself included."""
    if type(value) in (list, dict):
        yield value
    if isinstance(value, tuple) or type(value) in (list, dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers_in(item)


def _fill(container: Any, content: Any) -> None:
    """Set the items of a list or a dict; lists and dicts in it remain the same objects, which others may refer to."""

    def item(key: Any, new: Any) -> Any:
        if type(new) not in (list, dict):
            return new
        known = key in container if isinstance(container, dict) else key < len(container)
        old = container[key] if known and type(container[key]) is type(new) else type(new)()
        _fill(old, new)
        return old

    if isinstance(container, dict):
        _set_items(container, {key: item(key, new) for key, new in content.items()})
    else:
        _set_items(container, [item(index, new) for index, new in enumerate(content)])


def _set_items(container: Any, items: Any) -> None:
    if isinstance(container, dict):
        items = dict(items)
        container.clear()
        container.update(items)
    else:
        container[:] = items


def _reference_counts(values: tuple[Any, ...]) -> list[int]:
    return [sys.getrefcount(value) for value in values]


_UNSHARED = _reference_counts(([],))[0] + 1
"""The number of references to an object that only a variable refers to."""


def read_value(read: Callable[[], Any]) -> Any:
    """The value of a variable or an attribute; ``UNBOUND`` if it has none."""
    try:
        return read()
    except (NameError, AttributeError):
        return UNBOUND


def refuse_change_and_assignment(name: str, refuse: Refuse) -> NoReturn:
    """Reject that a list or a dict changes and that its variable becomes another one."""
    refuse(
        f"it changes the items of {name} and then assigns another object to it",
        f"assign a new value only: {name} = [*{name}, item]",
    )
