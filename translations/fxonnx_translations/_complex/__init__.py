"""Translations of operators on complex tensors, which ONNX holds as real tensors with a last axis of 2."""

from . import (
    angles,
    arithmetic,
    factorization,
    fourier,
    functions,
    linear,
    random,
    reduction,
    resized_fourier,
    solve,
    structural,
    trigonometry,
)

MODULES = (
    angles,
    arithmetic,
    factorization,
    fourier,
    functions,
    linear,
    random,
    reduction,
    resized_fourier,
    solve,
    structural,
    trigonometry,
)
