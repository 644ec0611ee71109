"""Capture of quantized models with packed parameters: eager and FX graph mode quantization of torch.ao."""

from __future__ import annotations

from .tensor_functions import check_outputs, unpacked_parameters

__all__ = ["check_outputs", "unpacked_parameters"]
