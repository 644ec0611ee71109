"""Tensors of one element whose values are expressions of sizes: ``torch.ceil((x.shape[-1] - kernel) / stride)``.

torch.export reads such a tensor as an unbacked symbol, about which it knows nothing. As an expression of sizes it can
be compared, with a constraint where the model branches on it, and be a size itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import sympy
import torch
from torch import SymBool, SymFloat, SymInt
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fxonnx_translations._torch_compat import IntTrueDiv, OpOverload, sympy_functions

__all__ = ["Scalar", "evaluate", "is_exact"]


@dataclass(frozen=True)
class Quotient:
    """A quotient of two integers, whose ceiling and floor are integer divisions.

    Attributes:
        numerator: The numerator.
        denominator: The denominator, which is positive.
    """

    numerator: Any
    denominator: int

    def shifted(self, number: Any) -> Quotient | None:
        """The sum with an integer."""
        whole = _integer(number)
        return None if whole is None else Quotient(self.numerator + whole * self.denominator, self.denominator)

    def scaled(self, number: Any) -> Quotient | None:
        """The product with an integer."""
        whole = _integer(number)
        return None if whole is None else Quotient(self.numerator * whole, self.denominator)

    def floor(self) -> Any:
        """The largest integer that is not larger."""
        return self.numerator // self.denominator

    def ceil(self) -> Any:
        """The smallest integer that is not smaller."""
        return -(-self.numerator // self.denominator)


Number: TypeAlias = int | float | bool | SymInt | SymFloat | SymBool
"""A symbolic or plain number."""
Scalar: TypeAlias = Number | Quotient
"""The value of a tensor of one element."""

_sym_not: Callable[[Any], Any] = torch.sym_not
_BOOLS = (bool, SymBool)
_INTEGERS = (int, SymInt)


def evaluate(func: OpOverload[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Scalar | None:
    """Apply an operator to the values of tensors of one element.

    Returns:
        The value of the result; None if it is not known as an expression.
    """
    function = _FUNCTIONS.get(func._schema.name)
    if function is None:
        return None
    # The functions of a sum with an unknown term, and the like, return None.
    result: Scalar | None = function(*args, **kwargs)
    return result


_PARTS = 256


def is_exact(value: Scalar, dtype: torch.dtype) -> bool:
    """Whether a dtype holds a value for all usual sizes: 0.5 times a size in float32, but not 0.7 times it."""
    if isinstance(value, SymInt | SymBool) or dtype == torch.float64:
        return True
    if isinstance(value, Quotient):
        return dtype == torch.float32 and _PARTS % value.denominator == 0
    if not isinstance(value, SymFloat):
        return isinstance(value, int)
    expression = value.node.expr
    numbers = expression.atoms(sympy.Float)
    functions = (one for one in expression.atoms(sympy.Function, sympy.Pow) if not one.is_integer)
    are_parts = all(float(number * _PARTS).is_integer() for number in numbers) and all(map(_is_part, functions))
    return dtype == torch.float32 and are_parts


def _is_part(function: sympy.Basic) -> bool:
    if isinstance(function, IntTrueDiv):
        return bool(_PARTS % function.args[1] == 0)
    return isinstance(function, sympy_functions.ToFloat)


def _scaled(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A sum or a difference with torch's factor ``alpha``."""
    return lambda self, other, alpha=1: function(self, other if alpha == 1 else _multiply(other, alpha))


def _integer(number: Any) -> int | SymInt | None:
    """A number as an integer, if it is one."""
    if isinstance(number, _INTEGERS) and not isinstance(number, bool):
        return number
    return int(number) if isinstance(number, float) and number.is_integer() else None


def _are_numbers(*values: Any) -> bool:
    """Whether all values are known, and none is a truth value, whose arithmetic would evaluate it."""
    return not any(value is None or isinstance(value, _BOOLS) for value in values)


def _add(self: Any, other: Any) -> Any:
    if not _are_numbers(self, other):
        return None
    if isinstance(other, Quotient):
        self, other = other, self
    return self.shifted(other) if isinstance(self, Quotient) else self + other


def _subtract(self: Any, other: Any) -> Any:
    return _add(self, _multiply(other, -1))


def _multiply(self: Any, other: Any) -> Any:
    if not _are_numbers(self, other):
        return None
    if isinstance(other, Quotient):
        self, other = other, self
    return self.scaled(other) if isinstance(self, Quotient) else self * other


def _divide(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    numerator, denominator = _integer(self), _integer(other)
    if numerator is None or not isinstance(denominator, int) or denominator <= 0:
        return None
    if rounding_mode is None:
        return Quotient(numerator, denominator)
    # Equal to truncation, unless the numerator is negative.
    is_floored = rounding_mode == "floor" or statically_known_true(numerator >= 0)
    return numerator // denominator if is_floored else None


def _extreme(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A maximum or minimum of integers."""
    return lambda self, other: None if _integer(self) is None or _integer(other) is None else function(self, other)


def _floor(self: Any) -> Any:
    return self.floor() if isinstance(self, Quotient) else _integer(self)


def _ceil(self: Any) -> Any:
    return self.ceil() if isinstance(self, Quotient) else _integer(self)


def _compared(relation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A relation of two numbers as one of their difference, which has the sign of its numerator."""

    def compare(self: Any, other: Any) -> Any:
        if isinstance(self, _BOOLS) and relation is operator.ne and other == 0:
            # The truth value of a tensor is read as ``tensor != 0``.
            return self
        difference = _subtract(self, other)
        if isinstance(difference, Quotient):
            difference = difference.numerator
        return None if difference is None else relation(difference, 0)

    return compare


def _value(self: Any) -> Any:
    """The number that Python gets."""
    return self.numerator / self.denominator if isinstance(self, Quotient) else self


def _convert(self: Any, dtype: torch.dtype | None = None, *_: Any, **options: Any) -> Any:
    """The value in another dtype; None if it would be rounded, or is a truth value."""
    target = options.get("dtype", dtype)
    if target is None:
        return self
    if isinstance(self, _BOOLS) or target == torch.bool:
        return self if isinstance(self, _BOOLS) and target == torch.bool else None
    if isinstance(self, Quotient):
        return self if target.is_floating_point else None
    return self if target.is_floating_point or isinstance(self, _INTEGERS) else None


def _identity(self: Any, *_: Any, **_options: Any) -> Any:
    return self


def _full(size: Sequence[Any], fill_value: Any, **_: Any) -> Any:
    return fill_value if len(size) == 0 else None


_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **dict.fromkeys(("aten::_to_copy", "aten::to"), _convert),
        **dict.fromkeys(
            (
                *("aten::clone", "aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift_fresh_copy"),
                *("aten::view", "aten::squeeze", "aten::unsqueeze", "aten::scalar_tensor"),
            ),
            _identity,
        ),
        "aten::_local_scalar_dense": _value,
        "aten::full": _full,
        "aten::add": _scaled(_add),
        "aten::sub": _scaled(_subtract),
        "aten::rsub": lambda self, other, alpha=1: _subtract(other, _multiply(self, alpha)),
        "aten::mul": _multiply,
        "aten::div": _divide,
        "aten::floor_divide": lambda self, other: _divide(self, other, "floor"),
        "aten::neg": lambda self: _multiply(self, -1),
        "aten::maximum": _extreme(torch.sym_max),
        "aten::minimum": _extreme(torch.sym_min),
        "aten::ceil": _ceil,
        "aten::floor": _floor,
        "aten::eq": _compared(operator.eq),
        "aten::ne": _compared(operator.ne),
        "aten::lt": _compared(operator.lt),
        "aten::le": _compared(operator.le),
        "aten::gt": _compared(operator.gt),
        "aten::ge": _compared(operator.ge),
        "aten::logical_not": lambda self: _sym_not(self) if isinstance(self, _BOOLS) else None,
    }
)
"""Name of an operator to the same function of numbers. Floats are computed exactly, which float32 is up to 2^24."""
