"""Weights that the model computes from low-precision integers: recognize them and keep their codes."""

from .recognize import least_opset, store_codes

__all__ = ["least_opset", "store_codes"]
