"""Errors for keywords that ``export`` does not have: where they are now, or the name that was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from ._callers_autocast import without_autocast
from ._diagnostics import Diagnostics
from ._request import ExportOptions
from ._user_files import shortened
from .errors import ExportError, did_you_mean

__all__ = ["DIAGNOSTICS", "OPTIONS", "called_by_users", "unknown_keyword"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

OPTIONS = frozenset(field.name for field in fields(ExportOptions))
DIAGNOSTICS = frozenset(field.name for field in fields(Diagnostics))
_ONLY_TORCH_ONNX = frozenset(
    {
        "autograd_inlining",
        "compat",
        "custom_opsets",
        "do_constant_folding",
        "dynamic_axes",
        "dynamo",
        "export_modules_as_functions",
        "export_params",
        "keep_initializers_as_inputs",
        "operator_export_type",
        "training",
    }
)
_PLACES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            _ONLY_TORCH_ONNX, "fxonnx.torch_onnx_export takes it, and torch.onnx.export after fxonnx.install()"
        ),
        **dict.fromkeys(
            ("dummy_input", "example_inputs", "inputs", "sample_inputs"), "pass the example inputs as args"
        ),
        **dict.fromkeys(("file", "filename", "output", "path"), "pass the path as f, the third argument"),
        "device": "move the model and its inputs before the export",
        "dtype": "convert the model and its inputs before the export: model.half()",
        **{name: f"pass it as options=fxonnx.ExportOptions({name}=...)" for name in OPTIONS},
        **{name: f"pass it as diagnostics=fxonnx.Diagnostics({name}=...)" for name in DIAGNOSTICS},
    }
)
"""Keyword that ``export`` does not have to the place that has it."""


def unknown_keyword(name: str, known: Collection[str]) -> TypeError:
    """The error for a keyword that does not exist, with the one that was probably meant."""
    hint = did_you_mean(name, known)
    suggestion = "" if hint is None else f"; {hint}"
    return TypeError(f"export() got an unexpected keyword argument {name!r}{suggestion}")


def called_by_users(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Run without the caller's autocast, with short tracebacks; unknown keywords get their place or a suggestion."""
    known = inspect.signature(function).parameters.keys()

    @functools.wraps(function)
    def called(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        for name in kwargs.keys() - known:
            if name in _PLACES:
                raise TypeError(f"export() got the keyword {name!r}: {_PLACES[name]}")
            raise unknown_keyword(name, known)
        try:
            with without_autocast():
                return function(*args, **kwargs)
        except ExportError as error:
            raise shortened(error)  # noqa: B904 - its cause is its own

    return called
