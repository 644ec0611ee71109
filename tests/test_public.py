"""The public surface: names, their documentation, the signature of export, and its types for mypy."""

from __future__ import annotations

import gc
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fxonnx
import fxonnx_translations

ROOT = Path(__file__).parent.parent
X = (torch.ones(2, 3),)


@pytest.mark.parametrize("package", [fxonnx, fxonnx_translations], ids=lambda package: package.__name__)
def test_dir_shows_the_public_names(package: object) -> None:
    names = [name for name in dir(package) if not name.startswith("__")]
    assert set(names) - {"errors", "genai", "huggingface"} == set(package.__all__)
    assert all(hasattr(package, name) for name in dir(package))


@pytest.mark.parametrize("package", [fxonnx, fxonnx_translations], ids=lambda package: package.__name__)
def test_other_modules_are_private(package: object) -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert {name for name in modules if not name.startswith("_")} <= {
        "diagnostics",
        "errors",
        "genai",
        "huggingface",
        "quantization",
        "torchscript",
    }


@pytest.mark.parametrize("name", fxonnx.__all__)
def test_public_names_are_documented_as_those_of_the_package(name: str) -> None:
    value = getattr(fxonnx, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__module__ == "fxonnx"
        assert getattr(fxonnx, value.__name__) is value
        assert inspect.getdoc(value)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="module 'fxonnx' has no attribute 'exprot'"):
        _ = fxonnx.exprot


@pytest.mark.parametrize("enabled", [True, False])
def test_imports_leave_the_garbage_collector_as_it_was(enabled: bool) -> None:
    """They pause it, since torch has many objects."""
    state = f"gc.{'enable' if enabled else 'disable'}()"
    line = f"import gc, sys, fxonnx; {state}; fxonnx.ExportError; sys.exit(gc.isenabled() is not {enabled})"
    subprocess.run([sys.executable, "-c", line], check=True)


@pytest.mark.parametrize("thresholds", [(700, 10, 10), (100_000, 30, 5), (0, 10, 10)])
def test_an_export_leaves_the_thresholds_of_the_garbage_collector(thresholds: tuple[int, int, int]) -> None:
    """They are higher during it, unless the user has turned collections off."""
    seen = []

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(gc.get_threshold())
            return x * 2

    before = gc.get_threshold()
    try:
        gc.set_threshold(*thresholds)
        fxonnx.export(Model(), torch.ones(2))
        after = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
    assert after == thresholds
    assert seen[0] == ((max(thresholds[0], 50_000), max(thresholds[1], 20), 1000) if thresholds[0] else thresholds)


def test_help_begins_with_export_and_an_example() -> None:
    text = pydoc.plain(pydoc.render_doc(fxonnx))
    assert "Export PyTorch models to ONNX" in text.split("DESCRIPTION")[0]
    assert text.index("program = fxonnx.export(model") < text.index('program.save("model.onnx")') < 700


def test_the_version_is_that_of_the_distribution() -> None:
    assert re.search(rf'^version = "{re.escape(fxonnx.__version__)}"$', (ROOT / "pyproject.toml").read_text(), re.M)


def test_wrong_keywords_are_rejected_with_a_suggestion() -> None:
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'dynamic_shape'; did you mean 'dynamic_shapes'\?"
    ):
        fxonnx.export(nn.ReLU(), X, dynamic_shape=({0: "batch"},))
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'opset'; did you mean 'opset_version'\?"):
        fxonnx.export(nn.ReLU(), X, opset=17)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'xyz'$"):
        fxonnx.export(nn.ReLU(), X, xyz=1)
    # An older keyword of torch.onnx.export belongs to the drop-in function only.
    with pytest.raises(TypeError, match="unexpected keyword argument 'use_external_data_format'"):
        fxonnx.export(nn.ReLU(), X, use_external_data_format=True)
    with fxonnx.installed(), pytest.raises(TypeError, match="did you mean 'opset_version'"):
        torch.onnx.export(nn.ReLU(), X, opset_versoin=18)


def test_the_signature_is_closed() -> None:
    parameters = inspect.signature(fxonnx.export).parameters.values()
    assert inspect.Parameter.VAR_KEYWORD not in {parameter.kind for parameter in parameters}


def test_warnings_point_to_the_line_of_the_caller() -> None:
    with pytest.warns(UserWarning, match="training mode") as caught:
        fxonnx.export(nn.Dropout(), X)
    assert caught[0].filename == __file__
    with fxonnx.installed(), pytest.warns(DeprecationWarning, match="example_outputs") as older:
        torch.onnx.export(nn.ReLU().eval(), X, None, example_outputs=X)
    assert older[0].filename == __file__


def test_types(tmp_path: Path) -> None:
    """A user's script passes mypy --strict; the wrong calls are errors in the lines that are marked ``# error``."""
    scripts = [ROOT / "tests" / "typing" / name for name in ("correct.py", "wrong.py")]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--hide-error-context",
        *map(str, scripts),
    ]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = {int(line) for line in re.findall(r"wrong\.py:(\d+): error", printed)}
    marked = {number for number, line in enumerate(scripts[1].read_text().splitlines(), 1) if "# error" in line}
    assert found == marked, printed
    assert "correct.py" not in printed, printed
