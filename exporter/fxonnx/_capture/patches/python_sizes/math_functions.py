"""Functions of Python's ``math``, and ``divmod``, of sizes: each has an exact form, which keeps the size dynamic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fxonnx_translations._torch_compat import sym_int, sym_log2, sym_min, sym_sqrt

from ..patch import FunctionPatch, Patch

__all__ = ["MATH_PATCHES"]


_MOST_DIVISORS = 16
"""Each divisor is one remainder of the graph."""
_LN_2 = math.log(2)
_LOG10_2 = math.log10(2)


def _is_size(value: object) -> bool:
    return isinstance(value, torch.SymInt)


def _square_root(original: Callable[[Any], Any], x: Any, /) -> Any:
    """``math.sqrt`` of a size or of a float of sizes."""
    return sym_sqrt(x) if isinstance(x, torch.SymInt | torch.SymFloat) else original(x)


def _integer_root(original: Callable[[Any], Any], n: Any, /) -> Any:
    """``math.isqrt`` of a size: below 2^52, the square root in float64 is not rounded up to an integer."""
    return sym_int(sym_sqrt(n)) if _is_size(n) else original(n)


def _is_number(value: object) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat)


def _binary_logarithm(original: Callable[[Any], Any], x: Any, /) -> Any:
    """``math.log2`` of a size or of a float of sizes."""
    return sym_log2(x) if _is_number(x) else original(x)


def _logarithm(original: Callable[..., Any], x: Any, /, *base: Any) -> Any:
    """``math.log`` of a size, whose last bit may differ: torch has the binary logarithm of symbolic numbers only."""
    if not _is_number(x) and not any(_is_number(one) for one in base):
        return original(x, *base)
    logarithms = [sym_log2(one) * _LN_2 if _is_number(one) else original(one) for one in (x, *base)]
    return logarithms[0] / logarithms[1] if base else logarithms[0]


def _decimal_logarithm(original: Callable[[Any], Any], x: Any, /) -> Any:
    """``math.log10`` of a size, whose last bit may differ."""
    return sym_log2(x) * _LOG10_2 if _is_number(x) else original(x)


def _bit_length(original: Callable[[Any], Any], self: Any) -> Any:
    """``size.bit_length()``: that of 0 is 0."""
    del original
    return math.ceil(sym_log2(abs(self) + 1))


class _IsBinaryLogarithm(type):
    """Class of the type whose only instance is torch's function of sizes."""

    def __instancecheck__(cls, instance: object) -> bool:
        return instance is sym_log2


class _BinaryLogarithm(metaclass=_IsBinaryLogarithm):
    """The type of torch's binary logarithm of sizes: torch allows functions in captured graphs by type."""


def _allowed_in_graphs(original: Callable[[Any], tuple[type, ...]], self: Any) -> tuple[type, ...]:
    """The types of functions that a captured graph may call."""
    return (*original(self), _BinaryLogarithm)


def _greatest_common_divisor(original: Callable[..., Any], *integers: Any) -> Any:
    """``math.gcd`` of a size and a number: the sum of Euler's totients of the divisors that they share."""
    sizes, numbers = [one for one in integers if _is_size(one)], [one for one in integers if not _is_size(one)]
    number = original(*numbers)
    if len(sizes) != 1 or not number:
        return original(*integers)
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    if len(divisors) > _MOST_DIVISORS:
        return original(*integers)
    return sum(_totient(divisor) * (1 - sym_min(1, sizes[0] % divisor)) for divisor in divisors)


def _totient(number: int) -> int:
    return sum(math.gcd(number, other) == 1 for other in range(1, number + 1))


def _quotient_and_remainder(original: Callable[[Any, Any], Any], x: Any, y: Any, /) -> Any:
    """``divmod``, which torch does not define for sizes."""
    is_symbolic = isinstance(x, torch.SymInt | torch.SymFloat) or isinstance(y, torch.SymInt | torch.SymFloat)
    return (x // y, x % y) if is_symbolic else original(x, y)


MATH_PATCHES: tuple[Patch, ...] = (
    *(
        Patch(f"math:{name}", replacement, "it converts a size to a number, which specializes it", strict=False)
        for name, replacement in (
            ("sqrt", _square_root),
            ("isqrt", _integer_root),
            ("gcd", _greatest_common_divisor),
            ("log2", _binary_logarithm),
            ("log10", _decimal_logarithm),
        )
    ),
    # A module of sympy that is imported during an export takes it by name.
    FunctionPatch("math:log", _logarithm, "it converts a size to a number, which specializes it", strict=False),
    Patch("torch:SymInt.bit_length", _bit_length, "it converts a size to a number, which specializes it", strict=False),
    Patch(
        "torch._export.verifier:Verifier.allowed_op_types",
        _allowed_in_graphs,
        "captured graphs may have the square root of sizes, but not the binary logarithm",
    ),
    Patch("builtins:divmod", _quotient_and_remainder, "symbolic sizes do not have it", strict=False),
)
