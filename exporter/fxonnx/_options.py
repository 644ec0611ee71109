"""The arguments of ``export``, validated: each one is honoured or rejected with an ArgumentError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

from fxonnx_translations._builtin import default_registry
from fxonnx_translations._registry import Registry
from fxonnx_translations._torch_compat import OpOverloadPacket

from ._export_context import without_wrappers
from ._extensions import add_on, translations_of_extensions
from ._lower.metadata import MetadataLevel
from ._lower.versions import FUNCTIONS_IR_VERSION, NEWEST_IR_VERSION, NEWEST_OPSET, OLDEST_OPSET, ir_versions
from ._prepare import PATTERNS, least_default_opset
from ._request import DataDependent, ExportOptions, Functions, LegacyOptions, Numerics, Request, State
from ._targets import Target, TargetProfile, profile_of
from .errors import ArgumentError, are_names, check_choice, did_you_mean, kind_of

__all__ = ["read", "read_export_options", "with_own_examples"]


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


def with_own_examples(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``export`` for the module inside of wrappers, completed by an ``ExportableModule``'s."""
    model, completed = without_wrappers(given["model"]), dict(given)
    has_inputs = not isinstance(given["args"], tuple) or given["args"] or given["kwargs"]
    if not has_inputs and hasattr(model, "example_arguments"):
        completed["args"], completed["kwargs"] = model.example_arguments()
        for name in ("dynamic_shapes", "input_names", "output_names"):
            own = getattr(model, name)()
            completed[name] = own if given[name] is None else given[name]
    return {**completed, "model": model}


def read(given: Mapping[str, Any], least_opset: int = 0, *, is_older: bool = False) -> Request:
    """Validate the arguments of ``export`` that need no model.

    Args:
        given: The arguments by name.
        least_opset: The lowest default opset of the captured program.
        is_older: Whether the default opset is that of operators for which the target has no newer kernels.

    Raises:
        ArgumentError: If an argument has an invalid value or cannot be honoured.
    """
    rare = LegacyOptions(**vars(read_export_options(given["options"])))
    least_opset = max(least_opset, least_default_opset(given["model"]))
    for name, choices in (("verify", (False, True, "auto")), ("target", (None, *get_args(Target)))):
        check_choice(name, given[name], choices)
    for name, value in (*((name, given[name]) for name in ("optimize", "strict_shapes")), ("guards", rare.guards)):
        check_choice(name, value, (False, True))
    check_choice("state", given["state"], get_args(State))
    check_choice("metadata", rare.metadata, get_args(MetadataLevel))
    check_choice("data_dependent", given["data_dependent"], get_args(DataDependent))
    check_choice("numerics", rare.numerics, get_args(Numerics))
    check_choice("functions", rare.functions, get_args(Functions))
    profile = profile_of(given["target"])
    if is_older and profile.older_opset is not None:
        profile = replace(profile, default_opset=profile.older_opset)
    quantize, opset_version = given["quantize"], given["opset_version"]
    if quantize is not None:
        quantize, opset_version = add_on("quantization").read_quantize(quantize, opset_version, profile)
    opset = _check_opset(opset_version, max(profile.default_opset, least_opset))
    inputs, outputs = _check_names(given["input_names"], given["output_names"])
    ir_version = _check_ir_version(rare.ir_version, opset)
    registry = default_registry().extended(translations_of_extensions(opset))
    checked = {
        "opset": opset,
        "ir_version": ir_version,
        "profile": profile,
        "registry": _check_table(registry, given["custom_translation_table"]),
        "input_names": inputs,
        "output_names": outputs,
        "enabled_patterns": _check_patterns(rare.patterns, opset, profile) if given["optimize"] else (),
        "frozen": _check_frozen(given["frozen"]),
        "adapters": _check_adapters(given["adapters"]),
        "functions": _check_functions(rare.functions, ir_version, opset),
        "quantize": quantize,
    }
    _check_dynamic_axes(rare.dynamic_axes, given["dynamic_shapes"])
    unchanged = {one.name: given[one.name] for one in fields(Request) if one.name in given}
    return Request(**{**vars(rare), **unchanged, **checked})


def _check_dynamic_axes(dynamic_axes: Any, dynamic_shapes: Any) -> None:
    if dynamic_axes is not None and dynamic_shapes is not None:
        raise ArgumentError(
            "dynamic_axes", "dynamic_shapes is also given", hint="specify all dynamic dims in one of them"
        )


def _check_frozen(frozen: Any) -> tuple[str, ...]:
    if not are_names(frozen):
        raise ArgumentError("frozen", f"expected a list of names, got {frozen!r}", hint='write ["image_grid_thw"]')
    return tuple(frozen)


def _check_adapters(adapters: Any) -> tuple[str, ...]:
    patterns = (adapters,) if isinstance(adapters, str) else adapters
    if not are_names(patterns):
        raise ArgumentError(
            "adapters", f"expected a pattern or a list of patterns, got {adapters!r}", hint='write "*.lora_*"'
        )
    return tuple(patterns)


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
