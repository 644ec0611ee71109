"""The initializers of a quantized weight: codes, scales and zero points in the layouts of the operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import onnx_ir as ir
import torch
from torch import Tensor

from fxonnx_translations._builder.dtypes import from_torch
from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor, values_of
from fxonnx_translations._torch_compat import unset_fake_temporarily

from .packed_weights import packed_rows, requantized
from .quantized_weight import QuantizedWeight, WeightScheme, blocks_of, quantize_rows

__all__ = ["Layout", "Part", "QuantizedTensor"]

Part: TypeAlias = Literal["codes", "scales", "half_scales", "zero_points", "offsets", "order"]
"""Of "half_scales", the scales are stored in float16."""
Layout: TypeAlias = Literal["columns", "rows", "matmul_nbits", "gather_nbits", "experts"]
"""The layout that an operator reads.

"columns": DequantizeLinear before MatMul: (in_features, out_features), signed if symmetric.
"rows": Gather of signed codes of 8 bits with one scale for each row: (out_features, in_features).
"matmul_nbits": MatMulNBits: (out_features, blocks, bytes of a block), unsigned; offsets: (blocks, out_features).
"gather_nbits": GatherBlockQuantized: the same bytes as (out_features, bytes of a row).
"experts": QMoE: as "gather_nbits", with a first axis of experts, from a source (experts, out_features, in_features).
"""

_PACKED = frozenset({ir.DataType.INT4, ir.DataType.UINT4})


class QuantizedTensor(DerivedTensor):
    """A part of a quantized weight; the weight is rounded each time its bytes are read, and never stored.

    A ``PackedTensor``, from a quantized checkpoint, is not rounded: its codes, scales and zero points are used as they
    are. They must have the bits of the scheme, and blocks of its size or of a multiple of it.

    Args:
        name: Initializer name.
        source: The weight, or a tensor derived from weights.
        scheme: How to quantize it.
        part: The content of the initializer.
        layout: Its layout.
        is_transposed: Whether the source has the shape (in_features, out_features).
        is_permuted: Whether the input features are in the order of the groups of a ``PackedTensor``. The part "order"
            has their indices.
        importance: Factors of the squared errors of the input features, for searched scales.
    """

    def __init__(
        self,
        name: str,
        source: TorchTensor | DerivedTensor,
        scheme: WeightScheme,
        part: Part,
        layout: Layout,
        *,
        is_transposed: bool,
        is_permuted: bool = False,
        importance: Tensor | None = None,
    ) -> None:
        self.scheme, self.part, self.layout, self.is_transposed = scheme, part, layout, is_transposed
        self.is_permuted, self.importance = is_permuted, importance
        shape = tuple(int(size) for size in source.shape.numpy())
        *rows, columns = reversed(shape) if is_transposed else shape
        dtype, shape = _dtype(scheme, part, layout), _shape(math.prod(rows), columns, *self._form)
        if layout == "experts":
            shape = (*rows, shape[-1])
        super().__init__(name, (source,), self._part_of_weight, dtype, shape)

    @property
    def _form(self) -> tuple[WeightScheme, Part, Layout]:
        return self.scheme, self.part, self.layout

    def with_sources(self, sources: Sequence[TorchTensor | DerivedTensor]) -> QuantizedTensor:
        """Return the same part of another weight."""
        (source,) = sources
        return QuantizedTensor(
            *(str(self.name), source, *self._form),
            is_transposed=self.is_transposed,
            is_permuted=self.is_permuted,
            importance=self.importance,
        )

    def groups(self, *, codes: bool = True) -> Iterator[QuantizedWeight]:
        """Quantize the source and yield consecutive groups of output features.

        Args:
            codes: Whether the codes are needed; otherwise they may be empty.

        Raises:
            ValueError: If the source has elements that are not finite, or is quantized in another way.
        """
        (source,) = self.sources
        packed = packed_rows(source, is_transposed=self.is_transposed)
        if not packed:
            yield from self._rounded(values_of(source), codes=codes)
        columns = int(source.shape.numpy()[0 if self.is_transposed else 1])
        for rows in packed:
            found = rows.quantized(codes=codes, is_permuted=self.is_permuted)
            yield requantized(rows, found, columns, self.scheme)

    def dequantized(self) -> Tensor:
        """Compute the source as the model represents it, in the shape of the source."""
        with torch.no_grad(), unset_fake_temporarily():
            weight = torch.cat([rows.dequantize() for rows in self.groups()])
            if self.is_permuted:
                weight = weight[:, self._order().argsort()]
        (source,) = self.sources
        return weight.t().contiguous() if self.is_transposed else weight.reshape(source.shape.numpy())

    def torch(self) -> Tensor:
        """Compute the part; elements of 4 bits are packed into bytes, the first of two in the low bits."""
        with torch.no_grad(), unset_fake_temporarily():
            if self.part == "order":
                return self._order()
            return self._assembled(self.groups(codes=self.part == "codes"))

    def _order(self) -> Tensor:
        """The input features in the order of the blocks."""
        (source,) = self.sources
        orders = [rows.packed.order() for rows in packed_rows(source, is_transposed=self.is_transposed)]
        if not orders:
            return torch.arange(int(source.shape.numpy()[0 if self.is_transposed else 1]))
        if not all(torch.equal(order, orders[0]) for order in orders):
            raise ValueError("the checkpoint has the input features of joined weights in different orders")
        return orders[0]

    def evaluated(self) -> ir.TensorProtocol:
        """Compute the part as a tensor of its element type."""
        content = self.torch()
        if self.dtype in _PACKED:
            return ir.PackedTensor(content.numpy(), self.dtype, shape=self.shape, name=self.name)
        return TorchTensor(content, name=self.name)

    def _rounded(self, weight: Tensor, *, codes: bool) -> Iterator[QuantizedWeight]:
        rows = weight.t() if self.is_transposed else weight.flatten(0, -2)
        return quantize_rows(rows, self.scheme, codes=codes, importance=self.importance)

    def _part_of_weight(self, weight: Tensor) -> Tensor:
        """Compute the part from a weight: the recipe of the initializer."""
        if self.part == "order":
            return torch.arange(weight.shape[0 if self.is_transposed else 1])
        return self._assembled(self._rounded(weight, codes=self.part == "codes"))

    def _assembled(self, groups: Iterator[QuantizedWeight]) -> Tensor:
        scheme, part, layout = self._form
        shape = tuple(int(size) for size in self.shape.numpy())
        in_columns = layout == "columns"
        if part in ("scales", "half_scales"):
            scales = torch.cat([rows.scales for rows in groups])
            scales = scales.to(torch.float16) if part == "half_scales" else scales
            return (scales.t().contiguous() if in_columns else scales).reshape(shape)
        if part == "offsets":
            offsets = torch.cat([rows.offsets for rows in groups if rows.offsets is not None])
            return offsets.t().contiguous() if layout == "matmul_nbits" else offsets
        if part == "zero_points":
            points = torch.cat([rows.zero_points for rows in groups if rows.zero_points is not None])
            if scheme.bits == 8:
                return (points.t().contiguous() if in_columns else points).reshape(shape)
            return _packed(points.t().reshape(1, -1)).reshape(-1) if in_columns else _packed(points).reshape(shape)
        if in_columns:
            return _codes_in_columns(groups, scheme, shape)
        if layout == "rows":
            return torch.cat([rows.codes ^ 128 for rows in groups]).view(torch.int8)
        return torch.cat([_codes_in_blocks(rows) for rows in groups]).reshape(shape)


def _codes_in_columns(groups: Iterator[QuantizedWeight], scheme: WeightScheme, shape: Sequence[int]) -> Tensor:
    """Transpose codes; a pair of output features becomes one byte before, which makes it a transpose of bytes."""
    # The codes of signed integers in two's complement.
    sign = 2 ** (scheme.bits - 1) if scheme.symmetric else 0
    if scheme.bits == 8:
        codes = torch.cat([rows.codes ^ sign for rows in groups]).t().contiguous()
        return codes.view(torch.int8) if scheme.symmetric else codes
    if shape[1] % 2:
        codes = torch.cat([rows.codes ^ sign for rows in groups])
        return _packed(codes.t().reshape(1, -1)).reshape(-1)
    pairs = [_packed((rows.codes ^ sign).t()).t() for rows in groups]
    return torch.cat(pairs).t().reshape(-1)


def _codes_in_blocks(rows: QuantizedWeight) -> Tensor:
    codes = torch.nn.functional.pad(rows.codes, (0, -rows.codes.shape[1] % rows.block_size))
    return codes if rows.bits == 8 else _packed(codes)


def _packed(codes: Tensor) -> Tensor:
    """Pack pairs of 4-bit elements along the second axis, the first one in the low bits; the last may be single."""
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes[:, 0::2] | codes[:, 1::2] << 4


def _dtype(scheme: WeightScheme, part: Part, layout: Layout) -> ir.DataType:
    if part == "order":
        return ir.DataType.INT64
    if part == "half_scales":
        return ir.DataType.FLOAT16
    if part in ("scales", "offsets"):
        return from_torch(scheme.scale_dtype)
    if layout in ("matmul_nbits", "gather_nbits", "experts"):
        return ir.DataType.UINT8
    return ir.DataType[f"{'INT' if scheme.symmetric else 'UINT'}{scheme.bits}"]


def _shape(rows: int, columns: int, scheme: WeightScheme, part: Part, layout: Layout) -> tuple[int, ...]:
    count, size = blocks_of(columns, scheme.block_size)
    if part == "order":
        return (columns,)
    if part == "offsets":
        return (count, rows) if layout == "matmul_nbits" else (rows, count)
    if layout == "columns":
        if part == "codes":
            return columns, rows
        return (count, rows) if scheme.block_size else (rows,)
    if part == "codes":
        block_bytes = size * scheme.bits // 8
        return {
            "rows": (rows, columns),
            "matmul_nbits": (rows, count, block_bytes),
            "gather_nbits": (rows, count * block_bytes),
            "experts": (rows, count * block_bytes),
        }[layout]
    return rows, count if part.endswith("scales") else -(-count * scheme.bits // 8)
