"""Replacements for the operators that the target opset or ONNX Runtime lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from .._builder.builder import Builder
from .._builder.op import Op
from .._builder.op_schema import schema_info
from .float64_kernels import FLOAT64_KERNELS
from .op_polyfills import POLYFILLS

__all__ = ["replace_missing_op"]

_ALONG_AN_AXIS = frozenset({"ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax"})
"""Operators that some runtimes compute for tensors of two axes or more."""


def replace_missing_op(
    builder: Builder, op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> ir.Value | None:
    """Emit the polyfill or the float64 kernel of an operator, or return None if it needs none.

    Raises:
        FormError: If the polyfill does not cover the call.
    """
    polyfill = POLYFILLS.get(op_type)
    if polyfill is not None and (builder.opset_version < polyfill[0] or _is_avoided(builder, op_type, inputs)):
        return polyfill[1](Op(builder), *inputs, **attributes)
    if op_type in _ALONG_AN_AXIS and "one axis" in builder.missing_kernels and len(builder.dims(inputs[0])) == 1:
        op = Op(builder)
        attributes = {**attributes, "axis": 1}
        return op.Squeeze(builder.value_of(op_type, op.Unsqueeze(inputs[0], [0]), **attributes), [0])
    if inputs and isinstance(inputs[0], ir.Value) and inputs[0].dtype == ir.DataType.DOUBLE:
        kernel = FLOAT64_KERNELS.get(op_type)
        if kernel is not None and _lacks_float64(builder, op_type):
            return kernel(Op(builder), *inputs, **attributes)
    return None


def _is_avoided(builder: Builder, op_type: str, inputs: Sequence[Any]) -> bool:
    """Whether the target has no kernel, not even for float32: it refuses the operator, or runs a slower function."""
    missing = builder.missing_kernels.get(op_type, ())
    return ir.DataType.FLOAT in missing and getattr(inputs[0], "dtype", None) in missing


def _lacks_float64(builder: Builder, op_type: str) -> bool:
    """Whether the target has no float64 kernel, or the schema does not allow float64 inputs."""
    if ir.DataType.DOUBLE in builder.missing_kernels.get(op_type, ()):
        return True
    schema = schema_info(op_type, builder.opset_version)
    allowed = None if schema is None else schema.allowed.get(schema.type_variable(0) or "")
    return allowed is not None and ir.DataType.DOUBLE not in allowed
