"""Quantization of a lowered graph by the configuration of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from fxonnx_translations._builder.builder import Builder

from .._capture import Capture
from .._quantize_config import QuantizeConfig
from .._targets import TargetProfile
from .._warnings import warn_user
from ..errors import ArgumentError
from .dynamic import DynamicQuantizer
from .quantization_report import Quantization
from .rewrite import WeightQuantizer
from .static import Range, StaticQuantizer, ranges_of
from .stored_forms import StoredFormQuantizer, StoredForms
from .weights import parameter_names

__all__ = ["quantize"]


def quantize(
    model: ir.Model,
    builder: Builder,
    config: QuantizeConfig,
    capture: Capture,
    profile: TargetProfile,
) -> Quantization:
    """Quantize a model in place.

    Args:
        model: The complete model.
        builder: The builder of its graph.
        config: Which layers to quantize, and how.
        capture: The capture, for the names of tied parameters, and for the batches of a calibration.
        profile: The target.

    Raises:
        ArgumentError: If a pattern matches no weight, the model has no layer that computes logits for ``lm_head``, no
            layer can compute with 8-bit activations, or the calibration fails.
    """
    float_model = model.clone()

    def ranges(names: Sequence[str]) -> Mapping[str, Range]:
        return {} if config.calibration is None else ranges_of(float_model.clone(), names, capture, config.calibration)

    names = parameter_names(capture.exported_program)
    mode = config.activation_mode
    # MatMulNBits multiplies by weights in blocks.
    plain = profile if mode == "float" else replace(profile, has_matmul_nbits=False)

    def weight_only() -> WeightQuantizer:
        if isinstance(config, StoredForms):
            return StoredFormQuantizer(builder, config, names, plain)
        return WeightQuantizer(builder, config, names, plain)

    quantizers: dict[str, Callable[[], WeightQuantizer]] = {
        "float": weight_only,
        "dynamic": lambda: DynamicQuantizer(profile, builder, config, names, plain),
        "static": lambda: StaticQuantizer(builder, config, names, plain, ranges),
    }
    quantizer = quantizers[mode]()
    quantizer.run()
    if mode != "float" and not quantizer.layers:
        kinds = "linear layer" if mode == "dynamic" else "convolution or linear layer"
        raise ArgumentError(
            "quantize",
            f"the model has no {kinds} of float32 that 8-bit activations can be multiplied in",
            hint="leave activations and calibration out to quantize only weights",
        )
    if not quantizer.layers:
        warn_user("quantize: the model has no linear layer that can be quantized, and stays as it is")
    return Quantization(float_model, tuple(quantizer.layers))
