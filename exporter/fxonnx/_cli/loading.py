"""Loading of the model to export: from a ``.pt2`` file or from a function that creates it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._paths import is_file, missing_file
from ..errors import ArgumentError, UntestedTorchError, did_you_mean, kind_of
from .choices import CHOICES
from .inputs import example_inputs, read_dynamic

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


def load_model(text: str, inputs: Sequence[str] = (), dynamic: Sequence[str] = ()) -> LoadedModel:
    """Load the model that the SOURCE argument specifies."""
    import torch

    if text.endswith(".pt2"):
        for option in ("--input",) * bool(inputs) + ("--dynamic",) * bool(dynamic):
            raise ArgumentError(option, "a .pt2 file has its inputs and dims", hint=f"leave {option} out")
        return _from_file(Path(text))
    place, name = _split(text)
    module = _of_file(Path(place)) if place.endswith(".py") else _of_import(place)
    loaded = _from_object(vars(module), f"{place}:{name}", name, inputs)
    if not dynamic:
        return loaded
    if loaded.dynamic_shapes is not None:
        raise ArgumentError("--dynamic", f"{text} returns dynamic_shapes", hint="leave one of them out")
    if not isinstance(loaded.model, torch.nn.Module):
        raise ArgumentError("--dynamic", f"{text} returns an exported program, which has its dims", hint="leave it out")
    return replace(loaded, dynamic_shapes=read_dynamic(dynamic, loaded.model, loaded.args, loaded.kwargs))


def _split(text: str) -> tuple[str, str]:
    """The module or file, and the name in it."""
    place, colon, name = text.rpartition(":")
    if not place.endswith(".py"):
        place, colon, name = text.partition(":")
    if place.endswith(".py") and not colon:
        problem = f"{text} has to be followed by the name of a class or function"
        raise ArgumentError("SOURCE", problem, hint=f"for example {text}:{_first_name(Path(text))}")
    if not colon or not place or not name:
        raise ArgumentError(
            "SOURCE",
            f"{text} is neither a .pt2 file nor package.module:function nor file.py:function",
            hint="for example mymodels:make_model",
        )
    return place, name


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


def _of_import(name: str) -> ModuleType:
    """Import a module by its name."""
    # sys.path[0] of a console script is its own directory instead of the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return _run(name, lambda: importlib.import_module(name))


def _of_file(path: Path) -> ModuleType:
    """Run a file as a module of its name, with its directory on the path, like ``python file.py``."""
    if not is_file(path, "SOURCE"):
        raise missing_file(path, "SOURCE")
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem
    while name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
        name += "_"  # a file may have the name of an imported module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError("SOURCE", f"{path} is not a file of Python")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[name] = module

    def load() -> ModuleType:
        loader.exec_module(module)
        return module

    return _run(str(path), load)


def _run(name: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Load a module of the user."""
    try:
        return load()
    except (Exception, SystemExit) as error:
        problem = f"{name} cannot be imported: {type(error).__name__}: {error}"
        raise ArgumentError("SOURCE", problem, hint=_similar_module(name, error)) from error


def _from_object(names: Mapping[str, Any], label: str, name: str, inputs: Sequence[str]) -> LoadedModel:
    """Load a model, or the result of a class or function."""
    import torch

    found = names.get(name)
    if not callable(found):
        kind = type(found).__name__
        problem = "the module has no such function" if found is None else f"expected a function, got {kind}"
        hint = did_you_mean(name, names) if found is None else None
        raise ArgumentError("SOURCE", f"{label}: {problem}", hint=hint)
    made = found if isinstance(found, torch.nn.Module) else _made(found, label)
    if isinstance(made, torch.nn.Module):
        is_function = found is not made and not isinstance(found, type)
        if not inputs and _needs_arguments(made.forward):
            kind = type(made).__name__
            problem = f"{label} returned {kind}" if is_function else f"{label} is a {kind} without example inputs"
            hint = f"{'return (model, args), or ' * is_function}pass --input 1,3,224,224:float32, once for each input"
            raise ArgumentError("SOURCE", problem, hint=hint)
        # Whoever writes a class and not a function cannot call eval.
        return LoadedModel(made.eval() if isinstance(found, type) else made, *example_inputs(inputs))
    if inputs:
        raise ArgumentError("--input", f"{label} returns its inputs", hint="leave --input out")
    return _checked_result(label, made)


def _made(function: Callable[[], Any], label: str) -> Any:
    """The result of a class or function; random weights of a class are the same ones in each process."""
    import torch

    with torch.random.fork_rng(devices=[], enabled=isinstance(function, type)):
        if isinstance(function, type):
            torch.manual_seed(0)
        try:
            return function()
        except (Exception, SystemExit) as error:
            hint = None
            if _needs_arguments(function):
                hint = "write a function without arguments that returns the model, and pass its name"
            raise ArgumentError("SOURCE", f"{label} raised {type(error).__name__}: {error}", hint=hint) from error


def _needs_arguments(function: Callable[[], Any]) -> bool:
    """Whether it cannot be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # it has no signature
        return False
    return False


def _first_name(path: Path) -> str:
    """The first class or function of a file, which is not run."""
    try:
        statements = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        statements = []
    found = (one.name for one in statements if isinstance(one, (ast.ClassDef, ast.FunctionDef)))
    return next(found, "make_model")


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
            "SOURCE",
            f"{name} returned {found}",
            hint="return (model, args), with kwargs and dynamic_shapes if needed, or a model and pass --input",
        )
    model, args, kwargs, dynamic_shapes = (*returned, None, None)[:4]
    return LoadedModel(model, args, kwargs or {}, dynamic_shapes)


def read_quantization(dtype: str | None, calibration: Path | None, *, dynamic_activations: bool) -> Any:
    """Return the argument ``quantize`` of ``export`` for the options of the command line."""
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
    """Return the argument ``quantize`` of ``genai.export`` for the options of the command line."""
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
    """Load the batches that the option ``--calibration`` specifies."""
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
