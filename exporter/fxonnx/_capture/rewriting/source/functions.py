"""Functions of the user's code: found from a code object, compiled from transformed source, replaced for one thread."""

from __future__ import annotations

import ast
import copy
import gc
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

from ...patches.patch import CodePatch, is_tracing, written
from ...user_code import REWRITTEN, Definition, compile_function, find_definition
from .loop_lines import loop_lines
from .transformer import HELPERS, PREFIX, Site, transform

__all__ = ["compile_transformed", "function_of_code", "looping_functions", "replaced"]

_DISPATCH = f"{PREFIX}dispatch"
_COPY = f"{PREFIX}copy"
"""Attribute of the copy of a replaced function, which must not be rewritten itself."""


@contextmanager
def _with_frozen_objects() -> Iterator[None]:
    """Let ``gc`` find the objects that the user's process has frozen with ``gc.freeze``, as servers do that fork."""
    if not gc.get_freeze_count():
        yield
        return
    gc.collect()  # or the garbage would be frozen as well
    gc.unfreeze()
    try:
        yield
    finally:
        gc.freeze()


def function_of_code(code: CodeType, known: Collection[int]) -> FunctionType | None:
    """A function object with the given code, of which each closure is one, and whose ``id`` is not among the known."""
    with _with_frozen_objects():
        found = [item for item in gc.get_referrers(code) if isinstance(item, FunctionType) and item.__code__ is code]
    return next((item for item in found if _COPY not in item.__dict__ and id(item) not in known), None)


def looping_functions(file: str, lines: Sequence[int]) -> list[FunctionType]:
    """The functions, not yet transformed, that contain one of the lines of a file where a loop or a list begins."""
    begin = loop_lines(file, lines)
    if not begin:
        return []
    with _with_frozen_objects():
        codes = [
            (item, begin.intersection(number for *_, number in _all_lines(item.__code__)))
            for item in gc.get_objects()
            if type(item) is FunctionType
            and item.__code__.co_filename == file
            and HELPERS not in item.__code__.co_freevars
            and _COPY not in item.__dict__
        ]
    found = (item for line in lines for item, contained in codes if line in contained)
    return [item for item in found if find_definition(item.__code__) is not None]


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
    original = function.__code__
    code = _renamed(compile_function(node, original, [*original.co_freevars, HELPERS]), original)
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

    row = CodePatch(
        f"{function.__module__}:{function.__qualname__}",
        partial(_trampoline, function, dispatch),
        "torch.export cannot capture its control flow",
        function=function,
    )
    with written([row]):
        yield


def _function_like(function: FunctionType, code: CodeType, closure: tuple[CellType, ...] | None) -> FunctionType:
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    made.__module__ = function.__module__
    made.__dict__.update(function.__dict__)
    return made


def _renamed(code: CodeType, original: CodeType) -> CodeType:
    """The code, in which generated functions have the name of the function that contains them, for tracebacks."""
    constants = tuple(
        _renamed(item, original)
        if isinstance(item, CodeType) and item.co_name.startswith((PREFIX, "<lambda>"))
        else item
        for item in code.co_consts
    )
    return code.replace(co_consts=(*constants, REWRITTEN), co_name=original.co_name)


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
    made = compile_function(node, code, code.co_freevars)
    constants = tuple(dispatch if item == _DISPATCH else item for item in made.co_consts)
    return made.replace(co_consts=constants)
