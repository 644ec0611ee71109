"""``isinstance``, ``issubclass`` and ``type`` of user code, with the types of eager torch.

During a capture, sizes are symbolic numbers and tensors are fake: ``isinstance(x.shape[0], int)`` and
``type(x) is torch.Tensor`` are false, and the model takes another branch than in eager torch. The names are replaced in
the modules of user code, as the builtins themselves must not change: torch distinguishes the types.

Texts of sizes and of tensors, which differ between a capture and eager torch, are departures.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, FunctionType, MappingProxyType
from typing import Any

import torch

from fxonnx_translations._torch_compat import FakeTensor, FunctionalTensor, recording_mode

from ..._turns import one_at_a_time
from ..._user_files import OWN, is_user_code
from ..patches.patch import GlobalPatch, is_tracing, written
from .departures import DepartureKind, Evidence, record_departure

__all__ = ["eager_types", "replaced_names", "text_of_number", "text_of_tensor", "type_of"]


def _number_like(kind: type) -> int | float | None:
    """A number of the class that eager torch has in place of a class of symbolic numbers; None for other classes."""
    if kind is torch.SymInt:
        return 1
    if kind is torch.SymFloat:
        return 1.0
    return True if kind is torch.SymBool else None


def is_instance(value: Any, kinds: Any) -> bool:
    """``isinstance``, except that symbolic numbers are also instances of the classes of numbers."""
    if builtins.isinstance(value, _with_builtin_type(kinds)):
        return True
    number = _number_like(builtins.type(value))
    return number is not None and is_tracing() and builtins.isinstance(number, _with_builtin_type(kinds))


def is_subclass(kind: Any, kinds: Any) -> bool:
    """``issubclass``, for classes among which is the replacement of ``type``."""
    return builtins.issubclass(kind, _with_builtin_type(kinds))


def type_of(*args: Any, **kwargs: Any) -> Any:
    """``type``, except that the class of a symbolic number or of a fake tensor is that in eager torch.

    It is a function, since TorchDynamo, which traces the functions of ``torch.cond``, supports no metaclasses.
    """
    found = builtins.type(*args, **kwargs)
    if len(args) == 1 and is_tracing():
        if found is FakeTensor or found is FunctionalTensor:
            return torch.nn.Parameter if builtins.isinstance(args[0], torch.nn.Parameter) else torch.Tensor
        number = _number_like(found)
        if number is not None:
            return builtins.type(number)
    return found


def _with_builtin_type(kinds: Any) -> Any:
    """The classes with which a value is compared, with ``type`` in place of its replacement, the only function."""
    if builtins.type(kinds) is FunctionType:
        return builtins.type
    if builtins.type(kinds) is tuple and FunctionType in [builtins.type(kind) for kind in kinds]:
        return tuple([_with_builtin_type(kind) for kind in kinds])
    return kinds


_IS_INSTANCE: Mapping[str, Any] = MappingProxyType({"isinstance": is_instance})
_REPLACEMENTS: Mapping[str, Any] = MappingProxyType({**_IS_INSTANCE, "issubclass": is_subclass, "type": type_of})


@contextmanager
def eager_types(asking: Iterable[dict[str, Any]], with_types: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Replace the builtins in the globals of user code; other threads call the builtins through the replacements."""
    with one_at_a_time(), replaced_names(asking, _IS_INSTANCE), replaced_names(with_types, _REPLACEMENTS):
        yield


@contextmanager
def replaced_names(namespaces: Iterable[dict[str, Any]], replacements: Mapping[str, Any]) -> Iterator[None]:
    """Replace builtins in namespaces inside the context, except where a namespace has its own object of that name."""
    own = set(map(id, _REPLACEMENTS.values()))
    why = "it would convert a size to a number, or show the types of tensors and sizes that are traced"
    rows = (
        GlobalPatch(name, replacement, why, namespace=namespace)
        for namespace in namespaces
        for name, replacement in replacements.items()
        if namespace.get(name) is None or id(namespace[name]) in own
    )
    with written(rows):
        yield


_CHECKS = frozenset({"_assert", "_check"})
"""Functions of torch that take a message, which is computed even if the check passes."""

_UNKNOWN = ((0, 0), (0, 0))
"""Range of instructions in code that was compiled without columns."""


def text_of_number(original: Callable[..., str], self: Any) -> str:
    """``SymInt.__repr__`` and the like: the text of a size is an expression in symbols."""
    _record_text(sys._getframe(2), "the text of a size", Evidence.SIZES_IN_TEXTS)
    return original(self)


def text_of_tensor(original: Callable[..., str], self: torch.Tensor, *args: Any, **kwargs: Any) -> str:
    """``Tensor.__repr__`` and ``__format__``: the text of a fake tensor has no values."""
    if isinstance(self, FakeTensor) and recording_mode() is not None:
        _record_text(sys._getframe(2), "the text of a tensor", Evidence.VALUES)
    return original(self, *args, **kwargs)


def _record_text(frame: FrameType, detail: str, evidence: Evidence) -> None:
    """Record the text of a value if user code asks for it, except for the message of a check."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back  # other patches of the same method
    if is_user_code(frame.f_code, frame.f_globals) and not _is_message(frame):
        record_departure(DepartureKind.INTROSPECTION, detail, frame, evidence=evidence)


def _is_message(frame: FrameType) -> bool:
    """Whether a frame evaluates an argument of ``torch._assert`` or ``torch._check``."""
    if _CHECKS.isdisjoint(frame.f_code.co_names) or sys.version_info < (3, 11):
        return False
    instructions = list(dis.get_instructions(frame.f_code))
    place = next((_range(item) for item in instructions if item.offset == frame.f_lasti), _UNKNOWN)
    if place == _UNKNOWN:
        return False
    checks = {_range(item)[0] for item in instructions if item.argval in _CHECKS}
    calls = [_range(item) for item in instructions if item.opname.startswith("CALL")]
    return any(start in checks and start <= place[0] and place[1] <= end for start, end in calls)


def _range(item: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last line and column of the expression that an instruction evaluates."""
    found = item.positions  # type: ignore[attr-defined,unused-ignore]  # since Python 3.11
    return (found.lineno or 0, found.col_offset or 0), (found.end_lineno or 0, found.end_col_offset or 0)
