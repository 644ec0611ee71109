"""Linear systems, factorizations and covariances of complex matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
C64 = torch.complex64
A = T(("n", 3, 3), C64)
B = T(("n", 3, 2), C64)
LOOSE = {"rtol": 1e-3, "atol": 1e-4}


def _regular(matrix):
    return matrix + 5 * torch.eye(3)


def _factor(matrix, upper=False):
    lower = torch.linalg.cholesky(matrix @ matrix.mH + 3 * torch.eye(3))
    return lower.mH if upper else lower


FACTOR = _factor(torch.complex(torch.arange(9.0).reshape(3, 3).sin(), torch.arange(9.0).reshape(3, 3).cos()))


def _by_factors(matrix, right, **options):
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(_regular(matrix)), right, **options)


def _unpacked(matrix, **options):
    return torch.lu_unpack(*torch.linalg.lu_factor(matrix), **options)


def _definite(matrix):
    return matrix @ matrix.mH + 3 * torch.eye(3)


def _covariances() -> Iterator[Case]:
    counts, factors = torch.tensor([1, 3, 2, 1, 4]), torch.tensor([0.5, 1.0, 0.25, 2.0, 1.5])
    rows = T(("n", 5), C64)
    for name, function, value in (
        ("", torch.cov, rows),
        ("one variable", torch.cov, T((5,), C64)),
        ("complex128", torch.cov, T((3, 5), torch.complex128)),
        ("counts", lambda x: torch.cov(x, fweights=counts), rows),
        ("both", lambda x: torch.cov(x, correction=2, fweights=counts, aweights=factors), rows),
    ):
        yield Case("aten.cov.default", function, (value,), name)
    yield Case("aten.corrcoef.default", torch.corrcoef, (rows,))
    yield Case("aten.corrcoef.default", torch.corrcoef, (T((5,), C64),), "one variable")


FACTORIZATIONS = (
    *(
        Case(f"aten.{target}.default", function, (value,), name, **LOOSE)
        for name, value in (("", A), ("tall", T((5, 3), C64)), ("wide", T((3, 5), C64)))
        for target, function in (
            ("linalg_lu_factor_ex", torch.linalg.lu_factor_ex),
            ("linalg_lu", torch.linalg.lu),
            ("lu_unpack", _unpacked),
        )
    ),
    Case("aten.lu_unpack.default", lambda a: _unpacked(a, unpack_data=False)[0], (A,), "pivots only", **LOOSE),
    Case("aten.linalg_lu_factor_ex.default", torch.linalg.lu_factor_ex, (torch.zeros(3, 3, dtype=C64),), "singular"),
    Case("aten.linalg_lu_solve.default", _by_factors, (A, B), **LOOSE),
    Case("aten.linalg_lu_solve.default", partial(_by_factors, adjoint=True), (A, B), "adjoint", **LOOSE),
    Case("aten.linalg_lu_solve.default", lambda a, b: _by_factors(a, b.mT, left=False), (A, B), "right", **LOOSE),
    Case("aten._linalg_det.default", lambda a: aten._linalg_det(a)[0], (A,), **LOOSE),
    Case("aten._linalg_slogdet.default", lambda a: aten._linalg_slogdet(_regular(a))[:2], (A,), **LOOSE),
    Case("aten._linalg_slogdet.default", lambda a: aten._linalg_slogdet(a * 1e-30)[:2], (A,), "small", **LOOSE),
    Case(
        "aten._linalg_slogdet.default",
        lambda a: aten._linalg_slogdet(a)[:2],
        (torch.zeros(2, 2, dtype=C64),),
        "singular",
    ),
    *(
        Case(f"aten.{target}.default", partial(function, upper=upper), (A,), "upper" if upper else "", **LOOSE)
        for upper in (False, True)
        for target, function in (
            ("cholesky", lambda a, upper: torch.cholesky(_definite(a), upper)),
            ("linalg_cholesky_ex", lambda a, upper: torch.linalg.cholesky_ex(_definite(a), upper=upper)),
        )
    ),
    *_covariances(),
    Case("aten.combinations.default", torch.combinations, (T((5,), C64),)),
    Case("aten.narrow.Tensor", lambda x, i: x.narrow(1, i, 2), (T(("n", 5), C64), torch.tensor(3))),
)

CASES = (
    *FACTORIZATIONS,
    Case("aten.linalg_inv_ex.default", lambda a: torch.linalg.inv_ex(_regular(a)), (A,), **LOOSE),
    Case("aten.linalg_inv_ex.default", torch.linalg.inv_ex, (torch.diag(torch.tensor([1j, 2, 3 + 1j])),), "info"),
    Case(
        "aten.linalg_inv_ex.default",
        lambda a: torch.linalg.inv_ex(a).info,
        (torch.tensor([[1j, 0, 2], [1, 0, 1], [0, 0, 3]]),),
        "singular",
    ),
    Case("aten._linalg_solve_ex.default", lambda a, b: aten._linalg_solve_ex(_regular(a), b)[0], (A, B), **LOOSE),
    Case(
        "aten._linalg_solve_ex.default",
        lambda a, b: aten._linalg_solve_ex(_regular(a), b.mT, left=False)[0],
        (A, B),
        "right",
        opset=13,
        **LOOSE,
    ),
    Case(
        "aten._linalg_solve_ex.default",
        lambda a, b: aten._linalg_solve_ex(_regular(a), b)[0],
        (T((3, 3), C64), T((3,), C64)),
        "vector",
        **LOOSE,
    ),
    *(
        Case(
            "aten.linalg_solve_triangular.default",
            lambda a, b, u=upper, t=unit: torch.linalg.solve_triangular(_regular(a), b, upper=u, unitriangular=t),
            (A, B),
            f"{'upper' if upper else 'lower'}{' unit' if unit else ''}",
            **LOOSE,
        )
        for upper in (True, False)
        for unit in (True, False)
    ),
    Case(
        "aten.linalg_solve_triangular.default",
        lambda a, b: torch.linalg.solve_triangular(_regular(a), b.mT, upper=True, left=False),
        (A, B),
        "right",
        **LOOSE,
    ),
    Case("aten.triangular_solve.default", lambda a, b: torch.triangular_solve(b, _regular(a)), (A, B), **LOOSE),
    Case(
        "aten.triangular_solve.default",
        lambda a, b: torch.triangular_solve(b, _regular(a), upper=False, transpose=True)[0],
        (A, B),
        "transposed",
        **LOOSE,
    ),
    Case("aten.cholesky_solve.default", lambda b: torch.cholesky_solve(b, FACTOR), (T((3, 2), C64),), **LOOSE),
    Case(
        "aten.cholesky_solve.default",
        lambda b: torch.cholesky_solve(b, FACTOR.mH, upper=True),
        (T((3, 2), C64),),
        "upper",
        **LOOSE,
    ),
    Case("aten.cholesky_inverse.default", torch.cholesky_inverse, (FACTOR,), **LOOSE),
    Case("aten.linalg_matrix_exp.default", torch.linalg.matrix_exp, (T(("n", 3, 3), C64),), **LOOSE),
    Case(
        "aten.linalg_matrix_sqrth.default",
        lambda a: aten.linalg_matrix_sqrth(a @ a.mH + torch.eye(3)),
        (T(("n", 3, 3), C64),),
        **LOOSE,
    ),
    Case(
        "aten.linalg_matrix_sqrth.default",
        lambda a: aten.linalg_matrix_sqrth(a @ a.mH + torch.diag(torch.tensor([1 + 5j, 1, 1])) + 7 * a.triu(1)),
        (T((3, 3), C64),),
        "lower triangle only",
        **LOOSE,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_complex_solve(case: Case) -> None:
    run(case)
