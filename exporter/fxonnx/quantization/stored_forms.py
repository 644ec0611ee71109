"""Weights that a file stores as integers in several forms: the number of bits, the blocks, and offsets of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx_ir as ir
import torch

from fxonnx_translations._builder.builder import Builder
from fxonnx_translations._builder.dtypes import to_torch_dtype

from .._quantize_config import QuantizeConfig
from .._targets import TargetProfile
from .quantized_tensor import Layout
from .quantized_weight import WeightScheme
from .rewrite import MICROSOFT, WeightQuantizer
from .weights import Weight

__all__ = ["StoredForm", "StoredFormQuantizer", "StoredForms"]


@dataclass(frozen=True)
class StoredForm:
    """The form of a weight.

    Attributes:
        bits: 4 or 8.
        block_size: Number of weights that share a scale.
        has_offsets: Whether a number is added to each block.
        has_half_scales: Whether all scales are numbers of float16.
    """

    bits: int
    block_size: int
    has_offsets: bool
    has_half_scales: bool


@dataclass(frozen=True)
class StoredForms(QuantizeConfig):
    """The quantization of a file with several forms; other weights stay floating-point numbers.

    Attributes:
        forms: FQN of a parameter to its form.
    """

    forms: Mapping[str, StoredForm] = field(default_factory=dict)


class StoredFormQuantizer(WeightQuantizer):
    """Quantize each weight in the form in which a file stores it.

    A product with offsets is the sum of the product with the integers and that of the sums of the activations over
    blocks with the offsets: kernels of ONNX Runtime for the CPU are fast for zero points that are integers only.

    Args:
        builder: The builder of the complete graph.
        config: The forms.
        parameter_names: The names of all parameters that are tied to each.
        profile: The target, which has MatMulNBits and GatherBlockQuantized.
    """

    config: StoredForms

    def __init__(
        self,
        builder: Builder,
        config: StoredForms,
        parameter_names: Mapping[Any, tuple[str, ...]],
        profile: TargetProfile,
    ) -> None:
        super().__init__(builder, config, parameter_names, profile)
        self._sums: dict[Any, ir.Value] = {}
        self._scales: dict[ir.Value, ir.Value] = {}

    def _form(self, weight: Weight) -> StoredForm | None:
        """The form that represents all parameters of a weight; None if one of them has none."""
        forms = [
            next((self.config.forms[name] for name in names if name in self.config.forms), None)
            for names in weight.tied_names
        ]
        found = [form for form in forms if form is not None]
        return _common(found) if found and len(found) == len(forms) else None

    def _choice(self, weight: Weight, *, is_head: bool) -> Literal["float", "int4", "int8"]:
        form = self._form(weight)
        return "float" if form is None else "int4" if form.bits == 4 else "int8"

    def _is_selected(self, weight: Weight) -> bool:
        return self._form(weight) is not None

    def _scheme(self, weight: Weight, choice: Any, dtype: ir.DataType) -> WeightScheme:
        form = self._form(weight)
        if form is None:
            return super()._scheme(weight, choice, dtype)
        options = {"negative_scales": True, "has_offsets": form.has_offsets}
        return WeightScheme(form.bits, form.block_size, True, to_torch_dtype(dtype), **options)

    def _initializers(self, weight: Weight, scheme: WeightScheme, layout: Layout) -> list[ir.Value | None]:
        """Codes and scales; scales of float16 are converted when the model is loaded."""
        form = self._form(weight)
        if form is None or not form.has_half_scales or scheme.scale_dtype != torch.float32:
            return super()._initializers(weight, scheme, layout)
        halves = self._initializer(weight, scheme, layout, "half_scales")
        if halves not in self._scales:
            first = self.graph[0]
            attributes = {"to": ir.DataType.FLOAT.value}
            self._scales[halves] = self._insert(first, "Cast", [halves], attributes, ir.DataType.FLOAT, halves.shape)
        return [self._initializer(weight, scheme, layout, "codes"), self._scales[halves], None]

    def _attributes(self, weight: Weight, scheme: WeightScheme) -> dict[str, Any]:
        attributes = super()._attributes(weight, scheme)
        # At other levels, ONNX Runtime dequantizes weights of 8 bits in each call, a hundred times slower.
        return attributes | {"accuracy_level": 4} if scheme.bits == 8 else attributes

    def _to_matmul_nbits(self, node: ir.Node, weight: Weight, scheme: WeightScheme) -> None:
        activations, output = node.inputs[0], node.outputs[0]
        if not scheme.has_offsets or activations is None or output.dtype is None:
            super()._to_matmul_nbits(node, weight, scheme)
            return
        attributes = self._attributes(weight, scheme)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        codes, scales, _ = self._initializers(weight, scheme, "matmul_nbits")
        offsets = self._initializer(weight, scheme, "matmul_nbits", "offsets")
        self._record(node, [weight], [codes, scales, offsets], scheme.bits)
        given = [activations, codes, scales, None, None, bias]
        product = self._insert(node, "MatMulNBits", given, attributes, output.dtype, output.shape, MICROSOFT)
        sums = self._sums_over_blocks(node, activations, weight.in_features, scheme.block_size)
        other = self._insert(node, "MatMul", [sums, offsets], {}, output.dtype, output.shape)
        self._become(node, "Add", [product, other], {}, "")

    def _sums_over_blocks(self, node: ir.Node, activations: ir.Value, columns: int, size: int) -> ir.Value:
        """Sum activations over the blocks of the weights that multiply them.

        One AveragePool in place of Reshape and ReduceSum is slower.
        """
        key = (activations, node.graph, size)
        if key not in self._sums:
            axes, dtype = self._rank(activations), activations.dtype or ir.DataType.FLOAT
            leading = [None] * (axes - 1) if activations.shape is None else [*activations.shape][:-1]
            blocks = self._in_blocks(node, activations, axes, columns // size, size)
            last = self.builder.constant([-1], ir.DataType.INT64)
            shape = [*leading, columns // size]
            self._sums[key] = self._insert(node, "ReduceSum", [blocks, last], {"keepdims": 0}, dtype, shape)
        return self._sums[key]

    def _in_blocks(self, node: ir.Node, value: ir.Value, axes: int, count: int, size: int) -> ir.Value:
        """Divide the last axis of a value into blocks."""
        shape = self.builder.constant([*[0] * (axes - 1), count, size], ir.DataType.INT64)
        leading = [None] * (axes - 1) if value.shape is None else [*value.shape][:-1]
        dtype = value.dtype or ir.DataType.FLOAT
        return self._insert(node, "Reshape", [value, shape], {}, dtype, [*leading, count, size])

    def _quantize_gather(self, node: ir.Node, weight: Weight, choice: Any) -> None:
        form, data, indices = self._form(weight), node.inputs[0], node.inputs[1]
        if form is None or data is None or data.dtype is None or indices is None:
            return
        if not form.has_offsets:
            super()._quantize_gather(node, weight, choice)
            return
        scheme, output = self._scheme(weight, choice, data.dtype), node.outputs[0]
        offsets = self._initializer(weight, scheme, "gather_nbits", "offsets")
        axes, count = self._rank(output), weight.in_features // form.block_size
        leading = [None] * (axes - 1) if output.shape is None else [*output.shape][:-1]
        # The rows without offsets, from a node of their own.
        rows = self._insert(node, "Gather", [data, indices], {"axis": 0}, data.dtype, output.shape)
        gather = rows.producer()
        if gather is not None:
            super()._quantize_gather(gather, weight, choice)
        added = self._insert(node, "Gather", [offsets, indices], {"axis": 0}, data.dtype, [*leading, count])
        last = self.builder.constant([-1], ir.DataType.INT64)
        column = self._insert(node, "Unsqueeze", [added, last], {}, data.dtype, [*leading, count, 1])
        blocks = self._in_blocks(node, rows, axes, count, form.block_size)
        total = self._insert(node, "Add", [blocks, column], {}, data.dtype, [*leading, count, form.block_size])
        shape = self.builder.constant([*[0] * (axes - 1), weight.in_features], ir.DataType.INT64)
        self._become(node, "Reshape", [total, shape], {}, "")


def _common(forms: Iterable[StoredForm]) -> StoredForm:
    """The form that represents weights of several forms without a loss."""
    found = list(forms)
    return StoredForm(
        max(form.bits for form in found),
        min(form.block_size for form in found),
        any(form.has_offsets for form in found),
        all(form.has_half_scales for form in found),
    )
