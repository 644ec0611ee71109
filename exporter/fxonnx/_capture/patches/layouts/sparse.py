"""Shapes of products of sparse and dense tensors, for which torch has no functions with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fxonnx_translations._torch_compat import DispatchKey

from ..patch import DecompositionPatch, KernelPatch

__all__ = ["SPARSE_PATCHES"]

_REASON = "torch calls the kernel itself, which needs the values of sizes"


class _SparseShapePatch(KernelPatch):
    """Meta kernel of an operator for sparse tensors; it is never called for dense ones."""

    key = DispatchKey.SparseMeta

    def write(self, value: Any) -> None:
        """Register the kernel for all sparse layouts, or remove it."""
        super().write(value)
        kernels = self._operator().py_kernels
        if self.key in kernels:
            kernels[DispatchKey.SparseCsrMeta] = kernels[self.key]
        else:
            kernels.pop(DispatchKey.SparseCsrMeta, None)


def _mm(original: Callable[..., Any], self: Tensor, mat2: Tensor) -> Any:
    return _product(original, self, mat2)


def _bmm(original: Callable[..., Any], self: Tensor, mat2: Tensor) -> Any:
    return _product(original, self, mat2)


def _mv(original: Callable[..., Any], self: Tensor, vec: Tensor) -> Any:
    """The decomposition of ``mv``: torch's multiplies the elements, which compressed sparse tensors do not have."""
    return original(self, vec) if _is_dense(self) else vec.new_empty(self.shape[:1])


def _sparse_mm(original: Callable[..., Any], sparse: Tensor, dense: Tensor) -> Any:
    return _product(original, sparse, dense)


def _addmm(original: Callable[..., Any], self: Tensor, mat1: Tensor, mat2: Tensor, **factors: Any) -> Any:
    if not (_is_dense(mat1) or _is_dense(mat2)):
        if self.layout is torch.sparse_coo:
            return original(self, mat1, mat2, **factors)
        # torch's own kernel for shapes ends the process.
        return torch.empty((mat1.shape[0], mat2.shape[1]), dtype=self.dtype, layout=self.layout, device=self.device)
    return _dense_one(mat1, mat2).new_empty((mat1.shape[0], mat2.shape[1]))


def _product(original: Callable[..., Any], one: Tensor, other: Tensor) -> Any:
    if _is_dense(one) == _is_dense(other):
        # Two sparse tensors, whose product is sparse.
        return original(one, other)
    return _dense_one(one, other).new_empty((*one.shape[:-1], other.shape[-1]))


def _dense_one(one: Tensor, other: Tensor) -> Tensor:
    return one if _is_dense(one) else other


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided


SPARSE_PATCHES = (
    _SparseShapePatch("aten::mm", _mm, _REASON),
    _SparseShapePatch("aten::bmm", _bmm, _REASON),
    DecompositionPatch("aten::mv", _mv, "its decomposition multiplies by strides, which CSR tensors do not have"),
    _SparseShapePatch("aten::addmm", _addmm, _REASON),
    _SparseShapePatch("aten::_sparse_addmm", _addmm, _REASON),
    KernelPatch("aten::_sparse_mm", _sparse_mm, _REASON),
)
"""The patches of the capture for sparse tensors."""
