"""The registry of the built-in translations, and the list of the modules that define them."""

from __future__ import annotations

import functools
from importlib import import_module

from ._complex import MODULES as COMPLEX_MODULES
from ._registry import Registry, build_registry

__all__ = ["MODULES", "default_registry"]

MODULES = (
    *(
        import_module(f".{name}", __package__)
        for name in (
            "_aten.activation",
            "_aten.arithmetic",
            "_aten.attention",
            "_aten.conv",
            "_aten.creation",
            "_aten.elementwise",
            "_aten.embedding",
            "_aten.indexing.gather",
            "_aten.indexing.scatter",
            "_aten.indexing.slicing",
            "_aten.join_split",
            "_aten.linalg.distances",
            "_aten.linalg.factorization",
            "_aten.linalg.ldl",
            "_aten.linalg.matmul",
            "_aten.linalg.solve",
            "_aten.linalg.spectral",
            "_aten.losses",
            "_aten.norm",
            "_aten.packed_sequences",
            "_aten.pad",
            "_aten.pooling.adaptive_pool",
            "_aten.pooling.pool",
            "_aten.random",
            "_aten.recurrent",
            "_aten.reduction",
            "_aten.resize.sampling",
            "_aten.resize.interpolate",  # after sampling: of two conditional candidates the later one is tried first
            "_aten.histograms",
            "_aten.sorting",
            "_aten.special.bessel_and_polynomials",
            "_aten.special.error_and_gamma",
            "_aten.view",
            "_library_ops.fake_quantize",
            "_library_ops.float4",
            "_library_ops.modelopt",
            "_library_ops.onnx_ops",
            "_library_ops.quantized",
            "_library_ops.quantized_matmul",
            "_library_ops.stored_weights",
            "_library_ops.torchao",
            "_library_ops.torchvision",
            "_library_ops.transformers",
        )
    ),
    *COMPLEX_MODULES,
)
"""The modules that define translations, by ``@translates`` or a table ``TRANSLATIONS``. List a new module here."""


@functools.cache
def default_registry() -> Registry:
    """Return the registry of all built-in translations: one immutable object for every export."""
    return build_registry(MODULES)
