"""``int(size)`` and ``len(tensor)`` of user code, without the conversion to a number that specializes the size.

Python requires both builtins to return an int. Where they specialize a dynamic dim, or restrict it by a constraint such
as ``int(n / 2) == 3``, the names are replaced in the user's module, and the model is captured again.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import torch

from fxonnx_translations._torch_compat import sym_int

from ....errors import CaptureError
from ...attempts import next_attempt
from ...constraints.specialized_dims import SpecializedDimsError
from ...python_types import replaced_names, type_of
from ..patch import is_tracing, loaded_namespaces, one_at_a_time

__all__ = ["capture_with_symbolic_integers"]

_Result = TypeVar("_Result")

_CONVERSION = re.compile(r"\b(int|len)\(")
_PLACE = re.compile(r"(.*?):\d+ in ")


class _IntType(type):
    """Class of ``int`` in user code, of which symbolic sizes are instances."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is builtins.int

    def __hash__(cls) -> int:
        return hash(builtins.int)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, builtins.int | torch.SymInt)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, builtins.int)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() and len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            return sym_int(args[0])
        return builtins.int(*args, **kwargs)


class _Int(int, metaclass=_IntType):
    """The builtin ``int``, except that a symbolic size stays symbolic."""


_Int.__name__ = _Int.__qualname__ = "int"


def _length(value: Any) -> Any:
    """``len``, except that the symbolic size of a tensor, or of a list of dynamic length, stays symbolic."""
    if is_tracing() and isinstance(value, torch.Tensor) and value.dim():
        return value.shape[0]
    if is_tracing() and hasattr(type(value), "symbolic_length"):
        return value.symbolic_length
    return len(value)


def _type(*args: Any, **kwargs: Any) -> Any:
    """``type``, such that ``type(n) is int`` holds for the ``int`` of user code."""
    found = type_of(*args, **kwargs)
    return _Int if found is builtins.int else found


_REPLACEMENTS = {"int": _Int, "len": _length, "type": _type}


def capture_with_symbolic_integers(
    attempt: Callable[[], _Result], model: torch.nn.Module, restricting_lines: Callable[[_Result], Collection[str]]
) -> _Result:
    """Capture a model; if ``int`` or ``len`` restricts dims, capture it again with these sizes kept symbolic.

    Args:
        attempt: Function that captures the model.
        model: The model.
        restricting_lines: The lines of the model at which a capture is restricted to fewer sizes.

    Returns:
        The capture with the fewest of these lines.

    Raises:
        SpecializedDimsError: If the model specializes dims otherwise.
    """
    files: set[str] = set()
    first: SpecializedDimsError | None = None
    restricted: _Result | None = None
    while True:
        try:
            with one_at_a_time(), replaced_names(_namespaces(files, model), _REPLACEMENTS):
                captured = attempt()
        except SpecializedDimsError as error:
            found = _converting_files(str(line) for dim in error.specialized for line in dim.lines) - files
            first = first or error
        except CaptureError:
            # The number may be required to be one, for example as the key of a dictionary.
            if restricted is None and first is None:
                raise
            found = set()
        else:
            lines = restricting_lines(captured)
            if restricted is not None and len(lines) >= len(restricting_lines(restricted)):
                return restricted
            restricted = captured
            found = _converting_files(lines) - files
        if not found and restricted is not None:
            return restricted
        if not found and first is not None:
            raise first from None
        files |= found
        next_attempt(f"int and len keep sizes symbolic in {', '.join(sorted(found))}")


def _converting_files(lines: Iterable[str]) -> set[str]:
    """Files of user code with the lines, ``file.py:12 in forward: code``, that convert sizes to numbers."""
    places = [_PLACE.match(line) for line in lines if _CONVERSION.search(line)]
    return {place.group(1) for place in places if place is not None}


def _namespaces(files: Collection[str], model: torch.nn.Module) -> list[dict[str, Any]]:
    """Globals of the code in these files: of imported modules, and of the classes of the model's modules."""
    if not files:
        return []
    namespaces = {id(loaded): loaded for loaded in loaded_namespaces() if loaded.get("__file__") in files}
    for kind in {base for module in model.modules() for base in type(module).__mro__}:
        for function in vars(kind).values():
            code = getattr(function, "__code__", None)
            if code is not None and code.co_filename in files:
                namespaces[id(function.__globals__)] = function.__globals__
    return list(namespaces.values())
