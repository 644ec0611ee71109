"""From which opset on an operator that could not be translated can be: found by trying, so that it is never stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from fxonnx_translations._builder import dtypes
from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.name_allocator import Names
from fxonnx_translations._builder.symbolic_dims import Dim, SymbolTable

from ..errors import ConversionError

__all__ = ["lowest_opset"]

Attempt = Callable[[Builder, dict[torch.fx.Node, Any], torch.fx.Node, int], bool]
"""Whether a node, whose inputs are given, can be translated at an opset."""


def lowest_opset(node: torch.fx.Node, opset: int, newest: int, attempt: Attempt) -> int | None:
    """The lowest opset above ``opset`` that can express the node with inputs like its own, if any can."""
    for candidate in range(opset + 1, newest + 1):
        builder = Builder(ir.Graph([], [], nodes=[], opset_imports={"": candidate}), SymbolTable({}), Names())
        env = {source: _stand_in(source, builder) for source in node.all_input_nodes}
        try:
            if attempt(builder, env, node, candidate):
                return candidate
        except ConversionError:
            # A translation may read the value of an input, which stand-ins do not have.
            return None
    return None


def _stand_in(node: torch.fx.Node, builder: Builder) -> Any:
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
    """Makes inputs of the symbols that no input tells: in the model they are read from elsewhere."""
    for size in sizes:
        for symbol in () if isinstance(size, int) else sorted(size.free_symbols, key=str):
            if not builder.symbols.is_defined(symbol):
                value = ir.Value(name=builder.names.helper(), type=ir.TensorType(ir.DataType.INT64))
                builder.graph.inputs.append(value)
                builder.set_dims(value, ())
                builder.symbols.define_scalar(value, symbol)
