"""Dynamic quantization: products of int8 weights by activations that each call rounds to uint8."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from fxonnx_translations._builder.dtypes import FLOAT

from .channel_weights import ChannelWeight
from .rewrite import Weight, WeightQuantizer

__all__ = ["DynamicQuantizer"]


class DynamicQuantizer(WeightQuantizer):
    """Rewrite MatMul and Gemm to DynamicQuantizeLinear and MatMulInteger, which ONNX Runtime fuses.

    Weights are symmetric, with one scale for each output feature. Products of other element types than float32 are left
    as they are: DynamicQuantizeLinear has no others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activations: dict[ir.Value, tuple[ir.Value, ...]] = {}

    def _quantize_product(self, node: ir.Node, weight: Weight, choice: str) -> None:
        activations, value, *rest = node.inputs
        if activations is None or value is None or value.dtype != FLOAT or activations.dtype != FLOAT:
            return
        codes, scales = self._channel_parts(
            weight, ChannelWeight(weight.tensor, is_transposed=weight.is_transposed, is_matrix=True)
        )
        self._record(node, [weight], (codes, scales), 8)
        rounded, scale, zero_point = self._rounded(node, activations)
        shape = node.outputs[0].shape
        bias = rest[0] if rest else None
        integers = self._insert(node, "MatMulInteger", [rounded, codes, zero_point], {}, ir.DataType.INT32, shape)
        numbers = self._insert(node, "Cast", [integers], {"to": FLOAT.value}, FLOAT, shape)
        factors = self._insert(node, "Mul", [scale, scales], {}, FLOAT, scales.shape)
        if bias is None:
            self._become(node, "Mul", [numbers, factors], {}, domain="")
            return
        product = self._insert(node, "Mul", [numbers, factors], {}, FLOAT, shape)
        self._become(node, "Add", [product, bias], {}, domain="")

    def _rounded(self, node: ir.Node, value: ir.Value) -> tuple[ir.Value, ...]:
        """The rounded activations, their scale and zero point, computed once for all products before which they are."""
        if value not in self.activations:
            types = (ir.DataType.UINT8, FLOAT, ir.DataType.UINT8)
            shapes = (value.shape, (), ())
            outputs = [
                ir.Value(
                    name=self.builder.names.helper(),
                    type=ir.TensorType(dtype),
                    shape=None if shape is None else ir.Shape(shape),
                )
                for dtype, shape in zip(types, shapes, strict=True)
            ]
            metadata = dict(node.metadata_props)
            rounding = ir.node("DynamicQuantizeLinear", [value], outputs=outputs, metadata_props=metadata)
            rounding.meta.update(node.meta)
            self.graph.insert_before(node, rounding)
            self.activations[value] = tuple(outputs)
        return self.activations[value]
