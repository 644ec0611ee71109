"""Validation of the argument ``quantize`` of ``export``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import torch

from .._quantize_config import Activations, QuantizeConfig, Rounding, WeightDtype
from .._targets import TargetProfile
from ..errors import ArgumentError, are_names, did_you_mean, kind_of
from .packed_weights import METHODS, packed_modules, read_packed_format

__all__ = ["HALF_SCALES_OPSET", "INT4_OPSET", "config_of_checkpoint", "has_blocks", "read_quantize"]

INT4_OPSET = 21
"""The first opset with 4-bit integers and with DequantizeLinear by blocks."""
HALF_SCALES_OPSET = 19
"""The first opset with DequantizeLinear to float16 and bfloat16."""
_INT8_OPSET = 13
"""The first opset with DequantizeLinear by columns."""


def config_of_checkpoint(directory: Path) -> QuantizeConfig:
    """See ``QuantizeConfig.from_checkpoint``."""
    packed_format = read_packed_format(directory, "directory")
    modules, permuted = ([], []) if packed_format is None else packed_modules(directory, packed_format)
    if packed_format is None or not modules:
        raise ArgumentError(
            "directory",
            f"{directory} has no weights that are quantized by {', '.join(METHODS)}",
            hint='pass quantize="int4" to quantize the weights of another checkpoint',
        )
    return QuantizeConfig(
        "int4" if packed_format.bits == 4 else "int8",
        block_size=packed_format.model_block_size,
        symmetric=packed_format.symmetric,
        include=tuple(modules),
        permuted=tuple(permuted),
    )


def read_quantize(
    quantize: Any, opset_version: int | None, profile: TargetProfile
) -> tuple[QuantizeConfig, int | None]:
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
    config: Any = QuantizeConfig(quantize) if isinstance(quantize, str) else quantize  # type: ignore[arg-type]
    if not isinstance(config, QuantizeConfig):
        raise ArgumentError(
            "quantize", f'expected "int4", "int8" or a QuantizeConfig, got {quantize!r}', hint='write quantize="int4"'
        )
    _check(config)
    if config.activation_mode != "float":
        _check_activations(config)
        _check_least_opset(opset_version, _INT8_OPSET, "8-bit weights")
        if not config.weights_only:
            return config, opset_version
    if config.embeddings == "int4" and not profile.has_gather_nbits:
        raise ArgumentError(
            "quantize",
            'embeddings="int4" requires an operator of ONNX Runtime, GatherBlockQuantized',
            hint='pass embeddings="int8", or target="onnxruntime-genai"',
        )
    if profile.has_matmul_nbits:
        return config, opset_version
    has_halves = "int4" in (config.dtype, config.lm_head) or 4 in config.bits.values()
    is_blocked = has_halves or bool(config.block_size or config.block_sizes)
    least = INT4_OPSET if is_blocked else _INT8_OPSET
    if opset_version is None:
        # ONNX Runtime is faster with blocks than with columns, which it divides into shorter blocks by itself.
        return config, max(INT4_OPSET if has_blocks(profile, INT4_OPSET) else least, profile.default_opset)
    blocked = "4-bit weights" if has_halves else "weights in blocks"
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
    return profile.has_matmul_nbits or (profile.falls_back_to_cpu and profile.has_byte_blocks and opset >= INT4_OPSET)


def _check(config: QuantizeConfig) -> None:
    choices = get_args(WeightDtype)
    for name, value, allowed in (
        ("dtype", config.dtype, choices),
        ("embeddings", config.embeddings, (None, "float", *choices, "tied")),
        ("lm_head", config.lm_head, (None, "float", *choices)),
        ("accuracy_level", config.accuracy_level, (0, 1, 2, 3, 4)),
        ("symmetric", config.symmetric, (True, False)),
        ("rounding", config.rounding, get_args(Rounding)),
        ("activations", config.activations, (None, *get_args(Activations))),
    ):
        if value not in allowed:
            problem = f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}"
            raise ArgumentError("quantize", problem, hint=did_you_mean(value, [str(one) for one in allowed]))
    for name, numbers, kind in (("block_sizes", config.block_sizes, "sizes"), ("bits", config.bits, "bits")):
        if not isinstance(numbers, Mapping):
            problem = f"{name}: expected names with {kind}, got {kind_of(numbers)}"
            raise ArgumentError("quantize", problem, hint=f'write {{"*.down_proj": {32 if kind == "sizes" else 8}}}')
    for name, count in config.bits.items():
        if count not in (4, 8):
            raise ArgumentError("quantize", f"bits[{name!r}]: expected 4 or 8, got {count!r}")
    sizes: dict[str, Any] = {} if config.block_size is None else {"block_size": config.block_size}
    for name, size in (sizes | {f"block_sizes[{name!r}]": size for name, size in config.block_sizes.items()}).items():
        if not isinstance(size, int) or size < 16 or size & (size - 1):
            raise ArgumentError("quantize", f"{name}: {size!r} is not a power of two from 16 on", hint="pass 32 or 128")
    if not isinstance(config.importance, Mapping):
        problem = f"importance: expected a dict from names to tensors, got {kind_of(config.importance)}"
        raise ArgumentError("quantize", problem, hint="pass the mean square of each input feature")
    for name, value in config.importance.items():
        if not isinstance(value, torch.Tensor) or value.dim() != 1 or not bool((value >= 0).all()):
            problem = f"importance[{name!r}]: expected a tensor of one axis without negative elements"
            raise ArgumentError("quantize", problem, hint="pass the mean square of each input feature")
    for name in ("include", "exclude", "weights_only"):
        if not are_names(getattr(config, name)):
            problem = f"{name}: expected a list of names, got {getattr(config, name)!r}"
            raise ArgumentError("quantize", problem, hint='write ["*.mlp.*"]')
    if config.weights_only and config.activation_mode == "float":
        raise ArgumentError(
            "quantize", 'weights_only: activations="float" does not use it', hint='pass activations="dynamic"'
        )
    if config.calibration is not None and config.activation_mode != "static":
        raise ArgumentError(
            "quantize",
            f"calibration: activations={config.activations!r} does not use it",
            hint='leave calibration out, or pass activations="static"',
        )


def _check_activations(config: QuantizeConfig) -> None:
    """Reject weights that integer products cannot read, and a missing calibration."""
    subject = "calibration" if config.activation_mode == "static" else 'activations="dynamic"'
    for name, value in (("dtype", config.dtype), ("embeddings", config.embeddings), ("lm_head", config.lm_head)):
        if value == "int4":
            raise ArgumentError(
                "quantize",
                f'{subject} requires 8-bit weights, got {name}="int4"',
                hint=f'pass {name}="int8", or leave {subject.partition("=")[0]} out to quantize only weights',
            )
    if config.weights_only and config.activation_mode == "static":
        raise ArgumentError(
            "quantize", "weights_only: constant scales do not use it", hint="name these layers in exclude"
        )
    has_blocks = not config.weights_only
    unusable = {
        f"block_size={config.block_size}": has_blocks and config.block_size is not None,
        "block_sizes": has_blocks and bool(config.block_sizes),
        "bits": bool(config.bits),
        "symmetric=False": not config.symmetric,
    }
    for name in (name for name, is_given in unusable.items() if is_given):
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
            f"calibration: expected an iterable of batches, got {kind_of(batches)}",
            hint="write calibration=[batch]",
        )
