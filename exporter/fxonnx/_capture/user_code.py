"""The code of the user: the functions that a capture may run, found by name from ``forward``, and their definitions.

A definition is trusted only if it compiles to the code that runs.

A file may have been edited after its import, and a function made by ``exec`` may have the name of a file that contains
something else.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import zip_longest
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from .._user_files import is_user_code
from ..errors import CaptureError

__all__ = [
    "REWRITTEN",
    "CachePlace",
    "Definition",
    "codes_of",
    "compile_function",
    "find_definition",
    "function_source",
    "is_compiled_from",
    "reachable_caches",
    "reachable_functions",
    "running_definition",
    "source_lines",
]

_GENERATED = "__fxonnx_"
_FACTORY = f"{_GENERATED}factory"
REWRITTEN = f"{_GENERATED}rewritten"
"""Constant of all code that the rewriter compiles."""

_FUTURE_FLAGS = 0x1FE0000
"""``co_flags`` of ``from __future__`` imports."""
_KIND = (
    *(inspect.CO_VARARGS, inspect.CO_VARKEYWORDS, inspect.CO_GENERATOR, inspect.CO_COROUTINE),
    *(inspect.CO_ASYNC_GENERATOR, inspect.CO_ITERABLE_COROUTINE),
)
# A prefix of names that source code cannot contain: pytest inserts such names where it rewrites assertions.
_INSERTED = "@"


@dataclass(frozen=True)
class Definition:
    """The source of a function.

    Attributes:
        node: Its definition in the parsed file.
        owner: Name of the class that contains it.
    """

    node: ast.FunctionDef
    owner: str | None


def source_lines(code: CodeType, module_globals: Mapping[str, Any] | None = None) -> list[str]:
    """The lines of the file of a function; none without a file."""
    return linecache.getlines(code.co_filename, dict(module_globals) if module_globals is not None else None)


def find_definition(code: CodeType, module_globals: Mapping[str, Any] | None = None) -> Definition | None:
    """Find the definition of a function in its file, from which it may not have been compiled.

    Returns:
        The definition; None for lambdas, coroutines and functions without source code.
    """
    try:
        tree = ast.parse("".join(source_lines(code, module_globals)))
    except SyntaxError:
        return None
    pending: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while pending:
        node, owner = pending.pop()
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            if code.co_firstlineno in (first, node.lineno):
                return Definition(node, owner)
        inner = node.name if isinstance(node, ast.ClassDef) else owner
        pending.extend((child, inner) for child in ast.iter_child_nodes(node))
    return None


def running_definition(function: FunctionType) -> Definition:
    """The definition from which a function was compiled.

    Raises:
        CaptureError: If the function has no source code, or other source code than the one that runs.
    """
    code = function.__code__
    definition = find_definition(code, function.__globals__)
    if definition is not None and is_compiled_from(code, definition.node):
        return definition
    place = f"  at: {code.co_filename}:{code.co_firstlineno} in {code.co_name}"
    if not source_lines(code, function.__globals__):
        raise CaptureError(
            f"{function.__qualname__} has no source code, from which its control flow would be captured\n{place}",
            hint="define the function in a file that still exists during the export, in a notebook or in IPython",
        )
    raise CaptureError(
        f"the source code of {function.__qualname__} is not the code that runs: the file has changed since its import, "
        f"or does not define the function\n{place}",
        hint="reload the module or restart the process; a function that exec defines needs a file name of its own",
    )


def function_source(code: CodeType) -> ast.FunctionDef | None:
    """The definition of a function, with the line and column numbers of its file.

    Returns:
        The definition, also of code that it was rewritten to; None if there is none, or it compiles to other code.
    """
    try:
        # inspect.getsourcelines reads an attribute of every module, which imports lazy ones.
        linecache.checkcache(code.co_filename)
        start = code.co_firstlineno
        lines = inspect.getblock(source_lines(code)[start - 1 :])
        # The block keeps the columns of an indented definition, and the content of strings.
        is_indented = lines[0][:1].isspace()
        tree = ast.parse(("if 1:\n" if is_indented else "") + "".join(lines))
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    shift = start - (2 if is_indented else 1)
    node = next((each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)), None)
    if node is None or node.name != code.co_name or not (_is_generated(code) or is_compiled_from(code, node)):
        return None
    return ast.increment_lineno(node, shift)


def is_compiled_from(code: CodeType, node: ast.FunctionDef) -> bool:
    """Whether a function was compiled from a definition, apart from its decorators, docstring and line numbers."""
    node = copy.deepcopy(node)
    node.decorator_list = []
    has_docstring = ast.get_docstring(node, clean=False) is not None
    # Python compiles ``name.function()`` differently if the name is imported by the same module, or notebook cell.
    imported = _imported_names("".join(source_lines(code)))
    return any(
        _are_equal(code, compile_function(node, code, code.co_freevars, names), has_docstring=has_docstring)
        for names in ((imported, ()) if imported else ((),))
    )


@lru_cache(maxsize=32)
def _imported_names(text: str) -> tuple[str, ...]:
    """The names that a module imports, outside of functions and classes; none if the text is not valid."""
    names: list[str] = []
    try:
        pending: list[ast.AST] = [ast.parse(text)]
    except SyntaxError:
        return ()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.extend(alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*")
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            pending.extend(ast.iter_child_nodes(node))
    return tuple(names)


def compile_function(
    node: ast.FunctionDef, code: CodeType, free: Sequence[str], imported: Sequence[str] = ()
) -> CodeType:
    """Compile a definition in the scope of a function.

    Args:
        node: The definition; its default values are replaced.
        code: The code of the function, whose file and future statements apply.
        free: The names of its free variables.
        imported: The names that its module imports.
    """
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in free], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [None if item is None else ast.Constant(None) for item in node.args.kw_defaults]
    # A function that calls itself refers to the global name, unless it is defined inside of another one.
    scope = [] if node.name in free else [ast.Global([node.name])]
    factory = ast.FunctionDef(_FACTORY, arguments, [*scope, node], [])
    ast.copy_location(factory, node)
    imports = [ast.Import([ast.alias(name) for name in imported])] if imported else []
    module = ast.fix_missing_locations(ast.Module([*imports, factory], []))
    flags = code.co_flags & _FUTURE_FLAGS
    compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    (outer,) = (item for item in compiled.co_consts if isinstance(item, CodeType))
    (made,) = (item for item in outer.co_consts if isinstance(item, CodeType) and item.co_name == node.name)
    return made


def _is_generated(code: CodeType) -> bool:
    """Whether a function is rewritten, from source that was compared before."""
    return REWRITTEN in code.co_consts or any(name.startswith(_GENERATED) for name in code.co_freevars)


def _are_equal(code: CodeType, made: CodeType, *, has_docstring: bool = False) -> bool:
    """Whether two functions do the same, given that the second one is compiled from source code.

    Args:
        code: The running function.
        made: The compiled function.
        has_docstring: Whether the first constant is a docstring.
    """
    names = (*code.co_names, *code.co_varnames)
    if any(name.startswith(_INSERTED) for name in names):
        return {*made.co_names, *made.co_varnames} <= set(names)
    constants, others = list(code.co_consts), list(made.co_consts)
    if has_docstring and constants and others and isinstance(constants[0], str | None):
        constants[0] = others[0]
    return (
        code.co_code == made.co_code
        and getattr(code, "co_exceptiontable", None) == getattr(made, "co_exceptiontable", None)
        and all((code.co_flags ^ made.co_flags) & flag == 0 for flag in _KIND)
        and (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        == (made.co_argcount, made.co_posonlyargcount, made.co_kwonlyargcount)
        and _are_same_names(code.co_names, made.co_names)
        and _are_same_names(code.co_varnames, made.co_varnames)
        and _are_same_names(code.co_freevars, made.co_freevars)
        and _are_same_names(code.co_cellvars, made.co_cellvars)
        and len(constants) == len(others)
        and all(map(_are_same_constants, constants, others))
    )


def _are_same_names(names: Sequence[str], others: Sequence[str]) -> bool:
    """Whether names are equal; the private ones of a class (``_Model__cache``) lack its name in the second sequence."""
    return all(
        name == other or (name is not None and other is not None and _is_private(other, name))
        for name, other in zip_longest(names, others)
    )


def _is_private(name: str, mangled: str) -> bool:
    if not name.startswith("__") or name.endswith("__") or not mangled.endswith(name):
        return False
    return re.fullmatch(r"_[^\W\d_]\w*", mangled.removesuffix(name)) is not None


def _are_same_constants(value: Any, other: Any) -> bool:
    if type(value) is not type(other):
        return False
    if isinstance(value, CodeType):
        return value.co_name == other.co_name and _are_equal(value, other)
    if isinstance(value, tuple):
        return len(value) == len(other) and all(map(_are_same_constants, value, other))
    if isinstance(value, frozenset):
        return {(type(item), item) for item in value} == {(type(item), item) for item in other}
    if isinstance(value, str) and ".<locals>." in other:
        # The qualified name of an inner class or function, whose first part is where the outer one was compiled.
        return value == other or value.endswith(f".{other.removeprefix(f'{_FACTORY}.<locals>.')}")
    # -0.0 equals 0.0, and NaN is different from itself.
    return repr(value) == repr(other) if isinstance(value, float | complex) else bool(value == other)


_INSTALLED_DEPTH = 3
"""Calls below ``forward`` up to which the functions of installed packages are searched."""
_LIBRARIES = frozenset({"torch", "builtins", "fxonnx", "fxonnx_translations", "collections", "typing", "abc"})
"""Packages whose classes have no user code."""


def reachable_functions(modules: Iterable[torch.nn.Module]) -> list[FunctionType]:
    """The functions that ``forward`` of a model may call: all that have a name which reachable code refers to."""
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
    """The functions with a ``functools.lru_cache`` to which reachable functions refer, or which a model has."""
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
        self._found: dict[CodeType | FunctionType, FunctionType] = {}

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
                # Functions of one decorator have the same code.
                key = function if function.__closure__ else code
                if key not in self._found and not is_distant and is_user_code(code, function.__globals__):
                    self._found[key] = function
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
        # The code of a rewritten function has a constant that refers to the original.
        constants = [item for item in function.__code__.co_consts if type(item) is FunctionType]
        for cell in (cell for each in (function, *constants) for cell in each.__closure__ or ()):
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
