"""Arithmetic, functions, products and reductions of complex tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
C64, C128, F64 = torch.complex64, torch.complex128, torch.float64
_Z = T(("n", 6), C64)
_D = T(("n", 6), C128)
_R = T(("n", 6))
_NAN, _INF = float("nan"), float("inf")
_PARTS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-4, -30.0, 1e19)
_GRID = torch.tensor([complex(a, b) for a in _PARTS for b in _PARTS])
_MODERATE = torch.tensor([complex(a, b) for a in _PARTS[:-2] for b in _PARTS[:-2]])


def _unary() -> Iterator[Case]:
    """Every function on random numbers of both precisions."""
    functions: tuple[Any, ...] = (
        aten.reciprocal, aten.square, aten.exp, aten.exp2, aten.expm1, aten.special_expm1, aten.log, aten.log2,
        aten.log10, aten.log1p, aten.special_log1p, aten.sqrt, aten.rsqrt, aten.sigmoid, aten.special_expit, aten.silu,
        aten.sin, aten.cos, aten.tan, aten.sinh, aten.cosh, aten.tanh, aten.asin, aten.acos, aten.atan, aten.asinh,
        aten.acosh, aten.atanh, aten.abs, aten.absolute, aten.angle, aten.sgn, aten._conj_physical, aten._conj_copy,
        aten.conj_physical, aten.resolve_conj, aten.isnan, aten.isinf, aten.prod, aten.nonzero, aten.argwhere,
        aten.view_as_real, aten.view_as_real_copy, aten._conj, aten.real, aten.imag,
    )  # fmt: skip
    for function in functions:
        target = str(function.default)
        yield Case(target, function, (_Z,))
    for function in (aten.exp, aten.log, aten.sqrt, aten.asin, aten.atan, aten.tanh, aten.abs, aten.angle, aten.sgn):
        yield Case(str(function.default), function, (_D,), "double")


def _special() -> Iterator[Case]:
    """Zeros of both signs, cuts, small and large numbers."""
    for function in (aten.sqrt, aten.abs, aten.angle, aten.sgn, aten.log):
        yield Case(str(function.default), function, (_GRID,), "zeros and large numbers")
    for function in (aten.exp, aten.expm1, aten.log1p, aten.sinh, aten.tanh, aten.asin, aten.acos, aten.atanh):
        yield Case(str(function.default), function, (_MODERATE,), "zeros and cuts")
    weird = torch.tensor([complex(_NAN, 1), complex(1, _NAN), complex(_INF, 1), complex(1, -_INF), 0j])
    for function in (aten.isnan, aten.isinf, aten.abs):
        yield Case(str(function.default), function, (weird,), "NaN and infinity")


_ARITHMETIC = (
    Case("aten.add.Tensor", lambda x, y: torch.add(x, y, alpha=2 - 1j), (_Z, _Z)),
    Case("aten.add.Tensor", torch.add, (_R, _Z), "real and complex"),
    Case("aten.add.Scalar", lambda x: aten.add.Scalar(x, 1 + 2j), (_R,), "complex number"),
    Case("aten.sub.Tensor", lambda x, y: torch.sub(x, y, alpha=2), (_R, _Z)),
    Case("aten.sub.Scalar", lambda x: aten.sub.Scalar(x, 1 + 2j), (_Z,)),
    Case("aten.rsub.Tensor", lambda x, y: torch.rsub(x, y, alpha=2), (_Z, _R)),
    Case("aten.rsub.Scalar", lambda x: torch.rsub(x, 1j), (_Z,)),
    Case("aten.mul.Tensor", torch.mul, (_Z, T((6,), C64))),
    Case("aten.mul.Tensor", lambda x: x * 2.0, (torch.tensor([complex(_INF, 1), 1 + 1j]),), "infinity and a number"),
    Case("aten.mul.Scalar", lambda x: aten.mul.Scalar(x, 2j), (_R,)),
    Case("aten.multiply.Tensor", aten.multiply, (_Z, _D), "two precisions"),
    Case("aten.div.Tensor", torch.div, (_Z, _Z)),
    Case("aten.div.Tensor", lambda x, y: x / y, (torch.tensor([1e30 + 1e30j]), torch.tensor([2e30 - 1e30j])), "large"),
    Case("aten.div.Tensor", lambda x: x / torch.tensor(0j), (torch.tensor([1 + 1j]),), "by zero"),
    Case("aten.div.Scalar", lambda x: aten.div.Scalar(x, 2j), (_Z,)),
    Case("aten.true_divide.Tensor", aten.true_divide, (_R, _Z)),
    Case("aten.eq.Tensor", torch.eq, (torch.tensor([1 + 1j, 2 - 0j, 3j]), torch.tensor([1.0, 2.0, 3.0]))),
    Case("aten.eq.Scalar", lambda x: aten.eq.Scalar(x, 1 + 1j), (torch.tensor([1 + 1j, 1 - 1j]),)),
    Case("aten.ne.Tensor", torch.ne, (torch.tensor([1 + 1j, 2]), torch.tensor([1 - 1j, 2]))),
    Case("aten.ne.Scalar", lambda x: aten.ne.Scalar(x, 1), (torch.tensor([1 + 1j, 1]),)),
    Case("aten.not_equal.Tensor", aten.not_equal, (torch.tensor([1 + 1j, 2]), torch.tensor([1 - 1j, 2]))),
    Case("aten.pow.Tensor_Tensor", torch.pow, (_Z, _Z), rtol=1e-4, atol=1e-4),
    Case("aten.pow.Tensor_Tensor", torch.pow, (_D, _R), "double"),
    Case("aten.pow.Scalar", lambda x: torch.pow(2.0, x), (_Z,)),
    *(
        Case("aten.pow.Tensor_Scalar", lambda x, e=exponent: torch.pow(x, e), (_Z,), f"by {exponent}", atol=1e-4)
        for exponent in (0, 1, 2, 3, 0.5, -1, -0.5, 2.5, 1 - 2j)
    ),
    Case("aten.complex.default", torch.complex, (_R, _R)),
    Case("aten.polar.default", torch.polar, (_R, _R)),
    Case("aten.view_as_complex.default", torch.view_as_complex, (T(("n", 2)),)),
    Case("aten.view_as_complex_copy.default", aten.view_as_complex_copy, (T(("n", 2)),)),
    Case("aten._to_copy.default", lambda x: aten._to_copy(x, dtype=C128), (_Z,)),
    Case("aten.to.dtype", lambda x: x.to(C64), (_R,), ops=("Unsqueeze", "Pad")),
    Case("aten.to.device", lambda x: aten.to.device(x, "cpu", C128), (_Z,)),
    Case("aten.to.dtype_layout", lambda x: aten.to.dtype_layout(x, dtype=C128), (_Z,)),
    Case("aten.to.other", lambda x, y: aten.to.other(x, y), (_R, _Z)),
    Case("aten.type_as.default", lambda x, y: x.type_as(y), (_R, _Z)),
    # Real operands.
    Case("aten.angle.default", torch.angle, (torch.tensor([1.0, -2.0, -0.0, _NAN]),), "real", numerics="exact"),
    Case("aten.conj_physical.default", lambda x: aten.conj_physical(x) + 1, (_R,), "real"),
    Case("aten._conj_physical.default", lambda x: aten._conj_physical(x) + 1, (_R,), "real"),
    Case("aten.vdot.default", torch.vdot, (T(("n",)), T(("n",))), "real"),
    Case("aten._neg_view.default", lambda x: aten._neg_view(x) + 1, (_R,)),
    Case("aten._neg_view_copy.default", aten._neg_view_copy, (_R,)),
)

_A, _B, _V = T(("n", 4), C64), T((4, 5), C64), T((4,), C64)
_BATCH, _OTHER = T((2, "n", 4), C64), T((2, 4, 5), C64)
_KERNEL = torch.randn(4, 3, 3, dtype=C64, generator=torch.Generator().manual_seed(1))
_PRODUCTS = (
    Case("aten.matmul.default", torch.matmul, (_BATCH, _B)),
    Case("aten.matmul.default", torch.matmul, (_A, T((4, 5), C64, 0.0, 1.0)), "positive"),
    Case("aten.mm.default", torch.mm, (_A, _B)),
    Case("aten.bmm.default", torch.bmm, (_BATCH, _OTHER)),
    Case("aten.mv.default", torch.mv, (_A, _V)),
    Case("aten.dot.default", torch.dot, (_V, _V)),
    Case("aten.vdot.default", torch.vdot, (_V, _V)),
    Case("aten.kron.default", torch.kron, (T(("n", 3), C64), T((2, "m"), C64))),
    Case("aten.kron.default", torch.kron, (T((3,)), T(("n", 2), C64)), "real and complex"),
    Case("aten.addmm.default", lambda c, a, b: torch.addmm(c, a, b, beta=2j, alpha=0.5), (T((5,), C64), _A, _B)),
    Case("aten.addmm.default", lambda c, a, b: torch.addmm(c, a, b, beta=0), (T((5,), C64), _A, _B), "no summand"),
    Case("aten.addmv.default", torch.addmv, (T(("n",), C64), _A, _V)),
    Case("aten.baddbmm.default", torch.baddbmm, (T((5,), C64), _BATCH, _OTHER)),
    Case("aten.addbmm.default", torch.addbmm, (T((5,), C64), _BATCH, _OTHER)),
    Case("aten.linear.default", torch.nn.functional.linear, (_A, T((5, 4), C64), T((5,), C64))),
    Case("aten.outer.default", torch.outer, (T(("n",), C64), T((3,)))),
    Case("aten.einsum.default", lambda a, b: torch.einsum("...ij,...jk", a, b), (_BATCH, _OTHER)),
    Case(
        "aten.einsum.default",
        lambda a, b: torch.einsum("nj,j->nj", a, b),
        (
            _A,
            T((4,)),
        ),
        "complex and real",
    ),
    Case("aten.einsum.default", lambda a: torch.einsum("bii->ib", a), (T((2, "n", "n"), C64),), "diagonal"),
    Case("aten.einsum.default", lambda a, b, c: torch.einsum("ni,ij,j->n", a, b, c), (_A, _B, T((5,), C64)), "three"),
    Case("aten.conv1d.default", lambda x: torch.conv1d(x, _KERNEL, _KERNEL[:, 0, 0]), (T((2, 3, "h"), C64),)),
    Case("aten.conv2d.default", lambda x, w: torch.conv2d(x, w), (T((2, 3, 8, "w"), C64), T((4, 3, 3, 3), C64))),
    Case("aten.conv3d.default", lambda x, w: torch.conv3d(x, w), (T((1, 2, 4, 4, 4), C64), T((2, 2, 2, 2, 2), C64))),
    Case("aten.conv1d.padding", lambda x: torch.conv1d(x, _KERNEL, padding="same"), (T((2, 3, "h"), C64),)),
    Case(
        "aten.conv2d.padding",
        lambda x, w: torch.conv2d(x, w, padding="same"),
        (T((2, 3, 8, 9), C64), T((4, 3, 3, 3), C64)),
    ),
    Case(
        "aten.conv3d.padding",
        lambda x, w: torch.conv3d(x, w, padding="valid"),
        (T((1, 2, 4, 4, 4), C64), T((2, 2, 2, 2, 2), C64)),
    ),
    Case("aten.conv_transpose1d.default", torch.conv_transpose1d, (T((2, 3, "h"), C64), T((3, 4, 3), C64))),
    Case("aten.conv_transpose2d.input", torch.conv_transpose2d, (T((2, 3, 4, 5), C64), T((3, 2, 3, 3), C64))),
    Case("aten.conv_transpose3d.input", torch.conv_transpose3d, (T((1, 2, 3, 3, 3), C64), T((2, 2, 2, 2, 2), C64))),
)

_REDUCTIONS = (
    Case("aten.prod.dim_int", lambda x: torch.prod(x, 1, True), (_Z,)),
    Case("aten.prod.dim_int", lambda x: torch.prod(x, 0), (_Z,), "dynamic length"),
    Case("aten.var.correction", lambda x: torch.var(x, 1, correction=0), (_Z,)),
    Case("aten.var.default", lambda x: aten.var.default(x), (_Z,)),
    Case("aten.var.dim", lambda x: aten.var.dim(x, [1]), (_Z,)),
    Case("aten.std.correction", lambda x: torch.std(x, 1, correction=1), (_Z,)),
    Case("aten.std.default", lambda x: aten.std.default(x), (_Z,)),
    Case("aten.std.dim", lambda x: aten.std.dim(x, [1]), (_Z,)),
    Case("aten.nonzero.default", torch.nonzero, (torch.tensor([[0j, 1j], [2 + 0j, 0j]]),), "zeros"),
    Case("aten.nonzero_numpy.default", lambda x: aten.nonzero_numpy(x), (torch.tensor([[0j, 1j], [2 + 0j, 0j]]),)),
    Case("aten.nonzero_static.default", lambda x: aten.nonzero_static(x, size=3), (torch.tensor([0j, 1j, 2 + 0j]),)),
)

CASES = (*_unary(), *_special(), *_ARITHMETIC, *_PRODUCTS, *_REDUCTIONS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_complex(case: Case) -> None:
    run(case)
