"""All built-in translations: the explicit list of the modules that hold them."""

from __future__ import annotations

import functools

from . import onnx_ops, quantized, torchvision
from .aten import (
    activation,
    adaptive_pool,
    arithmetic,
    attention,
    bessel,
    comparison,
    conv,
    convolution,
    copies,
    creation,
    distance,
    embedding,
    factorization,
    fake_quantize,
    flat_index,
    floats,
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
    recurrent,
    reduction,
    resize,
    scan,
    scatter,
    scatter_views,
    search,
    slicing,
    solve,
    sorting,
    special,
    spectral,
    statistics,
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
    bessel,
    comparison,
    conv,
    convolution,
    copies,
    creation,
    distance,
    embedding,
    factorization,
    flat_index,
    floats,
    gamma,
    fake_quantize,
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
    recurrent,
    reduction,
    resize,
    scan,
    scatter,
    scatter_views,
    search,
    slicing,
    solve,
    special,
    spectral,
    statistics,
    sorting,
    unary,
    view,
    *COMPLEX_MODULES,
)


# Operators of other libraries, which may be imported between two exports.
FOREIGN_MODULES = (onnx_ops, quantized, torchvision)


def default_registry() -> Registry:
    """The registry of all built-in translations; immutable, so that one serves every export."""
    return _registry_with(loaded(FOREIGN_MODULES))


@functools.cache
def _registry_with(foreign: tuple[Translation, ...]) -> Registry:
    return build_registry(MODULES, foreign)
