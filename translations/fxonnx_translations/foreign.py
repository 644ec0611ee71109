"""Translations of operators that exist only while the library that defines them is imported.

They are registered by name, so that exporting needs none of these libraries, and may be imported before or after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import torch

from .registry import Accepts, Translation

__all__ = ["Foreign", "loaded", "translates_when_loaded"]


@dataclass(frozen=True)
class Foreign:
    """One function and the names of the operators it translates.

    Attributes:
        function: ``function(op, **arguments)``.
        names: Qualified names, ``namespace::operator`` or ``namespace::operator.overload``.
        accepts: Conditions beyond the target; None takes every call.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    accepts: Accepts | None = None


_Function = TypeVar("_Function", bound=Callable[..., Any])


def translates_when_loaded(*names: str, accepts: Accepts | None = None) -> Callable[[_Function], _Function]:
    """Marks a function as the translation of operators that may not exist (yet).

    Args:
        names: Qualified names such as ``torchvision::nms``.
        accepts: Returns the reason why a call is not taken, or None.
    """

    def attach(function: _Function) -> _Function:
        records = getattr(function, "__foreign_translations__", ())
        record = Foreign(function, names, accepts)
        function.__foreign_translations__ = (*records, record)  # type: ignore[attr-defined]
        return function

    return attach


def loaded(modules: Iterable[ModuleType]) -> tuple[Translation, ...]:
    """The translations of those operators that exist now."""
    found = []
    for module in modules:
        for value in vars(module).values():
            for record in getattr(value, "__foreign_translations__", ()):
                targets = tuple(target for name in record.names if (target := _overload(name)) is not None)
                if targets:
                    found.append(Translation(record.function, targets, record.accepts))
    return tuple(found)


def _overload(name: str) -> torch._ops.OpOverload | None:
    namespace, _, operator = name.partition("::")
    packet_name, _, overload = operator.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    target = None if packet is None else getattr(packet, overload or "default", None)
    return target if isinstance(target, torch._ops.OpOverload) else None
