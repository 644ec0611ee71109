"""The registry: frozen records, explicit modules, reasons."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from fxonnx_translations.registry import Call, Registry, Translation, build_registry, translates

aten = torch.ops.aten


def module_of(*functions: Any) -> types.ModuleType:
    module = types.ModuleType("family")
    for function in functions:
        function.__module__ = "family"
        setattr(module, function.__name__, function)
    return module


def test_overload_packets_are_refused() -> None:
    with pytest.raises(TypeError, match=r"@translates takes overloads, got the packet aten.abs; use aten.abs.default"):
        translates(aten.abs)


def test_two_unconditional_translations_of_one_operator_are_refused() -> None:
    @translates(aten.abs.default)
    def one(op: Any, self: Any) -> Any: ...

    @translates(aten.abs.default)
    def two(op: Any, self: Any) -> Any: ...

    with pytest.raises(ValueError, match=r"aten.abs.default is translated by both .*one and .*two"):
        build_registry([module_of(one, two)])


def test_candidates_explain_why_they_decline() -> None:
    @translates(aten.abs.default, accepts=lambda call: "opset 18 or later" if call.opset < 18 else None)
    def one(op: Any, self: Any) -> Any: ...

    registry = build_registry([module_of(one)])
    assert registry.find(Call(aten.abs.default, {}, 17)) == (None, ("opset 18 or later",))
    found, reasons = registry.find(Call(aten.abs.default, {}, 18))
    assert found is not None
    assert found.function is one
    assert reasons == ()
    assert registry.unconditional(aten.abs.default) is None


def test_conditional_candidates_come_before_the_unconditional_one() -> None:
    @translates(aten.abs.default)
    def general(op: Any, self: Any) -> Any: ...

    @translates(aten.abs.default, accepts=lambda call: None)
    def special(op: Any, self: Any) -> Any: ...

    registry = build_registry([module_of(general, special)])
    found, _ = registry.find(Call(aten.abs.default, {}, 20))
    assert found is not None
    assert found.function is special


def test_registries_do_not_affect_each_other() -> None:
    first, second = Registry(), build_registry([], [Translation(print, (aten.abs.default,))])
    extended = second.extended({aten.abs.default: len})
    assert aten.abs.default not in first
    assert second.table[aten.abs.default][0].function is print
    assert extended.table[aten.abs.default][0].custom
    with pytest.raises(TypeError):
        second.table[aten.neg.default] = ()  # type: ignore[index]
