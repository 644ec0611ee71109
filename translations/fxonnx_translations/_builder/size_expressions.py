"""Size expressions as ONNX values, emitted when a node needs them.

A symbol is read from the axis of the graph input that defines it, or from the node output for data-dependent (unbacked)
symbols; an expression is computed from its symbols. Both are INT64 tensors of shape [1], emitted once per graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import onnx_ir as ir
import sympy

from .._torch_compat import sympy_functions
from .builder_protocol import BuilderProtocol
from .dtypes import FLOAT8
from .symbolic_dims import affine_coefficients

__all__ = ["emit_size"]


def emit_size(builder: BuilderProtocol, expr: sympy.Expr) -> ir.Value:
    """Emit an expression as a tensor of shape [1]: INT64 for sizes, DOUBLE for floats, BOOL for conditions.

    Raises:
        KeyError: If no value of the graph defines one of the symbols.
        TypeError: If the expression contains a function without an ONNX form.
    """
    return _Emitter(builder).emit(expr)


_SMALL_INTEGERS = frozenset(
    {ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.INT32}
)


class _Emitter:
    """Emits the nodes of expressions; every subexpression is memoized in the builder's graph."""

    def __init__(self, builder: BuilderProtocol) -> None:
        self.builder = builder

    def emit(self, expr: sympy.Expr) -> ir.Value:
        known = self.builder.recorded_size(expr)
        if known is None:
            known = self._new(expr)
            self.builder.record_size(expr, known)
        return known

    def _op(self, op_type: str, *args: Any, **attributes: Any) -> ir.Value:
        value = self.builder.call_op(op_type, args, attributes)
        if not isinstance(value, ir.Value):
            raise TypeError(f"{op_type} has more than one output")
        return value

    def _new(self, expr: sympy.Expr) -> ir.Value:
        if expr.is_Integer:
            return self.builder.constant([int(expr)], ir.DataType.INT64)
        if expr.is_number and expr.is_real:
            return self.builder.constant([float(expr)], ir.DataType.DOUBLE)
        if expr.is_Symbol:
            return self._symbol(expr)
        emit = _FUNCTIONS.get(type(expr))
        if emit is None:
            raise TypeError(f"the size expression {expr} uses {type(expr).__name__}, which has no ONNX form")
        return emit(self, expr)

    def _symbol(self, symbol: sympy.Symbol) -> ir.Value:
        value, axis, expr = self.builder.symbols.origin(symbol)
        if axis is not None and value.dtype is not None and self._lacks_shape(value.dtype):
            # ONNX Runtime would eliminate a Cast alone, although it has no kernel of Shape for these element types.
            wide = ir.DataType.FLOAT if value.dtype.is_floating_point() else ir.DataType.INT8
            value, axis = self._op("Unsqueeze", self._op("Cast", value, to=wide), [0]), axis + 1
        if axis is None:
            read = self._vector(value)
            if value.dtype in _SMALL_INTEGERS:
                read = self._op("Cast", read, to=ir.DataType.INT64)
        elif self.builder.opset_version >= 15:
            read = self._op("Shape", value, start=axis, end=axis + 1)
        else:
            read = self._op("Slice", self._op("Shape", value), [axis], [axis + 1], [0])
        slope = None if expr.is_Symbol else affine_coefficients(expr, symbol)
        if slope is not None:
            a, b = slope
            read = (
                self._op("Div", self._op("Sub", read, [b]) if b else read, [a])
                if a != 1
                else self._op("Sub", read, [b])
            )
        return read

    def _vector(self, value: ir.Value) -> ir.Value:
        """The number in a tensor of one element, whose ``Squeeze`` is the tensor itself if it has rank 0."""
        is_scalar = len(self.builder.dims(value)) == 0
        return self._op("Unsqueeze", value, [0]) if is_scalar else self._op("Reshape", value, [1])

    def _lacks_shape(self, dtype: ir.DataType) -> bool:
        """Whether ONNX Runtime, if it is the target, has no kernel of Shape for an element type."""
        is_old = dtype in FLOAT8 and self.builder.opset_version < 21
        return is_old or dtype in self.builder.missing_kernels.get("Shape", ())

    def fold(self, op_type: str, args: Sequence[sympy.Expr]) -> ir.Value:
        values = self.same_type([self.emit(arg) for arg in args])
        return reduce(lambda left, right: self._op(op_type, left, right), values)

    def same_type(self, values: list[ir.Value]) -> list[ir.Value]:
        """Cast to double where an operand is a float, as Python does; a symbol has the type of the tensor it is read from."""
        if any(value.dtype is not None and value.dtype.is_floating_point() for value in values):
            return [self.double(value) for value in values]
        return values

    def double(self, value: ir.Value) -> ir.Value:
        return value if value.dtype == ir.DataType.DOUBLE else self._op("Cast", value, to=ir.DataType.DOUBLE)

    def add(self, expr: sympy.Expr) -> ir.Value:
        positive = [arg for arg in expr.args if not arg.could_extract_minus_sign()]
        negative = [-arg for arg in expr.args if arg.could_extract_minus_sign()]
        left = self.fold("Add", positive) if positive else self.emit(sympy.Integer(0))
        if not negative:
            return left
        values = self.same_type([left, self.fold("Add", negative)])
        return self._op("Sub", *values)

    def mul(self, expr: sympy.Expr) -> ir.Value:
        numerator, denominator = expr.as_numer_denom()
        if denominator == 1:
            return self.fold("Mul", expr.args)
        # sympy writes s/2 for a size that torch knows to be divisible by 2.
        return self._op("Div", self.emit(numerator), self.emit(denominator))

    def power(self, expr: sympy.Expr) -> ir.Value:
        base, exponent = expr.args
        if exponent.is_Integer and 0 < int(exponent) <= 8:
            return self.fold("Mul", [base] * int(exponent))
        return self.fold("Pow", [base, exponent])

    def floor_div(self, expr: sympy.Expr) -> ir.Value:
        left, right = self.emit(expr.args[0]), self.divisor(expr.args[1])
        if expr.args[0].is_nonnegative and expr.args[1].is_nonnegative:
            return self._op("Div", left, right)
        # ONNX Div truncates; subtracting the remainder, which has the divisor's sign, makes the division exact.
        return self._op("Div", self._op("Sub", left, self._op("Mod", left, right)), right)

    def mod(self, expr: sympy.Expr) -> ir.Value:
        left, right = self.emit(expr.args[0]), self.divisor(expr.args[1])
        if ir.DataType.DOUBLE not in (left.dtype, right.dtype):
            return self._op("Mod", left, right)
        # The remainder of floats has the dividend's sign in ONNX, and the divisor's in Python.
        left, right = self.double(left), self.double(right)
        rest = self._op("Mod", left, right, fmod=1)
        if expr.args[0].is_nonnegative and expr.args[1].is_positive:
            return rest
        differs = self._op("Less", self._op("Mul", self._op("Sign", rest), self._op("Sign", right)), [0.0])
        return self._op("Where", differs, self._op("Add", rest, right), rest)

    def absolute(self, expr: sympy.Expr) -> ir.Value:
        return self._op("Abs", self.emit(expr.args[0]))

    def bitwise(self, expr: sympy.Expr) -> ir.Value:
        if self.builder.opset_version < 18:
            raise TypeError(f"the size expression {expr} has an ONNX form from opset 18 on")
        kind = "BitwiseAnd" if isinstance(expr, sympy_functions.BitwiseFn_bitwise_and) else "BitwiseOr"
        return self.fold(kind, expr.args)

    def divisor(self, expr: sympy.Expr) -> ir.Value:
        """Emit a divisor that is never 0: integer division by 0 may end the process (SIGFPE)."""
        value = self.emit(expr)
        if expr.is_number:
            return value
        if expr.is_nonnegative and self.builder.opset_version >= 12:
            return self._op("Max", value, [1])
        # Not by a comparison, which would be folded: torch assumes that sizes are positive.
        return self._op("Add", value, self._op("Sub", [1], self._op("Abs", self._op("Sign", value))))

    def modular_indexing(self, expr: sympy.Expr) -> ir.Value:
        base, divisor, modulus = expr.args
        return self._op("Mod", self.emit(sympy_functions.FloorDiv(base, divisor)), self.emit(modulus))

    def true_div(self, expr: sympy.Expr) -> ir.Value:
        return self._op("Div", *(self.double(self.emit(arg)) for arg in expr.args))

    def square_root(self, expr: sympy.Expr) -> ir.Value:
        return self._op("Sqrt", self.double(self.emit(expr.args[0])))

    def binary_logarithm(self, expr: sympy.Expr) -> ir.Value:
        value = self.double(self.emit(expr.args[0]))
        found = self._op("Div", self._op("Log", value), [math.log(2)])
        # Of powers of two, whose logarithms models round to integers, it is exact in Python; the quotient is not.
        nearest = self._op("Round", found)
        two = self.builder.constant([2.0], ir.DataType.DOUBLE)
        is_power = self._op("Equal", self._op("Pow", two, nearest), value)
        return self._op("Where", is_power, nearest, found)

    def to_float(self, expr: sympy.Expr) -> ir.Value:
        return self.double(self.emit(expr.args[0]))

    def to_int(self, expr: sympy.Expr) -> ir.Value:
        rounding = {
            sympy_functions.CeilToInt: "Ceil",
            sympy_functions.FloorToInt: "Floor",
            sympy_functions.RoundToInt: "Round",
        }.get(type(expr))
        (number,) = expr.args
        if _has_inexact_logarithm(number):
            raise TypeError(
                f"the size expression {expr} rounds a logarithm that is exact in Python only; math.log2 of a size is exact"
            )
        value = self.emit(number)
        if value.dtype == ir.DataType.INT64:
            return value
        # Cast truncates, as TruncToInt does.
        return self._op("Cast", self._op(rounding, value) if rounding else value, to=ir.DataType.INT64)

    def round_half_to_even(self, expr: sympy.Expr) -> ir.Value:
        number, digits = expr.args
        value = self.double(self.emit(number))
        if digits == 0:
            return self._op("Round", value)
        if not digits.is_Integer or abs(int(digits)) > _MOST_DIGITS:
            raise TypeError(f"rounding to a number of digits has an ONNX form for at most {_MOST_DIGITS} digits")
        power = 10 ** abs(int(digits))
        if digits > 0:
            scaled = self._op("Mul", value, [float(power)])
            rest = self._product_error(value, power, scaled)
        else:
            scaled = self._op("Div", value, [float(power)])
            product = self._op("Mul", scaled, [float(power)])
            rest = self._op("Sub", self._op("Sub", value, product), self._product_error(scaled, power, product))
        # Python rounds the decimal digits of the exact number: a half after scaling is one only if nothing was rounded.
        half = self._op("Equal", self._op("Abs", self._op("Sub", scaled, self._op("Round", scaled))), [0.5])
        direction = self._op("Mul", self._op("Sign", rest), [0.5])
        is_more = self._op("And", half, self._op("Not", self._op("Equal", direction, [0.0])))
        nearest = self._op("Where", is_more, self._op("Add", scaled, direction), self._op("Round", scaled))
        result = self._op("Div" if digits > 0 else "Mul", nearest, [float(power)])
        # Numbers from 2**52 on are integers, whose scaled values may be inexact.
        return self._op("Where", self._op("Less", self._op("Abs", scaled), [2.0**52]), result, value)

    def _product_error(self, value: ir.Value, factor: int, product: ir.Value) -> ir.Value:
        """``value * factor - product`` without rounding, for a double and an integer that is a double (Dekker 1971)."""

        def split(number: ir.Value) -> tuple[ir.Value, ir.Value]:
            scaled = self._op("Mul", number, [_SPLITTER])
            high = self._op("Sub", scaled, self._op("Sub", scaled, number))
            return high, self._op("Sub", number, high)

        high, low = split(value)
        upper = _SPLITTER * factor - (_SPLITTER * factor - factor)
        lower = factor - upper
        error = self._op("Sub", self._op("Mul", high, [upper]), product)
        for part, other in ((high, lower), (low, upper), (low, lower)):
            error = self._op("Add", error, self._op("Mul", part, [other]))
        return error

    def unwrap(self, expr: sympy.Expr) -> ir.Value:
        return self.emit(expr.args[0])

    def ceil_div(self, expr: sympy.Expr) -> ir.Value:
        base, divisor = expr.args
        return self.emit(sympy_functions.FloorDiv(base + divisor - 1, divisor))

    def compare(self, expr: sympy.Expr) -> ir.Value:
        flag = self._flag(expr)
        if flag is not None:
            return self._vector(flag)
        values = self.same_type([self.emit(arg) for arg in expr.args])
        if isinstance(expr, sympy.Ne):
            return self._op("Not", self._op("Equal", *values))
        return self._op(_COMPARISONS[type(expr)], *values)

    def _flag(self, expr: sympy.Expr) -> ir.Value | None:
        """The boolean tensor whose value torch writes as ``Eq(symbol, 1)``, or None."""
        if not (isinstance(expr, sympy.Eq) and expr.lhs.is_Symbol and expr.rhs == 1):
            return None
        value, axis, _ = self.builder.symbols.origin(expr.lhs)
        return value if axis is None and value.dtype == ir.DataType.BOOL else None

    def logical(self, expr: sympy.Expr) -> ir.Value:
        return self.fold("And" if isinstance(expr, sympy.And) else "Or", expr.args)

    def negate(self, expr: sympy.Expr) -> ir.Value:
        return self._op("Not", self.emit(expr.args[0]))

    def where(self, expr: sympy.Expr) -> ir.Value:
        condition, *branches = (self.emit(arg) for arg in expr.args)
        return self._op("Where", condition, *self.same_type(branches))

    def piecewise(self, expr: sympy.Expr) -> ir.Value:
        result = self.emit(expr.args[-1][0])
        for branch, condition in reversed(expr.args[:-1]):
            result = self._op("Where", self.emit(condition), *self.same_type([self.emit(branch), result]))
        return result


def _has_inexact_logarithm(number: sympy.Expr) -> bool:
    """Whether a number has logarithms that may be integers in Python, and differ from them by the last bit in ONNX.

    Those to base 2 are integers at powers of two only, where they are exact; so are their products with short factors.
    """
    logarithms = number.atoms(sympy_functions.OpaqueUnaryFn_log2)
    if not logarithms:
        return False
    factors = (float(factor).as_integer_ratio()[1] for factor in number.atoms(sympy.Float))
    return len(logarithms) > 1 or any(denominator > 2**20 for denominator in factors)


_MOST_DIGITS = 22
"""Powers of 10 up to this one are exact in float64."""
_SPLITTER = 2.0**27 + 1
"""Factor that splits a float64 into two halves of 26 bits."""

_COMPARISONS: Mapping[type, str] = {
    sympy.Eq: "Equal",
    sympy.Lt: "Less",
    sympy.Le: "LessOrEqual",
    sympy.Gt: "Greater",
    sympy.Ge: "GreaterOrEqual",
}

_FUNCTIONS: Mapping[type, Callable[[_Emitter, sympy.Expr], ir.Value]] = {
    sympy.Add: _Emitter.add,
    sympy.Mul: _Emitter.mul,
    sympy.Pow: _Emitter.power,
    sympy.Abs: _Emitter.absolute,
    sympy.Max: lambda emitter, expr: emitter.fold("Max", expr.args),
    sympy.Min: lambda emitter, expr: emitter.fold("Min", expr.args),
    sympy_functions.Max: lambda emitter, expr: emitter.fold("Max", expr.args),
    sympy_functions.Min: lambda emitter, expr: emitter.fold("Min", expr.args),
    sympy_functions.FloorDiv: _Emitter.floor_div,
    sympy_functions.CleanDiv: _Emitter.floor_div,
    sympy_functions.CeilDiv: _Emitter.ceil_div,
    sympy_functions.Mod: _Emitter.mod,
    sympy_functions.PythonMod: _Emitter.mod,
    sympy_functions.BitwiseFn_bitwise_and: _Emitter.bitwise,
    sympy_functions.BitwiseFn_bitwise_or: _Emitter.bitwise,
    sympy_functions.ModularIndexing: _Emitter.modular_indexing,
    sympy_functions.PowByNatural: _Emitter.power,
    sympy_functions.FloatPow: _Emitter.power,
    sympy_functions.IntTrueDiv: _Emitter.true_div,
    sympy_functions.FloatTrueDiv: _Emitter.true_div,
    sympy_functions.OpaqueUnaryFn_sqrt: _Emitter.square_root,
    sympy_functions.OpaqueUnaryFn_log2: _Emitter.binary_logarithm,
    sympy_functions.ToFloat: _Emitter.to_float,
    sympy_functions.CeilToInt: _Emitter.to_int,
    sympy_functions.FloorToInt: _Emitter.to_int,
    sympy_functions.RoundToInt: _Emitter.to_int,
    sympy_functions.TruncToInt: _Emitter.to_int,
    sympy_functions.RoundDecimal: _Emitter.round_half_to_even,
    sympy_functions.Identity: _Emitter.unwrap,
    sympy_functions.Where: _Emitter.where,
    sympy.Piecewise: _Emitter.piecewise,
    sympy.Not: _Emitter.negate,
    sympy.And: _Emitter.logical,
    sympy.Or: _Emitter.logical,
    sympy.Ne: _Emitter.compare,
    **dict.fromkeys(_COMPARISONS, _Emitter.compare),
}
