"""Eigenvalues, singular values and functions of both; the operator database has the samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
_A = (T(("n", 3, 3)),)


def _rebuilt(parts: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix of eigenvectors and eigenvalues, which is unique, unlike the eigenvectors."""
    values, vectors = parts
    return values, vectors @ torch.diag_embed(values) @ vectors.mT


def _with_equal_eigenvalues(symmetric: torch.Tensor, antisymmetric: torch.Tensor) -> torch.Tensor:
    """The real matrix of a Hermitian one, which has each of its eigenvalues twice."""
    upper = torch.cat([symmetric, -antisymmetric], -1)
    return torch.cat([upper, torch.cat([antisymmetric, symmetric], -1)], -2)


def _definite(matrix: torch.Tensor) -> torch.Tensor:
    """A positive-definite matrix."""
    return matrix @ matrix.mT + torch.eye(matrix.shape[-1])


def _least_squares() -> Iterator[Case]:
    tall, wide = T((5, 3)), T((3, 5))
    for name, driver, inputs in (
        ("tall", None, (tall, T((5, 2)))),
        ("wide", None, (wide, T((3, 2)))),
        ("residuals", "gels", (tall, T((5, 2)))),
        ("singular values", "gelsd", (tall, T((5, 2)))),
        ("singular values of wide", "gelss", (wide, T((3, 2)))),
        ("dynamic batch", "gelsd", (T(("n", 5, 3)), T(("n", 5, 2)))),
        ("vectors", "gels", (T((2, 5, 3)), T((2, 5)))),
        ("float64", "gelsy", (T((5, 3), torch.float64), T((5, 2), torch.float64))),
    ):
        yield Case("aten.linalg_lstsq.default", partial(_lstsq, driver=driver), inputs, name, rtol=1e-4, atol=1e-4)
    yield Case("aten.linalg_lstsq.default", lambda b: _lstsq(torch.ones(4, 2), b)[0], (T((4, 1)),), "deficient")


def _lstsq(matrix: torch.Tensor, right: torch.Tensor, driver: str | None = None) -> tuple[torch.Tensor, ...]:
    return tuple(torch.linalg.lstsq(matrix, right, driver=driver))


CASES = (
    *_least_squares(),
    Case("aten._linalg_eigh.default", lambda a: _rebuilt(aten._linalg_eigh(a, "L")), _A, atol=4e-5),
    Case("aten._linalg_eigh.default", lambda a: aten._linalg_eigh(a, "U")[0], _A, "upper", atol=4e-5),
    Case("aten._linalg_eigh.default", lambda a: aten._linalg_eigh(a, "L")[0], (T(("h", "h")),), "dynamic", atol=1e-4),
    Case(
        "aten._linalg_eigh.default",
        lambda a: aten._linalg_eigh(_definite(a), "L")[0],
        (T(("h", "h")),),
        "dynamic, with an identity matrix",
        atol=1e-4,
    ),
    Case("aten._linalg_eigh.default", lambda a: aten._linalg_eigh(a, "L")[0], (torch.zeros(3, 3),), "all equal"),
    Case("aten._linalg_eigh.default", lambda a: aten._linalg_eigh(a, "L")[0], (torch.ones(1, 1),), "one"),
    Case(
        "aten._linalg_eigh.default",
        lambda a: _rebuilt(aten._linalg_eigh(_with_equal_eigenvalues(a @ a.mT, a - a.mT), "L")),
        _A,
        "pairs of equal eigenvalues",
        atol=1e-4,
    ),
    Case("aten._linalg_svd.default", lambda a: aten._linalg_svd(a)[1], (T(("n", 4, 3)),), atol=4e-5),
    Case("aten._linalg_svd.default", lambda a: aten._linalg_svd(a)[1], (T(("h", "w")),), "dynamic", atol=1e-4),
    Case(
        "aten._linalg_svd.default",
        lambda a: (lambda u, s, v: u[..., :3] @ torch.diag_embed(s) @ v)(*aten._linalg_svd(a, True)),
        (T(("n", 4, 3)),),
        "rebuilt",
        atol=4e-5,
    ),
    Case(
        "aten._linalg_svd.default",
        lambda a: (lambda u, s, v: u @ u.mT)(*aten._linalg_svd(a, True)),
        (torch.ones(4, 2),),
        "a basis all the same",
        atol=4e-5,
    ),
    Case("aten.linalg_pinv.atol_rtol_tensor", lambda a: torch.linalg.pinv(a), (T(("n", 2, 4)),), atol=1e-4),
    Case(
        "aten.linalg_pinv.atol_rtol_tensor",
        lambda a: torch.linalg.pinv(a + a.mT, rtol=torch.tensor(1e-2), hermitian=True),
        _A,
        "hermitian",
        rtol=1e-3,
        atol=1e-3,
    ),
    Case("aten.linalg_matrix_sqrth.default", lambda a: aten.linalg_matrix_sqrth(_definite(a)), _A, atol=4e-5),
    Case(
        "aten.linalg_matrix_sqrth.default",
        lambda a: aten.linalg_matrix_sqrth(_definite(a)),
        (T(("h", "h")),),
        "dynamic",
        atol=1e-4,
    ),
    Case(
        "aten.linalg_matrix_sqrth.default",
        lambda a: aten.linalg_matrix_sqrth(_definite(a).tril() + 7 * a.triu(1)),
        _A,
        "lower triangle only",
        atol=4e-5,
    ),
    Case(
        "aten.linalg_matrix_sqrth.default",
        lambda a: aten.linalg_matrix_sqrth(a),
        (torch.diag(torch.tensor([4.0, -1.0, 9.0, 0.0])),),
        "negative eigenvalue",
    ),
    Case("aten.linalg_matrix_sqrth.default", lambda a: aten.linalg_matrix_sqrth(a), (torch.zeros(2, 0, 0),), "empty"),
    Case("aten.linalg_polar.default", lambda a: aten.linalg_polar(a), (T(("n", 4, 3)),), atol=1e-4),
    Case("aten.linalg_polar.default", lambda a: aten.linalg_polar(a), (T(("w", "t")),), "dynamic", atol=1e-4),
    Case("aten.linalg_polar.default", lambda a: aten.linalg_polar(a), (T((4, 3), torch.float64),), "double"),
    Case(
        "aten.linalg_polar.default",
        # The orthogonal factor of a rank-deficient matrix is not unique, but it is an isometry.
        lambda a: (lambda u, h: (u @ h, u.mT @ u, h))(*aten.linalg_polar(a)),
        (torch.ones(4, 2),),
        "rank-deficient",
        atol=4e-5,
    ),
    *(
        Case("aten.linalg_polar.default", lambda a: aten.linalg_polar(a), (torch.zeros(shape),), f"empty {shape}")
        for shape in ((3, 0), (0, 3, 2))
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
