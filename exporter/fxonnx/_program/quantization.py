"""``ProgramQuantization``: a quantized program beside the model before the quantization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from .._extensions import add_on
from .._public import public
from ..errors import ArgumentError
from .accuracy_level import products_in_float
from .interface import GraphInterface
from .session import Session, session_in_float

__all__ = ["LayerReport", "ProgramQuantization", "QuantizationReport"]


@public
@dataclass(frozen=True)
class LayerReport:
    """A quantized layer.

    Attributes:
        name: FQN of the module, or of a parameter without one.
        op_type: The ONNX operator before the quantization.
        dtype: Element type of the weight, "int4" or "int8".
        float_bytes: Bytes of the weight before the quantization.
        quantized_bytes: Bytes of the integers, scales and zero points; tied layers share them.
        relative_error: Norm of the difference of the output from the model's before the quantization, divided by
            the norm of that output; None if the output is not a value of the main graph. The errors of preceding layers
            are included.
    """

    name: str
    op_type: str
    dtype: str
    float_bytes: int
    quantized_bytes: int
    relative_error: float | None

    @property
    def snr(self) -> float | None:
        """The signal-to-noise ratio of the output in decibels."""
        if self.relative_error is None:
            return None
        return -20 * math.log10(self.relative_error) if self.relative_error else math.inf


@public
@dataclass(frozen=True)
class QuantizationReport:
    """The effect of a quantization; ``str`` returns it as a table.

    Attributes:
        layers: The quantized layers, those with the largest relative error first.
        float_bytes: Bytes of all tensors of the model before the quantization.
        quantized_bytes: Bytes of all tensors of the model.
    """

    layers: tuple[LayerReport, ...]
    float_bytes: int
    quantized_bytes: int

    def rows(self) -> list[list[str]]:
        """The table: a row of headings, a row for each layer, and the total."""
        rows = [["layer", "operator", "type", "bytes before", "bytes", "relative error", "SNR, dB"]]
        for layer in self.layers:
            sizes = [str(layer.float_bytes), str(layer.quantized_bytes)]
            error = "" if layer.relative_error is None else f"{layer.relative_error:.2e}"
            ratio = "" if layer.snr is None else f"{layer.snr:.1f}"
            rows.append([layer.name, layer.op_type, layer.dtype, *sizes, error, ratio])
        return [*rows, ["all tensors", "", "", str(self.float_bytes), str(self.quantized_bytes), "", ""]]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if index >= 3 else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


@public
@dataclass(frozen=True, eq=False)
class ProgramQuantization:
    """A quantized program beside the model before the quantization.

    Attributes:
        interface: The graph inputs and outputs of the program.
    """

    interface: GraphInterface

    def __repr__(self) -> str:
        record = self.interface.record
        if record.quantization is None:
            return "ProgramQuantization(not quantized)"
        dtypes = sorted({layer.dtype for layer in record.quantization.layers})
        count = len(record.quantization.layers)
        return f"ProgramQuantization({count} layer{'' if count == 1 else 's'}, {', '.join(dtypes)})"

    @property
    def float_model(self) -> ir.Model | None:
        """With 8-bit activations, the model before the quantization; otherwise None."""
        record = self.interface.record
        config = record.options.quantize
        if record.quantization is None or config is None or config.activation_mode == "float":
            return None
        model: ir.Model = record.quantization.float_model
        return model

    def call_in_float(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Run the model as the program does, without the rounding of activations that quantized weights permit.

        See ``QuantizeConfig.accuracy_level``. Sessions of ``initialize_inference_session`` decide for DequantizeLinear.
        With 8-bit activations, this is the model before the quantization.
        """
        inputs = self.interface.bind(args, kwargs)
        model, sessions = self.interface.model, self.interface.sessions
        if sessions.in_float is None and self.float_model is not None:
            sessions.in_float = Session(self.float_model, sessions.factory)
        if sessions.in_float is None:
            with products_in_float(model):
                sessions.in_float = Session(model, sessions.factory or session_in_float)
        return sessions.in_float.run(inputs)

    def report(
        self, args: tuple[Any, ...] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> QuantizationReport:
        """Compare each quantized layer with the model before the quantization.

        Args:
            args: Positional inputs; if ``kwargs`` is also None, the example inputs.
            kwargs: Keyword inputs.

        Returns:
            Bytes and difference of each layer, ordered by difference, the largest first; ``print`` shows a table.

        Raises:
            ArgumentError: If the program is not quantized, or the inputs do not match the exported ones.
            RuntimeSessionError: If ONNX Runtime cannot load or run the model.
        """
        record, examples = self.interface.record, self.interface.record.example_inputs
        if record.quantization is None:
            raise ArgumentError(
                "quantize", "the program was exported without quantization", hint="pass quantize to export"
            )
        if args is None and kwargs is None:
            if examples is None:
                raise ArgumentError("args", "the exported program has no example inputs", hint="pass args or kwargs")
            args, kwargs = examples
        inputs = self.interface.bind(args or (), kwargs or {})
        report: QuantizationReport = add_on("quantization").quantization_report(
            self.interface.model, record.quantization, inputs, self.interface.session_factory
        )
        return report
