"""Uses of attributes in the source of a model: whether forward reads them, and where it changes them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

import torch

from ..._user_files import is_user_file
from ..constraints.guard_recorder import SourceLine, source_line_of
from ..user_code import codes_of, reachable_functions

__all__ = ["SourceFiles", "methods_of"]

_MUTATORS = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "popleft", "remove", "discard"}
    | {"clear", "sort", "reverse", "popitem"}
)


class SourceFiles:
    """The source of some classes, and of the functions of their files.

    Args:
        classes: The classes of the modules of a model.
        modules: The modules of the model, if only uses in functions that forward may call count.
    """

    def __init__(self, classes: Mapping[type, None], modules: Sequence[torch.nn.Module] = ()) -> None:
        self._modules = modules
        self._classes: dict[str, set[str]] = {}
        for owner in {base: None for cls in classes for base in cls.__mro__}:
            self._classes.setdefault(owner.__module__, set()).add(owner.__name__)

    @cached_property
    def _functions(self) -> list[FunctionType]:
        """The functions that forward may call."""
        return reachable_functions(self._modules)

    @cached_property
    def _trees(self) -> dict[str, ast.Module | None]:
        """Map each file to its parsed source, without classes that are not the model's; None if it has no source."""
        found: dict[str, ast.Module | None] = {}
        # Of installed packages, those that define the classes are enough files to read.
        own = (each for each in self._functions if "site-packages" not in each.__code__.co_filename)
        for name, classes in {**{each.__module__: set() for each in own}, **self._classes}.items():
            module: Any = sys.modules.get(name)
            file = getattr(module, "__file__", None)
            if name == "builtins" or (file is not None and not is_user_file(file)):
                continue
            try:
                tree = ast.parse(inspect.getsource(module))
            except (OSError, TypeError, SyntaxError):
                found[file or name] = None
                continue
            if not classes:
                found[file or name] = tree
                continue
            if classes.isdisjoint(_class_names(tree)):
                # Classes made by ``exec`` have the name of a module that does not define them.
                found[file or name] = None
                continue
            tree.body = [
                node
                for node in tree.body
                if not isinstance(node, ast.ClassDef) or not classes.isdisjoint(_class_names(node))
            ]
            found[file or name] = tree
        return found

    def reads(self, name: str) -> bool:
        """Whether an attribute or a variable may be read otherwise than to compute its own next value."""
        name = name.rpartition(".")[2]
        return any(
            tree is None
            or any(_names(path[-1], name) and _reads(path, name) and self._may_run(file, path) for path in _paths(tree))
            for file, tree in self._trees.items()
        )

    def _may_run(self, file: str, path: Sequence[ast.AST]) -> bool:
        """Whether forward may run a node: not if it is in another function of the user's own file, such as ``main``."""
        functions = [node for node in path if isinstance(node, ast.FunctionDef | ast.Lambda)]
        if not self._modules or not functions or "site-packages" in file:
            return True
        return any((file, _first_line(node)) in self._reachable for node in functions)

    @cached_property
    def _reachable(self) -> frozenset[tuple[str, int]]:
        """The files and first lines of the functions that forward may call."""
        codes = [code for function in self._functions for code in codes_of(function.__code__)]
        return frozenset((code.co_filename, code.co_firstlineno) for code in codes)

    def changing_line(self, name: str, code: Collection[CodeType]) -> SourceLine | None:
        """The first line that assigns or changes an attribute or a variable outside of ``__init__``.

        Args:
            name: The name.
            code: The code of the methods of the class in which to look first.
        """
        name = name.rpartition(".")[2]
        own = {(function.co_filename, function.co_firstlineno) for function in code}
        found: list[tuple[bool, bool, SourceLine]] = []
        for file, tree in self._trees.items():
            for path in _paths(tree) if tree is not None else ():
                functions = [node for node in path if isinstance(node, ast.FunctionDef)]
                if not functions or functions[-1].name == "__init__" or not _names(path[-1], name):
                    continue
                if _changes(path, name):
                    line = source_line_of(file, getattr(path[-1], "lineno", 0), functions[-1].name)
                    is_own = any((file, node.lineno) in own for node in functions)
                    # A local variable may have the name of the attribute.
                    found.append((is_own, isinstance(path[-1], ast.Attribute), line))
        return max(found, key=lambda entry: entry[:2])[2] if found else None


def _first_line(node: ast.FunctionDef | ast.Lambda) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else ()
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def methods_of(owner: object) -> list[CodeType]:
    """The code of the methods of an object."""
    functions = [value for cls in type(owner).__mro__ for value in vars(cls).values()]
    return [value.__code__ for value in functions if isinstance(value, FunctionType)]


def _class_names(tree: ast.AST) -> set[str]:
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _paths(tree: ast.AST, outer: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, ...]]:
    """Every node of a tree, after the nodes that enclose it."""
    path = (*outer, tree)
    yield path
    for child in ast.iter_child_nodes(tree):
        yield from _paths(child, path)


def _names(node: ast.AST, name: str) -> bool:
    """Whether a node refers to a name: as an attribute, a variable, or a string for ``getattr``."""
    if isinstance(node, ast.Constant):
        return node.value == name
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)) == name


def _changes(path: tuple[ast.AST, ...], name: str) -> bool:
    node = path[-1]
    return not isinstance(node, ast.Constant) and (_is_stored(node) or _is_own_update(path, name))


def _is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def _reads(path: tuple[ast.AST, ...], name: str) -> bool:
    return not _is_stored(path[-1]) and not _is_own_update(path, name)


def _is_own_update(path: tuple[ast.AST, ...], name: str) -> bool:
    """Whether a use only computes the next value: ``self.n = self.n + 1``, ``self.items.append(x)``."""
    node, *outer = path[::-1]
    for parent in outer:
        if isinstance(parent, ast.Subscript) and parent.value is node:
            if _is_stored(parent):
                return True
        elif isinstance(parent, ast.Attribute):
            return parent.attr in _MUTATORS and isinstance(outer[outer.index(parent) + 2], ast.Expr)
        elif isinstance(parent, ast.Assign | ast.AugAssign):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            stored = (part for target in targets for part in ast.walk(target))
            return any(type(part) is type(path[-1]) and _names(part, name) for part in stored)
        elif isinstance(parent, ast.stmt):
            return False
        node = parent
    return False
