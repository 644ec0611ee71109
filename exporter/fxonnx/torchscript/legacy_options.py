"""The keywords of torch.onnx.export that ``fxonnx.export`` does not have, validated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch.onnx import OperatorExportTypes, TrainingMode

from .._lower.passthrough import Passthrough
from .._options import check_choice
from .._request import LegacyOptions
from ..errors import ArgumentError, did_you_mean

__all__ = ["check_training", "read_legacy_options"]


def read_legacy_options(
    *,
    dynamo: bool,
    compat: Literal["torchscript"] | None,
    training: TrainingMode | None,
    operator_export_type: OperatorExportTypes | None,
    custom_opsets: Mapping[str, int] | None,
    export_modules_as_functions: bool | Collection[type[torch.nn.Module]],
    autograd_inlining: bool,
    do_constant_folding: bool,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int] | None] | None,
    export_params: bool,
    keep_initializers_as_inputs: bool,
) -> LegacyOptions:
    """Validate the keywords of ``torch_onnx_export`` that ``export`` does not have; see there for each of them.

    Raises:
        ArgumentError: If an argument has an invalid value or cannot be honoured.
    """
    _check_flags(dynamo, export_modules_as_functions, autograd_inlining)
    check_choice("compat", compat, (None, "torchscript"))
    return LegacyOptions(
        passthrough=_check_passthrough(operator_export_type, custom_opsets),
        training=check_training(training, dynamo=dynamo),
        legacy=not dynamo,
        legacy_names=not dynamo or compat is not None,
        fold_weights=do_constant_folding,
        dynamic_axes=dynamic_axes,
        include_initializers=export_params,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
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
            problem = f"the version of {domain!r} is {version!r}, not a positive int"
            raise ArgumentError("custom_opsets", problem, hint='write {"my_domain": 1}')
    return Passthrough(_MODES[name], MappingProxyType(dict(opsets)))
