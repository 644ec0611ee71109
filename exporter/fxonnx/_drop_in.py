"""In the place of torch.onnx: ``fxonnx.install()``, and the smaller functions that its callers use."""

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

from ._export import export
from ._export_context import in_mode, is_in_onnx_export
from ._input_observer import InputObserver
from ._options import check_training
from ._program import ONNXProgram
from ._report import graph_text
from ._symbolic_registry import register_custom_op_symbolic, unregister_custom_op_symbolic
from ._warnings import warn_user
from .errors import ArgumentError

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

_KEPT = "_fxonnx_kept"
"""Attribute of ``torch.onnx`` with what was in the places that are taken."""
_BLOCKS = "_fxonnx_blocks"
"""Attribute of ``torch.onnx``: how many ``with installed():`` blocks keep the places taken."""
_LOCK = RLock()


def install() -> None:
    """Lets ``torch.onnx.export`` and its companions be those of fxonnx, until ``uninstall``.

    ``export``, ``ONNXProgram``, ``is_in_onnx_export``, ``InputObserver`` and ``ExportableModule`` are replaced, so
    that scripts written for torch.onnx run unchanged. To install twice is to install once.
    """
    ours: Mapping[str, Any] = {
        "export": _torch_onnx_export,
        "ONNXProgram": ONNXProgram,
        "is_in_onnx_export": is_in_onnx_export,
        "InputObserver": InputObserver,
        "ExportableModule": ExportableModule,
        # Of older versions of torch.
        "enable_fake_mode": enable_fake_mode,
        "export_to_pretty_string": export_to_pretty_string,
        "register_custom_op_symbolic": register_custom_op_symbolic,
        "unregister_custom_op_symbolic": unregister_custom_op_symbolic,
    }
    with _LOCK:
        if installed():
            return
        setattr(torch.onnx, _KEPT, {name: getattr(torch.onnx, name, None) for name in ours})
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
"""The parameters behind ``f`` in their order, when torch.onnx.export took them by position."""


@functools.wraps(export)
def _torch_onnx_export(model: Any, args: Any = (), f: Any = None, *positional: Any, **options: Any) -> ONNXProgram:
    if len(positional) > len(_POSITIONAL):
        raise TypeError(f"export() takes {3 + len(_POSITIONAL)} positional arguments, {3 + len(positional)} were given")
    for name, value in zip(_POSITIONAL, positional, strict=False):
        if name in options:
            raise TypeError(f"export() got multiple values for argument {name!r}")
        options[name] = value
    return export(model, args, f, **_without_older(options))


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


def uninstall() -> None:
    """Puts back what ``install`` replaced."""
    with _LOCK:
        if not installed():
            return
        for name, value in getattr(torch.onnx, _KEPT).items():
            if value is None:
                delattr(torch.onnx, name)
            else:
                setattr(torch.onnx, name, value)
        delattr(torch.onnx, _KEPT)


class Installed:
    """True if ``torch.onnx.export`` is that of fxonnx; as a context manager, it is for the body.

    Blocks of several threads may overlap: the last one to end puts torch.onnx back.
    """

    def __init__(self) -> None:
        self._counted: list[bool] = []

    def __bool__(self) -> bool:
        return hasattr(torch.onnx, _KEPT)

    def __enter__(self) -> None:
        with _LOCK:
            blocks = getattr(torch.onnx, _BLOCKS, 0)
            # After install() only uninstall() puts torch.onnx back.
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


def installed() -> Installed:
    """Whether ``torch.onnx.export`` is that of fxonnx; ``with installed():`` makes it so for the body."""
    return Installed()


@contextmanager
def enable_fake_mode() -> Iterator[FakeTensorMode]:
    """In the body, new tensors have a shape and a dtype and no values.

    A model made there takes no memory. It is exported there or later, and saved with its weights from elsewhere:
    ``program.save(path, weights=...)``. A model made before keeps its weights.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


class ExportableModule(torch.nn.Module, abc.ABC):
    """A module that knows how it is exported: a base class with example arguments, sizes and names to fill in."""

    @abc.abstractmethod
    def example_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
        """Positional and keyword example inputs."""

    def dynamic_shapes(self) -> Any:
        """Which sizes are dynamic; none by default."""
        return None

    def input_names(self) -> Sequence[str] | None:
        """Names of the graph inputs."""
        return None

    def output_names(self) -> Sequence[str] | None:
        """Names of the graph outputs."""
        return None

    def to_onnx(self, **options: Any) -> ONNXProgram:
        """Exports the module; options are those of ``fxonnx.export`` and come before the module's own."""
        return export(self, **options)


def export_to_pretty_string(model: torch.nn.Module, args: Any = (), **options: Any) -> str:
    """The graph of an export as text, with types, modules and lines of source; nothing is saved.

    Args:
        model: As for ``export``.
        args: Likewise.
        **options: Likewise; ``f`` is refused.

    Raises:
        ArgumentError: If ``f`` is given.
    """
    if options.pop("f", None) is not None:
        raise ArgumentError("f", "export_to_pretty_string saves nothing", hint="call export for a file")
    return graph_text(export(model, args, **options).model)


@contextmanager
def select_model_mode_for_export(model: torch.nn.Module, mode: TrainingMode | None) -> Iterator[None]:
    """Puts a model into the mode of an export for the body, and each of its modules into its own again afterwards.

    Raises:
        ArgumentError: If the mode is no ``torch.onnx.TrainingMode``.
    """
    with in_mode(model, check_training(mode)):
        yield
