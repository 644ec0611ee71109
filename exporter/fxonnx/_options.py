"""The options of torch.onnx.export that say how to export, checked: each is honoured or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.onnx import OperatorExportTypes, TrainingMode

from fxonnx_translations._registry import Registry
from fxonnx_translations._torch_compat import OpOverloadPacket

from ._lower.model import NEWEST_IR_VERSION, NEWEST_OPSET, OLDEST_OPSET, ir_versions
from ._lower.passthrough import Passthrough
from ._prepare import PATTERNS
from .errors import ArgumentError

__all__ = [
    "Form",
    "Target",
    "check_choice",
    "check_flags",
    "check_form",
    "check_names",
    "check_older",
    "check_passthrough",
    "check_table",
    "check_training",
    "in_mode",
    "own_examples",
]


_MODES: Mapping[str, Literal["none", "aten", "fallback", "fallthrough"]] = MappingProxyType(
    {"ONNX": "none", "ONNX_ATEN": "aten", "ONNX_ATEN_FALLBACK": "fallback", "ONNX_FALLTHROUGH": "fallthrough"}
)


def check_training(training: Any, *, dynamo: bool = True) -> TrainingMode | None:
    """The mode to export in; None leaves the model in its own.

    Args:
        training: The user's.
        dynamo: False for the default of torch.onnx's first exporter, which is evaluation mode.

    Raises:
        ArgumentError: If it is no ``torch.onnx.TrainingMode``.
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


def check_passthrough(operator_export_type: Any, custom_opsets: Any) -> Passthrough:
    """Which operators stay what they are.

    Raises:
        ArgumentError: If an argument has another form.
    """
    name = "ONNX" if operator_export_type is None else getattr(operator_export_type, "name", operator_export_type)
    if name not in _MODES:
        raise ArgumentError(
            "operator_export_type",
            f"expected a torch.onnx.OperatorExportTypes, got {operator_export_type!r}",
            hint=f"there are {', '.join(OperatorExportTypes.__members__)}",
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


def check_flags(
    dynamo: Any,
    export_modules_as_functions: bool | Collection[type[torch.nn.Module]],
    autograd_inlining: bool,
) -> None:
    """Refuses what can not be honoured.

    Raises:
        ArgumentError: It says what to do instead.
    """
    if not isinstance(dynamo, bool):
        raise ArgumentError("dynamo", f"expected True or False, got {dynamo!r}", hint="both select this exporter")
    if export_modules_as_functions:
        raise ArgumentError(
            "export_modules_as_functions",
            "modules can not be exported as ONNX functions",
            hint="leave it out; which module a node comes from is in its metadata, under namespace",
        )
    if not autograd_inlining:
        raise ArgumentError(
            "autograd_inlining",
            "the forward of an autograd.Function is always exported in its place",
            hint="give it a static method symbolic(g, ...), which is exported instead",
        )


_NOT_NEEDED = frozenset(
    {"_retain_param_name", "enable_onnx_checker", "example_outputs", "fallback", "strip_doc_string"}
)


def check_older(older: Mapping[str, Any], external_data: Any) -> Any:
    """What the parameters of older versions of torch.onnx.export say of ``external_data``.

    Raises:
        TypeError: For a parameter that never was, as Python does.
    """
    for name in older:
        if name not in _NOT_NEEDED and name != "use_external_data_format":
            raise TypeError(f"export() got an unexpected keyword argument {name!r}")
    if older:
        names = ", ".join(older)
        warnings.warn(f"of older versions of torch.onnx.export: {names}", DeprecationWarning, stacklevel=3)
    return older.get("use_external_data_format", external_data)


def check_choice(argument: str, value: Any, choices: Sequence[Any]) -> None:
    """Whether a string is one of several.

    Raises:
        ArgumentError: If not.
    """
    if value not in choices:
        raise ArgumentError(argument, f"expected one of {', '.join(map(repr, choices))}, got {value!r}")


def own_examples(model: Any, args: Any, kwargs: Any, *given: Any) -> tuple[Any, ...]:
    """The example inputs, and what else an ``ExportableModule`` says of its export where the caller says nothing.

    Args:
        model: Any model; one with ``example_arguments`` is asked if there are no inputs.
        args: Positional inputs.
        kwargs: Keyword inputs.
        *given: ``dynamic_shapes``, ``input_names`` and ``output_names`` of the caller.
    """
    if isinstance(args, tuple) and not args and not kwargs and hasattr(model, "example_arguments"):
        args, kwargs = model.example_arguments()
        own = (model.dynamic_shapes(), model.input_names(), model.output_names())
        given = tuple(theirs if theirs is not None else ours for theirs, ours in zip(given, own, strict=True))
    return args, kwargs, *given


@contextmanager
def in_mode(model: Any, training: TrainingMode | None) -> Iterator[None]:
    """Puts a model into training or evaluation mode for the body; every module is in its own mode again afterwards."""
    if training in (None, TrainingMode.PRESERVE) or not isinstance(model, torch.nn.Module):
        yield
        return
    before = {module: module.training for module in model.modules()}
    try:
        model.train(training == TrainingMode.TRAINING)
        yield
    finally:
        for module, was in before.items():
            module.training = was


Target: TypeAlias = Literal["onnxruntime"]

_DEFAULT_OPSETS: Mapping[Target | None, int] = MappingProxyType({None: 20, "onnxruntime": 23})


@dataclass(frozen=True)
class Form:
    """What the model is written in.

    Attributes:
        opset: Version of the default domain.
        ir_version: Version of the file format.
        rules: Names of the rules about operators that are written out, in their order.
    """

    opset: int
    ir_version: int
    rules: tuple[str, ...]


def check_form(opset: Any, ir_version: Any, target: Any, patterns: Mapping[str, bool] | None) -> Form:
    """What the model is to be written in.

    Args:
        opset: The user's ``opset_version``.
        ir_version: The user's.
        target: The user's.
        patterns: The user's, or None for no rules at all.

    Raises:
        ArgumentError: If an argument has no such value, or the IR version is too old for the opset.
    """
    check_choice("target", target, (None, *get_args(Target)))
    opset = _check_opset(opset, _DEFAULT_OPSETS[target])
    return Form(opset, _check_ir_version(ir_version, opset), _check_patterns(patterns, opset, target))


def _check_ir_version(ir_version: Any, opset: int) -> int:
    default, least = ir_versions(opset)
    if ir_version is None:
        return default
    if isinstance(ir_version, bool) or not isinstance(ir_version, int):
        raise ArgumentError("ir_version", f"expected an int, got {ir_version!r}")
    if not least <= ir_version <= NEWEST_IR_VERSION:
        raise ArgumentError(
            "ir_version",
            f"{ir_version} can not be written: opset {opset} needs {least}, and the newest is {NEWEST_IR_VERSION}",
            hint=f"pass a number from {least} to {NEWEST_IR_VERSION}, or nothing for {default}",
        )
    return ir_version


def _check_patterns(patterns: Any, opset: int, target: str | None) -> tuple[str, ...]:
    if patterns is None:
        return ()
    if not isinstance(patterns, Mapping):
        raise ArgumentError(
            "patterns", f"expected a dict from name to True or False, got {patterns!r}", hint='write {"gelu": False}'
        )
    unknown = [name for name in patterns if name not in PATTERNS]
    if unknown:
        raise ArgumentError("patterns", f"there is no rule {unknown[0]!r}", hint=f"there are {', '.join(PATTERNS)}")
    return tuple(name for name, rule in PATTERNS.items() if patterns.get(name, rule.is_for(opset, target)))


def _check_opset(opset_version: int | None, default: int) -> int:
    if opset_version is None:
        return default
    # bool first: it is a subclass of int.
    if isinstance(opset_version, bool) or not isinstance(opset_version, int):
        raise ArgumentError("opset_version", f"expected an int, got {opset_version!r}")
    if not OLDEST_OPSET <= opset_version <= NEWEST_OPSET:
        raise ArgumentError(
            "opset_version",
            f"{opset_version} is outside the opsets that can be written",
            hint=f"pass a number from {OLDEST_OPSET} to {NEWEST_OPSET}, or nothing for {default}",
        )
    return opset_version


def check_names(
    input_names: Sequence[str] | None, output_names: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Input and output names.

    Raises:
        ArgumentError: If a name is no string, is empty, or is given twice.
    """
    inputs = _names("input_names", input_names)
    outputs = _names("output_names", output_names)
    both = sorted(set(inputs) & set(outputs))
    if both:
        raise ArgumentError(
            "output_names", f"{both[0]!r} is the name of an input, too", hint="values need unique names"
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
            raise ArgumentError(argument, f"{name!r} is given twice", hint="values need unique names")
    return tuple(names)


def check_table(registry: Registry, table: Mapping[Callable[..., Any], Callable[..., Any]] | None) -> Registry:
    """The registry with the user's translations in front.

    Raises:
        ArgumentError: If a key is not an operator overload or a value not a function.
    """
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
