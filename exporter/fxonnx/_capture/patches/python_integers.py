"""``int(size)`` and ``len(tensor)`` of user code, without the conversion to a number that specializes the size.

Python requires both builtins to return an int. Where they specialize a dynamic dim, the names are replaced in the
user's module, and the model is captured again.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ...errors import CaptureError
from ..constraints.specialized_dims import SpecializedDimsError
from .patch import is_tracing, one_at_a_time

__all__ = ["capture_with_symbolic_integers"]

_Result = TypeVar("_Result")

_CONVERSION = re.compile(r"\b(int|len)\(")
_PLACE = re.compile(r"(.*):\d+ in ")

_sym_int: Callable[..., Any] = torch.sym_int


class _IntType(type):
    """Class of ``int`` in user code, of which symbolic sizes are instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, builtins.int | torch.SymInt)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, builtins.int)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() and len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            return _sym_int(args[0])
        return builtins.int(*args, **kwargs)


class _Int(int, metaclass=_IntType):
    """The builtin ``int``, except that a symbolic size stays symbolic."""


def _length(value: Any) -> Any:
    """``len``, except that the symbolic size of a tensor, or of a list of dynamic length, stays symbolic."""
    if is_tracing() and isinstance(value, torch.Tensor) and value.dim():
        return value.shape[0]
    if is_tracing() and hasattr(type(value), "symbolic_length"):
        return value.symbolic_length
    return len(value)


_REPLACEMENTS = {"int": _Int, "len": _length}


def capture_with_symbolic_integers(attempt: Callable[[], _Result], model: torch.nn.Module) -> _Result:
    """Capture a model; if ``int`` or ``len`` specializes dims, capture it again with these sizes kept symbolic.

    Args:
        attempt: Function that captures the model.
        model: The model.

    Raises:
        SpecializedDimsError: If the model specializes dims otherwise.
    """
    files: set[str] = set()
    first: SpecializedDimsError | None = None
    while True:
        try:
            with one_at_a_time(), _replaced_builtins(files, model):
                return attempt()
        except SpecializedDimsError as error:  # noqa: PERF203 - every attempt captures the model
            found = _converting_files(error) - files
            if not found:
                raise
            files |= found
            first = first or error
        except CaptureError:
            # The number may be required to be one, for example as the key of a dictionary.
            if first is None:
                raise
            raise first from None


def _converting_files(error: SpecializedDimsError) -> set[str]:
    """Files of user code with the lines that convert sizes to numbers."""
    lines = [dim.line for dim in error.specialized if dim.line is not None and _CONVERSION.search(dim.line.code)]
    return {place.group(1) for line in lines if (place := _PLACE.match(line.place))}


@contextmanager
def _replaced_builtins(files: Collection[str], model: torch.nn.Module) -> Iterator[None]:
    """Replace the builtins in the modules of these files; other threads call the builtins through the replacements."""
    changed: list[tuple[dict[str, Any], str]] = []
    try:
        for namespace in _namespaces(files, model):
            for name, replacement in _REPLACEMENTS.items():
                if name not in namespace:
                    namespace[name] = replacement
                    changed.append((namespace, name))
        yield
    finally:
        for namespace, name in changed:
            del namespace[name]


def _namespaces(files: Collection[str], model: torch.nn.Module) -> list[dict[str, Any]]:
    """Globals of the code in these files: of imported modules, and of the classes of the model's modules."""
    if not files:
        return []
    namespaces = {id(vars(module)): vars(module) for module in list(sys.modules.values()) if _file(module) in files}
    for kind in {base for module in model.modules() for base in type(module).__mro__}:
        for function in vars(kind).values():
            code = getattr(function, "__code__", None)
            if code is not None and code.co_filename in files:
                namespaces[id(function.__globals__)] = function.__globals__
    return list(namespaces.values())


def _file(module: Any) -> str | None:
    return getattr(module, "__file__", None)
