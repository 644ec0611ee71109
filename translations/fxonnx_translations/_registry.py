"""The registry of translations: operators to the functions that translate them.

``@translates`` only attaches a frozen record to a function; ``build_registry`` collects the records of an explicit list
of modules into an immutable :class:`Registry`, which is passed as an argument.

Operators are named by strings and looked up by the name of the FX node's target: the operator need not exist in this
version of torch, and the library that defines it need not be imported.
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
"""The target of an FX node: an ``OpOverload``, a Python function such as ``operator.getitem``, or a higher-order op."""

OpKey: TypeAlias = str | NodeTarget
"""The key of a target in the registry: the name of an ``OpOverload`` (``aten::add.Tensor``), else the target itself."""


def _op_key(target: NodeTarget) -> OpKey:
    return str(target.name()) if isinstance(target, OpOverload) else target  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class OpCall:
    """One operator call of the captured graph; ``accepts`` functions decide by it whether a translation applies.

    Attributes:
        target: The operator.
        arguments: Arguments by schema name, defaults filled in; a tensor is its FakeTensor, a size an int or SymInt.
        opset: Target opset of the export.
    """

    target: NodeTarget
    arguments: Mapping[str, Any]
    opset: int


Accepts = Callable[[OpCall], str | None]
"""Returns the reason why a translation does not accept a call, or None."""


@dataclass(frozen=True)
class Translation:
    """One function and the operators it translates.

    Attributes:
        function: ``function(op, **arguments)``; ``op`` is a :class:`fxonnx_translations.Op`.
        targets: The operators: names as in their schemas, or Python functions.
        accepts: Condition for a call of these operators; None accepts every call.
        custom: Whether it comes from the user's ``custom_translation_table``.
        complex: Whether it translates the calls with complex tensors, which are dispatched separately.
        data: For :func:`structural` rows, the arguments whose real and imaginary parts the translation for real tensors
            is applied to, one after the other; None for a function of its own.
        has_parts_axis: For :func:`structural` rows, whether it also accepts a tensor with a last axis for the two parts.
        exact: Description of the results that ``numerics="exact"`` preserves in addition, for the documentation; None if
            it makes no difference.
    """

    function: Callable[..., Any]
    targets: tuple[OpKey, ...]
    accepts: Accepts | None = None
    custom: bool = False
    complex: bool = False
    data: tuple[str, ...] | None = None
    has_parts_axis: bool = False
    exact: str | None = None


_Function = TypeVar("_Function", bound=Callable[..., Any])

_NAME = re.compile(r"\w+::\w+(\.\w+)?")


def translates(
    *targets: OpKey, accepts: Accepts | None = None, complex: bool = False, exact: str | None = None
) -> Callable[[_Function], _Function]:
    """Mark a function as the translation of operators.

    Args:
        targets: Operators by the names of their schemas, such as ``"aten::add.Tensor"`` (the overload ``default`` is
            omitted: ``"aten::relu"``), which need not exist in this version of torch; or Python functions.
        accepts: Returns the reason why a call is not accepted, or None.
        complex: Translate the calls in which a tensor argument or result is complex, and only those.
        exact: Description of the results for which the function emits further nodes if ``op.exact_numerics`` is true;
            required if it reads that property.

    Raises:
        TypeError: For an OpOverload or OpOverloadPacket.
        ValueError: For a string that cannot be the name of an operator's schema.
    """
    _check_names(targets)

    def attach(function: _Function) -> _Function:
        records = getattr(function, "__translations__", ())
        record = Translation(function, targets, accepts, complex=complex, exact=exact)
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


def structural(*targets: str, data: tuple[str, ...], has_parts_axis: bool = False) -> Translation:
    """Translate calls with complex tensors by applying the translation for real tensors to each part.

    Args:
        targets: Operators that treat real and imaginary parts alike (views, sums ...). A call whose operator has no
            translation for real tensors is not accepted.
        data: The arguments that hold complex numbers: tensors, lists of tensors, or scalars.
        has_parts_axis: Whether the translations for real tensors also accept one with a last axis for the two parts.
    """
    _check_names(targets)
    return Translation(_on_parts, targets, complex=True, data=data, has_parts_axis=has_parts_axis)


def _on_parts(*_: Any, **__: Any) -> Any:
    raise TypeError(
        "a structural row has no function of its own: the translation for real tensors is applied to each part"
    )


@dataclass(frozen=True)
class Registry:
    """Immutable mapping from operators to their candidate translations, in the order they are tried.

    Attributes:
        table: The translations of calls without complex tensors.
        complex_table: The translations of calls with complex tensors.
    """

    table: Mapping[OpKey, tuple[Translation, ...]] = field(default_factory=dict)
    complex_table: Mapping[OpKey, tuple[Translation, ...]] = field(default_factory=dict)

    def __contains__(self, target: NodeTarget) -> bool:
        return _op_key(target) in self.table

    def find(self, call: OpCall, *, complex: bool = False) -> tuple[Translation | None, tuple[str, ...]]:
        """Return the first candidate that accepts the call, or None with the reason of each candidate."""
        reasons = []
        table = self.complex_table if complex else self.table
        for candidate in table.get(_op_key(call.target), ()):
            reason = None if candidate.accepts is None else candidate.accepts(call)
            if reason is None:
                return candidate, ()
            reasons.append(reason)
        return None, tuple(reasons)

    def unconditional(self, target: NodeTarget) -> Translation | None:
        """Return the first candidate if it accepts every call: then the arguments need not be bound for the decision."""
        candidates = self.table.get(_op_key(target))
        return candidates[0] if candidates and candidates[0].accepts is None else None

    def exact_notes(self) -> Mapping[str, str]:
        """Return descriptions of the results that ``numerics="exact"`` preserves in addition, by operator."""
        tables = (self.table, self.complex_table)
        records = [record for table in tables for candidates in table.values() for record in candidates]
        return {str(target): record.exact for record in records if record.exact for target in record.targets}

    def extended(self, custom: Mapping[NodeTarget, Any]) -> Registry:
        """Return a new registry in which the user's functions come before the built-in ones.

        Args:
            custom: Operator to function, or to a list of functions. Functions whose attribute ``complex`` is true
                translate the calls with complex tensors; if there are none, all functions translate all calls.
        """
        if not custom:
            return self
        table, complex_table = dict(self.table), dict(self.complex_table)
        for target, functions in custom.items():
            key = _op_key(target)
            several = functions if isinstance(functions, (list, tuple)) else [functions]
            for_complex = [one for one in several if getattr(one, "complex", False)]
            for_real = [one for one in several if one not in for_complex]
            for candidates, chosen in ((table, for_real), (complex_table, for_complex or for_real)):
                if chosen:
                    record = Translation(_one_or_all(chosen), (key,), custom=True)
                    candidates[key] = (record, *candidates.get(key, ()))
        return Registry(MappingProxyType(table), MappingProxyType(complex_table))


def _one_or_all(functions: Sequence[Any]) -> Any:
    return functions[0] if len(functions) == 1 else tuple(functions)


def build_registry(modules: Iterable[ModuleType], tables: Sequence[Translation] = ()) -> Registry:
    """Build the registry of the translations in ``modules``; a module lists its table rows in ``TRANSLATIONS``.

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
            # Conditional candidates come first: the unconditional one is the fallback.
            table[target] = (*others, record) if record.accepts is None else (record, *others)
    return Registry(MappingProxyType(tables_of[False]), MappingProxyType(tables_of[True]))
