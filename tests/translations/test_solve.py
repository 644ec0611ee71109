"""Linear systems, determinants and the matrix exponential; the operator database has the samples."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

_A, _B = T(("n", 3, 3)), T(("n", 3, 2))


def _regular(x: torch.Tensor) -> torch.Tensor:
    return x + 5 * torch.eye(x.shape[-1])


CASES = (
    Case(
        "aten.linalg_solve_triangular.default",
        lambda a, b: torch.linalg.solve_triangular(_regular(a).triu(), b, upper=True),
        (_A, _B),
    ),
    Case(
        "aten.linalg_solve_triangular.default",
        lambda a, b: torch.linalg.solve_triangular(a, b.mT, upper=False, left=False, unitriangular=True),
        (T((3, 3)), _B),
        "from the right, broadcast",
    ),
    Case(
        "aten.triangular_solve.default",
        lambda a, b: torch.triangular_solve(b, _regular(a), upper=False, transpose=True),
        (_A, _B),
    ),
    Case("aten.cholesky_solve.default", lambda a, b: torch.cholesky_solve(b, _regular(a)), (_A, _B)),
    Case("aten.cholesky_inverse.default", lambda a: torch.cholesky_inverse(_regular(a), upper=True), (_A,)),
    Case(
        "aten.linalg_lu_solve.default",
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(_regular(a)), b),
        (_A, _B),
    ),
    Case(
        "aten.linalg_lu_solve.default",
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(_regular(a)), b, adjoint=True),
        (_A, _B),
        "adjoint",
    ),
    Case(
        "aten._linalg_solve_ex.default",
        lambda a, b: torch.ops.aten._linalg_solve_ex(_regular(a), b)[0],
        (_A, T(("n", 3))),
    ),
    Case("aten.linalg_inv_ex.default", lambda a: torch.linalg.inv_ex(_regular(a)), (_A,)),
    Case("aten.linalg_inv_ex.default", lambda a: torch.linalg.inv_ex(_regular(a)), (T(("h", "h")),), "dynamic matrix"),
    Case("aten._linalg_det.default", lambda a: torch.ops.aten._linalg_det(a)[0], (_A,)),
    Case("aten._linalg_slogdet.default", lambda a: torch.ops.aten._linalg_slogdet(a)[:2], (_A,)),
    Case("aten.linalg_matrix_exp.default", lambda a: torch.linalg.matrix_exp(a), (T(("n", 3, 3), torch.float64),)),
    Case("aten.linalg_matrix_exp.default", lambda a: torch.linalg.matrix_exp(a), (T((2, 0, 0)),), "empty"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
