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
        for name in dict.fromkeys((*values.products, *values.tables)):
            path, _, parameter = name.rpartition(".")
            module = model.get_submodule(path)
            # A tied weight may have one value in the embedding and another in the linear layer, or one in both.
            is_table = isinstance(module, torch.nn.Embedding)
            value = values.tables.get(name) if is_table else None
            value = values.products.get(name) if value is None else value
            if value is not None:
                replaced.append((module, parameter, module._parameters[parameter]))
                module._parameters[parameter] = torch.nn.Parameter(value, requires_grad=False)
        yield
    finally:
        for module, parameter, before in replaced:
            module._parameters[parameter] = before
