"""Cholesky, LU and QR; the operator database has the samples."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

_MATRICES = (T(("n", 3, 3)),)


def _definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


CASES = (
    Case("aten.linalg_cholesky_ex.default", lambda x: torch.linalg.cholesky_ex(_definite(x)), _MATRICES),
    Case("aten.linalg_cholesky_ex.default", lambda x: torch.linalg.cholesky_ex(-_definite(x))[1], _MATRICES, "fails"),
    Case("aten.cholesky.default", lambda x: torch.cholesky(_definite(x), upper=True), _MATRICES),
    Case("aten.linalg_lu_factor_ex.default", lambda x: torch.linalg.lu_factor_ex(x), (T(("n", 4, 3)),)),
    Case(
        "aten.linalg_lu_factor_ex.default",
        lambda x: torch.linalg.lu_factor_ex(x)[2],
        (torch.tensor([[1.0, 2.0], [2.0, 4.0]]),),
        "singular",
    ),
    Case("aten.linalg_lu.default", lambda x: torch.linalg.lu(x), (T(("n", 3, 4)),)),
    Case("aten.linalg_lu.default", lambda x: torch.linalg.lu(x), (T(("h", "w")),), "dynamic matrix"),
    Case("aten.lu_unpack.default", lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x)), _MATRICES),
    Case("aten.geqrf.default", lambda x: torch.geqrf(x), (T((2, 4, 3)),)),
    Case("aten.linalg_qr.default", lambda x: torch.linalg.qr(x), (T(("n", 4, 3)),)),
    Case("aten.linalg_qr.default", lambda x: torch.linalg.qr(x, "complete"), (T(("n", 4, 3)),), "complete"),
    Case("aten.linalg_qr.default", lambda x: torch.linalg.qr(x, "r")[1], (T(("n", 3, 4)),), "r"),
    Case("aten.linalg_qr.default", lambda x: torch.linalg.qr(x), (T(("h", "m")),), "dynamic matrix"),
    Case("aten.linalg_qr.default", lambda x: torch.linalg.qr(x), (torch.eye(3),), "nothing to reflect"),
    Case("aten.linalg_householder_product.default", torch.linalg.householder_product, (T(("n", 4, 3)), T(("n", 3)))),
    Case("aten.ormqr.default", torch.ormqr, (T(("n", 4, 3)), T(("n", 3)), T(("n", 4, 2)))),
    Case(
        "aten.ormqr.default",
        lambda a, tau, c: torch.ormqr(a, tau, c, left=False, transpose=True),
        (T((4, 3)), T((3,)), T((2, 4))),
        "from the right",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
