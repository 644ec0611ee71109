"""Records of a quantization, for verification and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

__all__ = ["Quantization", "QuantizedLayer"]


@dataclass(frozen=True)
class QuantizedLayer:
    """A quantized operator with weights.

    Attributes:
        name: FQN of the module, or of a parameter without one.
        op_type: The operator before the quantization.
        dtype: "int4" or "int8", the element type of the weight.
        output: Its output.
        float_output: Name of its output in the model before the quantization.
        float_bytes: Bytes of the weight before the quantization.
        initializers: The initializers that replace the weight; tied layers share them.
        output_name: Name of its output in the complete flat graph.
    """

    name: str
    op_type: str
    dtype: str
    output: ir.Value
    float_output: str
    float_bytes: int
    initializers: tuple[ir.Value, ...]
    output_name: str = ""


@dataclass(frozen=True)
class Quantization:
    """The quantization of a model.

    Attributes:
        float_model: The model before the quantization.
        layers: The quantized layers, in the order of the graph.
    """

    float_model: ir.Model
    layers: Sequence[QuantizedLayer]

    def named(self) -> Quantization:
        """Return the quantization with the current names of the outputs, which functions would hide."""
        layers = [replace(layer, output_name=str(layer.output.name)) for layer in self.layers]
        return Quantization(self.float_model, layers)
