"""Real and imaginary part, magnitude and angle of complex tensors, conjugation, and conversion from and to real ones."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from .._builder.op import Op
from .._registry import translates
from .parts import is_complex, join
from .polar import angle_of, magnitude_of


@translates("aten::abs", "aten::absolute", complex=True)
def abs(op: Op, self: ir.Value) -> ir.Value:
    """aten::abs(Tensor self) -> Tensor
    aten::absolute(Tensor self) -> Tensor
    """
    return magnitude_of(op, op.parts(self))


@translates("aten::angle", complex=True)
def angle(op: Op, self: ir.Value) -> ir.Value:
    """aten::angle(Tensor self) -> Tensor"""
    real, imaginary = op.parts(self)
    return angle_of(op, (real, imaginary))


@translates("aten::angle", exact="NaN propagates")
def angle_of_real(op: Op, self: ir.Value) -> ir.Value:
    """aten::angle(Tensor self) -> Tensor"""
    value = op.cast(self, op.result.dtype)
    zero, pi = op.const(0.0, op.result.dtype), op.const(math.pi, op.result.dtype)
    result = op.Where(op.Less(value, zero), pi, zero)
    return op.Where(op.IsNaN(value), value, result) if op.exact_numerics else result


@translates("aten::sgn", complex=True)
def sgn(op: Op, self: ir.Value) -> ir.Value:
    """aten::sgn(Tensor self) -> Tensor"""
    real, imaginary = op.parts(self)
    dtype = op.dtype_of(real)
    size = magnitude_of(op, (real, imaginary))
    divisor = op.Where(op.Equal(size, op.const(0.0, dtype)), op.const(1.0, dtype), size)
    return join(op, op.Div(real, divisor), op.Div(imaginary, divisor))


@translates("aten::_conj", "aten::_conj_physical", "aten::conj_physical", "aten::_conj_copy", complex=True)
def conj(op: Op, self: ir.Value) -> ir.Value:
    """aten::_conj(Tensor(a) self) -> Tensor(a)
    aten::_conj_physical(Tensor self) -> Tensor
    aten::conj_physical(Tensor self) -> Tensor
    aten::_conj_copy(Tensor self) -> Tensor
    """
    if self not in op.builder.parts:
        return op.Mul(self, op.const([1.0, -1.0], op.dtype_of(self)))
    real, imaginary = op.parts(self)
    return join(op, real, op.Neg(imaginary))


@translates("aten::conj_physical", "aten::_conj_physical")
def conj_of_real(op: Op, self: ir.Value) -> ir.Value:
    """aten::conj_physical(Tensor self) -> Tensor
    aten::_conj_physical(Tensor self) -> Tensor
    """
    return op.Identity(self)


@translates("aten::resolve_conj", complex=True)
def resolve_conj(op: Op, self: ir.Value) -> ir.Value:
    """aten::resolve_conj(Tensor(a) self) -> Tensor(a)"""
    return self


@translates("aten::_neg_view", "aten::_neg_view_copy")
def negative_view(op: Op, self: ir.Value) -> ir.Value:
    """aten::_neg_view(Tensor(a) self) -> Tensor(a)
    aten::_neg_view_copy(Tensor self) -> Tensor
    """
    return op.Neg(self)


@translates("aten::real", complex=True)
def real(op: Op, self: ir.Value) -> ir.Value:
    """aten::real(Tensor(a) self) -> Tensor(a)"""
    return op.parts(self)[0]


@translates("aten::imag", complex=True)
def imag(op: Op, self: ir.Value) -> ir.Value:
    """aten::imag(Tensor(a) self) -> Tensor(a)"""
    return op.parts(self)[1]


@translates("aten::complex", complex=True)
def complex(op: Op, real: ir.Value, imag: ir.Value) -> ir.Value:
    """aten::complex(Tensor real, Tensor imag) -> Tensor"""
    return join(op, real, imag)


@translates("aten::polar", complex=True)
def polar(op: Op, abs: ir.Value, angle: ir.Value) -> ir.Value:
    """aten::polar(Tensor abs, Tensor angle) -> Tensor"""
    return join(op, op.Mul(abs, op.Cos(angle)), op.Mul(abs, op.Sin(angle)))


@translates("aten::view_as_real", "aten::view_as_real_copy", complex=True)
def view_as_real(op: Op, self: ir.Value) -> ir.Value:
    """aten::view_as_real(Tensor(a) self) -> Tensor(a)
    aten::view_as_real_copy(Tensor self) -> Tensor
    """
    return self


@translates("aten::view_as_complex", "aten::view_as_complex_copy", complex=True)
def view_as_complex(op: Op, self: ir.Value) -> ir.Value:
    """aten::view_as_complex(Tensor(a) self) -> Tensor(a)
    aten::view_as_complex_copy(Tensor self) -> Tensor
    """
    return self


@translates("aten::isnan", complex=True)
def isnan(op: Op, self: ir.Value) -> ir.Value:
    """aten::isnan(Tensor self) -> Tensor"""
    real, imaginary = op.parts(self)
    return op.Or(op.IsNaN(real), op.IsNaN(imaginary))


@translates("aten::isinf", complex=True)
def isinf(op: Op, self: ir.Value) -> ir.Value:
    """aten::isinf(Tensor self) -> Tensor"""
    real, imaginary = op.parts(self)
    return op.Or(op.IsInf(real), op.IsInf(imaginary))


@translates(
    "aten::_to_copy", "aten::to.dtype", "aten::to.device", "aten::to.dtype_layout", "aten::to.other", complex=True
)
def to(op: Op, self: ir.Value, **_: object) -> ir.Value:
    """aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor
    aten::to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)
    aten::to.device(Tensor(a) self, Device device, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)
    aten::to.dtype_layout(Tensor(a) self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)
    aten::to.other(Tensor(a) self, Tensor other, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)
    """
    return convert(op, self)


@translates("aten::type_as", complex=True)
def type_as(op: Op, self: ir.Value, other: ir.Value) -> ir.Value:
    """aten::type_as(Tensor self, Tensor other) -> Tensor"""
    return convert(op, self)


def convert(op: Op, value: ir.Value) -> ir.Value:
    """Cast to the result's dtype; the cast from complex to real keeps the real part."""
    dtype = op.result.dtype
    if not is_complex(op, value):
        real = op.cast(value, dtype)
        return op.join(real, op.expand(op.const(0.0, dtype), op.dims(value)))
    real, imaginary = op.parts(value)
    if op.result.torch_dtype.is_complex:
        return op.join(op.cast(real, dtype), op.cast(imaginary, dtype))
    if op.result.torch_dtype is torch.bool:
        return op.Or(op.cast(real, dtype), op.cast(imaginary, dtype))
    return op.cast(real, dtype)
