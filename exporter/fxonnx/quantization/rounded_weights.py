"""The warning about weights that a quantized checkpoint does not have as integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fxonnx_translations._builder.initializers import DerivedTensor, TorchTensor, sources_of

from .._warnings import warn_user
from .packed_weights import PackedTensor
from .quantized_tensor import QuantizedTensor

__all__ = ["warn_of_rounding"]


def warn_of_rounding(tensors: Iterable[Any], new: Mapping[str, TorchTensor | DerivedTensor]) -> None:
    """Warn of linear layers that are rounded although the weights come from a quantized checkpoint."""
    rounded = [
        str(source.name)
        for tensor in tensors
        if isinstance(tensor, QuantizedTensor)
        and tensor.part == "codes"
        and tensor.layout in ("columns", "matmul_nbits")
        for source in sources_of(tensor)
        if not isinstance(new.get(str(source.name)), PackedTensor)
    ]
    if rounded:
        names = ", ".join(map(repr, rounded[:3])) + (", ..." if len(rounded) > 3 else "")
        warn_user(f"{names}: rounded to nearest, since the checkpoint has no integers for these weights")
