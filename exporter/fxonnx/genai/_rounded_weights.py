"""The weights that a quantized file represents, for the comparison with transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import ONNXProgram
from ..quantization.dequantized_weights import dequantized_weights

__all__ = ["rounded_weights"]


@contextmanager
def rounded_weights(model: Any, program: ONNXProgram) -> Iterator[None]:
    """Replace quantized weights by their dequantized values in the body.

    Args:
        model: The model that was exported.
        program: The exported program.
    """
    values = dequantized_weights(program.model, program.weights)
    replaced: list[tuple[torch.nn.Module, str, torch.nn.Parameter | None]] = []
    try:
        for found, is_table in ((values.products, False), (values.tables, True)):
            for name, value in found.items():
                path, _, parameter = name.rpartition(".")
                module = model.get_submodule(path)
                # A tied weight may have one value in the embedding and another in the linear layer.
                if isinstance(module, torch.nn.Embedding) == is_table:
                    replaced.append((module, parameter, module._parameters[parameter]))
                    module._parameters[parameter] = torch.nn.Parameter(value, requires_grad=False)
        yield
    finally:
        for module, parameter, before in replaced:
            module._parameters[parameter] = before
