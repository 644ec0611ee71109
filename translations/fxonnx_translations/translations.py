"""All built-in translations: the explicit list of the modules that hold them."""

from __future__ import annotations

import functools

from .aten import (
    activation,
    adaptive_pool,
    arithmetic,
    attention,
    comparison,
    conv,
    creation,
    embedding,
    indexing,
    join_split,
    matmul,
    norm,
    pad,
    pixel,
    pool,
    recurrent,
    reduction,
    resize,
    scatter,
    scatter_views,
    slicing,
    sorting,
    unary,
    view,
)
from .registry import Registry, build_registry

__all__ = ["MODULES", "default_registry"]

MODULES = (
    activation,
    adaptive_pool,
    arithmetic,
    attention,
    comparison,
    conv,
    creation,
    embedding,
    indexing,
    join_split,
    matmul,
    norm,
    pad,
    pixel,
    pool,
    recurrent,
    reduction,
    resize,
    scatter,
    scatter_views,
    slicing,
    sorting,
    unary,
    view,
)


@functools.cache
def default_registry() -> Registry:
    """The registry of all built-in translations; immutable, so that one serves every export."""
    return build_registry(MODULES)
