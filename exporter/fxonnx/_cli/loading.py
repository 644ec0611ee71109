"""Loading of the model to export: from a ``.pt2`` file or from a function that creates it."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._paths import is_file, missing_file
from ..errors import ArgumentError, UntestedTorchError, did_you_mean, kind_of
from .choices import CHOICES

if TYPE_CHECKING:
    import torch

__all__ = ["LoadedModel", "load_model", "read_quantization", "read_weight_quantization"]


@dataclass(frozen=True)
class LoadedModel:
    """A model with its example inputs, as arguments of ``export``.

    Attributes:
        model: The model or exported program.
        args: Positional example inputs.
        kwargs: Keyword example inputs.
        dynamic_shapes: Dynamic dims, as for ``export``.
    """

    model: torch.nn.Module | torch.export.ExportedProgram
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None


def load_model(text: str) -> LoadedModel:
    """Load the model that the SOURCE argument specifies.

    Args:
        text: ``model.pt2``, written by ``torch.export.save``, or ``package.module:function``. The function takes no
            arguments and returns (model, args), (model, args, kwargs) or (model, args, kwargs, dynamic_shapes).

    Raises:
        ArgumentError: If the file or function does not exist, cannot be loaded or called, or returns something else.
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


def _from_file(path: Path) -> LoadedModel:
    import torch

    from .._archives import UnsafeContentError, check_archive_size
    from .._capture.patches import loading_patches  # imports torch

    if not is_file(path, "SOURCE"):
        raise missing_file(path, "SOURCE")
    logged = _LoggedErrors()
    logger = logging.getLogger("torch.export")
    logger.addFilter(logged)
    try:
        check_archive_size(path)
        # Unpickling arbitrary objects can run arbitrary code.
        with loading_patches():
            return LoadedModel(torch.export.load(path))
    except UnsafeContentError as error:
        hint = "torch.export.save writes no such entry; do not load the file by torch.export.load, which may execute it"
        raise ArgumentError("SOURCE", f"{path} is refused: {error}", hint=hint) from error
    except UntestedTorchError:
        raise
    except Exception as error:
        raise ArgumentError(
            "SOURCE",
            f"{path} cannot be loaded as an exported program: {(*logged.errors, error)[0]}",
            hint="write it with torch.export.save(torch.export.export(model, args), path)",
        ) from error
    finally:
        logger.removeFilter(logged)


class _LoggedErrors(logging.Filter):
    """Collects the errors that torch logs before it raises another one that lacks the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Collect the error of a record instead of logging it."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.errors.append(error)
        return error is None


def _from_function(module_name: str, function_name: str) -> LoadedModel:
    # sys.path[0] of a console script is its own directory instead of the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        problem = f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        raise ArgumentError("SOURCE", problem, hint=_similar_module(module_name, error)) from error
    function = getattr(module, function_name, None)
    name = f"{module_name}:{function_name}"
    if not callable(function):
        found = (
            "the module has no such function"
            if function is None
            else f"expected a function, got {type(function).__name__}"
        )
        hint = did_you_mean(function_name, vars(module)) if function is None else None
        raise ArgumentError("SOURCE", f"{name}: {found}", hint=hint)
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise ArgumentError("SOURCE", f"{name} raised {type(error).__name__}: {error}") from error
    return _checked_result(name, returned)


def _similar_module(name: str, error: BaseException) -> str | None:
    """The hint for a path in place of the name of a module, or for a name that is similar to a module's."""
    plain = name.removesuffix(".py").replace("/", ".").strip(".")
    if plain != name:
        return f"write the module as in an import statement: {plain}"
    is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
    return did_you_mean(name, (path.stem for path in Path.cwd().glob("*.py"))) if is_missing else None


def _checked_result(name: str, returned: Any) -> LoadedModel:
    import torch

    if (
        not isinstance(returned, tuple)
        or not 2 <= len(returned) <= 4
        or not isinstance(returned[0], (torch.nn.Module, torch.export.ExportedProgram))
    ):
        found = (
            f"({', '.join(type(part).__name__ for part in returned)})"
            if isinstance(returned, tuple)
            else type(returned).__name__
        )
        raise ArgumentError(
            "SOURCE", f"{name} returned {found}", hint="return (model, args), with kwargs and dynamic_shapes if needed"
        )
    model, args, kwargs, dynamic_shapes = (*returned, None, None)[:4]
    return LoadedModel(model, args, kwargs or {}, dynamic_shapes)


def read_quantization(dtype: str | None, calibration: Path | None, *, dynamic_activations: bool) -> Any:
    """Return the argument ``quantize`` of ``export`` for the options of the command line.

    Args:
        dtype: Element type of the weights; None for floating-point numbers.
        calibration: The file with the batches, if any.
        dynamic_activations: Whether each call quantizes the activations.

    Raises:
        ArgumentError: If the batches cannot be loaded, or activations are to be quantized without weights.
    """
    if calibration is None and not dynamic_activations:
        return dtype
    from .._quantize_config import QuantizeConfig  # imports torch

    if dtype is None:
        option = "--dynamic-activations" if calibration is None else "--calibration"
        raise ArgumentError(option, "activations are quantized together with weights", hint="pass --quantize int8")
    activations: Any = "dynamic" if dynamic_activations else None
    batches = None if calibration is None else _load_calibration(calibration)
    return QuantizeConfig(dtype, activations=activations, calibration=batches)  # type: ignore[arg-type]


def read_weight_quantization(precision: str, options: Mapping[str, Any]) -> Any:
    """Return the argument ``quantize`` of ``genai.export`` for the options of the command line.

    Args:
        precision: The option ``--precision``, or ``--recipe`` in place of it.
        options: Attribute of ``QuantizeConfig`` to the option of that name; None for those that were not given.

    Raises:
        ArgumentError: If the weights of the precision are not quantized, or a recipe specifies how.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return None
    from .._quantize_config import QuantizeConfig  # imports torch

    option = f"--{next(iter(given)).replace('_', '-')}"
    if precision in CHOICES["recipe"]:
        hint = f"leave {option} out, or pass --precision int4 or int8 in place of --recipe"
        raise ArgumentError(option, f"the recipe {precision!r} includes it", hint=hint)
    if precision in ("fp32", "fp16", "bf16"):
        raise ArgumentError(option, f"weights in {precision} are not quantized", hint="pass --precision int4 or int8")
    return QuantizeConfig(**{"dtype": precision, **given})


def _load_calibration(path: Path) -> list[Any]:
    """Load the batches that the option ``--calibration`` specifies.

    Args:
        path: A ``.pt`` file with a list of batches, or a ``.npz`` file with one array per argument, whose first axis
            separates the batches.

    Raises:
        ArgumentError: If the file does not exist or cannot be loaded, or has another content.
    """
    import numpy as np
    import torch

    from .._archives import check_archive_size

    if path.suffix not in (".pt", ".npz"):
        raise ArgumentError("--calibration", f"{path} is neither a .pt nor a .npz file")
    try:
        check_archive_size(path)
        if path.suffix == ".pt":
            batches = torch.load(path, weights_only=True)
        else:
            with np.load(path) as arrays:
                columns = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
            rows = zip(*columns.values(), strict=True)
            batches = [dict(zip(columns, row, strict=True)) for row in rows]
    except Exception as error:  # a file may have any content
        raise ArgumentError("--calibration", f"{path} cannot be loaded: {error}") from error
    if not isinstance(batches, list):
        raise ArgumentError(
            "--calibration",
            f"{path} contains {kind_of(batches)}, not a list of batches",
            hint="write it with torch.save([batch, ...], path)",
        )
    return batches
