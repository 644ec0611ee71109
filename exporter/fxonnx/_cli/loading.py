"""What the command line exports: a ``.pt2`` file, or a function that makes the model and its inputs."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    import torch

__all__ = ["Source", "load_source"]


@dataclass(frozen=True)
class Source:
    """The arguments of ``export`` that make the model.

    Attributes:
        model: The model or exported program.
        args: Positional example inputs.
        kwargs: Keyword example inputs.
        dynamic_shapes: As for ``export``.
    """

    model: torch.nn.Module | torch.export.ExportedProgram
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None


def load_source(text: str) -> Source:
    """Loads what the command line names.

    Args:
        text: ``model.pt2``, written by ``torch.export.save``, or ``package.module:function``, where the function takes
            nothing and returns (model, args), (model, args, kwargs) or (model, args, kwargs, dynamic_shapes).

    Raises:
        ArgumentError: If there is no such file or function, or it does not hold or return such a thing.
    """
    if text.endswith(".pt2"):
        return _from_file(Path(text))
    module, colon, function = text.partition(":")
    if not colon or not module or not function:
        raise ArgumentError(
            "SOURCE",
            f"{text} is neither a .pt2 file nor package.module:function",
            hint="for example mymodels:make_model",
        )
    return _from_function(module, function)


def _from_file(path: Path) -> Source:
    import torch

    from .._capture.patches import loading_patches

    if not path.is_file():
        raise ArgumentError("SOURCE", f"file {path} does not exist")
    swallowed = _SwallowedErrors()
    logger = logging.getLogger("torch.export")
    logger.addFilter(swallowed)
    try:
        # Other pickled objects than tensors can run anything when they are loaded.
        with loading_patches():
            return Source(torch.export.load(path))
    except Exception as error:
        raise ArgumentError(
            "SOURCE",
            f"{path} can not be loaded as an exported program: {(*swallowed.errors, error)[0]}",
            hint="write it with torch.export.save(torch.export.export(model, args), path)",
        ) from error
    finally:
        logger.removeFilter(swallowed)


class _SwallowedErrors(logging.Filter):
    """Errors that torch logs with a traceback before it fails with another one, which does not give the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep an error instead of logging it."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.errors.append(error)
        return error is None


def _from_function(module_name: str, function_name: str) -> Source:
    # A console script has its own directory there, not the user's.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ArgumentError("SOURCE", f"{module_name} can not be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    name = f"{module_name}:{function_name}"
    if not callable(function):
        found = "there is no such function" if function is None else f"a {type(function).__name__} is no function"
        raise ArgumentError("SOURCE", f"{name}: {found}")
    try:
        made = function()
    except Exception as error:
        raise ArgumentError("SOURCE", f"{name} raised {type(error).__name__}: {error}") from error
    return _checked(name, made)


def _checked(name: str, made: Any) -> Source:
    import torch

    if (
        not isinstance(made, tuple)
        or not 2 <= len(made) <= 4
        or not isinstance(made[0], (torch.nn.Module, torch.export.ExportedProgram))
    ):
        found = (
            f"({', '.join(type(part).__name__ for part in made)})" if isinstance(made, tuple) else type(made).__name__
        )
        raise ArgumentError(
            "SOURCE", f"{name} returned {found}", hint="return (model, args), with kwargs and dynamic_shapes if needed"
        )
    model, args, kwargs, dynamic_shapes = (*made, None, None)[:4]
    return Source(model, args, kwargs or {}, dynamic_shapes)
