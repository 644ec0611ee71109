"""Statements of the model that may handle an error: ``try``, ``with``, and jumps in ``finally``."""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, FunctionType
from typing import Any, TypeAlias

from ..source_code import function_source
from .handled_errors import is_model_file

__all__ = ["handles_errors"]

_BOUNDARY = "/fxonnx/_capture/torch_export.py"
_TRY: tuple[Any, ...] = (ast.Try, getattr(ast, "TryStar", ast.Try))
_UNKNOWN = object()

_Scope: TypeAlias = Mapping[str, Any]


def handles_errors(frame: FrameType | None) -> bool:
    """Whether an error in a frame may be handled there, or by one of its callers in the model."""
    while frame is not None and not frame.f_code.co_filename.endswith(_BOUNDARY):
        if is_model_file(frame.f_code.co_filename) and _handles_at(frame):
            return True
        frame = frame.f_back
    return False


def _handles_at(frame: FrameType) -> bool:
    """Whether the line that a frame executes is inside of a statement that may handle its error."""
    code = frame.f_code
    # Python 3.10 has no such table. Expressions, such as comprehensions, contain no statement.
    if getattr(code, "co_exceptiontable", None) == b"" or (code.co_name[0] == "<" and code.co_name != "<module>"):
        return False
    source = function_source(code)
    return source is None or any(
        isinstance(node, (*_TRY, ast.With))
        and _is_in(_guarded(node), frame.f_lineno)
        and _may_handle(node, ChainMap(frame.f_locals, frame.f_globals))
        for node in ast.walk(source)
    )


def _guarded(node: Any) -> Sequence[ast.stmt]:
    """The statements whose errors a statement may handle."""
    if not isinstance(node, _TRY) or not _jumps(node.finalbody):
        return list(node.body)
    return [*node.body, *node.orelse, *(statement for handler in node.handlers for statement in handler.body)]


def _is_in(body: Sequence[ast.stmt], line: int) -> bool:
    return any(statement.lineno <= line <= (statement.end_lineno or 0) for statement in body)


def _may_handle(node: Any, scope: _Scope) -> bool:
    if isinstance(node, _TRY):
        return bool(node.handlers) or _jumps(node.finalbody)
    return any(_may_suppress(item.context_expr, scope) for item in node.items)


def _jumps(body: Iterable[ast.stmt]) -> bool:
    """Whether statements of ``finally`` may end it by a jump, which discards the error."""
    return any(isinstance(node, ast.Return | ast.Break | ast.Continue) for part in body for node in ast.walk(part))


def _may_suppress(expression: ast.expr, scope: _Scope) -> bool:
    """Whether a context manager may suppress errors, found without a call of the model's code."""
    if not isinstance(expression, ast.Call):
        found = _value(expression, scope)
        return found is _UNKNOWN or _exit_may_suppress(type(found))
    function = _value(expression.func, scope)
    if isinstance(function, type):
        return _exit_may_suppress(function)
    generator = getattr(function, "__wrapped__", None)
    if isinstance(generator, FunctionType) and generator.__code__.co_flags & inspect.CO_GENERATOR:
        return is_model_file(generator.__code__.co_filename) and _generator_may_suppress(generator)
    return not _is_of_torch(function)


def _value(expression: ast.expr, scope: _Scope) -> Any:
    """The value of a name, or of attributes of one."""
    if isinstance(expression, ast.Name):
        return scope.get(expression.id, vars(builtins).get(expression.id, _UNKNOWN))
    if not isinstance(expression, ast.Attribute):
        return _UNKNOWN
    owner = _value(expression.value, scope)
    found = _UNKNOWN if owner is _UNKNOWN else inspect.getattr_static(owner, expression.attr, _UNKNOWN)
    return found.__func__ if isinstance(found, staticmethod) else found


def _is_of_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "torch"


def _exit_may_suppress(kind: type) -> bool:
    """Whether the ``__exit__`` of a class may return a true value."""
    function = inspect.getattr_static(kind, "__exit__", None)
    if _is_of_torch(kind) or kind is contextlib.nullcontext or not isinstance(function, FunctionType):
        # Files, locks and the like are implemented in C.
        return False
    source = function_source(function.__code__)
    return source is None or any(
        node.value is not None and not (isinstance(node.value, ast.Constant) and not node.value.value)
        for node in ast.walk(source)
        if isinstance(node, ast.Return)
    )


def _generator_may_suppress(generator: FunctionType) -> bool:
    """Whether the generator of a context manager may handle the error that is raised at its ``yield``."""
    source = function_source(generator.__code__)
    return source is None or any(
        isinstance(node, (*_TRY, ast.With))
        and any(isinstance(each, ast.Yield) for part in _guarded(node) for each in ast.walk(part))
        and _may_handle(node, generator.__globals__)
        for node in ast.walk(source)
    )
