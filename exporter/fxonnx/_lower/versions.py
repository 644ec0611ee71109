"""The range of opsets and IR versions that models are written in, and the lowest opset that supports a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx.defs
import onnx.helper
import onnx_ir as ir
import torch

from fxonnx_translations._builder import dtypes
from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.name_allocator import NameAllocator
from fxonnx_translations._builder.symbolic_dims import Dim, SymbolTable
from fxonnx_translations._opsets.missing_ops import replace_missing_op

from ..errors import ConversionError

__all__ = ["FUNCTIONS_IR_VERSION", "NEWEST_IR_VERSION", "NEWEST_OPSET", "OLDEST_OPSET", "ir_versions", "lowest_opset"]

OLDEST_OPSET = 7
# Limited by the installed onnx; 28 is the newest opset that the translations were tested at.
NEWEST_OPSET = min(28, onnx.defs.onnx_opset_version())
NEWEST_IR_VERSION = int(onnx.IR_VERSION)
FUNCTIONS_IR_VERSION = 8
"""The IR version that introduced functions in models."""


def ir_versions(opset: int) -> tuple[int, int]:
    """The default IR version of an opset, and the lowest possible one.

    The default is 10, as torch.onnx has it, from opset 20 on, or the version that a newer opset requires. Older opsets
    get the version they require: runtimes old enough to ask for an old opset reject newer IR versions.
    """
    # Before IR version 4 every initializer was also a graph input.
    needed = max(4, int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])))
    return (max(10, needed) if opset >= 20 else needed), needed


Attempt = Callable[[Builder, dict[torch.fx.Node, Any], torch.fx.Node, int], bool]
"""Whether a node, given the values of its inputs, can be translated at an opset."""


def lowest_opset(node: torch.fx.Node, opset: int, newest: int, attempt: Attempt) -> int | None:
    """The lowest opset above ``opset`` at which the node can be translated, or None."""
    for candidate in range(opset + 1, newest + 1):
        graph = ir.Graph([], [], nodes=[], opset_imports={"": candidate})
        builder = Builder(graph, SymbolTable({}), NameAllocator(), replace_missing_op)
        env = {source: _unknown_input(source, builder) for source in node.all_input_nodes}
        try:
            if attempt(builder, env, node, candidate):
                return candidate
        except ConversionError:
            # The translation reads the constant value of an input, which the inputs of the trial do not have.
            return None
    return None


def _unknown_input(node: torch.fx.Node, builder: Builder) -> Any:
    return _value(node.meta.get("val"), builder)


def _value(val: Any, builder: Builder) -> Any:
    if isinstance(val, (list, tuple)):
        return [_value(item, builder) for item in val]
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        size = builder.symbols.dim(val)
        _define_symbols(builder, [size])
        return size
    if not isinstance(val, torch.Tensor):
        return val
    dims = builder.symbols.dims(val.shape)
    value = ir.Value(name=builder.names.helper(), type=ir.TensorType(dtypes.from_torch(val.dtype)))
    builder.graph.inputs.append(value)
    builder.set_dims(value, (*dims, 2) if val.dtype.is_complex else dims)
    builder.symbols.define(value, dims)
    _define_symbols(builder, dims)
    return value


def _define_symbols(builder: Builder, sizes: Sequence[Dim]) -> None:
    """Add graph inputs for symbols that no other input defines; in the model they are defined elsewhere."""
    for size in sizes:
        for symbol in () if isinstance(size, int) else sorted(size.free_symbols, key=str):
            if not builder.symbols.is_defined(symbol):
                value = ir.Value(name=builder.names.helper(), type=ir.TensorType(ir.DataType.INT64))
                builder.graph.inputs.append(value)
                builder.set_dims(value, ())
                builder.symbols.define_scalar(value, symbol)
