"""Functions of Python's ``math``, and ``divmod``, of sizes: each has an exact form, which keeps the size dynamic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fxonnx_translations._torch_compat import sym_int, sym_min, sym_sqrt

from ..patch import Patch

__all__ = ["MATH_PATCHES"]


_MOST_DIVISORS = 16
"""Each divisor is one remainder of the graph."""


def _is_size(value: object) -> bool:
    return isinstance(value, torch.SymInt)


def _square_root(original: Callable[[Any], Any], x: Any, /) -> Any:
    """``math.sqrt`` of a size or of a float of sizes."""
    return sym_sqrt(x) if isinstance(x, torch.SymInt | torch.SymFloat) else original(x)


def _integer_root(original: Callable[[Any], Any], n: Any, /) -> Any:
    """``math.isqrt`` of a size: below 2^52, the square root in float64 is not rounded up to an integer."""
    return sym_int(sym_sqrt(n)) if _is_size(n) else original(n)


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
        )
    ),
    Patch("builtins:divmod", _quotient_and_remainder, "symbolic sizes do not have it", strict=False),
)
