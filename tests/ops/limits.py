"""Known limits: failing samples and larger tolerances, with the reason and whose limit it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from packaging.version import Version

from .running import Status

__all__ = ["FAILURES", "LOOSER", "Failure", "Looser"]


@dataclass(frozen=True)
class Failure:
    """Entries with failing samples.

    Attributes:
        entries: Their names.
        reason: Why.
        owner: Whose limit it is.
        statuses: The expected statuses; any other failure is a defect.
        dtypes: In which dtypes; empty means all.
        since: The first version of torch with the failure, or with such a sample; empty for all.
        before: The first version of torch without the failure; empty if there is none.
    """

    entries: frozenset[str]
    reason: str
    owner: Literal["ours", "ort", "onnx", "torch"]
    statuses: frozenset[Status]
    dtypes: frozenset[str] = frozenset()
    since: str = ""
    before: str = ""

    def holds(self, entry: str, dtype: str) -> bool:
        """Whether the entry fails in this dtype with this version of torch."""
        version = Version(Version(torch.__version__).base_version)
        in_range = version >= Version(self.since or "0") and (not self.before or version < Version(self.before))
        return entry in self.entries and (not self.dtypes or dtype in self.dtypes) and in_range


@dataclass(frozen=True)
class Looser:
    """Entries with a larger tolerance than torch.testing's default times 4.

    Attributes:
        entries: Their names.
        dtypes: In which dtypes.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        reason: Why.
    """

    entries: frozenset[str]
    dtypes: frozenset[str]
    rtol: float
    atol: float
    reason: str


def _statuses(text: str) -> frozenset[Status]:
    return frozenset(status for status in get_args(Status) if status in text.split())


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FAILURES: tuple[Failure, ...] = (
    Failure(
        _names("linalg.lstsq linalg.lstsq.grad_oriented"),
        "least squares of a matrix of symbolic size, or of complex numbers",
        "ours",
        _statuses("unsupported"),
        _names("float32 float64 complex64"),
    ),
    Failure(
        _names("geqrf"),
        "torch has no shape function for symbolic sizes",
        "torch",
        _statuses("capture"),
        _names("float32 float64"),
    ),
    Failure(
        _names("combinations"),
        "combinations of a symbolic number of elements",
        "ours",
        _statuses("unsupported"),
        _names("float32"),
        since="2.14",
    ),
    Failure(
        _names("tensor_split"),
        "a number of sections in a tensor, which decides on the number of results",
        "torch",
        _statuses("capture"),
    ),
    Failure(
        _names("item"),
        "torch.export has no complex numbers outside of tensors",
        "torch",
        _statuses("capture"),
        _names("complex64"),
    ),
    Failure(
        _names("unique_consecutive"),
        "torch's shape function has the wrong rank for a negative dim",
        "torch",
        _statuses("checker"),
        _names("float32 float16 bfloat16 float64 int64 int32 uint8 bool"),
    ),
    Failure(
        _names("to_sparse"),
        "ONNX Runtime has no sparse results",
        "onnx",
        _statuses("capture unsupported"),
    ),
    Failure(
        _names("resize_"),
        "ONNX tensors have no memory to resize: a view replaces a resize if both sizes are static and equal",
        "onnx",
        _statuses("capture export"),
    ),
    Failure(
        _names("resize_as_"),
        "the check of equal sizes leaves an Identity",
        "ours",
        _statuses("checker"),
        _names("bfloat16"),
    ),
    Failure(
        _names("linalg.eig linalg.eigvals"),
        "eigenvalues of matrices that are not symmetric: LAPACK's shifted QR iteration as a graph",
        "onnx",
        _statuses("unsupported"),
        _names("float32 float64 complex64"),
    ),
    Failure(
        _names(
            "linalg.cond linalg.eigh linalg.eigvalsh linalg.householder_product linalg.ldl_factor "
            "linalg.ldl_factor_ex linalg.ldl_solve linalg.matrix_norm "
            "linalg.matrix_rank linalg.matrix_rank.hermitian linalg.pinv linalg.pinv.hermitian "
            "linalg.pinv.singular linalg.polar linalg.qr linalg.svd linalg.svdvals norm.nuc ormqr "
            "pca_lowrank pinverse qr svd svd_lowrank"
        ),
        "a dense factorization of complex matrices",
        "ours",
        _statuses("unsupported"),
        _names("complex64"),
    ),
    Failure(
        _names("geqrf"),
        "a dense factorization of complex matrices",
        "ours",
        _statuses("capture unsupported"),
        _names("complex64"),
    ),
    Failure(
        _names(
            "i0 special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 special.i0e "
            "special.i1 special.i1e special.modified_bessel_i0 special.modified_bessel_i1 "
            "special.modified_bessel_k0 special.modified_bessel_k1 special.scaled_modified_bessel_k0 "
            "special.scaled_modified_bessel_k1 special.spherical_bessel_j0"
        ),
        "a rare special function, whose polynomials have the precision of float32",
        "ours",
        _statuses("unsupported"),
        _names("float64"),
    ),
    Failure(
        _names("nn.functional.linear_cross_entropy.chunked nn.functional.linear_cross_entropy.chunked_none"),
        "a chunked loss of the probabilities of classes",
        "ours",
        _statuses("unsupported"),
        _names("float32 float16 bfloat16 float64"),
        since="2.15",
    ),
)

LOOSER: tuple[Looser, ...] = (
    Looser(
        _names("matrix_exp"),
        _names("float32"),
        5e-3,
        4e-5,
        "elements far below the largest of their matrix: against float64 torch's own are off by 0.24 %, ours by 0.07 %",
    ),
    Looser(
        _names(
            "polygamma.polygamma_n_0 polygamma.polygamma_n_1 polygamma.polygamma_n_2 polygamma.polygamma_n_3 "
            "polygamma.polygamma_n_4 "
            "special.polygamma.special_polygamma_n_0"
        ),
        _names("float32"),
        1e-4,
        4e-5,
        "torch takes the sine of a rounded pi x: against float64 it is off by 2e-5, ours by 2e-7",
    ),
    Looser(
        _names("special.hermite_polynomial_he"),
        _names("float32"),
        1e-4,
        1e-3,
        "the recurrence cancels: against float64 torch is off by 1.2e-5, ours by 1.9e-5",
    ),
    Looser(
        _names("matrix_exp"),
        _names("complex64"),
        5e-3,
        4e-5,
        "elements far below the largest of their matrix, as in float32",
    ),
    Looser(
        _names("nn.functional.bilinear"),
        _names("float16"),
        4e-3,
        5e-3,
        "a sum of products near 0 in another order",
    ),
    Looser(
        _names("nn.functional.linear"),
        _names("bfloat16"),
        6.4e-2,
        1e-2,
        "a sum of products near 0 in another order",
    ),
    Looser(
        _names("addbmm"),
        _names("complex64"),
        5e-6,
        4e-4,
        "a sum of products near 0 in another order",
    ),
    Looser(
        _names("nn.functional.scaled_dot_product_attention"),
        _names("bfloat16"),
        0.2,
        0.1,
        "torch's kernel does not round the scores to bfloat16 between its steps",
    ),
)
