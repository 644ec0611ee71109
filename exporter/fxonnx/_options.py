"""The options of ``export``, validated: each one is honoured or rejected with an ArgumentError."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from torch.onnx import TrainingMode

from fxonnx_translations._builtin import default_registry
from fxonnx_translations._registry import Registry
from fxonnx_translations._torch_compat import OpOverloadPacket

from ._capture import DataDependent
from ._extensions import add_on, translations_of_extensions
from ._lower.metadata import MetadataLevel
from ._lower.passthrough import Passthrough
from ._lower.versions import FUNCTIONS_IR_VERSION, NEWEST_IR_VERSION, NEWEST_OPSET, OLDEST_OPSET, ir_versions
from ._prepare import PATTERNS, State
from ._public import public
from ._quantize_config import QuantizeConfig, WeightDtype
from ._targets import DEFAULT_PROFILE, Target, TargetProfile, profile_of
from .errors import ArgumentError, did_you_mean, kind_of

__all__ = [
    "ExportOptions",
    "Functions",
    "LegacyExportOptions",
    "LegacyOptions",
    "Numerics",
    "Options",
    "check_choice",
    "legacy_of",
    "read_export_options",
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
        guards: Whether the graph checks the limits of its inputs.
        numerics: "exact" keeps torch's results for NaN and signed zeros as well.
        profile: The runtime that the graph is written for.
        functions: Whether marked regions, or repeated modules as well, become functions.
        quantize: Which weights are quantized, and how; None for none.
    """

    opset: int = 20
    ir_version: int | None = None
    registry: Registry = field(default_factory=default_registry, repr=False)
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
    guards: bool = True
    numerics: Numerics = "default"
    profile: TargetProfile = DEFAULT_PROFILE
    functions: Functions = "regions"
    quantize: QuantizeConfig | None = None


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


@dataclass(frozen=True)
class LegacyOptions:
    """The validated options of torch.onnx's TorchScript exporter.

    Attributes:
        passthrough: Operators that become nodes of their own domain.
        training: The mode the model is put into; None leaves each module in its own.
        is_asked: Whether the caller asks for that exporter, with ``dynamo=False``.
        names: Whether nodes and values are named as by that exporter.
        fold_weights: Whether expressions of weights become initializers.
        dynamic_axes: Dynamic dims by the names of graph inputs and outputs.
        include_initializers: Whether the file has the weights; they are graph inputs otherwise.
        keep_initializers_as_inputs: Whether the initializers of the file are graph inputs as well.
    """

    passthrough: Passthrough = Passthrough()  # noqa: RUF009 - immutable
    training: TrainingMode | None = None
    is_asked: bool = False
    names: bool = False
    fold_weights: bool = True
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int] | None] | None = None
    include_initializers: bool = True
    keep_initializers_as_inputs: bool = False


@dataclass(frozen=True, kw_only=True)
class LegacyExportOptions(ExportOptions):
    """Options of ``export`` together with those that only torch.onnx.export has.

    Attributes:
        legacy: The latter.
    """

    legacy: LegacyOptions = LegacyOptions()

    @classmethod
    def of(cls, options: ExportOptions, legacy: LegacyOptions) -> LegacyExportOptions:
        """The same options with others of torch.onnx.export."""
        return cls(**{one.name: getattr(options, one.name) for one in fields(ExportOptions)}, legacy=legacy)


def read_export_options(options: ExportOptions | None) -> ExportOptions:
    """The argument ``options`` of an export.

    Raises:
        ArgumentError: If it is not an ``ExportOptions``.
    """
    if options is None:
        return ExportOptions()
    if not isinstance(options, ExportOptions):
        raise ArgumentError(
            "options", f"expected an fxonnx.ExportOptions, got {options!r}", hint="write fxonnx.ExportOptions(...)"
        )
    return options


def legacy_of(options: ExportOptions) -> LegacyOptions:
    """The options that only torch.onnx.export has; the defaults for those of a caller of ``export``."""
    return options.legacy if isinstance(options, LegacyExportOptions) else LegacyOptions()


def read_options(
    least_opset: int,
    *,
    verify: bool | Literal["auto"],
    names: tuple[Sequence[str] | None, Sequence[str] | None],
    opset_version: int | None,
    target: Target | None,
    optimize: bool,
    custom_translation_table: Mapping[Callable[..., Any], Callable[..., Any]] | None,
    state: State,
    strict_shapes: bool,
    frozen: Collection[str],
    adapters: str | Collection[str],
    data_dependent: DataDependent,
    quantize: QuantizeConfig | WeightDtype | None,
    rare: ExportOptions,
    is_older: bool = False,
) -> Options:
    """Validate the arguments of ``export`` that need no model; see there for each of them.

    ``least_opset`` is the lowest default, ``names`` are the names of inputs and outputs, ``rare`` is ``options``, and
    ``is_older`` asks for the default opset of operators that the target has no newer kernels for.

    Raises:
        ArgumentError: If an argument has an invalid value or cannot be honoured.
    """
    legacy = legacy_of(rare)
    check_choice("verify", verify, (False, True, "auto"))
    check_choice("target", target, (None, *get_args(Target)))
    check_choice("state", state, get_args(State))
    check_choice("metadata", rare.metadata, get_args(MetadataLevel))
    check_choice("data_dependent", data_dependent, get_args(DataDependent))
    check_choice("numerics", rare.numerics, get_args(Numerics))
    check_choice("functions", rare.functions, get_args(Functions))
    profile = profile_of(target)
    if is_older and profile.older_opset is not None:
        profile = replace(profile, default_opset=profile.older_opset)
    config = None
    if quantize is not None:
        config, opset_version = add_on("quantization").read_quantize(quantize, opset_version, profile)
    opset = _check_opset(opset_version, max(profile.default_opset, least_opset))
    inputs, outputs = _check_names(*names)
    ir_version = _check_ir_version(rare.ir_version, opset)
    return Options(
        opset=opset,
        ir_version=ir_version,
        registry=_check_table(default_registry().extended(translations_of_extensions(opset)), custom_translation_table),
        input_names=inputs,
        output_names=outputs,
        passthrough=legacy.passthrough,
        patterns=_check_patterns(rare.patterns, opset, profile) if optimize else (),
        optimize=optimize,
        fold_weights=legacy.fold_weights,
        state=state,
        metadata=rare.metadata,
        legacy=legacy.is_asked,
        legacy_names=legacy.names,
        strict_shapes=strict_shapes,
        training=legacy.training,
        frozen=_check_frozen(frozen),
        adapters=_check_adapters(adapters),
        data_dependent=data_dependent,
        guards=_check_guards(rare.guards),
        numerics=rare.numerics,
        profile=profile,
        functions=_check_functions(rare.functions, ir_version, opset),
        quantize=config,
    )


def _check_guards(guards: Any) -> bool:
    if not isinstance(guards, bool):
        raise ArgumentError("guards", f"expected a bool, got {guards!r}", hint="pass False for a graph without checks")
    return guards


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


def check_choice(argument: str, value: Any, choices: Sequence[Any]) -> None:
    """Reject a value that is not one of the choices."""
    if value not in choices:
        problem = f"expected one of {', '.join(map(repr, choices))}, got {value!r}"
        raise ArgumentError(argument, problem, hint=did_you_mean(value, choices))


def _check_ir_version(ir_version: Any, opset: int) -> int:
    default, least = ir_versions(opset)
    if ir_version is None:
        return default
    if isinstance(ir_version, bool) or not isinstance(ir_version, int):
        hint = f"pass a number from {least} to {NEWEST_IR_VERSION}, or nothing for {default}"
        raise ArgumentError("ir_version", f"expected an int, got {ir_version!r}", hint=hint)
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
        number = str(opset_version).strip().removesuffix(".0")
        hint = f"pass {number}" if number.isdecimal() else f"pass a number, or nothing for {default}"
        raise ArgumentError("opset_version", f"expected an int, got {opset_version!r}", hint=hint)
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
        hint = (
            f"write [{names!r}]"
            if isinstance(names, str)
            else 'write ["x"]: one name for each input or output, in order'
        )
        raise ArgumentError(argument, f"expected a list of strings, got {names!r}", hint=hint)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ArgumentError(
                argument, f"expected non-empty strings, got {name!r}", hint="leave names at the end out instead"
            )
        if names.count(name) > 1:
            raise ArgumentError(argument, f"{name!r} is given twice", hint="names of values are unique")
    return tuple(names)


def _check_table(registry: Registry, table: Mapping[Callable[..., Any], Callable[..., Any]] | None) -> Registry:
    """The registry with the user's translations in front."""
    if not table:
        return registry
    if not isinstance(table, Mapping):
        hint = "write {torch.ops.aten.relu.default: my_relu}"
        raise ArgumentError("custom_translation_table", f"expected a dict, got {kind_of(table)}", hint=hint)
    for target, function in table.items():
        if isinstance(target, OpOverloadPacket):
            raise ArgumentError(
                "custom_translation_table",
                f"the key {target} is an overload packet",
                hint=f"name the overload, such as torch.ops.{target}.default",
            )
        if not callable(target):
            hint = "the keys are overloads of torch's operators, such as torch.ops.aten.relu.default"
            raise ArgumentError("custom_translation_table", f"the key {target!r} is not an operator", hint=hint)
        functions: Any = list(function) if isinstance(function, (list, tuple)) else [function]
        if not functions or not all(map(callable, functions)):
            raise ArgumentError(
                "custom_translation_table",
                f"the value for {target} is {kind_of(function)}, not a function or a list of functions",
                hint="write a function that emits operators: def translation(op, x): return op.Relu(x)",
            )
    return registry.extended(table)
