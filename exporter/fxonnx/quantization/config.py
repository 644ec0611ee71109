"""``QuantizeConfig``, the argument ``quantize`` of ``export``, and its validation."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch

from .._public import public
from .._targets import TargetProfile
from ..errors import ArgumentError, did_you_mean
from .packed_weights import METHODS, packed_modules, read_packed_format

__all__ = [
    "HALF_SCALES_OPSET",
    "INT4_OPSET",
    "Activations",
    "QuantizeConfig",
    "WeightDtype",
    "has_blocks",
    "read_quantize",
]

WeightDtype: TypeAlias = Literal["int4", "int8"]
Activations: TypeAlias = Literal["float", "dynamic", "static"]
_Choice: TypeAlias = Literal["float", "int4", "int8"]

INT4_OPSET = 21
"""The first opset with 4-bit integers and with DequantizeLinear by blocks."""
HALF_SCALES_OPSET = 19
"""The first opset with DequantizeLinear to float16 and bfloat16."""
_INT8_OPSET = 13
"""The first opset with DequantizeLinear by columns."""


@public
@dataclass(frozen=True)
class QuantizeConfig:
    """Post-training quantization by rounding to nearest, for ``export(quantize=...)``.

    Weights of linear layers become integers with scales. By default, activations stay floating-point numbers, and the
    columns of a weight, one for each output feature, are divided into blocks that share a scale. With ``calibration``
    or ``activations="dynamic"``, activations become 8-bit integers as well, and a weight has one scale for each output
    feature or channel.

    Attributes:
        dtype: Element type of the weights, "int4" or "int8".
        block_size: Number of weights that share a scale, a power of two from 16 on. None: 32 for int4; for int8, 128
            in ONNX Runtime from opset 21 on, otherwise a column.
        symmetric: Whether blocks have no zero points.
        accuracy_level: Attribute of MatMulNBits: 4 permits rounding of the activations to int8, which is the fastest
            on the CPU, 1 computes in float32, 0 leaves the choice to the runtime. In other graphs, ONNX Runtime reads
            the session option ``session.qdq_matmulnbits_accuracy_level`` instead, which is 4 by default.
        include: Names of modules or parameters, or glob patterns for them, whose weights are quantized; of layers that
            the graph packs into one product, all must be included.
        exclude: As ``include``, for weights that are left as they are.
        embeddings: Element type of embedding tables; "int4" requires a target with GatherBlockQuantized.
        lm_head: Element type of the layer that computes the logits; None for ``dtype``. The layer is recognized by its
            name (``lm_head``, ``embed_out``, ``output_layer``, ``proj_out``), or by the weight of an embedding.
        activations: "float": weights only. "dynamic": the inputs of linear layers become uint8 with a scale that every
            call computes. "static": the inputs and outputs of convolutions and the inputs of linear layers become
            8-bit integers with constant scales from ``calibration``. None: "static" with ``calibration``, otherwise
            "float".
        calibration: Batches of representative inputs, iterated over once, for example a ``DataLoader``. A batch is a
            tensor, a tuple or list of positional arguments, a dict of keyword arguments, or a pair of one of these and
            a label, which is ignored. For a model with two arguments, two elements are a pair only if the first one is
            a tuple, list or dict where the model takes a tensor.
        permuted: As ``include``, for weights whose blocks a checkpoint has formed of input features in another order
            (``desc_act`` of GPTQ). The graph permutes the inputs of their products.
    """

    dtype: WeightDtype = "int4"
    _: KW_ONLY
    block_size: int | None = None
    symmetric: bool = True
    accuracy_level: int = 4
    include: Collection[str] = ("*",)
    exclude: Collection[str] = ()
    embeddings: _Choice = "float"
    lm_head: _Choice | None = None
    activations: Activations | None = None
    calibration: Iterable[Any] | None = field(default=None, repr=False, compare=False)
    permuted: Collection[str] = ()

    @property
    def activation_mode(self) -> Activations:
        """How activations are represented: ``activations``, or the mode that ``calibration`` implies."""
        if self.activations is not None:
            return self.activations
        return "float" if self.calibration is None else "static"

    @classmethod
    def from_checkpoint(cls, directory: str | os.PathLike[str]) -> QuantizeConfig:
        """Read the configuration of a checkpoint that GPTQ, AWQ or compressed-tensors has quantized.

        ``program.save(path, weights=directory)`` then stores the checkpoint's own integers, scales and zero points.

        Args:
            directory: The directory with config.json and the safetensors files.

        Raises:
            ArgumentError: If the checkpoint is not quantized by one of these methods, or its format is not supported.
        """
        path = Path(directory)
        packed_format = read_packed_format(path, "directory")
        modules, permuted = ([], []) if packed_format is None else packed_modules(path, packed_format)
        if packed_format is None or not modules:
            raise ArgumentError(
                "directory",
                f"{path} has no weights that are quantized by {', '.join(METHODS)}",
                hint='pass quantize="int4" to quantize the weights of another checkpoint',
            )
        return cls(
            "int4" if packed_format.bits == 4 else "int8",
            block_size=packed_format.model_block_size,
            symmetric=packed_format.symmetric,
            include=tuple(modules),
            permuted=tuple(permuted),
        )


def read_quantize(
    quantize: Any, opset_version: int | None, profile: TargetProfile
) -> tuple[QuantizeConfig | None, int | None]:
    """Validate the argument ``quantize``.

    Args:
        quantize: The user's argument.
        opset_version: The opset that the user specified, if any.
        profile: The target of the export.

    Returns:
        The configuration, and the opset: the user's, or the first one that has the operators if the default of the
        target is lower.

    Raises:
        ArgumentError: If it is not a valid configuration, or the opset or the target cannot represent it.
    """
    if quantize is None:
        return None, opset_version
    config: Any = QuantizeConfig(quantize) if isinstance(quantize, str) else quantize  # type: ignore[arg-type]
    if not isinstance(config, QuantizeConfig):
        raise ArgumentError(
            "quantize", f'expected "int4", "int8" or a QuantizeConfig, got {quantize!r}', hint='write quantize="int4"'
        )
    _check(config)
    if config.activation_mode != "float":
        _check_activations(config)
        _check_least_opset(opset_version, _INT8_OPSET, "8-bit weights")
        return config, opset_version
    if profile.has_matmul_nbits:
        return config, opset_version
    if config.embeddings == "int4":
        raise ArgumentError(
            "quantize",
            'embeddings="int4" requires an operator of ONNX Runtime, GatherBlockQuantized',
            hint='pass embeddings="int8", or target="onnxruntime-genai"',
        )
    is_blocked = "int4" in (config.dtype, config.lm_head) or config.block_size is not None
    least = INT4_OPSET if is_blocked else _INT8_OPSET
    if opset_version is None:
        # ONNX Runtime is faster with blocks than with columns, which it divides into shorter blocks by itself.
        return config, max(INT4_OPSET if has_blocks(profile, INT4_OPSET) else least, profile.default_opset)
    blocked = "weights in blocks" if config.dtype == "int8" and config.lm_head != "int4" else "4-bit weights"
    _check_least_opset(opset_version, least, blocked if is_blocked else "8-bit weights")
    return config, opset_version


def _check_least_opset(opset_version: int | None, least: int, subject: str) -> None:
    # Anything that is not an opset is rejected with the argument opset_version.
    if isinstance(opset_version, int) and opset_version < least:
        raise ArgumentError(
            "quantize",
            f"{subject} require opset {least}, got opset_version={opset_version}",
            hint=f"pass opset_version={least} or newer, or leave it out",
        )


def has_blocks(profile: TargetProfile, opset: int) -> bool:
    """Whether 8-bit weights are divided into blocks by default, instead of having one scale for each column."""
    return profile.has_matmul_nbits or (profile.falls_back_to_cpu and opset >= INT4_OPSET)


def _check(config: QuantizeConfig) -> None:
    choices = get_args(WeightDtype)
    for name, value, allowed in (
        ("dtype", config.dtype, choices),
        ("embeddings", config.embeddings, ("float", *choices)),
        ("lm_head", config.lm_head, (None, "float", *choices)),
        ("accuracy_level", config.accuracy_level, (0, 1, 2, 3, 4)),
        ("symmetric", config.symmetric, (True, False)),
        ("activations", config.activations, (None, *get_args(Activations))),
    ):
        if value not in allowed:
            problem = f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}"
            raise ArgumentError("quantize", problem, hint=did_you_mean(value, [str(one) for one in allowed]))
    size: Any = config.block_size
    if size is not None and (not isinstance(size, int) or size < 16 or size & (size - 1)):
        raise ArgumentError("quantize", f"block_size: {size!r} is not a power of two from 16 on", hint="pass 32 or 128")
    for name, patterns in (("include", config.include), ("exclude", config.exclude)):
        if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
            raise ArgumentError(
                "quantize", f"{name}: expected a list of names, got {patterns!r}", hint='write ["*.mlp.*"]'
            )
    if config.calibration is not None and config.activation_mode != "static":
        raise ArgumentError(
            "quantize",
            f"calibration: activations={config.activations!r} does not use it",
            hint='leave calibration out, or pass activations="static"',
        )


def _check_activations(config: QuantizeConfig) -> None:
    """Reject weights that integer products cannot read, and a missing calibration.

    Raises:
        ArgumentError: If an attribute does not fit 8-bit activations.
    """
    subject = "calibration" if config.activation_mode == "static" else 'activations="dynamic"'
    for name, value in (("dtype", config.dtype), ("embeddings", config.embeddings), ("lm_head", config.lm_head)):
        if value == "int4":
            raise ArgumentError(
                "quantize",
                f'{subject} requires 8-bit weights, got {name}="int4"',
                hint=f'pass {name}="int8", or leave {subject.partition("=")[0]} out to quantize only weights',
            )
    if config.block_size is not None or not config.symmetric:
        name = "symmetric=False" if config.block_size is None else f"block_size={config.block_size}"
        raise ArgumentError(
            "quantize",
            f"{name}: with 8-bit activations, weights have one scale for each output and no zero points",
            hint="leave it out",
        )
    if config.activation_mode == "static" and config.calibration is None:
        raise ArgumentError(
            "quantize",
            'activations="static" requires calibration',
            hint='pass batches of representative inputs: QuantizeConfig("int8", calibration=loader)',
        )
    if config.activation_mode == "static":
        _check_batches(config.calibration)


def _check_batches(batches: Any) -> None:
    if isinstance(batches, (str, Mapping, torch.Tensor)) or not isinstance(batches, Iterable):
        raise ArgumentError(
            "quantize",
            f"calibration: expected an iterable of batches, got a {type(batches).__name__}",
            hint="write calibration=[batch]",
        )
