"""``ProgramQuantization``: a quantized program beside the model before the quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from .._public import public
from ..errors import ArgumentError
from ..quantization.dequantized_weights import products_in_float
from ..quantization.quantization_report import QuantizationReport, quantization_report
from .interface import GraphInterface
from .session import Session, session_in_float

__all__ = ["ProgramQuantization"]


@public
@dataclass(frozen=True, eq=False)
class ProgramQuantization:
    """A quantized program beside the model before the quantization.

    Attributes:
        interface: The graph inputs and outputs of the program.
    """

    interface: GraphInterface

    @property
    def float_model(self) -> ir.Model | None:
        """With 8-bit activations, the model before the quantization; otherwise None."""
        record = self.interface.record
        config = record.options.quantize
        if record.quantization is None or config is None or config.activation_mode == "float":
            return None
        return record.quantization.float_model

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
        return quantization_report(self.interface.model, record.quantization, inputs, self.interface.session_factory)
