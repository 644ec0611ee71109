"""Dynamic quantization: products of int8 weights by activations that each call rounds to uint8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from fxonnx_translations._builder.dtypes import FLOAT

from .._targets import TargetProfile
from .channel_weights import ChannelWeight
from .rewrite import MICROSOFT, Choice, WeightQuantizer
from .weights import Weight, matches

__all__ = ["DynamicQuantizer"]

_ZERO_POINT, _LARGEST = 128, 127
_LEAST_STEP = 2.0**-120
"""A row of equal elements has no range."""


@dataclass(frozen=True)
class _RoundedRows:
    """Activations as ``(codes - 128) * steps + middles``.

    Attributes:
        codes: uint8.
        steps: A scale for each row, the last axis of size 1.
        middles: The middle of the range of each row, in the same shape.
    """

    codes: ir.Value
    steps: ir.Value
    middles: ir.Value


class DynamicQuantizer(WeightQuantizer):
    """Rewrite MatMul and Gemm to products of integers, with a scale and an offset for each row of the activations.

    A row is a token. With one scale for a whole tensor, the large values of some tokens, which every trained language
    model has, would leave few steps for the others; and the results of a row would depend on the other rows.

    Weights are symmetric, with one scale for each output feature. Products of other element types than float32 are left
    as they are. Layers of ``weights_only`` have weights in blocks.

    Args:
        profile: The target.
        *args: See `WeightQuantizer`, whose profile has no MatMulNBits.
    """

    def __init__(self, profile: TargetProfile, *args: Any) -> None:
        super().__init__(*args)
        self.writes_matmul_nbits, self.can_gather_nbits = profile.has_matmul_nbits, profile.has_gather_nbits
        self.has_scaled_products = profile.has_matmul_nbits and profile.has_kernel(
            "MatMulIntegerToFloat", ir.DataType.INT8, 1, variable="T2", domain=MICROSOFT
        )
        self.activations: dict[ir.Value, _RoundedRows] = {}

    def _quantize_product(self, node: ir.Node, weight: Weight, choice: Choice) -> None:
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        is_vector = bias is None or (bias.shape is not None and len(bias.shape) == 1)
        if matches(weight.names, self.config.weights_only) and (is_vector or not self.writes_matmul_nbits):
            super()._quantize_product(node, weight, choice)
            return
        activations, value = node.inputs[:2]
        if activations is None or value is None or value.dtype != FLOAT or activations.dtype != FLOAT:
            return
        channels = ChannelWeight(weight.tensor, is_transposed=weight.is_transposed, is_matrix=True)
        codes, scales = self._channel_parts(weight, channels)
        sums = self._channel_sums(weight, channels)
        self._record(node, [weight], (codes, scales, sums), 8)
        rows = self._rounded(node, activations)
        shape = node.outputs[0].shape

        def insert(op_type: str, inputs: Sequence[ir.Value], dtype: ir.DataType = FLOAT, **attributes: Any) -> ir.Value:
            return self._insert(node, op_type, inputs, attributes, dtype, shape)

        zero_point = self._constant(_ZERO_POINT, ir.DataType.UINT8)
        if self.has_scaled_products:
            inputs = [rows.codes, codes, self._constant(1.0, FLOAT), scales, zero_point]
            numbers = self._insert(node, "MatMulIntegerToFloat", inputs, {}, FLOAT, shape, MICROSOFT)
        else:
            integers = insert("MatMulInteger", [rows.codes, codes, zero_point], ir.DataType.INT32)
            numbers = insert("Mul", [insert("Cast", [integers], to=FLOAT.value), scales])
        product = insert("Mul", [numbers, rows.steps])
        offset = insert("Mul", [rows.middles, sums])
        if bias is not None:
            offset = insert("Add", [offset, bias])
        self._become(node, "Add", [product, offset], {}, domain="")

    def _channel_sums(self, weight: Weight, channels: ChannelWeight) -> ir.Value:
        """The sums of the dequantized weights of each output feature, by which the middle of a row is multiplied."""
        key = (weight.key, weight.is_transposed, "channels", (), "sums")
        if key not in self.initializers:
            name = self.builder.names.unique(f"{weight.tensor.name}::sums")
            self.initializers[key] = self._registered(channels.sums(name), "sums")
        return self.initializers[key]

    def _rounded(self, node: ir.Node, value: ir.Value) -> _RoundedRows:
        """The rounded activations, computed once for all products before which they are."""
        if value not in self.activations:
            self.activations[value] = self._rounded_before(node, value)
        return self.activations[value]

    def _rounded_before(self, node: ir.Node, value: ir.Value) -> _RoundedRows:
        shape = value.shape
        of_rows = None if shape is None else [*shape[:-1], 1]
        number = self._constant

        def insert(op_type: str, inputs: Sequence[ir.Value], like: Any, **attributes: Any) -> ir.Value:
            return self._insert(node, op_type, inputs, attributes, FLOAT, like)

        axes: Mapping[str, Any] = {"axes": [-1]}
        inputs = [value]
        if self.builder.opset_version >= 18:
            axes, inputs = {}, [value, number([-1], ir.DataType.INT64)]
        high, low = (insert(name, inputs, of_rows, keepdims=1, **axes) for name in ("ReduceMax", "ReduceMin"))
        middles = insert("Mul", [insert("Add", [high, low], of_rows), number(0.5, FLOAT)], of_rows)
        ranges = insert("Mul", [insert("Sub", [high, middles], of_rows), number(1 / _LARGEST, FLOAT)], of_rows)
        steps = insert("Max", [ranges, number(_LEAST_STEP, FLOAT)], of_rows)
        scaled = insert("Div", [insert("Sub", [value, middles], shape), steps], shape)
        constants = [number(1.0, FLOAT), number(_ZERO_POINT, ir.DataType.UINT8)]
        codes = self._insert(node, "QuantizeLinear", [scaled, *constants], {}, ir.DataType.UINT8, shape)
        return _RoundedRows(codes, steps, middles)

    def _quantize_gather(self, node: ir.Node, weight: Weight, choice: Choice) -> None:
        # With the blocks of a tied product, or with its rows.
        self.has_gather_nbits = self.can_gather_nbits and matches(weight.names, self.config.weights_only)
        super()._quantize_gather(node, weight, choice)

    def _gather_rows(self, node: ir.Node, weight: Weight, dtype: ir.DataType) -> None:
        """Gather from the integers of a tied product, which has a column for each row of the table."""
        keys = [(weight.key, weight.is_transposed, "channels", (), part) for part in ("codes", "scales")]
        codes, scales = (self.initializers.get(key) for key in keys)
        shape, indices = node.outputs[0].shape, node.inputs[1]
        rank = 0 if indices is None else self._rank(indices)
        if codes is None or scales is None or dtype != FLOAT or not rank:
            super()._gather_rows(node, weight, dtype)
            return
        self._record(node, [weight], (codes, scales), 8)
        columns = None if shape is None else [shape[-1], *shape[:-1]]
        gathered = self._insert(node, "Gather", [codes, indices], {"axis": 1}, ir.DataType.INT8, columns)
        order = [*range(1, rank + 1), 0]
        rows = self._insert(node, "Transpose", [gathered], {"perm": order}, ir.DataType.INT8, shape)
        numbers = self._insert(node, "Cast", [rows], {"to": FLOAT.value}, FLOAT, shape)
        factors = self._insert(
            node, "Gather", [scales, indices], {"axis": 0}, FLOAT, None if shape is None else shape[:-1]
        )
        last = self._constant([-1], ir.DataType.INT64)
        of_rows = None if shape is None else [*shape[:-1], 1]
        factors = self._insert(node, "Unsqueeze", [factors, last], {}, FLOAT, of_rows)
        self._become(node, "Mul", [numbers, factors], {}, domain="")
