"""Translations of operators on complex tensors, which ONNX holds as real tensors with a last axis of 2."""

from . import angles, arithmetic, fourier, functions, linear, reduction, structural, trigonometry

MODULES = (angles, arithmetic, fourier, functions, linear, reduction, structural, trigonometry)
