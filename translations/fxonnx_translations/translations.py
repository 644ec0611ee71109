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
    embedding,
    factorization,
    fake_quantize,
    floats,
    indexing,
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
    scatter,
    scatter_views,
    slicing,
    solve,
    sorting,
    special,
    spectral,
    unary,
    view,
)
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
    embedding,
    factorization,
    floats,
    fake_quantize,
    indexing,
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
    scatter,
    scatter_views,
    slicing,
    solve,
    special,
    spectral,
    sorting,
    unary,
    view,
)


# Operators of other libraries, which may be imported between two exports.
FOREIGN_MODULES = (onnx_ops, quantized, torchvision)


def default_registry() -> Registry:
    """The registry of all built-in translations; immutable, so that one serves every export."""
    return _registry_with(loaded(FOREIGN_MODULES))


@functools.cache
def _registry_with(foreign: tuple[Translation, ...]) -> Registry:
    return build_registry(MODULES, foreign)
