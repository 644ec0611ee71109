"""Records of a quantization, for verification, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
import torch

from .._lower.inlining import inlined
from .._program.protobuf_layout import tensor_bytes
from .._program.quantization import LayerReport, QuantizationReport
from .._program.session import Session, SessionFactory

__all__ = ["Quantization", "QuantizedLayer", "quantization_report"]

_GROUP = 16
"""The number of layers whose outputs are in memory at once."""


def quantization_report(
    model: ir.Model, quantization: Quantization, inputs: Sequence[Any], session_factory: SessionFactory | None
) -> QuantizationReport:
    """Run a model before and after the quantization, and compare the outputs of its layers.

    Args:
        model: The quantized model.
        quantization: Its quantized layers, and the model before the quantization.
        inputs: A value for each graph input.
        session_factory: Creates the sessions.
    """
    flat = inlined(model)
    names = {layer.output_name: layer.float_output for layer in quantization.layers}
    errors = dict(_relative_errors(flat, quantization.float_model, names, inputs, session_factory))
    layers = [
        LayerReport(
            layer.name,
            layer.op_type,
            layer.dtype,
            layer.float_bytes,
            sum(value.const_value.nbytes for value in layer.initializers if value.const_value is not None),
            errors.get(layer.output_name),
        )
        for layer in quantization.layers
    ]
    layers.sort(key=lambda layer: -1.0 if layer.relative_error is None else layer.relative_error, reverse=True)
    return QuantizationReport(tuple(layers), tensor_bytes(quantization.float_model), tensor_bytes(model))


def _relative_errors(
    model: ir.Model,
    float_model: ir.Model,
    names: dict[str, str],
    inputs: Sequence[Any],
    session_factory: SessionFactory | None,
) -> Iterator[tuple[str, float]]:
    values = {str(value.name) for node in model.graph for value in node.outputs}
    found = [(name, expected) for name, expected in names.items() if name in values]
    for start in range(0, len(found), _GROUP):
        group = found[start : start + _GROUP]
        actual = _values(model, [name for name, _ in group], inputs, session_factory)
        expected = _values(float_model, [name for _, name in group], inputs, session_factory)
        for (name, _), before, after in zip(group, expected, actual, strict=True):
            yield name, _relative_error(before, after)


def _values(
    model: ir.Model, names: Sequence[str], inputs: Sequence[Any], session_factory: SessionFactory | None
) -> tuple[torch.Tensor, ...]:
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    outputs = list(model.graph.outputs)
    try:
        model.graph.outputs[:] = [values[name] for name in names]
        session = Session(model, session_factory)
    finally:
        model.graph.outputs[:] = outputs
    try:
        return session.run(inputs)
    finally:
        session.close()


def _relative_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    norm = float(expected.double().norm())
    difference = float((actual.double() - expected.double()).norm())
    return difference / norm if norm else float(difference > 0)


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
