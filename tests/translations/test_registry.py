"""The registry: dispatch, conditions and their reasons, errors, public names."""

from __future__ import annotations

import operator
import subprocess
import sys
import types
from typing import Any

import pytest
import torch

import fxonnx_translations
from fxonnx_translations._registry import OpCall, Registry, Translation, build_registry, structural, translates

aten = torch.ops.aten


def module_of(*functions: Any) -> types.ModuleType:
    module = types.ModuleType("family")
    for function in functions:
        function.__module__ = "family"
        setattr(module, function.__name__, function)
    return module


@pytest.mark.parametrize("target", [aten.abs, aten.abs.default], ids=str)
def test_operators_are_named_by_strings(target: Any) -> None:
    with pytest.raises(TypeError, match=r"operators are named by strings such as 'aten::add.Tensor', got aten.abs"):
        translates(target)


@pytest.mark.parametrize("name", ["aten.abs", "abs", "aten::abs.default", "aten::abs.a.b", ""])
def test_malformed_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' cannot be the name of an operator: use namespace::operator"):
        translates(name)
    with pytest.raises(ValueError, match="cannot be the name of an operator"):
        structural(name, data=("self",))


def test_python_functions_are_targets() -> None:
    @translates(operator.getitem)
    def one(op: Any, self: Any) -> Any: ...

    registry = build_registry([module_of(one)])
    assert operator.getitem in registry
    assert operator.add not in registry


def test_two_unconditional_translations_of_one_operator_are_rejected() -> None:
    @translates("aten::abs")
    def one(op: Any, self: Any) -> Any: ...

    @translates("aten::abs")
    def two(op: Any, self: Any) -> Any: ...

    with pytest.raises(ValueError, match=r"aten::abs is translated by both .*one and .*two"):
        build_registry([module_of(one, two)])


def test_candidates_give_the_reason_of_a_rejection() -> None:
    @translates("aten::abs", accepts=lambda call: "opset 18 or later" if call.opset < 18 else None)
    def one(op: Any, self: Any) -> Any: ...

    registry = build_registry([module_of(one)])
    assert registry.find(OpCall(aten.abs.default, {}, 17)) == (None, ("opset 18 or later",))
    found, reasons = registry.find(OpCall(aten.abs.default, {}, 18))
    assert found is not None
    assert found.function is one
    assert reasons == ()
    assert registry.unconditional(aten.abs.default) is None


def test_conditional_candidates_come_before_the_unconditional_one() -> None:
    @translates("aten::abs")
    def general(op: Any, self: Any) -> Any: ...

    @translates("aten::abs", accepts=lambda call: None)
    def special(op: Any, self: Any) -> Any: ...

    registry = build_registry([module_of(general, special)])
    found, _ = registry.find(OpCall(aten.abs.default, {}, 20))
    assert found is not None
    assert found.function is special


def test_registries_do_not_affect_each_other() -> None:
    first, second = Registry(), build_registry([], [Translation(print, ("aten::abs",))])
    extended = second.extended({aten.abs.default: len})
    assert aten.abs.default not in first
    assert second.table["aten::abs"][0].function is print
    assert extended.table["aten::abs"][0].custom
    with pytest.raises(TypeError):
        second.table["aten::neg"] = ()  # type: ignore[index]


def test_public_names() -> None:
    script = (
        "import sys, fxonnx_translations as t; assert 'torch' not in sys.modules;"
        " from fxonnx_translations import *; print(dir(t), isinstance(default_registry(), Registry), Op, translates)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("['Op', 'Registry', 'default_registry', 'translates'] True")
    with pytest.raises(AttributeError, match="module 'fxonnx_translations' has no attribute 'registry'"):
        fxonnx_translations.registry  # noqa: B018
