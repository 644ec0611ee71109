"""Reasons for operators with more than 1.5 times as many nodes as in torch.onnx's graphs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["REASONS"]

_CANCELS = "the short form loses all digits to cancellation"
_FLOORED = "the floor of the rounded quotient is off by one: 1.0 // 0.1 is 9, not 10"

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "__getitem__": "lists of positions stay initializers of their own, one for each axis",
        "bernoulli": "ONNX Runtime's Bernoulli draws with the complementary probability",
        "div.floor_rounding": _FLOORED,
        "erfc": f"{_CANCELS} above 3, where the result is small",
        "expm1": f"{_CANCELS} near 0",
        "floor_divide": _FLOORED,
        "log1p": f"{_CANCELS} near 0",
        "logaddexp2": "the powers of two overflow for finite results",
        "logdet": "the determinant overflows or underflows for finite results",
        "multinomial": "Multinomial of ONNX draws with replacement",
        "native_layer_norm": "an empty tensor in one sample",
        "nn.functional.pad.circular": "negative padding is cropped first",
        "randint_like": "drawn in float64: in float32 not every integer occurs, and not equally often",
        "scatter_reduce.mean": "the sums are divided by the number of elements at each position",
        "special.erfcx": "the exponential of the square overflows, and its product with erfc loses all digits",
    }
)
"""Entry of torch's operator database to the reason."""
