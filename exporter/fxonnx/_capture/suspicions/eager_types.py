"""``isinstance``, ``issubclass`` and ``type`` of user code, with the types of eager torch.

During a capture, sizes are symbolic numbers and tensors are fake: ``isinstance(x.shape[0], int)`` and
``type(x) is torch.Tensor`` are false, and the model takes another branch than in eager torch. The names are replaced in
the modules of user code, as the builtins themselves must not change: torch distinguishes the types.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MappingProxyType
from typing import Any

import torch

from fxonnx_translations._torch_compat import FakeTensor, FunctionalTensor

from ..._turns import one_at_a_time
from ..patches.patch import GlobalPatch, is_tracing, written

__all__ = ["eager_types", "replaced_names", "type_of"]


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
