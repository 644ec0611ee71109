"""Which function translates which operator.

``@translates`` only attaches a frozen record to a function; ``build_registry`` collects the records of an explicit list
of modules into an immutable :class:`Registry`, which is passed to whoever needs it.

Operators are named by strings and looked up by the name of the node's target, so that a translation costs nothing where
this version of torch lacks its operator, or where the library that defines it is not imported (yet).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias, TypeVar

from ._torch_compat import OpOverload, OpOverloadPacket

__all__ = ["Accepts", "OpCall", "OpKey", "Registry", "Translation", "build_registry", "structural", "translates"]

NodeTarget = Callable[..., Any]
"""An ``OpOverload``, a Python function such as ``operator.getitem``, or a higher-order operator."""

OpKey: TypeAlias = str | NodeTarget
"""How the registry knows a target: an ``OpOverload`` by its name (``aten::add.Tensor``), anything else by itself."""


def _op_key(target: NodeTarget) -> OpKey:
    return str(target.name()) if isinstance(target, OpOverload) else target  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class OpCall:
    """One operator call as the captured graph holds it, for the decision whether a translation takes it.

    Attributes:
        target: What is called.
        arguments: Arguments by schema name, defaults filled in; a tensor is its FakeTensor, a size an int or SymInt.
        opset: NodeTarget opset of the export.
    """

    target: NodeTarget
    arguments: Mapping[str, Any]
    opset: int


Accepts = Callable[[OpCall], str | None]
"""Says why a translation does not take a call, or None when it does."""


@dataclass(frozen=True)
class Translation:
    """One function and the operators it translates.

    Attributes:
        function: ``function(op, **arguments)``; ``op`` is :class:`fxonnx_translations._builder.builder.Op`.
        targets: The operators: names as in their schemas, or Python functions.
        accepts: Conditions beyond the target; None takes every call.
        custom: Whether it comes from the user's ``custom_translation_table``.
        complex: Whether it takes the calls with complex tensors, which no other translation sees.
        data: The arguments whose real and imaginary parts the operator's own translation is run on, one after the
            other; None for a translation of its own.
    """

    function: Callable[..., Any]
    targets: tuple[OpKey, ...]
    accepts: Accepts | None = None
    custom: bool = False
    complex: bool = False
    data: tuple[str, ...] | None = None


_Function = TypeVar("_Function", bound=Callable[..., Any])

_NAME = re.compile(r"\w+::\w+(\.\w+)?")


def translates(
    *targets: OpKey, accepts: Accepts | None = None, complex: bool = False
) -> Callable[[_Function], _Function]:
    """Marks a function as the translation of operators.

    Args:
        targets: Operators by the names of their schemas, such as ``"aten::add.Tensor"`` (the overload ``default`` is
            left out: ``"aten::relu"``), which need not exist in this version of torch; or Python functions.
        accepts: Returns the reason why a call is not taken, or None.
        complex: It takes the calls in which a tensor argument or result is complex, and only those.

    Raises:
        TypeError: For an OpOverload or OpOverloadPacket.
        ValueError: For a string that cannot be the name of an operator's schema.
    """
    _check_names(targets)

    def attach(function: _Function) -> _Function:
        records = getattr(function, "__translations__", ())
        record = Translation(function, targets, accepts, complex=complex)
        function.__translations__ = (*records, record)  # type: ignore[attr-defined]
        return function

    return attach


def _check_names(targets: Sequence[OpKey]) -> None:
    for target in targets:
        if isinstance(target, (OpOverload, OpOverloadPacket)):
            raise TypeError(f"operators are named by strings such as 'aten::add.Tensor', got {target}")
        if isinstance(target, str) and (not _NAME.fullmatch(target) or target.endswith(".default")):
            raise ValueError(
                f"{target!r} cannot be the name of an operator: use namespace::operator.overload,"
                " or namespace::operator for the overload 'default'"
            )


def structural(*targets: str, data: tuple[str, ...]) -> Translation:
    """The row of operators that do to complex numbers what they do to their real and imaginary parts.

    Args:
        targets: The operators; each has a translation for real numbers, or the row declines.
        data: The arguments that hold the numbers: tensors, lists of tensors, or scalars.
    """
    _check_names(targets)
    return Translation(_on_parts, targets, complex=True, data=data)


def _on_parts(*_: Any, **__: Any) -> Any:
    raise TypeError("a structural row is run through the translation of the operator for real numbers")


@dataclass(frozen=True)
class Registry:
    """Immutable mapping from operators to their candidate translations, best first.

    Attributes:
        table: The translations of calls without complex tensors.
        complex_table: The translations of calls with complex tensors.
    """

    table: Mapping[OpKey, tuple[Translation, ...]] = field(default_factory=dict)
    complex_table: Mapping[OpKey, tuple[Translation, ...]] = field(default_factory=dict)

    def __contains__(self, target: NodeTarget) -> bool:
        return _op_key(target) in self.table

    def find(self, call: OpCall, *, complex: bool = False) -> tuple[Translation | None, tuple[str, ...]]:
        """The first candidate that takes the call, else None and each candidate's reason."""
        reasons = []
        table = self.complex_table if complex else self.table
        for candidate in table.get(_op_key(call.target), ()):
            reason = None if candidate.accepts is None else candidate.accepts(call)
            if reason is None:
                return candidate, ()
            reasons.append(reason)
        return None, tuple(reasons)

    def unconditional(self, target: NodeTarget) -> Translation | None:
        """The best candidate when it takes every call: the common case needs no bound arguments."""
        candidates = self.table.get(_op_key(target))
        return candidates[0] if candidates and candidates[0].accepts is None else None

    def extended(self, custom: Mapping[NodeTarget, Any]) -> Registry:
        """A new registry in which the user's functions come before the built-in ones.

        Args:
            custom: Operator to function, or to a list of functions. Those with an attribute ``complex`` that is true
                take the calls with complex tensors; without any, all functions take all calls.
        """
        if not custom:
            return self
        table, complex_table = dict(self.table), dict(self.complex_table)
        for target, functions in custom.items():
            key = _op_key(target)
            several = functions if isinstance(functions, (list, tuple)) else [functions]
            for_complex = [one for one in several if getattr(one, "complex", False)]
            for_real = [one for one in several if one not in for_complex]
            for place, chosen in ((table, for_real), (complex_table, for_complex or for_real)):
                if chosen:
                    record = Translation(_one_or_all(chosen), (key,), custom=True)
                    place[key] = (record, *place.get(key, ()))
        return Registry(MappingProxyType(table), MappingProxyType(complex_table))


def _one_or_all(functions: Sequence[Any]) -> Any:
    return functions[0] if len(functions) == 1 else tuple(functions)


def build_registry(modules: Iterable[ModuleType], tables: Sequence[Translation] = ()) -> Registry:
    """Collects the translations of ``modules``; each module lists its table rows in ``TRANSLATIONS``.

    Raises:
        ValueError: If two unconditional translations claim one operator.
    """
    tables_of: dict[bool, dict[OpKey, tuple[Translation, ...]]] = {False: {}, True: {}}
    records = list(tables)
    for module in modules:
        for value in vars(module).values():
            if getattr(value, "__module__", None) == module.__name__:
                records.extend(getattr(value, "__translations__", ()))
        records.extend(getattr(module, "TRANSLATIONS", ()))
    for record in records:
        table = tables_of[record.complex]
        for target in record.targets:
            others = table.get(target, ())
            if record.accepts is None and any(other.accepts is None for other in others):
                raise ValueError(
                    f"{target} is translated by both {others[-1].function.__qualname__} and {record.function.__qualname__}"
                )
            # Conditional candidates come first: the unconditional one is what remains when all of them decline.
            table[target] = (*others, record) if record.accepts is None else (record, *others)
    return Registry(MappingProxyType(tables_of[False]), MappingProxyType(tables_of[True]))
