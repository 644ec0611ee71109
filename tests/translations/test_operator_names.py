"""Names of operators: each exists in this or another supported version of torch."""

from __future__ import annotations

from types import ModuleType

import onnx_ir as ir
import torch
import torch.nn.modules.linear_cross_entropy  # defines operators, and torch imports it for the first call only
import torchao.quantization.quant_primitives  # noqa: F401

import fxonnx.quantization.low_precision.activations  # noqa: F401
from fxonnx_translations._builder.op import Op
from fxonnx_translations._builtin import default_registry
from fxonnx_translations._registry import build_registry, translates

from . import test_modelopt  # noqa: F401 - defines its operator
from .operators import is_absent, overload_of


def test_every_name_is_an_operator() -> None:
    registry = default_registry()
    names = (*registry.table, *registry.complex_table)
    assert [name for name in names if overload_of(name) is None] == [name for name in names if is_absent(name)]


def test_an_operator_may_be_defined_after_the_registry_is_built() -> None:
    @translates("fxonnx_late::twice", "fxonnx_late::twice.never")
    def twice(op: Op, self: ir.Value) -> ir.Value:
        return op.Mul(self, 2.0)

    module = ModuleType(twice.__module__)
    vars(module)["twice"] = twice
    registry = build_registry([module])
    library = torch.library.Library("fxonnx_late", "DEF")
    library.define("twice(Tensor self) -> Tensor")
    target = torch.ops.fxonnx_late.twice.default
    found = registry.unconditional(target)
    assert found is not None
    assert found.function is twice
