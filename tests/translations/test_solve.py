"""Linear systems, determinants and the matrix exponential; the operator database has the samples."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

_A, _B = T(("n", 3, 3)), T(("n", 3, 2))


def _regular(x: torch.Tensor) -> torch.Tensor:
    return x + 5 * torch.eye(x.shape[-1])


# Products of their pivots overflow or underflow, but for the last one, which is singular.
_SCALES = torch.stack(
    [
        torch.tensor([[1e20, 2e20, 0], [3e20, 1e20, 0], [0, 0, 1e20]]),
        torch.tensor([[1e-20, 2e-20, 0], [3e-20, 1e-20, 0], [0, 0, -1e-20]]),
        torch.tensor([[1e-30, 2.0, 0], [3e-30, 1, 0], [0, 5, 1e-20]]),
        torch.tensor([[1e-30, 2e-30, 0], [3, 1, 0], [0, 5, -1e30]]),
        torch.tensor([[1.0, 2, 3], [0, 0, 0], [1, 5, 2]]),
    ]
)
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
    Case("aten.linalg_det.default", torch.linalg.det, (T(("n", 3, 3)),), ops=("Det",)),
    Case("aten.linalg_det.default", torch.linalg.det, (T((9, 9)),), "9"),
    Case("aten.linalg_det.default", torch.linalg.det, (T((2, 0, 0)),), "no rows"),
    Case("aten.linalg_det.default", torch.linalg.det, (T((3, 3), torch.float64),), "float64"),
    Case("aten.det.default", torch.ops.aten.det, (T(("n", 2, 2)),)),
    *(
        case
        for name in ("slogdet", "linalg_slogdet", "logdet")
        for case in (
            Case(
                f"aten.{name}.default",
                lambda a, f=name: getattr(torch.ops.aten, f)(_regular(a)),
                (T(("n", 3, 3)),),
            ),
            Case(f"aten.{name}.default", getattr(torch.ops.aten, name), (T((1, 1), low=0.5),), "1"),
            Case(f"aten.{name}.default", getattr(torch.ops.aten, name), (T((9, 9)),), "9"),
            Case(f"aten.{name}.default", getattr(torch.ops.aten, name), (_SCALES,), "scales"),
            Case(f"aten.{name}.default", getattr(torch.ops.aten, name), (T((3, 3), torch.float64),), "float64"),
        )
    ),
    Case("aten._linalg_det.default", lambda a: torch.ops.aten._linalg_det(a)[0], (_A,)),
    Case("aten._linalg_slogdet.default", lambda a: torch.ops.aten._linalg_slogdet(a)[:2], (_A,)),
    Case("aten.linalg_matrix_exp.default", lambda a: torch.linalg.matrix_exp(a), (T(("n", 3, 3), torch.float64),)),
    Case("aten.linalg_matrix_exp.default", lambda a: torch.linalg.matrix_exp(a), (T((2, 0, 0)),), "empty"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
