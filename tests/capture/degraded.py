"""Exports where torch lacks one name: ``python -m tests.capture.degraded rows|names [NAME ...]`` prints one JSON line each.

Every name is tried in a process of its own, forked from this one. A row's target is renamed, as if torch had moved the
function; a private name is hidden from fxonnx only, so that torch itself works.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
COMPAT = ROOT / "translations/fxonnx_translations/_torch_compat.py"


class Branch(nn.Module):
    """A question about a value, which the capture turns into an If."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


class Seeded(nn.Module):
    """Random numbers that are the same in every call."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return x + torch.rand(4)


def models() -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """The models that must export, with an example and an input of another size."""
    torch.manual_seed(0)
    cnn = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
    )
    mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return {
        "cnn": (cnn.eval(), torch.rand(2, 3, 12, 12), torch.rand(3, 3, 16, 16)),
        "mlp": (mlp.eval(), torch.rand(3, 4), torch.rand(5, 4)),
        "transformer": (encoder.eval(), torch.rand(2, 5, 8), torch.rand(3, 7, 8)),
    }


def export_all(*, with_questions: bool) -> None:
    """Export all models, static and dynamic, and compare with the models at both sizes."""
    import fxonnx

    dims: dict[str, Any] = {"cnn": {0: "n", 2: "h", 3: "w"}, "mlp": {0: "n"}, "transformer": {0: "n", 1: "s"}}
    for name, (model, example, other) in models().items():
        static = fxonnx.export(model, (example,))
        dynamic = fxonnx.export(model, (example,), dynamic_shapes=[dims[name]])
        for program, inputs in ((static, example), (dynamic, example), (dynamic, other)):
            torch.testing.assert_close(program(inputs)[0], model(inputs), rtol=1e-4, atol=1e-5)
    if with_questions:
        for model, values in ((Branch(), [torch.ones(4), -torch.ones(4)]), (Seeded(), [torch.ones(4)])):
            program = fxonnx.export(model, (values[0],))
            for each in values:
                torch.testing.assert_close(program(each)[0], model(each))
        from fxonnx._cli.loading import load_model

        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/model.pt2"
            torch.export.save(torch.export.export(models()["mlp"][0], (torch.rand(3, 4),)), path)
            load_model(path)


def rows() -> list[Any]:
    """The rows of all tables of patches."""
    from fxonnx._capture.patches import all_patches

    return list(all_patches())


def names() -> dict[str, tuple[str, str]]:
    """Private names in the one module that imports them: the name there to module and attribute."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(COMPAT.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            for alias in node.names:
                found[f"{node.module}.{alias.name}"] = (node.module or "", alias.name)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("torch"):
            module, _, attribute = node.value.partition(":")
            if not attribute:
                module, _, attribute = module.rpartition(".")
            is_private = any(part.startswith("_") for part in f"{module}.{attribute}".split("."))
            if " " not in node.value and "`" not in node.value and attribute and "." not in attribute and is_private:
                found[f"{module}.{attribute}"] = (module, attribute)
    return found


class _Hiding(types.ModuleType):
    """A module of torch in which fxonnx does not find one name."""

    def __getattribute__(self, name: str) -> Any:
        real, hidden = object.__getattribute__(self, "real"), object.__getattribute__(self, "hidden")
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if name == hidden and caller.startswith("fxonnx"):
            raise AttributeError(f"module {real.__name__!r} has no attribute {name!r}")
        return getattr(real, name)


def hide(module: str, attribute: str) -> None:
    """Hide a name of torch from fxonnx, before fxonnx is imported."""
    real = importlib.import_module(module)
    with contextlib.suppress(ImportError):  # an attribute
        importlib.import_module(f"{module}.{attribute}")
    if f"{module}.{attribute}" in sys.modules:
        _hide_module(module, attribute)
        return
    stand_in = _Hiding(module)
    stand_in.real, stand_in.hidden = real, attribute  # type: ignore[attr-defined]
    sys.modules[module] = stand_in
    parent, _, name = module.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, stand_in)


def _hide_module(package: str, name: str) -> None:
    """Hide a module from the imports of fxonnx, by statement and by ``importlib.import_module``."""
    by_statement, by_function = builtins.__import__, importlib.import_module
    hidden = f"{package}.{name}"

    def statement(target: str, where: Any = None, names: Any = None, wanted: Any = (), level: int = 0) -> Any:
        asking = (where or {}).get("__name__", "").startswith("fxonnx")
        if asking and (target == hidden or (target == package and name in (wanted or ()))):
            raise ImportError(f"cannot import name {name!r} from {package!r}")
        return by_statement(target, where, names, wanted, level)

    def function(target: str, package: str | None = None) -> Any:
        if target == hidden and sys._getframe(1).f_globals["__name__"].startswith("fxonnx"):
            raise ModuleNotFoundError(f"No module named {target!r}")
        return by_function(target, package)

    vars(builtins)["__import__"] = statement
    vars(importlib)["import_module"] = function


def outcome(prepare: Callable[[], None], *, with_questions: bool = False) -> str:
    """The result of the exports in a forked process: "works", or the error."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = "works"
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                prepare()
                export_all(with_questions=with_questions)
        except BaseException as error:  # noqa: BLE001 - the outcome
            code = f"{type(error).__name__}: {error}"
        os.write(writer, code.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text or "the process died"


def of_rows(wanted: list[str]) -> Iterator[dict[str, str]]:
    """The outcome of each row."""
    for index, row in enumerate(rows()):
        label = f"{index} {row.target}"
        if wanted and label not in wanted:
            continue
        yield {
            "name": label,
            "kind": row.kind.value,
            "outcome": outcome(lambda row=row: rename(row), with_questions=True),  # type: ignore[misc]
        }


def rename(row: Any) -> None:
    """Let a row have a target that does not exist."""
    for other in rows():
        if other.target == row.target and other is not row:
            object.__setattr__(other, "target", f"{row.target}_moved")
    object.__setattr__(row, "target", f"{row.target}_moved")


def of_names(wanted: list[str]) -> Iterator[dict[str, str]]:
    """The outcome of each private name."""
    for label, (module, attribute) in names().items():
        if not wanted or label in wanted:
            yield {"name": label, "kind": "name", "outcome": outcome(lambda m=module, a=attribute: hide(m, a))}  # type: ignore[misc]


def main() -> None:
    """Print the outcomes."""
    kind, *wanted = sys.argv[1:]
    if kind == "names":
        # Modules that fxonnx imports must not be imported while a name is hidden.
        code = "import fxonnx, sys; print(*[name for name in sys.modules if name.startswith('torch')])"
        listed = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for module in listed.split():
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    else:
        import fxonnx  # noqa: F401
    torch.set_num_threads(1)
    for found in (of_names if kind == "names" else of_rows)(wanted):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
