"""The options of ``export``, validated: each one is honoured or rejected with an ArgumentError."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.onnx import OperatorExportTypes, TrainingMode

from fxonnx_translations._builtin import default_registry
from fxonnx_translations._registry import Registry
from fxonnx_translations._torch_compat import OpOverloadPacket

from ._capture import DataDependent
from ._extensions import translations_of_extensions
from ._lower.metadata import MetadataLevel
from ._lower.passthrough import Passthrough
from ._lower.versions import FUNCTIONS_IR_VERSION, NEWEST_IR_VERSION, NEWEST_OPSET, OLDEST_OPSET, ir_versions
from ._prepare import PATTERNS, State
from ._targets import DEFAULT_PROFILE, Target, TargetProfile, profile_of
from .errors import ArgumentError, did_you_mean
from .quantization.config import QuantizeConfig, WeightDtype, read_quantize

__all__ = [
    "Functions",
    "LegacyOptions",
    "Numerics",
    "Options",
    "check_training",
    "read_legacy_options",
    "read_options",
]

Numerics: TypeAlias = Literal["default", "exact"]
Functions: TypeAlias = Literal["none", "regions", "repeated"]


@dataclass(frozen=True)
class Options:
    """The validated options of one export; ``export`` documents them for users.

    Attributes:
        opset: Target opset of the default domain.
        ir_version: IR version of the model.
        registry: The translations, the user's own first.
        input_names: Names of the first graph inputs, then of parameters.
        output_names: Names of the first graph outputs.
        passthrough: Operators that become nodes of their own domain.
        patterns: Names of the fusion patterns to apply, in order.
        optimize: Whether CSE, fusion patterns and batch norm folding run.
        fold_weights: Whether expressions of weights become initializers.
        state: How mutations of parameters, buffers and inputs are exported.
        metadata: Which provenance metadata nodes carry.
        legacy: Whether inputs have the form of torch.onnx's TorchScript exporter.
        legacy_names: Whether nodes and values are named as by that exporter.
        strict_shapes: Whether a constraint on a dynamic dim is an error.
        training: The mode the model is put into; None leaves each module in its own.
        frozen: Names or patterns of the tensors that become constants.
        adapters: Patterns of the weights that become graph inputs with default values.
        data_dependent: What the capture does where the model branches on the values of its inputs.
        runtime_checks: Whether the model returns that its assumptions hold.
        numerics: "exact" keeps torch's results for NaN and signed zeros as well.
        profile: The runtime that the graph is written for.
        functions: Whether marked regions, or repeated modules as well, become functions.
        quantize: Which weights are quantized, and how; None for none.
    """

    opset: int = 20
    ir_version: int | None = None
    registry: Registry = field(default_factory=default_registry)
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    passthrough: Passthrough = Passthrough()  # noqa: RUF009 - immutable
    patterns: tuple[str, ...] = ()
    optimize: bool = True
    fold_weights: bool = True
    state: State = "warn"
    metadata: MetadataLevel = "full"
    legacy: bool = False
    legacy_names: bool = False
    strict_shapes: bool = False
    training: TrainingMode | None = None
    frozen: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    data_dependent: DataDependent = "error"
    runtime_checks: bool = False
    numerics: Numerics = "default"
    profile: TargetProfile = DEFAULT_PROFILE
    functions: Functions = "regions"
    quantize: QuantizeConfig | None = None


@dataclass(frozen=True)
class LegacyOptions:
    """The validated options of torch.onnx's TorchScript exporter.

    Attributes:
        passthrough: Operators that become nodes of their own domain.
        training: The mode the model is put into; None leaves each module in its own.
        is_asked: Whether the caller asks for that exporter, with ``dynamo=False``.
        names: Whether nodes and values are named as by that exporter.
    """

    passthrough: Passthrough
    training: TrainingMode | None
    is_asked: bool
    names: bool


def read_legacy_options(
    dynamo: bool,
    compat: Literal["torchscript"] | None,
    training: TrainingMode | None,
    operator_export_type: OperatorExportTypes | None,
    custom_opsets: Mapping[str, int] | None,
    export_modules_as_functions: bool | Collection[type[torch.nn.Module]],
    autograd_inlining: bool,
) -> LegacyOptions:
    """Validate the arguments of ``export`` that torch.onnx's TorchScript exporter has as well; see there for each.

    Raises:
        ArgumentError: If an argument has an invalid value or cannot be honoured.
    """
    _check_flags(dynamo, export_modules_as_functions, autograd_inlining)
    _check_choice("compat", compat, (None, "torchscript"))
    return LegacyOptions(
        _check_passthrough(operator_export_type, custom_opsets),
        check_training(training, dynamo=dynamo),
        not dynamo,
        not dynamo or compat is not None,
    )


def read_options(
    *,
    verify: bool | Literal["auto"],
    names: tuple[Sequence[str] | None, Sequence[str] | None],
    versions: tuple[int | None, int | None, int],
    target: Target | None,
    patterns: Mapping[str, bool],
    passes: tuple[bool, bool],
    custom_translation_table: Mapping[Callable[..., Any], Callable[..., Any]] | None,
    choices: tuple[State, MetadataLevel, Numerics, Functions],
    strict_shapes: bool,
    frozen: Collection[str],
    adapters: str | Collection[str],
    followed: tuple[DataDependent, bool],
    quantize: QuantizeConfig | WeightDtype | None,
    legacy: LegacyOptions,
) -> Options:
    """Validate the arguments of ``export`` that need no model; see there for each of them.

    ``names`` are those of inputs and outputs, ``versions`` the opset version, the IR version and the lowest default
    opset, ``passes`` ``optimize`` and ``do_constant_folding``, ``choices`` ``state``, ``metadata``, ``numerics`` and
    ``functions``, ``followed`` ``data_dependent`` and ``runtime_checks``.

    Raises:
        ArgumentError: If an argument has an invalid value or cannot be honoured.
    """
    state, metadata, numerics, functions = choices
    _check_choice("verify", verify, (False, True, "auto"))
    _check_choice("target", target, (None, *get_args(Target)))
    _check_choice("state", state, get_args(State))
    _check_choice("metadata", metadata, get_args(MetadataLevel))
    _check_choice("data_dependent", followed[0], get_args(DataDependent))
    _check_choice("numerics", numerics, get_args(Numerics))
    _check_choice("functions", functions, get_args(Functions))
    profile = profile_of(target)
    config, opset_version = read_quantize(quantize, versions[0], profile)
    opset = _check_opset(opset_version, max(profile.default_opset, versions[2]))
    inputs, outputs = _check_names(*names)
    checked_ir_version = _check_ir_version(versions[1], opset)
    return Options(
        opset=opset,
        ir_version=checked_ir_version,
        registry=_check_table(default_registry().extended(translations_of_extensions(opset)), custom_translation_table),
        input_names=inputs,
        output_names=outputs,
        passthrough=legacy.passthrough,
        patterns=_check_patterns(patterns, opset, profile) if passes[0] else (),
        optimize=passes[0],
        fold_weights=passes[1],
        state=state,
        metadata=metadata,
        legacy=legacy.is_asked,
        legacy_names=legacy.names,
        strict_shapes=strict_shapes,
        training=legacy.training,
        frozen=_check_frozen(frozen),
        adapters=_check_adapters(adapters),
        data_dependent=followed[0],
        runtime_checks=followed[1],
        numerics=numerics,
        profile=profile,
        functions=_check_functions(functions, checked_ir_version, opset),
        quantize=config,
    )


def _check_flags(
    dynamo: Any,
    export_modules_as_functions: bool | Collection[type[torch.nn.Module]],
    autograd_inlining: bool,
) -> None:
    """Reject unsupported options."""
    if not isinstance(dynamo, bool):
        raise ArgumentError("dynamo", f"expected True or False, got {dynamo!r}", hint="both select this exporter")
    if export_modules_as_functions:
        raise ArgumentError(
            "export_modules_as_functions",
            "modules cannot be selected for export as ONNX functions",
            hint='leave it out, or pass functions="repeated" for functions of repeated modules',
        )
    if not autograd_inlining:
        raise ArgumentError(
            "autograd_inlining",
            "the forward of an autograd.Function is always inlined",
            hint="give it a static method symbolic(g, ...), which is exported instead",
        )


def check_training(training: Any, *, dynamo: bool = True) -> TrainingMode | None:
    """The mode to export in; None leaves the model in its own.

    Args:
        training: The user's argument.
        dynamo: False for the default of torch.onnx's TorchScript exporter: evaluation mode.

    Raises:
        ArgumentError: If it is not a ``torch.onnx.TrainingMode``.
    """
    if training is None:
        return None if dynamo else TrainingMode.EVAL
    if isinstance(training, TrainingMode):
        return training
    raise ArgumentError(
        "training",
        f"expected a torch.onnx.TrainingMode, got {training!r}",
        hint="pass TrainingMode.EVAL, PRESERVE or TRAINING, or nothing",
    )


_MODES: Mapping[str, Literal["none", "aten", "fallback", "fallthrough"]] = MappingProxyType(
    {"ONNX": "none", "ONNX_ATEN": "aten", "ONNX_ATEN_FALLBACK": "fallback", "ONNX_FALLTHROUGH": "fallthrough"}
)


def _check_passthrough(operator_export_type: Any, custom_opsets: Any) -> Passthrough:
    name = "ONNX" if operator_export_type is None else getattr(operator_export_type, "name", operator_export_type)
    if name not in _MODES:
        raise ArgumentError(
            "operator_export_type",
            f"expected a torch.onnx.OperatorExportTypes, got {operator_export_type!r}",
            hint=did_you_mean(name, _MODES, f"there are {', '.join(OperatorExportTypes.__members__)}"),
        )
    opsets = {} if custom_opsets is None else custom_opsets
    if not isinstance(opsets, Mapping):
        raise ArgumentError(
            "custom_opsets", f"expected a dict from domain to version, got {opsets!r}", hint='write {"my_domain": 1}'
        )
    for domain, version in opsets.items():
        if not isinstance(domain, str) or not domain or domain in ("ai.onnx", "aten"):
            raise ArgumentError("custom_opsets", f"{domain!r} is not a domain of custom operators")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise ArgumentError("custom_opsets", f"the version of {domain!r} is {version!r}, not a positive int")
    return Passthrough(_MODES[name], MappingProxyType(dict(opsets)))


def _check_frozen(frozen: Any) -> tuple[str, ...]:
    if isinstance(frozen, str) or not all(isinstance(name, str) for name in frozen):
        raise ArgumentError("frozen", f"expected a list of names, got {frozen!r}", hint='write ["image_grid_thw"]')
    return tuple(frozen)


def _check_adapters(adapters: Any) -> tuple[str, ...]:
    patterns = (adapters,) if isinstance(adapters, str) else adapters
    if not isinstance(patterns, Collection) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(
            "adapters", f"expected a pattern or a list of patterns, got {adapters!r}", hint='write "*.lora_*"'
        )
    return tuple(patterns)


def _check_choice(argument: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        problem = f"expected one of {', '.join(map(repr, choices))}, got {value!r}"
        raise ArgumentError(argument, problem, hint=did_you_mean(value, choices))


def _check_ir_version(ir_version: Any, opset: int) -> int:
    default, least = ir_versions(opset)
    if ir_version is None:
        return default
    if isinstance(ir_version, bool) or not isinstance(ir_version, int):
        raise ArgumentError("ir_version", f"expected an int, got {ir_version!r}")
    if not least <= ir_version <= NEWEST_IR_VERSION:
        raise ArgumentError(
            "ir_version",
            f"{ir_version} cannot be written: opset {opset} needs {least}, and the newest is {NEWEST_IR_VERSION}",
            hint=f"pass a number from {least} to {NEWEST_IR_VERSION}, or nothing for {default}",
        )
    return ir_version


def _check_functions(functions: Functions, ir_version: int, opset: int) -> Functions:
    if ir_version >= FUNCTIONS_IR_VERSION:
        return functions
    if functions == "repeated":
        raise ArgumentError(
            "functions",
            f"functions require IR version {FUNCTIONS_IR_VERSION}, but the model has {ir_version} at opset {opset}",
            hint=f"pass opset_version=15 or newer, or ir_version={FUNCTIONS_IR_VERSION}",
        )
    return "none"


def _check_patterns(patterns: Any, opset: int, profile: TargetProfile) -> tuple[str, ...]:
    if not isinstance(patterns, Mapping):
        raise ArgumentError(
            "patterns", f"expected a dict from name to True or False, got {patterns!r}", hint='write {"gelu": False}'
        )
    unknown = [name for name in patterns if name not in PATTERNS]
    if unknown:
        hint = did_you_mean(unknown[0], PATTERNS, f"there are {', '.join(PATTERNS)}")
        raise ArgumentError("patterns", f"unknown pattern {unknown[0]!r}", hint=hint)
    enabled = {name: profile.patterns.get(name, pattern.for_all) for name, pattern in PATTERNS.items()}
    return tuple(
        name for name, pattern in PATTERNS.items() if patterns.get(name, enabled[name] and opset >= pattern.since)
    )


def _check_opset(opset_version: int | None, default: int) -> int:
    if opset_version is None:
        return default
    # bool first: it is a subclass of int.
    if isinstance(opset_version, bool) or not isinstance(opset_version, int):
        raise ArgumentError("opset_version", f"expected an int, got {opset_version!r}")
    if not OLDEST_OPSET <= opset_version <= NEWEST_OPSET:
        raise ArgumentError(
            "opset_version",
            f"{opset_version} is outside the supported opsets",
            hint=f"pass a number from {OLDEST_OPSET} to {NEWEST_OPSET}, or nothing for {default}",
        )
    return opset_version


def _check_names(
    input_names: Sequence[str] | None, output_names: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    inputs = _names("input_names", input_names)
    outputs = _names("output_names", output_names)
    both = sorted(set(inputs) & set(outputs))
    if both:
        raise ArgumentError(
            "output_names", f"{both[0]!r} is also the name of an input", hint="names of values are unique"
        )
    return inputs, outputs


def _names(argument: str, names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ArgumentError(argument, f"expected a list of strings, got {names!r}", hint=f"write [{names!r}]")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ArgumentError(argument, f"expected non-empty strings, got {name!r}")
        if names.count(name) > 1:
            raise ArgumentError(argument, f"{name!r} is given twice", hint="names of values are unique")
    return tuple(names)


def _check_table(registry: Registry, table: Mapping[Callable[..., Any], Callable[..., Any]] | None) -> Registry:
    """The registry with the user's translations in front."""
    if not table:
        return registry
    for target, function in table.items():
        if isinstance(target, OpOverloadPacket):
            raise ArgumentError(
                "custom_translation_table",
                f"the key {target} is an overload packet",
                hint=f"name the overload, such as torch.ops.{target}.default",
            )
        if not callable(target):
            raise ArgumentError("custom_translation_table", f"the key {target!r} is not an operator")
        functions: Any = list(function) if isinstance(function, (list, tuple)) else [function]
        if not functions or not all(map(callable, functions)):
            raise ArgumentError(
                "custom_translation_table",
                f"the value for {target} is a {type(function).__name__}, not a function or a list of functions",
            )
    return registry.extended(table)
