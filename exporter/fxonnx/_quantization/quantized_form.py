"""The form of QuantizeLinear and DequantizeLinear that a target fuses."""

from __future__ import annotations

import onnx_ir as ir

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.dtypes import UINT8

from .._targets.profile import QuantizedForm
from .unsigned_activations import use_unsigned_activations

__all__ = ["write_quantized_form"]


def write_quantized_form(builder: Builder, form: QuantizedForm) -> bool:
    """Rewrite quantized operators to the form that a target fuses, in place; results are the same.

    Args:
        builder: The builder of the complete graph.
        form: The form.

    Returns:
        Whether the graph has changed.
    """
    if not any(node.op_type == "QuantizeLinear" for node in builder.graph):
        return False
    changed = False
    if UINT8 in form.activations and ir.DataType.INT8 not in form.activations:
        changed |= bool(use_unsigned_activations(builder))
    return changed
