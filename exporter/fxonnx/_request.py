"""``Request``: all that decides one export, validated once and handed on whole through its stages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.onnx import TrainingMode

from fxonnx_translations._builtin import default_registry
from fxonnx_translations._registry import Registry

from ._lower.metadata import MetadataLevel
from ._lower.passthrough import Passthrough
from ._public import public
from ._quantize_config import QuantizeConfig
from ._targets import DEFAULT_PROFILE, TargetProfile

__all__ = [
    "DataDependent",
    "Examples",
    "ExportOptions",
    "Functions",
    "LegacyOptions",
    "Numerics",
    "Request",
    "State",
]

DataDependent: TypeAlias = Literal["error", "example"]
"""Treatment of branches on the values of inputs: an error, or the branch of the example."""
State: TypeAlias = Literal["warn", "io", "outputs", "error"]
"""Treatment of updates: a warning, a graph input and output each, a graph output each, or an error."""
Numerics: TypeAlias = Literal["default", "exact"]
Functions: TypeAlias = Literal["none", "regions", "repeated"]
Examples: TypeAlias = Sequence[tuple[tuple[Any, ...] | torch.Tensor, Mapping[str, Any] | None]]
"""Positional and keyword inputs of each additional example."""


@public
@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Rarely needed options of ``export``.

    Attributes:
        metadata: Provenance of nodes. "full": module scopes, operator, FX node and stack trace with relative paths;
            "names": without the last two; "none": nothing.
        ir_version: IR version of the model; by default 10 from opset 20 on, or the version that the opset requires.
        functions: ONNX functions, with weights as inputs, for parts of the model that are lowered to the same nodes.
            "regions": for each region marked by ``torch.compiler.nested_compile_region``, from opset 15 on;
            "repeated": also for repeated modules of one class, as the blocks of a transformer; "none": a flat graph.
        numerics: "default": calls become the ONNX operators that are specified to give torch's results for finite
            inputs; NaN and signed zeros are left to the runtime, and half-precision operators that are computed in
            float32 for lack of a kernel are not rounded in between. "exact": further nodes make the results for these
            torch's as well, each operator rounds, and attention in half precision computes its scores in float32.
        patterns: Fusion patterns to enable or disable, by name; ``program.record.patterns`` lists them.
        guards: Check in the graph the limits of its inputs beyond those that were asked for: constraints on the sizes
            of dims that are requested to be dynamic, and with ``data_dependent="example"`` the answers of the example.
            For other inputs the model fails in any runtime, with the limit in the name of the node that fails.
    """

    metadata: MetadataLevel = "full"
    ir_version: int | None = None
    functions: Functions = "regions"
    numerics: Numerics = "default"
    patterns: Mapping[str, bool] = field(default_factory=dict)
    guards: bool = True


@dataclass(frozen=True, kw_only=True)
class LegacyOptions(ExportOptions):
    """Options of ``export`` and those that only ``torch_onnx_export`` has, which documents them.

    Attributes:
        legacy: Whether inputs have the form of torch.onnx's TorchScript exporter (``dynamo=False``).
        legacy_names: Whether nodes and values are named as by that exporter (``compat``).
        passthrough: Operators that become nodes of their own domain.
        training: The mode the model is put into; None leaves each module in its own.
        include_initializers: Whether the file has the weights; they are graph inputs otherwise.
    """

    passthrough: Passthrough = Passthrough()  # noqa: RUF009 - immutable
    training: TrainingMode | None = None
    legacy: bool = False
    legacy_names: bool = False
    fold_weights: bool = True
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int] | None] | None = None
    include_initializers: bool = True
    keep_initializers_as_inputs: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Request(LegacyOptions):
    """One export: the arguments of ``export``, which documents them, as ``fxonnx._options.read`` validates them.

    Arguments about the destination and the report are no part of it: ``f``, ``external_data``, ``diagnostics``.

    Attributes:
        model: The module inside of wrappers; with ``state="io"``, a copy that holds numbers in buffers.
        opset: Target opset of the default domain.
        profile: The runtime that the graph is written for.
        registry: The translations for the opset, the user's own first.
        enabled_patterns: Names of the fusion patterns to apply, in order.
    """

    model: torch.nn.Module | ExportedProgram | Any = field(default=None, repr=False)
    args: tuple[Any, ...] | torch.Tensor = field(default=(), repr=False)
    kwargs: Mapping[str, Any] | None = field(default=None, repr=False)
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None
    more_inputs: Examples | None = field(default=None, repr=False)
    dynamic_scalars: Collection[str] = ()
    strict_shapes: bool = False
    frozen: tuple[str, ...] = ()
    data_dependent: DataDependent = "error"
    state: State = "warn"
    adapters: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    opset: int = 20
    profile: TargetProfile = DEFAULT_PROFILE
    registry: Registry = field(default_factory=default_registry, repr=False)
    quantize: QuantizeConfig | None = None
    optimize: bool = True
    enabled_patterns: tuple[str, ...] = ()
    verify: bool | Literal["auto"] = False
