"""Operators of other libraries: found by name, as soon as the library is there."""

from __future__ import annotations

import inspect
from types import ModuleType

import onnx_ir as ir
import pytest
import torch
import torch.ao.quantization.fx._decomposed
import torch.onnx.ops

from fxonnx_translations.foreign import Foreign, loaded, translates_when_loaded
from fxonnx_translations.op import Op
from fxonnx_translations.registry import Translation
from fxonnx_translations.translations import FOREIGN_MODULES, default_registry
from tests.models.torchvision_shim import import_torchvision

import_torchvision()

RECORDS = [
    record
    for module in FOREIGN_MODULES
    for value in vars(module).values()
    for record in getattr(value, "__foreign_translations__", ())
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.names[0])
def test_names_docstring_and_parameters_are_those_of_the_schemas(record: Foreign) -> None:
    module = ModuleType("translations")
    vars(module)["function"] = record.function
    (found,) = (one for one in loaded([module]) if one.function is record.function)
    assert len(found.targets) == len(record.names)
    lines = [line.strip() for line in (record.function.__doc__ or "").splitlines()]
    parameters = inspect.signature(record.function).parameters
    for line, target in zip(lines, found.targets, strict=False):
        assert isinstance(target, torch._ops.OpOverload)
        assert line == str(target._schema)
        for argument in target._schema.arguments:
            assert argument.name in parameters
            assert not argument.has_default_value() or parameters[argument.name].default is not inspect.Parameter.empty


def test_a_library_may_come_after_the_first_export() -> None:
    @translates_when_loaded("fxonnx_late::twice", "fxonnx_late::twice.never")
    def twice(op: Op, self: ir.Value) -> ir.Value:
        return op.Mul(self, 2.0)

    module = ModuleType("translations")
    vars(module)["twice"] = twice
    assert loaded([module]) == ()
    library = torch.library.Library("fxonnx_late", "DEF")
    library.define("twice(Tensor self) -> Tensor")
    target = torch.ops.fxonnx_late.twice.default
    assert loaded([module]) == (Translation(twice, (target,)),)


def test_the_registry_is_built_once_for_the_same_libraries() -> None:
    assert default_registry() is default_registry()
    assert torch.ops.torchvision.nms.default in default_registry()
