"""Which function translates which operator.

``@translates`` only attaches a frozen record to a function; ``build_registry`` collects the records of an explicit list
of modules into an immutable :class:`Registry`, which is passed to whoever needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import torch

__all__ = ["Accepts", "Call", "Registry", "Translation", "build_registry", "translates"]

Target = Callable[..., Any]
"""An ``OpOverload``, a Python function such as ``operator.getitem``, or a higher-order operator."""


@dataclass(frozen=True)
class Call:
    """One operator call as the captured graph holds it, for the decision whether a translation takes it.

    Attributes:
        target: What is called.
        arguments: Arguments by schema name, defaults filled in; a tensor is its FakeTensor, a size an int or SymInt.
        opset: Target opset of the export.
    """

    target: Target
    arguments: Mapping[str, Any]
    opset: int


Accepts = Callable[[Call], str | None]
"""Says why a translation does not take a call, or None when it does."""


@dataclass(frozen=True)
class Translation:
    """One function and the operators it translates.

    Attributes:
        function: ``function(op, **arguments)``; ``op`` is :class:`fxonnx_translations.builder.Op`.
        targets: The operators.
        accepts: Conditions beyond the target; None takes every call.
        custom: Whether it comes from the user's ``custom_translation_table``.
    """

    function: Callable[..., Any]
    targets: tuple[Target, ...]
    accepts: Accepts | None = None
    custom: bool = False


_Function = TypeVar("_Function", bound=Callable[..., Any])


def translates(*targets: Target, accepts: Accepts | None = None) -> Callable[[_Function], _Function]:
    """Marks a function as the translation of operators.

    Args:
        targets: OpOverloads such as ``torch.ops.aten.add.Tensor``; never overload packets.
        accepts: Returns the reason why a call is not taken, or None.

    Raises:
        TypeError: For an OpOverloadPacket.
    """
    for target in targets:
        if isinstance(target, torch._ops.OpOverloadPacket):
            raise TypeError(f"@translates takes overloads, got the packet {target}; use {target}.default")

    def attach(function: _Function) -> _Function:
        records = getattr(function, "__translations__", ())
        record = Translation(function, targets, accepts)
        function.__translations__ = (*records, record)  # type: ignore[attr-defined]
        return function

    return attach


@dataclass(frozen=True)
class Registry:
    """Immutable mapping from operators to their candidate translations, best first."""

    table: Mapping[Target, tuple[Translation, ...]] = field(default_factory=dict)

    def __contains__(self, target: object) -> bool:
        return target in self.table

    def find(self, call: Call) -> tuple[Translation | None, tuple[str, ...]]:
        """The first candidate that takes the call, else None and each candidate's reason."""
        reasons = []
        for candidate in self.table.get(call.target, ()):
            reason = None if candidate.accepts is None else candidate.accepts(call)
            if reason is None:
                return candidate, ()
            reasons.append(reason)
        return None, tuple(reasons)

    def unconditional(self, target: Target) -> Translation | None:
        """The best candidate when it takes every call: the common case needs no bound arguments."""
        candidates = self.table.get(target)
        return candidates[0] if candidates and candidates[0].accepts is None else None

    def extended(self, custom: Mapping[Target, Callable[..., Any]]) -> Registry:
        """A new registry in which the user's functions come before the built-in ones."""
        table = dict(self.table)
        for target, function in custom.items():
            record = Translation(function, (target,), custom=True)
            table[target] = (record, *table.get(target, ()))
        return Registry(MappingProxyType(table))


def build_registry(modules: Iterable[ModuleType], tables: Sequence[Translation] = ()) -> Registry:
    """Collects the translations of ``modules``; each module lists its table rows in ``TRANSLATIONS``.

    Raises:
        ValueError: If two unconditional translations claim one operator.
    """
    table: dict[Target, tuple[Translation, ...]] = {}
    records = list(tables)
    for module in modules:
        for value in vars(module).values():
            if getattr(value, "__module__", None) == module.__name__:
                records.extend(getattr(value, "__translations__", ()))
        records.extend(getattr(module, "TRANSLATIONS", ()))
    for record in records:
        for target in record.targets:
            others = table.get(target, ())
            if record.accepts is None and any(other.accepts is None for other in others):
                raise ValueError(
                    f"{target} is translated by both {others[-1].function.__qualname__} and {record.function.__qualname__}"
                )
            # Conditional candidates come first: the unconditional one is what remains when all of them decline.
            table[target] = (*others, record) if record.accepts is None else (record, *others)
    return Registry(MappingProxyType(table))
