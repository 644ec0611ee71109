"""What the add-on for quantization adds to an export: quantized modules of torch.ao, and weights stored as integers."""

from __future__ import annotations

from .._capture.patches.patch import Patch
from .._extensions import Extension
from .low_precision import least_opset, store_codes
from .quantized_modules import check_outputs, unpacked_parameters
from .quantized_modules.tensor_functions import CREATE, quantize_tensor

__all__ = ["EXTENSION"]

EXTENSION = Extension(
    tracing=unpacked_parameters,
    patches=tuple(
        Patch(f"torch:{name}", quantize_tensor, "fake tensors cannot be quantized", strict=False) for name in CREATE
    ),
    check_outputs=check_outputs,
    graph_pass=store_codes,
    least_opset=least_opset,
)
"""The record of the add-on."""
