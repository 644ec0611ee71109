"""``int(size)``, ``float(size)``, ``len(tensor)``, ``shape.numel()`` and ``h + (w > h)`` of user code, without numbers.

Python requires these builtins to return numbers, and torch asks for the truth value of a term. Where they specialize a
dynamic dim, or restrict it by a constraint such as ``int(n / 2) == 3``, the names and sums are replaced, and the model
is captured again.
"""

from __future__ import annotations

import builtins
import linecache
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fxonnx_translations._torch_compat import sym_float, sym_int, sym_ite

from ...._turns import one_at_a_time
from ...suspicions.eager_types import replaced_names, type_of
from ..patch import Patch, is_tracing, loaded_namespaces, written
from .shapes import SHAPE_PATCHES

__all__ = ["INTEGER_PATCHES", "converting_files", "symbolic_integers"]

_CONVERSION = re.compile(r"\b(int|float|len|numel)\(")
_PLACE = re.compile(r"(.*?):\d+ in ")


def _as_number(value: Any) -> Any:
    """A truth value of sizes as 1 or 0; other values as they are."""
    return sym_ite(value, 1, 0) if isinstance(value, torch.SymBool) else value


def _arithmetic(original: Callable[..., Any], self: Any, other: Any) -> Any:
    """A sum, difference or product one of whose terms may be a truth value."""
    return original(_as_number(self), _as_number(other))


_ARITHMETIC_PATCHES: tuple[Patch, ...] = tuple(
    Patch(f"torch:{kind}.__{name}__", _arithmetic, "a term that is a truth value becomes a number")
    for kind in ("SymInt", "SymBool")
    for name in ("add", "radd", "sub", "rsub", "mul", "rmul")
)


INTEGER_PATCHES: tuple[Patch, ...] = (*SHAPE_PATCHES, *_ARITHMETIC_PATCHES)
"""Applied where conversions of sizes limit the inputs."""


class _NumberType(type):
    """Class of ``int`` and ``float`` in user code, of which symbolic numbers are instances."""

    builtin: type
    symbolic: type
    convert: Callable[[Any], Any]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.builtin

    def __hash__(cls) -> int:
        return hash(cls.builtin)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.builtin, cls.symbolic))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.builtin)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() and len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat | torch.SymBool):
            return cls.convert(_as_number(args[0]))
        return cls.builtin(*args, **kwargs)


class _Int(int, metaclass=_NumberType):
    """The builtin ``int``, except that a symbolic size stays symbolic."""

    builtin, symbolic, convert = builtins.int, torch.SymInt, sym_int


class _Float(float, metaclass=_NumberType):
    """The builtin ``float``, except that a symbolic size becomes a symbolic float."""

    builtin, symbolic, convert = builtins.float, torch.SymFloat, sym_float


for _kind in (_Int, _Float):
    _kind.__name__ = _kind.__qualname__ = _kind.builtin.__name__


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
    return _Int if found is builtins.int else _Float if found is builtins.float else found


_REPLACEMENTS = {"int": _Int, "float": _Float, "len": _length, "type": _type}


@contextmanager
def symbolic_integers(files: Collection[str], model: torch.nn.Module) -> Iterator[None]:
    """Keep the sizes symbolic that ``int``, ``float``, ``len`` and ``numel`` convert in files of user code.

    Args:
        files: The files.
        model: The model.
    """
    has_shapes = any(
        file.startswith("<") or any("numel()" in line for line in linecache.getlines(file)) for file in files
    )
    with (
        one_at_a_time(),
        replaced_names(_namespaces(files, model), _REPLACEMENTS),
        written(SHAPE_PATCHES if has_shapes else ()),
        written(_ARITHMETIC_PATCHES if files else ()),
    ):
        yield


def converting_files(lines: Iterable[str]) -> set[str]:
    """Files of user code with the lines, ``file.py:12 in forward: code``, that convert sizes to numbers.

    Code that ``exec`` has compiled, ``<string>:12 in forward``, may do so.
    """
    places = [_PLACE.match(line) for line in lines if line.startswith("<") or _CONVERSION.search(line)]
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
