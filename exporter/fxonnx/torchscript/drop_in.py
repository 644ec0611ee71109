"""Drop-in replacement: ``install()`` patches torch.onnx; companion functions of its export API."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch.onnx import TrainingMode

from fxonnx_translations._torch_compat import FakeTensorMode

from .._export import export
from .._export_context import in_mode, is_in_onnx_export
from .._input_observer import InputObserver
from .._options import check_training
from .._program import ONNXProgram
from .._public import public
from .._warnings import warn_user
from ..diagnostics.printing import graph_text
from ..errors import ArgumentError
from .symbolic_registry import register_custom_op_symbolic, unregister_custom_op_symbolic

__all__ = [
    "ExportableModule",
    "Installed",
    "enable_fake_mode",
    "export_to_pretty_string",
    "install",
    "installed",
    "select_model_mode_for_export",
    "uninstall",
]

_ORIGINALS = "_fxonnx_originals"
"""Attribute of ``torch.onnx`` that holds the replaced attributes."""
_BLOCKS = "_fxonnx_blocks"
"""Attribute of ``torch.onnx``: number of active ``with installed():`` blocks."""
_LOCK = RLock()


@public
def install() -> None:
    """Replace ``torch.onnx.export`` and related functions by those of fxonnx until ``uninstall``.

    Scripts written for torch.onnx then run unchanged. Replaces ``export``, ``ONNXProgram``, ``is_in_onnx_export``,
    ``InputObserver``, ``ExportableModule`` and functions of older torch versions. Idempotent.
    """
    ours: Mapping[str, Any] = {
        "export": _torch_onnx_export,
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


_POSITIONAL = (
    "export_params",
    "verbose",
    "training",
    "input_names",
    "output_names",
    "operator_export_type",
    "opset_version",
    "do_constant_folding",
    "dynamic_axes",
    "keep_initializers_as_inputs",
    "custom_opsets",
    "export_modules_as_functions",
    "autograd_inlining",
)
"""Parameters after ``f`` that older versions of torch.onnx.export accepted by position, in order."""


@functools.wraps(export)
def _torch_onnx_export(model: Any, args: Any = (), f: Any = None, *positional: Any, **options: Any) -> ONNXProgram:
    if len(positional) > len(_POSITIONAL):
        raise TypeError(
            f"export() takes {3 + len(_POSITIONAL)} positional arguments but {3 + len(positional)} were given"
        )
    for name, value in zip(_POSITIONAL, positional, strict=False):
        if name in options:
            raise TypeError(f"export() got multiple values for argument {name!r}")
        options[name] = value
    _select_default_mode(model, options)
    return export(model, args, f, **_without_older(options))


def _select_default_mode(model: Any, options: dict[str, Any]) -> None:
    """Set ``training`` to torch's default, evaluation mode, for a model that is in training mode.

    A model in evaluation mode keeps the modes of its modules, such as a dropout that stays active.
    """
    if options.get("training") is None and isinstance(model, torch.nn.Module) and model.training:
        options["training"] = TrainingMode.EVAL
        # With dynamo=False, torch does not warn either.
        if options.get("dynamo", True):
            warn_user(
                "the model is in training mode and is exported in evaluation mode, as torch.onnx.export does by default"
                "\nhint: call model.eval() before the export, or pass training=torch.onnx.TrainingMode.PRESERVE "
                "to keep dropout and batch statistics active"
            )


_IGNORED = frozenset({"_retain_param_name", "enable_onnx_checker", "example_outputs", "fallback", "strip_doc_string"})
"""Parameters of older versions of torch.onnx.export without an effect."""


def _without_older(options: dict[str, Any]) -> dict[str, Any]:
    """Translate parameters of older versions: ``use_external_data_format`` is now ``external_data``."""
    older = [name for name in options if name in _IGNORED or name == "use_external_data_format"]
    if not older:
        return options
    warn_user(f"deprecated parameters of torch.onnx.export: {', '.join(older)}", DeprecationWarning)
    kept = {name: value for name, value in options.items() if name not in older}
    if "use_external_data_format" in options:
        kept["external_data"] = options["use_external_data_format"]
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
        """Export the module; the options are those of ``fxonnx.export`` and override those of the module."""
        return export(self, **options)


@public
def export_to_pretty_string(model: torch.nn.Module, args: Any = (), **options: Any) -> str:
    """Export a model and return its graph as text, with types, module paths and source locations.

    Args:
        model: As for ``export``.
        args: As for ``export``.
        **options: As for ``export``, except ``f``.

    Raises:
        ArgumentError: If ``f`` is given.
    """
    if options.pop("f", None) is not None:
        raise ArgumentError("f", "export_to_pretty_string does not write a file", hint="call export to write one")
    return graph_text(export(model, args, **options).model)


@public
@contextmanager
def select_model_mode_for_export(model: torch.nn.Module, mode: TrainingMode | None) -> Iterator[None]:
    """Put a model into the training mode of an export for the body; afterwards restore the mode of each module.

    Raises:
        ArgumentError: If the mode is not a ``torch.onnx.TrainingMode``.
    """
    with in_mode(model, check_training(mode)):
        yield
