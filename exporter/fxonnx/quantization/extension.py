"""The record of this add-on: quantized modules of torch.ao, and weights stored as integers."""

from __future__ import annotations

from .._capture.patches.patch import Patch
from .._extensions import Extension
from .config import config_of_checkpoint, read_quantize
from .dequantized_weights import dequantized_weights, warn_of_rounding
from .integer_products import write_quantized_form
from .low_precision import least_opset, store_codes
from .quantization_report import quantization_report
from .quantize import quantize
from .quantized_modules import check_outputs, unpacked_parameters
from .quantized_modules.tensor_functions import CREATE, quantize_tensor
from .scaled_weights import read_quantized_weights

__all__ = [
    "EXTENSION",
    "config_of_checkpoint",
    "dequantized_weights",
    "quantization_report",
    "quantize",
    "read_quantize",
    "read_quantized_weights",
    "warn_of_rounding",
    "write_quantized_form",
]

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
