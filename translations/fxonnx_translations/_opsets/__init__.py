"""Differences between opsets and missing kernels of ONNX Runtime, expressed as rewrites of emitted operators."""
