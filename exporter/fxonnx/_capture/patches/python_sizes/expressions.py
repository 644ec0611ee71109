"""Rules that torch's interpreters of size expressions lack: ranges of remainders and roots, and nodes of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import sympy
import torch

from fxonnx_translations._torch_compat import ValueRanges

from ..patch import Patch, PatchKind

__all__ = ["EXPRESSION_PATCHES"]


def _range_of_remainder(has_sign_of_divisor: bool, original: Callable[..., Any], owner: Any, x: Any, y: Any) -> Any:
    """The range of ``x % y``: torch's is that of integers, whose remainder is at most the divisor minus 1."""
    dividend, divisor = ValueRanges.wrap(x), ValueRanges.wrap(y)
    if dividend.is_int and divisor.is_int:
        return original(owner, x, y)
    greatest = max(abs(divisor.lower), abs(divisor.upper))
    bound = sympy.Float(greatest) if greatest.is_finite else sympy.oo
    signed = divisor if has_sign_of_divisor else dividend
    return ValueRanges(0.0 if signed.lower >= 0 else -bound, 0.0 if signed.upper <= 0 else bound)


def _range_of_power(original: Callable[..., Any], owner: Any, a: Any, b: Any) -> Any:
    """The range of a power of floats, which is unknown for torch."""
    exponent = ValueRanges.wrap(b)
    found = _range_of_root(a, float(exponent.lower)) if exponent.is_singleton() else None
    return original(owner, a, b) if found is None else found


def _range_of_square_root(original: Callable[..., Any], x: Any) -> Any:
    """The range of a square root, which is unknown for torch if that of the number has negative ones."""
    found = _range_of_root(x, 0.5)
    return original(x) if found is None else found


def _range_of_root(base: Any, exponent: float) -> Any:
    """The range of a fractional power: Python has none for negative numbers, at which the model fails."""
    base = ValueRanges.wrap(base)
    if exponent <= 0 or exponent.is_integer() or base.upper < 0:
        return None
    ends = (max(base.lower, sympy.S.Zero), base.upper)
    return ValueRanges(*(sympy.Float(float(end) ** exponent) if end.is_finite else sympy.oo for end in ends))


def _remainder(original: Callable[..., Any], owner: Any, p: Any, q: Any) -> Any:
    """The remainder of two numbers one of which is a float; torch's function checks that the divisor is at least 1."""
    if p.is_Number and q.is_Number and (p.is_Float or q.is_Float) and not q.is_zero:
        return sympy.Float(float(p) % float(q))
    return original(owner, p, q)


def _operation_of_proxies(function: Callable[..., Any], original: Callable[..., Any], *args: Any) -> Any:
    """A function of a size as a node of the graph, in a condition that torch records there.

    torch calls the function itself, or that of sympy, and neither takes a proxy.
    """
    proxies = [value for value in args if isinstance(value, torch.fx.Proxy)]
    if not proxies:
        return original(*args)
    # The last argument of a conversion is the dtype of its result.
    operands = tuple(value for value in args if not isinstance(value, torch.dtype))
    return proxies[0].tracer.create_proxy("call_function", function, operands, {})


EXPRESSION_PATCHES: tuple[Patch, ...] = (
    *(
        Patch(
            f"torch.utils._sympy.value_ranges:SymPyValueRangeAnalysis.{name}",
            partial(_range_of_remainder, has_sign_of_divisor),
            "the ranges of remainders of floats are too narrow, or raise an error",
            PatchKind.SOUND,
        )
        for name, has_sign_of_divisor in (("mod", False), ("python_mod", True))
    ),
    *(
        Patch(
            f"torch.utils._sympy.value_ranges:SymPyValueRangeAnalysis.{name}",
            replacement,
            "the ranges of roots are unknown, so that the size of a tensor may be negative",
        )
        for name, replacement in (("pow", _range_of_power), ("sqrt", _range_of_square_root))
    ),
    Patch("torch.utils._sympy.functions:Mod.eval", _remainder, "it raises an AssertionError for divisors below 1"),
    *(
        Patch(
            f"torch.utils._sympy.reference:PythonReferenceAnalysis.{name}",
            partial(_operation_of_proxies, function),
            "it raises a TypeError where torch records a condition in the graph",
        )
        for name, function in (
            ("round_to_int", round),
            ("round_decimal", round),
            ("trunc_to_int", math.trunc),
            ("floor_to_int", math.floor),
            ("ceil_to_int", math.ceil),
        )
    ),
)
