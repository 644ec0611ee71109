"""Cholesky, LU and QR; the operator database has the samples."""

from __future__ import annotations

import pytest
import torch

import fxonnx

from ..functions import VariadicFunction
from ..saved import run_from_file
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
    Case("aten.linalg_ldl_factor_ex.default", torch.linalg.ldl_factor_ex, (T(("n", 5, 5)),)),
    Case("aten.linalg_ldl_factor_ex.default", lambda x: torch.linalg.ldl_factor_ex(x.mT @ x), (T(("n", "m")),), "size"),
    Case("aten.linalg_ldl_factor_ex.default", torch.linalg.ldl_factor_ex, (torch.zeros(2, 3, 3),), "singular"),
    Case("aten.linalg_ldl_factor_ex.default", torch.linalg.ldl_factor_ex, (torch.rand(1, 1),), "one row"),
    Case(
        "aten.linalg_ldl_solve.default",
        lambda x, b: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(x), b),
        (T(("n", 5, 5), torch.float64), T((5, 2), torch.float64)),
        rtol=1e-8,
        atol=1e-8,
    ),
    Case(
        "aten.linalg_ldl_solve.default",
        lambda x, b: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(x @ x.mT), b, hermitian=True),
        (T(("n", "n"), torch.float64), T(("n", 1), torch.float64)),
        "size",
        rtol=1e-6,
        atol=1e-6,
    ),
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


@pytest.mark.parametrize("size", [1, 2, 3, 6, 17])
def test_blocks_and_pivots_of_ldl(size: int) -> None:
    """Zeros on the diagonal make pairs of columns, at other places in each matrix."""
    generator = torch.Generator().manual_seed(size)
    matrices = torch.randn(40, size, size, generator=generator, dtype=torch.float64)
    matrices[::2] *= torch.rand(20, size, size, generator=generator) < 0.6
    matrices[::3].diagonal(dim1=-2, dim2=-1).zero_()
    right = torch.randn(40, size, 2, generator=generator, dtype=torch.float64)
    program = fxonnx.export(
        VariadicFunction(torch.linalg.ldl_factor_ex), (matrices[:3],), dynamic_shapes=(({0: "n"},),)
    )
    run_from_file(program)
    factors = program(matrices)
    expected = torch.linalg.ldl_factor_ex(matrices)
    for ours, theirs in zip(factors, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    assert size < 3 or (factors[1] < 0).any()
    regular = expected.info == 0
    given = (expected.LD[regular], expected.pivots[regular], right[regular])
    solve = fxonnx.export(VariadicFunction(torch.linalg.ldl_solve), given)
    torch.testing.assert_close(solve(*given)[0], torch.linalg.ldl_solve(*given), rtol=1e-6, atol=1e-6)
