"""Dynamic quantization: products of int8 weights by activations that each call rounds to uint8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import onnx_ir as ir

from fxonnx_translations._builder.dtypes import FLOAT

from .._targets import TargetProfile
from .channel_weights import ChannelWeight, sums_of_weights
from .config import INT4_OPSET
from .rewrite import MICROSOFT, Choice, WeightQuantizer
from .weights import Weight, matches

__all__ = ["DynamicQuantizer"]

_ZERO_POINT, _LARGEST = 128, 127
_LEAST_STEP = 2.0**-120
"""A row of equal elements has no range."""
_LONGEST, _SHORTEST = 512, 256
"""Limits of the number of features of a part."""


@dataclass(frozen=True)
class _RoundedRows:
    """Activations as ``(codes - 128) * steps + middles``.

    Attributes:
        codes: uint8.
        steps: A scale for each part of each row, of which the last axis has the parts.
        middles: The middle of the range of each part, in the same shape.
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
        self.rounds_blocks = self.builder.opset_version >= INT4_OPSET
        self.activations: dict[tuple[ir.Value, int], _RoundedRows] = {}

    def _quantize_product(self, node: ir.Node, weight: Weight, choice: Choice) -> None:
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        is_vector = bias is None or (bias.shape is not None and len(bias.shape) == 1)
        if matches(weight.names, self.config.weights_only) and (is_vector or not self.writes_matmul_nbits):
            super()._quantize_product(node, weight, choice)
            return
        activations, value = node.inputs[:2]
        if activations is None or value is None or value.dtype != FLOAT or activations.dtype != FLOAT:
            return
        size = self._size_of_parts(weight)
        parts = [
            ChannelWeight(weight.tensor, is_transposed=weight.is_transposed, is_matrix=True, features=features)
            for features in _slices(weight.in_features, size)
        ]
        # The first one has the key of a whole weight, which a tied table shares.
        stored = [self._channel_parts(weight, part, (index,) if index else ()) for index, part in enumerate(parts)]
        sums = self._channel_sums(weight, parts)
        self._record(node, [weight], (*chain.from_iterable(stored), sums), 8)
        rows = self._rounded(node, activations, size)
        shape, zero_point = node.outputs[0].shape, self._constant(_ZERO_POINT, ir.DataType.UINT8)

        def insert(op_type: str, inputs: Sequence[ir.Value], dtype: ir.DataType = FLOAT, **attributes: Any) -> ir.Value:
            return self._insert(node, op_type, inputs, attributes, dtype, shape)

        terms = []
        for index, (codes, scales) in enumerate(stored):
            given, steps = rows.codes, rows.steps
            if len(stored) > 1:
                given, steps = self._part(node, given, index, size), self._part(node, steps, index, 1)
            if self.has_scaled_products:
                inputs = [given, codes, self._constant(1.0, FLOAT), scales, zero_point]
                numbers = self._insert(node, "MatMulIntegerToFloat", inputs, {}, FLOAT, shape, MICROSOFT)
            else:
                integers = insert("MatMulInteger", [given, codes, zero_point], ir.DataType.INT32)
                numbers = insert("Mul", [insert("Cast", [integers], to=FLOAT.value), scales])
            terms.append(insert("Mul", [numbers, steps]))
        offset = insert("MatMul" if len(stored) > 1 else "Mul", [rows.middles, sums])
        if bias is not None:
            offset = insert("Add", [offset, bias])
        self._become(node, "Sum" if len(stored) > 1 else "Add", [*terms, offset], {}, domain="")

    def _size_of_parts(self, weight: Weight) -> int:
        """The number of input features of a part: of all for one part."""
        features = weight.in_features
        if not self.rounds_blocks or features <= weight.out_features:
            return features
        return next((size for size in range(_LONGEST, _SHORTEST - 1, -1) if features % size == 0), features)

    def _part(self, node: ir.Node, value: ir.Value, index: int, size: int) -> ir.Value:
        """A part of the last axis of a value."""
        bounds = [self._constant([bound], ir.DataType.INT64) for bound in (index * size, (index + 1) * size, -1)]
        return self._insert(node, "Slice", [value, *bounds], {}, value.dtype or FLOAT, None)

    def _channel_sums(self, weight: Weight, parts: Sequence[ChannelWeight]) -> ir.Value:
        """The sums of the dequantized weights of each output feature, by which the middles of rows are multiplied."""
        key = (weight.key, weight.is_transposed, "channels", (), "sums")
        if key not in self.initializers:
            name = self.builder.names.unique(f"{weight.tensor.name}::sums")
            self.initializers[key] = self._registered(sums_of_weights(name, weight.tensor, parts), "sums")
        return self.initializers[key]

    def _rounded(self, node: ir.Node, value: ir.Value, size: int) -> _RoundedRows:
        """The rounded activations, computed once for all products before which they are."""
        if (value, size) not in self.activations:
            self.activations[value, size] = self._rounded_before(node, value, size)
        return self.activations[value, size]

    def _rounded_before(self, node: ir.Node, value: ir.Value, size: int) -> _RoundedRows:
        shape = value.shape
        of_rows = None if shape is None else [*shape[:-1], 1]
        number = self._constant

        def insert(op_type: str, inputs: Sequence[ir.Value], like: Any, **attributes: Any) -> ir.Value:
            return self._insert(node, op_type, inputs, attributes, FLOAT, like)

        is_divided = shape is None or shape[-1] != size
        axes: Mapping[str, Any] = {"axes": [-1]}
        inputs = [value]
        if self.builder.opset_version >= 18:
            axes, inputs = {}, [value, number([-1], ir.DataType.INT64)]
        if is_divided:
            dims = number([*[0] * (self._rank(value) - 1), -1, size], ir.DataType.INT64)
            inputs[0], of_rows = insert("Reshape", [value, dims], None), None
        high, low = (
            insert(name, inputs, of_rows, keepdims=int(not is_divided), **axes) for name in ("ReduceMax", "ReduceMin")
        )
        if self.rounds_blocks:  # zero points are codes, so that the range has zero
            high, low = (
                insert("Max", [high, number(0.0, FLOAT)], of_rows),
                insert("Min", [low, number(0.0, FLOAT)], of_rows),
            )
        middles = insert("Mul", [insert("Add", [high, low], of_rows), number(0.5, FLOAT)], of_rows)
        ranges = insert("Mul", [insert("Sub", [high, middles], of_rows), number(1 / _LARGEST, FLOAT)], of_rows)
        steps = insert("Max", [ranges, number(_LEAST_STEP, FLOAT)], of_rows)
        if not self.rounds_blocks:
            scaled = insert("Div", [insert("Sub", [value, middles], shape), steps], shape)
            constants = [number(1.0, FLOAT), number(_ZERO_POINT, ir.DataType.UINT8)]
            codes = self._insert(node, "QuantizeLinear", [scaled, *constants], {}, ir.DataType.UINT8, shape)
            return _RoundedRows(codes, steps, middles)
        shifts = insert("Round", [insert("Div", [middles, steps], of_rows)], of_rows)
        distances = insert("Sub", [number(float(_ZERO_POINT), FLOAT), shifts], of_rows)
        points = self._insert(node, "Cast", [distances], {"to": ir.DataType.UINT8.value}, ir.DataType.UINT8, of_rows)
        blocks = {"axis": self._rank(value) - 1, "block_size": size}
        codes = self._insert(node, "QuantizeLinear", [value, steps, points], blocks, ir.DataType.UINT8, shape)
        return _RoundedRows(codes, steps, insert("Mul", [shifts, steps], of_rows))

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


def _slices(features: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, features, size)]
