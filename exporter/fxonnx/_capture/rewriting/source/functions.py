"""Functions of the user's code: found from a code object, compiled from transformed source, replaced for one thread."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from ...patches import is_tracing
from .loop_lines import begins_loop
from .transformer import HELPERS, PREFIX, Site, transform

__all__ = ["Definition", "compile_transformed", "find_definition", "function_of_code", "looping_functions", "replaced"]

_FACTORY = f"{PREFIX}factory"
_DISPATCH = f"{PREFIX}dispatch"
_COPY = f"{PREFIX}copy"
"""Attribute of the copy of a replaced function, which must not be rewritten itself."""


@dataclass(frozen=True)
class Definition:
    """The source of a function.

    Attributes:
        node: Its definition in the parsed file.
        owner: Name of the class that contains it.
    """

    node: ast.FunctionDef
    owner: str | None


def find_definition(code: CodeType, module_globals: Mapping[str, Any] | None = None) -> Definition | None:
    """Find the definition of a function in its file.

    Args:
        code: The code of the function.
        module_globals: The globals of its module, for sources that are not in files.

    Returns:
        The definition; None for lambdas, coroutines and functions without source code.
    """
    lines = linecache.getlines(code.co_filename, dict(module_globals) if module_globals is not None else None)
    if not lines:
        return None
    try:
        tree = ast.parse("".join(lines))
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


def function_of_code(code: CodeType) -> FunctionType | None:
    """The function object with the given code; None if there is none."""
    found = [
        item
        for item in gc.get_referrers(code)
        if isinstance(item, FunctionType) and item.__code__ is code and _COPY not in item.__dict__
    ]
    return found[0] if found else None


def looping_functions(file: str, line: int) -> list[FunctionType]:
    """The functions, not yet transformed, that contain a line of a file where a loop or a list begins."""
    if not begins_loop(file, line):
        return []
    codes = [
        item
        for item in gc.get_objects()
        if type(item) is FunctionType
        and item.__code__.co_filename == file
        and HELPERS not in item.__code__.co_freevars
        and _COPY not in item.__dict__
        and any(number == line for *_, number in _all_lines(item.__code__))
    ]
    return [item for item in codes if find_definition(item.__code__) is not None]


def _all_lines(code: CodeType) -> Iterator[tuple[int, int, int | None]]:
    yield from code.co_lines()
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from _all_lines(item)


def compile_transformed(
    function: FunctionType, definition: Definition, helpers: Callable[[list[Site]], Any]
) -> FunctionType:
    """Compile the transformed source of a function, with its closure, defaults, globals and line numbers.

    Args:
        function: The original function.
        definition: Its source.
        helpers: Creates the helpers that the transformed function calls, for the control flow constructs in it.
    """
    node, sites = transform(_WithoutAnnotations().visit(copy.deepcopy(definition.node)), definition.owner)
    code = _renamed(_compile(node, function, [HELPERS]), function.__code__)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[HELPERS] = CellType(helpers(sites))
    return _function_like(function, code, tuple(cells[name] for name in code.co_freevars))


class _WithoutAnnotations(ast.NodeTransformer):
    """Remove the annotations of variables: a name that is declared ``nonlocal`` must not have one."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None or not isinstance(node.target, ast.Name):
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


@contextmanager
def replaced(function: FunctionType, replacement: FunctionType) -> Iterator[None]:
    """Replace a function inside the context for the exporting thread, wherever it is referenced.

    Its ``__code__`` is replaced by a call of the replacement; other threads call a copy of the original.
    """
    original = function.__code__
    copied = _function_like(function, original, function.__closure__)
    copied.__dict__[_COPY] = True

    def dispatch() -> FunctionType:
        return replacement if is_tracing() else copied

    function.__code__ = _trampoline(function, dispatch)
    try:
        yield
    finally:
        function.__code__ = original


def _function_like(function: FunctionType, code: CodeType, closure: tuple[CellType, ...] | None) -> FunctionType:
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    made.__module__ = function.__module__
    made.__dict__.update(function.__dict__)
    return made


def _compile(node: ast.FunctionDef, function: FunctionType, free: list[str]) -> CodeType:
    """Compile a definition whose free variables are the ones of the function, and ``free``."""
    code = function.__code__
    names = [*code.co_freevars, *free]
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [None if item is None else ast.Constant(None) for item in node.args.kw_defaults]
    factory = ast.FunctionDef(_FACTORY, arguments, [node], [])
    ast.copy_location(factory, node)
    module = ast.fix_missing_locations(ast.Module([factory], []))
    # The flags of the original file, such as annotations.
    flags = code.co_flags & _FUTURE_FLAGS
    compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    (outer,) = (item for item in compiled.co_consts if isinstance(item, CodeType))
    (made,) = (item for item in outer.co_consts if isinstance(item, CodeType) and item.co_name == node.name)
    return made


_FUTURE_FLAGS = 0x1FE0000
"""``co_flags`` of ``from __future__`` imports."""


def _renamed(code: CodeType, original: CodeType) -> CodeType:
    """The code, in which generated functions have the name of the function that contains them, for tracebacks."""
    constants = tuple(
        _renamed(item, original)
        if isinstance(item, CodeType) and item.co_name.startswith((PREFIX, "<lambda>"))
        else item
        for item in code.co_consts
    )
    return code.replace(co_consts=constants, co_name=original.co_name)


def _trampoline(function: FunctionType, dispatch: Callable[[], FunctionType]) -> CodeType:
    """Code with the signature and the free variables of a function that calls the function ``dispatch`` returns."""
    code = function.__code__
    names = code.co_varnames
    positional = names[: code.co_argcount]
    keyword = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = list(names[code.co_argcount + code.co_kwonlyargcount :])
    variadic = rest.pop(0) if code.co_flags & inspect.CO_VARARGS else None
    keywords = rest.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else None
    optional = function.__kwdefaults__ or {}
    arguments = ast.arguments(
        posonlyargs=[ast.arg(name) for name in positional[: code.co_posonlyargcount]],
        args=[ast.arg(name) for name in positional[code.co_posonlyargcount :]],
        vararg=None if variadic is None else ast.arg(variadic),
        kwonlyargs=[ast.arg(name) for name in keyword],
        kw_defaults=[ast.Constant(None) if name in optional else None for name in keyword],
        kwarg=None if keywords is None else ast.arg(keywords),
        defaults=[ast.Constant(None) for _ in function.__defaults__ or ()],
    )

    def load(name: str) -> ast.expr:
        return ast.Name(name, ast.Load())

    given: list[ast.expr] = [load(name) for name in positional]
    if variadic is not None:
        given.append(ast.Starred(load(variadic), ast.Load()))
    by_name = [ast.keyword(name, load(name)) for name in keyword]
    if keywords is not None:
        by_name.append(ast.keyword(None, load(keywords)))
    target = f"{PREFIX}target"
    # The constant is replaced by the function below. The condition keeps the free variables.
    body: list[ast.stmt] = [
        ast.Assign([ast.Name(target, ast.Store())], ast.Constant(_DISPATCH)),
        ast.Return(ast.Call(ast.Call(load(target), [], []), given, by_name)),
    ]
    if code.co_freevars:
        unused = ast.Expr(ast.Tuple([load(name) for name in code.co_freevars], ast.Load()))
        body.insert(0, ast.If(ast.Constant(False), [unused], []))
    node = ast.FunctionDef(code.co_name, arguments, body, [])
    node.lineno = node.end_lineno = code.co_firstlineno
    node.col_offset = node.end_col_offset = 0
    made = _compile(node, function, [])
    constants = tuple(dispatch if item == _DISPATCH else item for item in made.co_consts)
    return made.replace(co_consts=constants)
