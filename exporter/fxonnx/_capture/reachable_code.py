"""The functions of user code that a capture of a model may run, found by name from ``forward``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from .._user_files import is_user_code

__all__ = ["CachePlace", "codes_of", "reachable_caches", "reachable_functions"]

_INSTALLED_DEPTH = 3
"""Calls below ``forward`` up to which the functions of installed packages are searched."""
_LIBRARIES = frozenset({"torch", "builtins", "fxonnx", "fxonnx_translations", "collections", "typing", "abc"})
"""Packages whose classes have no user code."""


def reachable_functions(modules: Iterable[torch.nn.Module]) -> list[FunctionType]:
    """The functions that ``forward`` of a model may call: all that have a name which reachable code refers to.

    Args:
        modules: The modules of the model.
    """
    search = _Search()
    for module in modules:
        search.add_module(module)
    search.add_name("forward")
    return search.run()


@dataclass(frozen=True)
class CachePlace:
    """An attribute or variable with a function that ``functools.lru_cache`` has made.

    Attributes:
        owner: The class, module, namespace or cell.
        name: The name of the attribute or variable; "" for a cell.
        value: The function, or the method object that holds it.
    """

    owner: Any
    name: str
    value: Any

    @property
    def function(self) -> Any:
        """The function with the cache."""
        return getattr(self.value, "__func__", self.value)

    def replace(self, function: Any) -> None:
        """Put another function in its place."""
        value = self.value
        self._write(type(value)(function) if isinstance(value, staticmethod | classmethod) else function)

    def restore(self) -> None:
        """Put the function in its place again."""
        self._write(self.value)

    def _write(self, value: Any) -> None:
        if isinstance(self.owner, CellType):
            self.owner.cell_contents = value
        elif isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


def reachable_caches(functions: Iterable[FunctionType], modules: Iterable[torch.nn.Module]) -> list[CachePlace]:
    """The functions with a ``functools.lru_cache`` that reachable functions refer to, or that are methods of a model.

    Args:
        functions: The reachable functions.
        modules: The modules of the model.
    """
    places: list[CachePlace] = []
    kinds: set[type] = set()
    for module in modules:
        kinds.add(type(module))
        for name, value in vars(module).items():
            kinds.add(type(value))
            if type(value) is _CACHED:
                places.append(CachePlace(vars(module), name, value))
    for function in functions:
        namespace = function.__globals__
        names = {name for code in codes_of(function.__code__) for name in code.co_names}
        for name in names & namespace.keys():
            value = namespace[name]
            if type(value) is _CACHED:
                places.append(CachePlace(namespace, name, value))
            elif type(value) is ModuleType and not _is_library_name(value.__name__):
                items = vars(value)
                places += (CachePlace(items, attribute, items[attribute]) for attribute in names & items.keys())
            elif isinstance(value, type):
                kinds.add(value)
        places += (CachePlace(cell, "", _content(cell)) for cell in function.__closure__ or ())
    for owner in {base for kind in kinds for base in kind.__mro__ if not _is_library(base)}:
        places += (CachePlace(owner, name, value) for name, value in vars(owner).items() if type(value) in _METHODS)
    found = {(id(place.owner), place.name): place for place in places if type(place.function) is _CACHED}
    return list(found.values())


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable without a value
        return None


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A code object and the code objects of the functions that are defined in it."""
    yield code
    for item in code.co_consts:
        if type(item) is CodeType:
            yield from codes_of(item)


class _Search:
    """Search for functions: from names in code to methods and globals of these names, whose code is read in turn."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._methods: dict[str, list[FunctionType]] = {}
        self._classes: set[type] = set()
        self._pending: list[FunctionType] = []
        self._found: dict[CodeType, FunctionType] = {}

    def add_module(self, module: torch.nn.Module) -> None:
        """Add the methods, hooks and attributes of a module of the model."""
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for hook in hooks.values():
                self._add(hook)
        kind = type(module)
        own = vars(module)
        if _is_library(kind) and "forward" not in own:
            return
        self._add_class(kind)
        for name, value in own.items():
            if type(value) in _CALLABLES:
                for function in _functions(value):
                    self._add_method(name, function)
            elif type(value) not in self._classes:
                self._add_class(type(value))

    def add_name(self, name: str) -> None:
        """Add the methods of a name."""
        if name not in self._names:
            self._names.add(name)
            self._pending.extend(self._methods.pop(name, ()))

    def run(self) -> list[FunctionType]:
        """Read the code of the functions until no further ones are found."""
        depth = 0
        while self._pending:
            pending, self._pending = self._pending, []
            for function in pending:
                code = function.__code__
                is_distant = depth >= _INSTALLED_DEPTH and "site-packages" in code.co_filename
                if code not in self._found and not is_distant and is_user_code(code, function.__globals__):
                    self._found[code] = function
                    self._read(function)
            depth += 1
        return list(self._found.values())

    def _read(self, function: FunctionType) -> None:
        names = {name for code in codes_of(function.__code__) for name in code.co_names}
        for name in names - self._names:
            self.add_name(name)
        namespace = function.__globals__
        for name in names & namespace.keys():
            value = namespace[name]
            if type(value) is ModuleType:
                if not _is_library_name(value.__name__):
                    for attribute in names & vars(value).keys():
                        self._add(vars(value)[attribute])
            else:
                self._add(value)
        for cell in function.__closure__ or ():
            try:
                self._add(cell.cell_contents)
            except ValueError:  # noqa: PERF203 - a cell may be empty
                continue
        self._add(vars(function).get("__wrapped__"))

    def _add(self, value: Any) -> None:
        """Add a value that reachable code refers to."""
        kind = type(value)
        if kind in _CALLABLES:
            self._pending.extend(_functions(value))
        elif isinstance(value, type):
            self._add_class(value)
        elif kind is _CACHED:
            self._add(value.__wrapped__)
        elif kind is dict or kind is list or kind is tuple:
            items: Iterable[Any] = value.values() if kind is dict else value
            self._pending.extend(item for item in items if type(item) is FunctionType)
        elif not isinstance(value, torch.nn.Module):
            self._add_class(kind)

    def _add_class(self, kind: type) -> None:
        if kind in self._classes:
            return
        for base in kind.__mro__:
            if base in self._classes:
                continue
            self._classes.add(base)
            if _is_library(base):
                continue
            is_module = issubclass(base, torch.nn.Module)
            for name, value in vars(base).items():
                for function in _functions(value):
                    # Python calls these without the name in the code.
                    if name.startswith("__") and not is_module:
                        self._pending.append(function)
                    else:
                        self._add_method(name, function)

    def _add_method(self, name: str, function: FunctionType) -> None:
        if name in self._names:
            self._pending.append(function)
        else:
            self._methods.setdefault(name, []).append(function)


_CALLABLES = frozenset({FunctionType, MethodType, partial})
_CACHED = type(cache(repr))
_METHODS = frozenset({_CACHED, staticmethod, classmethod})


def _functions(value: Any) -> Iterator[FunctionType]:
    """The functions of a function, method, partial, property or descriptor of a method."""
    kind = type(value)
    if kind is FunctionType:
        yield value
    elif kind is staticmethod or kind is classmethod or kind is MethodType:
        yield from _functions(value.__func__)
    elif kind is partial:
        yield from _functions(value.func)
    elif kind is _CACHED:
        yield from _functions(value.__wrapped__)
    elif kind is property:
        yield from _functions(value.fget)


def _is_library(kind: type) -> bool:
    return _is_library_name(kind.__module__)


def _is_library_name(name: Any) -> bool:
    return isinstance(name, str) and name.partition(".")[0] in _LIBRARIES
