"""Drop-in replacement: ``install()`` patches torch.onnx; companion functions of its export API."""

from __future__ import annotations

import abc
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from threading import RLock
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch.onnx import OperatorExportTypes, TrainingMode

from fxonnx_translations._torch_compat import FakeTensorMode

from .._capture.trace import results_depend_on_mode
from .._diagnostics import Diagnostics, read_diagnostics
from .._export import export
from .._export_context import in_mode, is_in_onnx_export
from .._input_observer import InputObserver
from .._keywords import DIAGNOSTICS, OPTIONS, unknown_keyword
from .._lower.passthrough import Passthrough
from .._options import read_export_options
from .._program import ONNXProgram
from .._program.external_data import ExternalData
from .._public import public
from .._request import LegacyOptions
from .._warnings import warn_user
from ..diagnostics.printing import graph_text
from ..errors import ArgumentError, check_choice, did_you_mean
from .user_symbolics import register_custom_op_symbolic, unregister_custom_op_symbolic

__all__ = [
    "ExportableModule",
    "Installed",
    "enable_fake_mode",
    "export_to_pretty_string",
    "install",
    "installed",
    "select_model_mode_for_export",
    "torch_onnx_export",
    "uninstall",
]

_ORIGINALS = "_fxonnx_originals"
"""Attribute of ``torch.onnx`` that holds the replaced attributes."""
_BLOCKS = "_fxonnx_blocks"
"""Attribute of ``torch.onnx``: number of active ``with installed():`` blocks."""
_LOCK = RLock()


@public
def install() -> None:
    """Replace ``torch.onnx.export`` and related functions by fxonnx's until ``uninstall``.

    Scripts written for torch.onnx then run unchanged. Replaces ``export``, ``ONNXProgram``, ``is_in_onnx_export``,
    ``InputObserver``, ``ExportableModule`` and functions of older torch versions. Idempotent.
    """
    ours: Mapping[str, Any] = {
        "export": torch_onnx_export,
        "ONNXProgram": ONNXProgram,
        "is_in_onnx_export": is_in_onnx_export,
        "InputObserver": InputObserver,
        "ExportableModule": ExportableModule,
        # Exist only in older versions of torch.
        "enable_fake_mode": enable_fake_mode,
        "export_to_pretty_string": export_to_pretty_string,
        "register_custom_op_symbolic": register_custom_op_symbolic,
        "unregister_custom_op_symbolic": unregister_custom_op_symbolic,
    }
    with _LOCK:
        if installed():
            return
        setattr(torch.onnx, _ORIGINALS, {name: getattr(torch.onnx, name, None) for name in ours})
        for name, value in ours.items():
            setattr(torch.onnx, name, value)


_DEFAULTS = Diagnostics()


@public
def torch_onnx_export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] | torch.Tensor = (),
    f: str | os.PathLike[str] | BytesIO | None = None,
    export_params: bool = True,
    verbose: bool | None = None,
    training: TrainingMode | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    operator_export_type: OperatorExportTypes | None = None,
    opset_version: int | None = None,
    do_constant_folding: bool = True,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int] | None] | None = None,
    keep_initializers_as_inputs: bool = False,
    custom_opsets: Mapping[str, int] | None = None,
    export_modules_as_functions: bool | Collection[type[torch.nn.Module]] = False,
    autograd_inlining: bool = True,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamo: bool = True,
    external_data: ExternalData = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    custom_translation_table: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    report: bool = False,
    optimize: bool = True,
    verify: bool | Literal["auto"] = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: str | os.PathLike[str] = ".",
    compat: Literal["torchscript"] | None = None,
    **further: Any,
) -> ONNXProgram:
    """Export a model with the keywords of torch.onnx.export; ``install`` puts this function in its place.

    Keywords of ``export`` have the same meaning there; the fields of ``Diagnostics`` and ``ExportOptions`` are
    keywords here. Older versions of torch.onnx.export accept those before ``kwargs`` by position.

    Args:
        model: As for ``export``. By default, one in training mode is exported in evaluation mode.
        args: As for ``export``.
        f: As for ``export``.
        export_params: Store the weights in ``f``; otherwise they are graph inputs.
        verbose: Print the graph with types, module scopes and source lines.
        training: EVAL or TRAINING put the model into that mode during the export; PRESERVE keeps the mode of each
            module. By default, a model in training mode is exported in evaluation mode, with a warning unless
            ``dynamo=False``. TRAINING disables batch norm folding.
        input_names: As for ``export``.
        output_names: As for ``export``.
        operator_export_type: ONNX_FALLTHROUGH and ONNX_ATEN_FALLBACK keep untranslatable operators as nodes of their
            own domain; ONNX_ATEN keeps all ATen operators.
        opset_version: As for ``export``.
        do_constant_folding: Fold expressions of weights into initializers.
        dynamic_axes: Alternative to ``dynamic_shapes``, by names of graph inputs and outputs: ``{name: {axis: dim}}``
            or ``{name: [axis]}``. An unknown name is a warning, or an error with ``strict_shapes``.
        keep_initializers_as_inputs: List initializers also as graph inputs in ``f``.
        custom_opsets: Domain to version; operators of these namespaces become nodes of that domain.
        export_modules_as_functions: Unsupported; must be False.
        autograd_inlining: Must be True.
        kwargs: As for ``export``.
        dynamo: Both values select this exporter. False selects the form of torch.onnx's TorchScript exporter: keyword
            inputs in the order of ``forward``'s signature, names in ``dynamic_axes`` that do not join dims, and
            ``compat="torchscript"``.
        external_data: As for ``export``.
        dynamic_shapes: As for ``export``.
        custom_translation_table: As for ``export``.
        report: As for ``Diagnostics``.
        optimize: As for ``export``.
        verify: As for ``export``.
        profile: As for ``Diagnostics``.
        dump_exported_program: As for ``Diagnostics``.
        artifacts_dir: As for ``Diagnostics``.
        compat: "torchscript": node and value names of torch.onnx's TorchScript exporter
            (``/features/features.0/Conv_output_0``).
        **further: Further keywords of ``export``, ``Diagnostics`` and ``ExportOptions``, and some of older versions of
            torch.onnx.export, with a warning.

    Raises:
        TypeError: If a keyword does not exist.
        ExportError: As ``export``.
    """
    names = inspect.signature(torch_onnx_export).parameters.keys() | inspect.signature(export).parameters.keys()
    for name in further.keys() - names - OPTIONS - DIAGNOSTICS - _OLDER:
        raise unknown_keyword(name, names | OPTIONS | DIAGNOSTICS)
    given = _without_older(further)
    written: dict[str, Any] = {"report": report, "profile": profile, "dump_exported_program": dump_exported_program}
    written |= {"verbose": bool(verbose), "artifacts_dir": artifacts_dir, **_popped(given, DIAGNOSTICS)}
    changed = {name: value for name, value in written.items() if value != getattr(_DEFAULTS, name)}
    shown = replace(read_diagnostics(given.pop("diagnostics", False)), **changed)
    legacy = _read_legacy_options(
        dynamo=dynamo,
        compat=compat,
        training=_default_mode(model, training, dynamo),
        operator_export_type=operator_export_type,
        custom_opsets=custom_opsets,
        export_modules_as_functions=export_modules_as_functions,
        autograd_inlining=autograd_inlining,
        do_constant_folding=do_constant_folding,
        dynamic_axes=dynamic_axes,
        export_params=export_params,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
    )
    options = replace(read_export_options(given.pop("options", None)), **_popped(given, OPTIONS))
    return export(
        model,
        args,
        f,
        kwargs=kwargs,
        input_names=input_names,
        output_names=output_names,
        opset_version=opset_version,
        external_data=given.pop("external_data", external_data),
        dynamic_shapes=dynamic_shapes,
        custom_translation_table=custom_translation_table,
        optimize=optimize,
        verify=verify,
        diagnostics=shown,
        options=replace(legacy, **vars(options)),
        **given,
    )


def _popped(keywords: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Remove the keywords of these names."""
    return {name: keywords.pop(name) for name in [*keywords] if name in names}


def _default_mode(model: Any, training: TrainingMode | None, dynamo: bool) -> TrainingMode | None:
    """The mode to export in: by default torch's, evaluation mode, for a model that is in training mode.

    A model in evaluation mode keeps the modes of its modules, such as a dropout that stays active.
    """
    if training is not None or not isinstance(model, torch.nn.Module) or not model.training:
        return training
    # With dynamo=False, torch does not warn either.
    if dynamo and results_depend_on_mode(model):
        warn_user(
            "the model is in training mode and is exported in evaluation mode, as torch.onnx.export does by default"
            "\nhint: call model.eval() before the export, or pass training=torch.onnx.TrainingMode.PRESERVE "
            "to keep dropout and batch statistics active"
        )
    return TrainingMode.EVAL


_IGNORED = frozenset({"_retain_param_name", "enable_onnx_checker", "example_outputs", "fallback", "strip_doc_string"})
"""Parameters of older versions of torch.onnx.export without an effect."""
_OLDER = _IGNORED | {"use_external_data_format"}


def _without_older(keywords: dict[str, Any]) -> dict[str, Any]:
    """Translate parameters of older versions: ``use_external_data_format`` is now ``external_data``."""
    older = [name for name in keywords if name in _OLDER]
    if older:
        warn_user(f"deprecated parameters of torch.onnx.export: {', '.join(older)}", DeprecationWarning)
    kept = {name: value for name, value in keywords.items() if name not in older}
    if "use_external_data_format" in keywords:
        kept["external_data"] = keywords["use_external_data_format"]
    return kept


@public
def uninstall() -> None:
    """Restore the attributes of ``torch.onnx`` that ``install`` replaced."""
    with _LOCK:
        if not installed():
            return
        for name, value in getattr(torch.onnx, _ORIGINALS).items():
            if value is None:
                delattr(torch.onnx, name)
            else:
                setattr(torch.onnx, name, value)
        delattr(torch.onnx, _ORIGINALS)


class Installed:
    """Whether fxonnx is installed, as a truth value; as a context manager, install it for the body.

    Blocks of several threads may overlap; torch.onnx is restored when the last one ends.
    """

    def __init__(self) -> None:
        self._counted: list[bool] = []

    def __bool__(self) -> bool:
        return hasattr(torch.onnx, _ORIGINALS)

    def __enter__(self) -> None:
        with _LOCK:
            blocks = getattr(torch.onnx, _BLOCKS, 0)
            # After install(), only uninstall() restores torch.onnx.
            counted = blocks > 0 or not self
            self._counted.append(counted)
            if counted:
                install()
                setattr(torch.onnx, _BLOCKS, blocks + 1)

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            if not self._counted.pop():
                return
            blocks = getattr(torch.onnx, _BLOCKS) - 1
            if blocks:
                setattr(torch.onnx, _BLOCKS, blocks)
            else:
                delattr(torch.onnx, _BLOCKS)
                uninstall()


@public
def installed() -> Installed:
    """Return whether fxonnx is installed; ``with installed():`` installs it for the body."""
    return Installed()


@public
@contextmanager
def enable_fake_mode() -> Iterator[FakeTensorMode]:
    """Create fake tensors instead of tensors in the body: shape and dtype without values.

    A model created in the body takes no memory. Export it in the body or later, and save it with weights from a
    checkpoint: ``program.save(path, weights=...)``. Models created before keep their weights.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


@public
class ExportableModule(torch.nn.Module, abc.ABC):
    """Base class of modules that provide their example inputs, dynamic shapes and names for export."""

    @abc.abstractmethod
    def example_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
        """Return the positional and keyword example inputs."""

    def dynamic_shapes(self) -> Any:
        """Return the ``dynamic_shapes`` of the export; None by default."""
        return None

    def input_names(self) -> Sequence[str] | None:
        """Return the names of the graph inputs; None by default."""
        return None

    def output_names(self) -> Sequence[str] | None:
        """Return the names of the graph outputs; None by default."""
        return None

    def to_onnx(self, **options: Any) -> ONNXProgram:
        """Export the module; the options of ``torch_onnx_export`` override the module's."""
        return torch_onnx_export(self, **options)


@public
def export_to_pretty_string(model: torch.nn.Module, args: Any = (), **options: Any) -> str:
    """Export a model and return its graph as text, with types, module paths and source locations.

    Args:
        model: As for ``export``.
        args: As for ``export``.
        **options: As for ``torch_onnx_export``, except ``f``.

    Raises:
        ArgumentError: If ``f`` is given.
    """
    if options.pop("f", None) is not None:
        raise ArgumentError("f", "export_to_pretty_string does not write a file", hint="call export to write one")
    return graph_text(torch_onnx_export(model, args, **options).model)


@public
@contextmanager
def select_model_mode_for_export(model: torch.nn.Module, mode: TrainingMode | None) -> Iterator[None]:
    """Put a model into the training mode of an export for the body; afterwards restore the mode of each module.

    Raises:
        ArgumentError: If the mode is not a ``torch.onnx.TrainingMode``.
    """
    with in_mode(model, _check_training(mode)):
        yield


def _read_legacy_options(
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
    """Validate the keywords of ``torch_onnx_export`` that ``export`` does not have; see there for each of them."""
    _check_flags(dynamo, export_modules_as_functions, autograd_inlining)
    check_choice("compat", compat, (None, "torchscript"))
    return LegacyOptions(
        passthrough=_check_passthrough(operator_export_type, custom_opsets),
        training=_check_training(training, dynamo=dynamo),
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


def _check_training(training: Any, *, dynamo: bool = True) -> TrainingMode | None:
    """The mode to export in; None leaves the model in its own."""
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
