"""Linear systems of complex matrices."""

from __future__ import annotations

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

CASES = (
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
