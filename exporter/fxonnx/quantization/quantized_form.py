"""The form of QuantizeLinear and DequantizeLinear that a target fuses."""

from __future__ import annotations

import onnx_ir as ir

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.dtypes import UINT8

from .._targets.profile import QuantizedForm
from .integer_products import use_explicit_zero_points, use_integer_biases, use_integer_products
from .unsigned_activations import use_unsigned_activations

__all__ = ["write_quantized_form"]


def write_quantized_form(builder: Builder, form: QuantizedForm) -> bool:
    """Rewrite quantized operators to the form that a target fuses, in place.

    Results are the same, but for the rounding of biases, which ``numerics="exact"`` disables.

    Args:
        builder: The builder of the complete graph.
        form: The form.

    Returns:
        Whether the graph has changed.
    """
    changed = False
    if UINT8 in form.activations and ir.DataType.INT8 not in form.activations:
        changed |= bool(use_unsigned_activations(builder))
    if form.explicit_zero_points:
        changed |= bool(use_explicit_zero_points(builder))
    if form.integer_products:
        changed |= bool(use_integer_products(builder))
        if not builder.exact_numerics:
            changed |= bool(use_integer_biases(builder))
    return changed
