"""Eigenvalues, singular values and the pseudo-inverse; the operator database has the samples."""

from __future__ import annotations

import pytest
import torch

from .harness import Case, T, run

aten = torch.ops.aten
_A = (T(("n", 3, 3)),)


def _rebuilt(parts: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix of eigenvectors and eigenvalues, which is unique, unlike the eigenvectors."""
    values, vectors = parts
    return values, vectors @ torch.diag_embed(values) @ vectors.mT


CASES = (
    Case("aten._linalg_eigh.default", lambda a: _rebuilt(aten._linalg_eigh(a, "L")), _A, atol=4e-5),
    Case("aten._linalg_eigh.default", lambda a: aten._linalg_eigh(a, "U")[0], _A, "upper", atol=4e-5),
    Case("aten._linalg_eigh.default", lambda a: aten._linalg_eigh(a, "L")[0], (T(("h", "h")),), "dynamic", atol=1e-4),
    Case("aten._linalg_eigh.default", lambda a: aten._linalg_eigh(a, "L")[0], (torch.zeros(3, 3),), "all equal"),
    Case("aten._linalg_eigh.default", lambda a: aten._linalg_eigh(a, "L")[0], (torch.ones(1, 1),), "one"),
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
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_translation(case: Case) -> None:
    run(case)
