"""Replacements of functions of transformers and torchao that branch on dynamic sizes, or convert them.

FastSpeech2Conformer repeats every token by its predicted duration, in a loop over the batch, and then chooses a table
of positions by the resulting unbacked length. torchao's quantization compares sizes with block sizes. Models of images
convert the quotients of their sizes with ``torch_int``, which would specialize them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_guarding_hint, statically_known_true

from fxonnx_translations._torch_compat import arange, check, sym_float, sym_int

from ..patch import FunctionPatch, Patch

__all__ = ["LIBRARY_PATCHES"]

_FASTSPEECH = "transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer"


def length_regulator(
    original: Callable[..., Tensor], encoded_embeddings: Tensor, duration_labels: Tensor, speaking_speed: float = 1.0
) -> Tensor:
    """``length_regulator`` without a branch on the durations and without a loop over the batch."""
    if speaking_speed <= 0:
        return original(encoded_embeddings, duration_labels, speaking_speed)
    if speaking_speed != 1.0:
        duration_labels = torch.round(duration_labels.float() * speaking_speed).long()
    # As in the original, the caller's durations change if all are 0.
    duration_labels.copy_(torch.where(duration_labels.sum() == 0, 1, duration_labels))
    ends = duration_labels.cumsum(1)
    lengths = ends[:, -1]
    longest: Any = lengths.max().item()
    check(longest >= 0)
    steps = arange(longest, device=ends.device)
    # The token of a step is the number of tokens that end before it.
    token = (ends[:, None, :] <= steps[None, :, None]).sum(2).clamp(max=ends.shape[1] - 1)
    repeated = encoded_embeddings.gather(1, token[..., None].expand(-1, -1, encoded_embeddings.shape[2]))
    return torch.where((steps < lengths[:, None])[..., None], repeated.float(), 0.0)


def position_table(original: Callable[..., Any], self: Any, x: Tensor, pos_enc: Tensor | None = None) -> Any:
    """``extend_pos_enc``: the stored table of positions, which must be long enough for an unbacked length."""
    if pos_enc is not None and not has_guarding_hint(x.size(1)):
        check(x.size(1) * 2 - 1 <= pos_enc.size(1))
    return original(self, x, pos_enc)


def reduction_axes(original: Callable[..., Any], block_size: Sequence[Any], input_size: Sequence[Any]) -> Any:
    """``_get_reduction_params`` without guards on dynamic sizes: the shape by blocks, and the axes within blocks.

    torch specializes sizes other than 1 where a block is one element or the whole axis: the reduction over an axis of
    size 1 returns its elements.
    """
    shape: list[Any] = []
    inner: list[int] = []
    for block, size in zip(block_size, input_size, strict=True):
        if isinstance(block, int) and block == 1:
            shape.append(size)
        elif statically_known_true(block == size):
            inner.append(len(shape))
            shape.append(size)
        elif isinstance(block, int) and isinstance(size, int):
            parts, axes = original([block], [size])
            inner.extend(len(shape) + axis for axis in axes)
            shape.extend(parts)
        else:
            return original(block_size, input_size)
    return shape, inner


def int_scaled_matmul(original: Callable[..., Tensor], a: Tensor, b: Tensor, scales1: Tensor) -> Tensor:
    """``int_scaled_matmul`` on the CPU with one scale, without its assertion on the number of rows."""
    from torchao.kernel.intmm import _int_scaled_matmul_cpu

    if scales1.device.type == "cpu" and tuple(scales1.shape) == (1, 1):
        product: Tensor = _int_scaled_matmul_cpu(a, b, scales1)
        return product
    return original(a, b, scales1)


def convert_size(original: Callable[[Any], Any], x: Any) -> Any:
    """``torch_int`` and ``torch_float``, except that the integer or the float of a symbolic number stays symbolic."""
    if not isinstance(x, torch.SymInt | torch.SymFloat):
        return original(x)
    return sym_int(x) if original.__name__ == "torch_int" else sym_float(x)


LIBRARY_PATCHES: tuple[Patch, ...] = (
    *(
        FunctionPatch(
            f"transformers.utils.generic:{name}",
            convert_size,
            "it converts sizes to numbers, which specializes them",
            optional=True,
        )
        for name in ("torch_int", "torch_float")
    ),
    Patch(
        f"{_FASTSPEECH}:length_regulator",
        length_regulator,
        "it branches on the predicted durations and loops over the batch",
        optional=True,
    ),
    Patch(
        f"{_FASTSPEECH}:FastSpeech2ConformerRelPositionalEncoding.extend_pos_enc",
        position_table,
        "it branches on the number of frames, which is unbacked",
        optional=True,
    ),
    Patch(
        "torchao.quantization.quant_primitives:_get_reduction_params",
        reduction_axes,
        "it branches on whether dynamic sizes are 1 or a block's",
        optional=True,
    ),
    Patch(
        "torchao.quantization.quantize_.workflows.int8.int8_tensor:int_scaled_matmul",
        int_scaled_matmul,
        "it asserts that a dynamic number of rows is the scales', which specializes it",
        optional=True,
    ),
)
"""Applied if the libraries are imported."""
