"""All built-in translations: the explicit list of the modules that hold them."""

from __future__ import annotations

import functools

from . import onnx_ops, quantized, torchvision, transformers
from .aten import (
    activation,
    adaptive_pool,
    arithmetic,
    attention,
    batch_norm,
    bessel,
    comparison,
    conv,
    convolution,
    copies,
    creation,
    distance,
    dropout,
    einsum,
    embedding,
    factorization,
    fake_quantize,
    flat_index,
    floats,
    fractional_pool,
    gamma,
    grid,
    indexing,
    integers,
    join_split,
    matmul,
    norm,
    pad,
    pixel,
    polynomials,
    pool,
    random,
    recurrent,
    reduction,
    resample,
    resize,
    scan,
    scatter,
    scatter_views,
    search,
    segments,
    slicing,
    solve,
    sorting,
    special,
    spectral,
    statistics,
    strided,
    unary,
    view,
)
from .complex import MODULES as COMPLEX_MODULES
from .foreign import loaded
from .registry import Registry, Translation, build_registry

__all__ = ["FOREIGN_MODULES", "MODULES", "default_registry"]

MODULES = (
    activation,
    adaptive_pool,
    arithmetic,
    attention,
    batch_norm,
    bessel,
    comparison,
    conv,
    convolution,
    copies,
    creation,
    distance,
    dropout,
    einsum,
    embedding,
    factorization,
    fake_quantize,
    flat_index,
    floats,
    fractional_pool,
    gamma,
    grid,
    indexing,
    integers,
    join_split,
    matmul,
    norm,
    pad,
    pixel,
    polynomials,
    pool,
    random,
    recurrent,
    reduction,
    resample,
    resize,
    scan,
    scatter,
    scatter_views,
    search,
    segments,
    slicing,
    solve,
    sorting,
    special,
    spectral,
    statistics,
    strided,
    unary,
    view,
    *COMPLEX_MODULES,
)


# Operators of other libraries, which may be imported between two exports.
FOREIGN_MODULES = (onnx_ops, quantized, torchvision, transformers)


def default_registry() -> Registry:
    """The registry of all built-in translations; immutable, so that one serves every export."""
    return _registry_with(loaded(FOREIGN_MODULES))


@functools.cache
def _registry_with(foreign: tuple[Translation, ...]) -> Registry:
    return build_registry(MODULES, foreign)
