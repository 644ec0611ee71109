"""The options of torch.onnx.export that say how to export, checked: each is honoured or refused."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch.onnx import OperatorExportTypes, TrainingMode

from .errors import ArgumentError
from .lower.passthrough import Passthrough

__all__ = [
    "check_choice",
    "check_flags",
    "check_older",
    "check_passthrough",
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
