"""Errors of the capture that the model handles: ``try: n = mask.sum().item()`` with ``except RuntimeError``.

A fake tensor raises errors that a tensor does not: it has no value to branch on and no memory to read. A model that
handles such an error takes its fallback, and the export would contain the fallback. Errors are therefore recorded when
they are raised; the first frame of the traceback of one that was handled is the frame that handled it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import logging
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType, MappingProxyType
from typing import Any, TypeAlias

import sympy
import torch

import fxonnx_translations
from fxonnx_translations._torch_compat import FakeTensor

from ..._context_values import activated, active
from ..._interrupts import interruption_point
from ..user_code import function_source

__all__ = [
    "BOUNDARY",
    "HandledErrors",
    "handles_errors",
    "is_model_file",
    "record_error",
    "record_errors",
    "record_raised",
    "recorded_as_conditional",
    "recorded_errors",
    "refuse_pickling",
    "user_code_frame",
]

# Python's logging reports the errors of a message and goes on.
_OTHERS = (
    *(str(Path(module.__file__ or "").parent) + "/" for module in (torch, sympy, logging, fxonnx_translations)),
    *(str(Path(__file__).parents[2]) + "/", "<eval_with_key>"),
)


@dataclass
class HandledErrors:
    """The errors that are raised while the model runs.

    They keep their frames alive, and the tensors in these: drop the object after the run.
    """

    _errors: dict[int, BaseException] = field(default_factory=dict)
    _conditional: set[int] = field(default_factory=set)
    # Handled by the caller of the export, or of this attempt.
    _outer: BaseException | None = field(default_factory=lambda: sys.exc_info()[1])

    def add_current(self) -> None:
        """Record the error that is being handled: of Python, or of a function that is not a torch function."""
        error = sys.exc_info()[1]
        if error is not None and error is not self._outer:
            self.add(error)

    def add(self, error: BaseException) -> None:
        """Record an error that propagates; once if several functions do so."""
        self._errors[id(error)] = error

    def add_conditional(self, error: BaseException) -> None:
        """Record an error that leaves a branch or loop on the value of a tensor: other inputs may not raise it."""
        self.add(error)
        self._conditional.add(id(error))

    def is_conditional(self, error: BaseException) -> bool:
        """Whether an error has left a branch or loop on the value of a tensor."""
        return id(error) in self._conditional

    def handled(self) -> list[BaseException]:
        """The errors that code of the model, or of a library other than torch, has handled, in the order raised."""
        return [error for error in self._errors.values() if _is_handled_by_model(error)]


def recorded_errors() -> AbstractContextManager[HandledErrors]:
    """Record errors inside the context, which requires that ``CAPTURE_PATCHES`` are applied."""
    return activated(HandledErrors())


@contextmanager
def recorded_as_conditional() -> Iterator[None]:
    """Record the error that leaves the context, in which a branch or the body of a loop runs."""
    try:
        yield
    except Exception as error:
        errors = active(HandledErrors)
        if errors is not None:
            errors.add_conditional(error)
        raise


def record_error(original: Callable[..., None], self: BaseException, *args: Any, **kwargs: Any) -> None:
    """Replacement of the initializer of an error that tracing raises in code of the model."""
    original(self, *args, **kwargs)
    errors = active(HandledErrors)
    if errors is not None:
        errors.add(self)


def record_errors(original: Callable[..., Any]) -> Callable[..., Any]:
    """The ``__torch_function__`` of torch.export's mode, which each call of a torch function passes, with a record."""

    def torch_function(
        mode: Any, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        if torch.compiler.is_dynamo_compiling():
            # TorchDynamo traces this function, and cannot trace the record.
            return original(mode, func, types, args, kwargs)
        interruption_point()
        errors = active(HandledErrors)
        if errors is None:
            return original(mode, func, types, args, kwargs)
        errors.add_current()
        try:
            return original(mode, func, types, args, kwargs)
        except Exception as error:
            errors.add(error)
            raise

    return torch_function


def user_code_frame(original: Callable[[], FrameType | None]) -> FrameType | None:
    """``_find_user_code_frame``, which would return the frame of ``record_errors`` for the message of an error."""
    frame = original()
    while frame is not None and not is_model_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def record_raised(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of a function that no mode of torch intercepts and that fails for tensors without memory."""
    try:
        return original(*args, **kwargs)
    except Exception as error:
        errors = active(HandledErrors)
        if errors is not None:
            errors.add(error)
        raise


def refuse_pickling(original: Callable[..., Any], self: torch.Tensor, protocol: Any) -> Any:
    """``Tensor.__reduce_ex__`` of a fake tensor: pickle would fail later, at its symbols or its mode."""
    if not isinstance(self, FakeTensor):
        return original(self, protocol)
    error = RuntimeError("tensors cannot be pickled or copied by copy.copy during the capture")
    errors = active(HandledErrors)
    if errors is not None:
        errors.add(error)
    raise error


def is_model_file(filename: str) -> bool:
    """Whether a file is code of the model or of a library, also of Python's, that it calls; not of torch."""
    return not filename.startswith(_OTHERS)


def _is_handled_by_model(error: BaseException) -> bool:
    """Whether the last frame to which a handled error propagated is code of the model.

    The model may also have removed the traceback: frames of torch do not.
    """
    traceback = error.__traceback__
    return traceback is None or is_model_file(traceback.tb_frame.f_code.co_filename)


BOUNDARY = "/fxonnx/_capture/torch_export.py"
"""The end of the file with the frames that call the model."""
_TRY: tuple[Any, ...] = (ast.Try, getattr(ast, "TryStar", ast.Try))
_UNKNOWN = object()

_Scope: TypeAlias = Mapping[str, Any]


def handles_errors(frame: FrameType | None, error: ast.expr | None) -> bool:
    """Whether an error in a frame may be handled there, or by one of its callers in the model.

    The error is the expression that is raised, or its class; None if it is unknown.
    """
    called = error.func if isinstance(error, ast.Call) else error
    kind = _UNKNOWN if frame is None or called is None else _value(called, _scope(frame))
    while frame is not None and not frame.f_code.co_filename.endswith(BOUNDARY):
        if is_model_file(frame.f_code.co_filename) and _handles_at(frame, kind):
            return True
        frame = frame.f_back
    return False


def _scope(frame: FrameType) -> _Scope:
    return ChainMap(frame.f_locals, frame.f_globals)


def _handles_at(frame: FrameType, kind: Any) -> bool:
    """Whether the line that a frame executes is inside of a statement that may handle an error of a class."""
    code = frame.f_code
    # Python 3.10 has no such table. Expressions, such as comprehensions, contain no statement.
    if getattr(code, "co_exceptiontable", None) == b"" or (code.co_name[0] == "<" and code.co_name != "<module>"):
        return False
    source = function_source(code)
    return source is None or any(
        isinstance(node, (*_TRY, ast.With))
        and _is_in(_guarded(node), frame.f_lineno)
        and _may_handle(node, _scope(frame), kind)
        for node in ast.walk(source)
    )


def _guarded(node: Any) -> Sequence[ast.stmt]:
    """The statements whose errors a statement may handle."""
    if not isinstance(node, _TRY) or not _jumps(node.finalbody):
        return list(node.body)
    return [*node.body, *node.orelse, *(statement for handler in node.handlers for statement in handler.body)]


def _is_in(body: Sequence[ast.stmt], line: int) -> bool:
    return any(statement.lineno <= line <= (statement.end_lineno or 0) for statement in body)


def _may_handle(node: Any, scope: _Scope, kind: Any = _UNKNOWN) -> bool:
    if isinstance(node, _TRY):
        return any(_may_catch(each.type, scope, kind) for each in node.handlers) or _jumps(node.finalbody)
    return any(_may_suppress(item.context_expr, scope) for item in node.items)


def _may_catch(caught: ast.expr | None, scope: _Scope, kind: Any) -> bool:
    """Whether ``except caught`` may catch an error of a class, which may be unknown."""
    if isinstance(caught, ast.Tuple):
        return any(_may_catch(each, scope, kind) for each in caught.elts)
    found = _UNKNOWN if caught is None else _value(caught, scope)
    return not (isinstance(kind, type) and isinstance(found, type)) or issubclass(kind, found)


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
