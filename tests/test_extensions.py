"""The seam between the core and its add-ons: no import across it, and nothing of an add-on that does not apply."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx._extensions import ADD_ONS, active_extensions, all_extensions, extended, extensions_of_graph

PACKAGE = Path(fxonnx.__file__).parent
ADD_ON_ROOMS = ("quantization", "torchscript", "diagnostics", "genai", "huggingface", "_transformers", "_cli")
CORE = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__main__.py"  # of the command
    and path != PACKAGE / "__init__.py"
    and path.relative_to(PACKAGE).parts[0].removesuffix(".py") not in ADD_ON_ROOMS
]


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, from the folder of the package on."""
    parents = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else ()
            found = (*base, *(node.module or "").removeprefix("fxonnx.").split("."))
            yield ".".join(found)
        elif isinstance(node, ast.Import):
            yield from (name.name.removeprefix("fxonnx.") for name in node.names)


def test_models_of_transformers_are_exported_by_public_names() -> None:
    """Other names of the exporter are imported by one module, which lists them."""
    room = PACKAGE / "_transformers"
    assert set(import_module("fxonnx._transformers.core").__all__) == set(_names_imported_from(room, {"core"}))
    for path in sorted({*room.rglob("*.py")} - {room / "core.py"}):
        others = {module.partition(".")[0] for module in imported(path)} & {*PRIVATE, *ADD_ON_ROOMS}
        assert others <= {"_transformers"}, path


PRIVATE = {path.stem for path in PACKAGE.glob("_[a-z]*")}


def _names_imported_from(room: Path, modules: set[str]) -> Iterator[str]:
    for path in room.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level and node.module in modules:
                yield from (name.name for name in node.names)


def test_the_core_imports_no_add_on() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {module}"
        for path in CORE
        for module in imported(path)
        if module.partition(".")[0] in ADD_ON_ROOMS
    }
    assert not found


def test_functions_that_the_core_asks_add_ons_for_exist() -> None:
    calls = [
        (node.value.args[0].value, node.attr)
        for path in CORE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call)
        if isinstance(node.value.func, ast.Name) and node.value.func.id == "add_on"
        if isinstance(node.value.args[0], ast.Constant)
    ]
    assert len(calls) >= 8
    for name, attribute in calls:
        assert attribute in import_module(f"fxonnx.{name}.extension").__all__


PLAIN = """
import json, sys
import torch
import fxonnx
from torch import nn

called = set()

def record(frame, event, argument):
    if event == "call":
        code = frame.f_code
        if any(f"/fxonnx/{room}/" in code.co_filename for room in ROOMS):
            called.add(f"{code.co_filename.rpartition('/fxonnx/')[2]}:{code.co_name}")

models = [
    (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()), torch.randn(2, 3, 8, 8)),
    (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)), torch.randn(2, 4)),
    (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)),
]
for model, x in models:
    fxonnx.export(model.eval(), (x,), dynamic_shapes=({0: "batch"},))
    sys.setprofile(record)
    program = fxonnx.export(model.eval(), (x,), dynamic_shapes=({0: "batch"},), verify=True)
    sys.setprofile(None)
modules = sorted(name for name in sys.modules if name.startswith("fxonnx.") and name.split(".")[1] in ROOMS)
print(json.dumps([sorted(called), modules]))
"""


def test_add_ons_that_do_not_apply_cost_nothing() -> None:
    """Of an add-on, plain exports call only the conditions, and import nothing else."""
    code = f"ROOMS = {ADD_ON_ROOMS!r}\n{PLAIN}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    called, modules = json.loads(done.stdout.splitlines()[-1])
    assert {entry.partition(":")[0] for entry in called} <= {"quantization/applies.py", "torchscript/applies.py"}
    assert {name.partition(":")[2].lstrip("<") for name in called if "<" not in name} <= {
        "applies_to_graph",
        "applies_to_model",
        "has_translations",
    }
    packages = [name.removeprefix("fxonnx.") for name in ADD_ONS]
    assert modules == sorted(f"fxonnx.{name}{part}" for name in packages for part in ("", ".applies"))


CONDITIONS = {
    "applies_to_model": ("stand_in", "tracing", "interpreters", "patches", "check_outputs"),
    "applies_to_graph": ("graph_pass", "least_opset"),
    "has_translations": ("translations",),
}
"""The condition of an add-on to the hooks that it decides on."""


@pytest.mark.parametrize("name", ADD_ONS)
def test_no_hook_lacks_its_condition(name: str) -> None:
    """Without the condition the hook never runs."""
    extension = import_module(f"{name}.extension").EXTENSION
    applies = import_module(f"{name}.applies")
    assert {field.name for field in fields(extension)} == {hook for hooks in CONDITIONS.values() for hook in hooks}
    for condition, hooks in CONDITIONS.items():
        assert not any(getattr(extension, hook) for hook in hooks) or hasattr(applies, condition)


class Quantizes(nn.Module):
    """Code that quantizes, with no quantized module."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()


class HasQuantizedBuffer(nn.Module):
    """A quantized tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.dequantize()


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Linear(2, 2), []),
        (Quantizes(), ["fxonnx.quantization"]),
        (HasQuantizedBuffer(), ["fxonnx.quantization"]),
        (nn.Sequential(torch.ao.nn.quantized.Linear(2, 2)), ["fxonnx.quantization"]),
    ],
)
def test_which_add_ons_apply_to_a_model(model: nn.Module, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Functions that other tests have scripted exist in this process.
    monkeypatch.setattr("fxonnx.torchscript.applies.has_scripted_functions", lambda: False)
    expected = [import_module(f"{name}.extension").EXTENSION for name in names]
    with extended(model):
        assert list(active_extensions()) == expected
    assert active_extensions() == ()


def test_scripted_modules_and_functions() -> None:
    script, quantization, *_ = all_extensions()
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.randn(1, 2))
    with extended(nn.Sequential(scripted)):
        assert active_extensions()[:2] == (script, quantization)
    with extended(nn.Linear(2, 2)):
        assert script in active_extensions()


@pytest.mark.parametrize(("dtype", "applies"), [(torch.float32, False), (torch.int8, True), (torch.uint8, True)])
def test_which_graphs_may_have_low_precision_weights(dtype: torch.dtype, applies: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(2, 2, dtype=dtype))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.float()

    program = torch.export.export(Model(), (torch.randn(2, 2),))
    (weight, _) = program.graph.find_nodes(op="placeholder")
    assert bool(extensions_of_graph(program.graph, [weight])) == applies


TALLY = """
import pickle

from torch import nn


class Tally(nn.Module):
    def __init__(self):
        super().__init__()
        self.means, self.enabled = [], True

    def forward(self, x):
        if self.enabled:
            self.means.append(pickle.dumps(x.mean()))
        return x
"""


def test_the_add_on_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PACKAGE.parents[1] / "docs/architecture.md").read_text()
    blocks = re.findall(r'```python title="tally/(\w+)\.py"\n(.*?)```', page, re.DOTALL)
    assert [name for name, _ in blocks] == ["applies", "extension"]
    assert sum(len(code.splitlines()) for _, code in blocks) <= 30
    (tmp_path / "tally").mkdir()
    for name, code in [("__init__", TALLY), *blocks]:
        (tmp_path / f"tally/{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    model = nn.Sequential(import_module("tally").Tally(), nn.ReLU()).eval()
    x = torch.randn(3)
    with pytest.raises(fxonnx.CaptureError, match="pickle"):
        fxonnx.export(model, (x,))
    monkeypatch.setattr("fxonnx._extensions.ADD_ONS", (*ADD_ONS, "tally"))
    model[0].means.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = fxonnx.export(model, (x,))
    assert model[0].enabled
    assert not model[0].means
    torch.testing.assert_close(program(x)[0], model(x))
