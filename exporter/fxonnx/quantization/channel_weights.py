"""Initializers of 8-bit weights with one scale for each output, and of the 32-bit biases of integer products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import onnx_ir as ir
import torch

from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor

__all__ = ["ChannelWeight", "sums_of_weights"]

_LARGEST_BIAS = 2**30
"""The largest magnitude of an integer bias: the sum of products that it is added to has 32 bits as well."""
_CHUNK_ELEMENTS = 2**22
"""Number of weights that are rounded at once."""


class ChannelWeight:
    """A weight as symmetric int8 with one scale for each output feature or channel.

    The initializers are computed each time their bytes are read, and never stored.

    Args:
        weight: The stored or derived weight: a matrix, or the kernel of a convolution, (out_channels, ...).
        is_transposed: Whether a matrix has the shape (in_features, out_features).
        is_matrix: Whether the codes are stored as (in_features, out_features), otherwise in the shape of the weight.
        bias: The bias that becomes an int32 tensor, if any.
        input_scale: The scale of the activations that the weight is multiplied by.
        features: The input features of a matrix that it has; by default all.
    """

    def __init__(
        self,
        weight: TorchTensor | DerivedTensor,
        *,
        is_transposed: bool,
        is_matrix: bool,
        bias: TorchTensor | DerivedTensor | None = None,
        input_scale: float = 1.0,
        features: slice = slice(None),
    ) -> None:
        shape = tuple(int(size) for size in weight.shape.numpy())
        if is_matrix:
            rows, columns = shape if is_transposed else shape[::-1]
            shape = len(range(rows)[features]), columns
        self._shape = shape
        self.outputs = self._shape[1 if is_matrix else 0]
        self._sources = (weight,) if bias is None else (weight, bias)
        self._rows = partial(_rows, is_transposed=is_transposed, features=features)
        self._is_matrix = is_matrix
        self._input_scale = input_scale

    def codes(self, name: str) -> DerivedTensor:
        """The int8 codes."""
        return DerivedTensor(name, self._sources, self._codes, ir.DataType.INT8, self._shape)

    def scales(self, name: str) -> DerivedTensor:
        """The scales, one for each output."""
        return DerivedTensor(name, self._sources, self._scales, ir.DataType.FLOAT, (self.outputs,))

    def bias_codes(self, name: str) -> DerivedTensor:
        """The int32 codes of the bias."""
        return DerivedTensor(name, self._sources, self._bias_codes, ir.DataType.INT32, (self.outputs,))

    def bias_scales(self, name: str) -> DerivedTensor:
        """The scales of the bias, as of the products of integers."""
        return DerivedTensor(name, self._sources, self._bias_scales, ir.DataType.FLOAT, (self.outputs,))

    def _scales(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows = self._rows(weight)
        low, high = torch.aminmax(rows, dim=1) if rows.shape[1] else (rows.new_zeros(rows.shape[0]),) * 2
        scales = torch.maximum(high, -low) / 127
        if bias is not None:
            # A channel that is almost zero, as batch norm leaves some, may have a bias that is not.
            scales = torch.maximum(scales, bias.abs() / (_LARGEST_BIAS * self._input_scale))
        if not bool(torch.isfinite(scales).all()):
            raise ValueError("it has elements that are not finite")
        return torch.where(scales < torch.finfo(torch.float32).tiny, 1.0, scales).to(torch.float32)

    def row_sums(self, weight: torch.Tensor) -> torch.Tensor:
        """The sum of the dequantized weights of each output of a matrix."""
        return self._codes(weight).sum(0, dtype=torch.int32) * self._scales(weight)

    def _codes(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        scales, rows = self._scales(weight, bias), self._rows(weight)
        codes = torch.empty(rows.shape, dtype=torch.int8)
        # Temporaries stay far smaller than the weight.
        step = max(1, _CHUNK_ELEMENTS // max(rows.shape[1], 1))
        for start in range(0, rows.shape[0], step):
            part = slice(start, start + step)
            codes[part] = (rows[part] / scales[part].unsqueeze(1)).round_().clamp_(-127, 127)
        return codes.t() if self._is_matrix else codes.reshape(weight.shape)

    def _bias_scales(self, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self._scales(weight, bias) * self._input_scale

    def _bias_codes(self, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        codes = (bias.double() / self._bias_scales(weight, bias).double()).round_()
        return codes.clamp_(-_LARGEST_BIAS, _LARGEST_BIAS).to(torch.int32)


def sums_of_weights(name: str, weight: TorchTensor | DerivedTensor, parts: Sequence[ChannelWeight]) -> DerivedTensor:
    """The sums of the dequantized weights of each part of a matrix, (parts, outputs); of a whole one, (outputs,)."""
    shape = (len(parts), parts[0].outputs)[len(parts) == 1 :]
    return DerivedTensor(name, (weight,), partial(_stacked_sums, parts), ir.DataType.FLOAT, shape)


def _stacked_sums(parts: Sequence[ChannelWeight], weight: torch.Tensor) -> torch.Tensor:
    sums = [part.row_sums(weight) for part in parts]
    return torch.stack(sums) if len(sums) > 1 else sums[0]


def _rows(weight: torch.Tensor, *, is_transposed: bool, features: slice) -> torch.Tensor:
    """Return a weight as a matrix with one row for each output."""
    return (weight.t() if is_transposed else weight.flatten(1))[:, features]
