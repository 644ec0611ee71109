"""Weights that the model computes from low-precision integers: recognize them and keep their codes."""

from .recognize import store_codes, unpacks_weights

__all__ = ["store_codes", "unpacks_weights"]
