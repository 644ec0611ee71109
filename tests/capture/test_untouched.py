"""An export changes nothing of the caller's model, inputs and process, whatever ``forward`` changes."""

from __future__ import annotations

import importlib.util
import random
import warnings
from collections import deque
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import fxonnx
from tests.untouched import untouched


class Slots:
    """An object without ``__dict__``."""

    __slots__ = ("count", "tensor")

    def __init__(self) -> None:
        self.count, self.tensor = 0, torch.ones(3)


class Model(nn.Module):
    """The parts that the programs below change."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("h", torch.zeros(3))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.plain = torch.ones(3)
        self.numbers = np.ones(3)
        self.step = 0
        self.values: list[Any] = [torch.ones(3)]
        self.table: dict[str, Any] = {"a": {"b": torch.ones(3)}}
        self.holder = SimpleNamespace(inner=SimpleNamespace(tensor=torch.ones(3), steps=[0]))
        self.slots = Slots()
        self.queue: deque[Any] = deque([torch.zeros(3)], maxlen=2)
        self.bytes = bytearray(3)
        self.random = random.Random(0)
        self.generator = torch.Generator()


STEP = "self.step += 1\nx = x * self.step"
PROGRAMS = {
    "statistics of batch norm": f"{STEP}\nreturn self.norm(x)",
    "parameter through data": f"{STEP}\nself.w.data.mul_(0.5)\nreturn x * self.w",
    "parameter assigned through data": f"{STEP}\nself.w.data = self.w.data * 0.5\nreturn x * self.w",
    "parameter without gradient": f"{STEP}\nwith torch.no_grad():\n    self.w.mul_(0.5)\nreturn x * self.w",
    "frozen parameter": f"{STEP}\nself.frozen.mul_(0.5)\nreturn x * self.frozen",
    "buffer": f"{STEP}\nself.h.add_(x.mean(0))\nreturn x + self.h",
    "buffer through data": f"{STEP}\nself.h.data.add_(1)\nreturn x + self.h",
    "buffer that is not part of the state": f"{STEP}\nself.hidden.data.add_(x.mean(0))\nreturn x + self.hidden",
    "buffer that is assigned": f"{STEP}\nself.h = self.h + x.mean(0)\nreturn x + self.h",
    "mode of a module": f"{STEP}\nself.norm.eval()\nself.dropout.eval()\nreturn self.norm(x)",
    "mode of the model": f"{STEP}\nself.train(not self.training)\nreturn self.norm(x)",
    "plain tensor": f"{STEP}\nself.plain.add_(1)\nreturn x + self.plain",
    "plain tensor through data": f"{STEP}\nself.plain.data.add_(1)\nreturn x + self.plain",
    "tensor in a list": f"{STEP}\nself.values[0].data.add_(1)\nreturn x + self.values[0]",
    "tensor in a dict": f"{STEP}\nself.table['a']['b'].add_(1)\nreturn x + self.table['a']['b']",
    "tensor in an object": f"{STEP}\nself.holder.inner.tensor.data.add_(1)\nreturn x + self.holder.inner.tensor",
    "slots": f"{STEP}\nself.slots.count += 1\nself.slots.tensor.data.add_(1)\nreturn x + self.slots.tensor",
    "containers": f"{STEP}\nself.values.append(self.step)\nself.table['c'] = self.step\n"
    "self.holder.inner.steps.append(1)\nself.queue.append(self.step)\nreturn x * len(self.values)",
    "bytes": f"{STEP}\nself.bytes[0] += 1\nreturn x * self.bytes[0]",
    "array": f"{STEP}\nself.numbers += 1\nreturn x * float(self.numbers[0])",
    "requires grad": f"{STEP}\nself.w.requires_grad_(False)\nself.frozen.requires_grad_(True)\nreturn x * self.w",
    "gradients": f"{STEP}\nself.w.grad = torch.ones(3)\nreturn x * self.w",
    "gradients in place": f"{STEP}\nself.w.grad.add_(1)\nreturn x * self.w",
    "hooks": f"{STEP}\nself.linear.register_forward_hook(lambda module, args, result: result * 2)\n"
    "return self.linear(x)",
    "hooks of a parameter": f"{STEP}\nself.w.register_hook(lambda grad: grad)\nreturn x * self.w",
    "Python's generator": f"{STEP}\nreturn x * random.random()",
    "NumPy's generator": f"{STEP}\nreturn x * float(np.random.rand())",
    "torch's generator": f"{STEP}\nreturn x * torch.rand(3)",
    "own generator": f"{STEP}\nreturn x * self.random.random()",
    "seed": f"{STEP}\ntorch.manual_seed(0)\nrandom.seed(0)\nreturn x * torch.rand(3)",
    "input": f"{STEP}\nx.data.add_(1)\nreturn x",
    "input in place": "x.add_(1)\nself.step += 1\nreturn x * self.step",
    "modes of the process": f"{STEP}\ntorch.set_grad_enabled(not torch.is_grad_enabled())\nreturn x * self.w",
    "attribute of a parameter": f"{STEP}\nself.w.seen = getattr(self.w, 'seen', 0) + 1\nreturn x * self.w.seen",
    "eager code only": f"{STEP}\nif not torch.compiler.is_compiling():\n    self.w.data.mul_(0.5)\nreturn x + 1",
    "branch on data": "if x.sum() > 0:\n    self.w.data.mul_(0.5)\n    return x * self.w\nreturn x + self.h",
}
REFUSED = {
    "the model fails": f"{STEP}\nself.w.data.mul_(0.5)\nself.norm(x)\nself.values.append(x)\nraise ValueError('no')",
    "the capture fails": f"{STEP}\nself.w.data.mul_(0.5)\nself.norm(x)\nreturn x * float(x.numpy().sum())",
    "errors are handled": "try:\n    n = x.numpy().sum()\nexcept RuntimeError:\n    n = 1\n"
    "self.w.data.mul_(0.5)\nself.norm(x)\nreturn x * float(n)",
}


def made(body: str, folder: Path) -> nn.Module:
    """A model in training mode, with a forward whose source code is in a file."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    path = folder / "changing_program.py"
    path.write_text(
        "import random\nimport numpy as np\nimport torch\nfrom tests.capture.test_untouched import Model\n"
        f"class Program(Model):\n    def forward(self, x):\n{lines}\n"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.Program()
    return model


@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
@pytest.mark.parametrize("body", [*PROGRAMS.values(), *REFUSED.values()], ids=[*PROGRAMS, *REFUSED])
def test_nothing_is_changed(body: str, verify: bool, tmp_path: Path) -> None:
    model = made(body, tmp_path)
    model.w.grad = torch.full((3,), 2.0)
    x = torch.rand(4, 3)
    with warnings.catch_warnings(), untouched(model, x), suppress(fxonnx.ExportError):
        warnings.simplefilter("ignore")
        fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), verify=verify)


@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
@pytest.mark.parametrize(
    "body",
    [
        f"{STEP}\nself.h.mul_(2)\nreturn x * self.w + self.h",
        f"{STEP}\nwith torch.no_grad():\n    self.w.mul_(2)\nreturn x * self.w",
        f"{STEP}\nreturn self.norm(x) * self.w",
        f"{STEP}\nself.plain.mul_(2)\nreturn x * self.w * self.plain",
        "self.values[0].mul_(2)\nreturn x * self.w * self.values[0]",
    ],
    ids=["buffer", "parameter", "batch norm", "plain tensor", "tensor in a list"],
)
def test_a_call_before_the_export_has_its_gradients(body: str, verify: bool, tmp_path: Path) -> None:
    expected: torch.Tensor | None = None
    for exports in (False, True):
        torch.manual_seed(0)
        model, x = made(body, tmp_path), torch.rand(4, 3)
        # Autograd keeps tensors of this call, to which the calls of the export write.
        y = ((model.h + 1) * (model.plain + 1) * (model.values[0] + 1) * model.w * model.norm.eval()(x)).square().sum()
        model.train()
        if exports:
            with warnings.catch_warnings(), suppress(fxonnx.ExportError):
                warnings.simplefilter("ignore")
                fxonnx.export(model, (x,), verify=verify)
        y.backward()
        found = model.w.grad
        assert found is not None
        expected = found if expected is None else expected
        torch.testing.assert_close(found, expected)


class Scale(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 3


@pytest.mark.parametrize("has_run", [False, True], ids=["", "after a call"])
@pytest.mark.parametrize("kind", ["scaled", "weight norm", "orthogonal"])
def test_caches_of_parametrizations(kind: str, has_run: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).eval()
    if kind == "scaled":
        parametrize.register_parametrization(model[0], "weight", Scale())
    elif kind == "weight norm":
        parametrizations.weight_norm(model[0])
    else:
        parametrizations.orthogonal(model[0])
    x = torch.rand(4, 3)
    expected = model(x)
    with parametrize.cached():
        if has_run:
            model(x)
        with untouched(model, x):
            program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), verify=True)
        torch.testing.assert_close(model(x), expected)
        with untouched(model, x):
            program.verify()
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(program(torch.cat([x, x]))[0], torch.cat([expected, expected]))


class Sharing(nn.Module):
    """Tied weights, views and expanded tensors, which share memory.

    Args:
        writes: Whether forward writes to one of several buffers in the same memory, which is an error.
    """

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.other.weight = self.one.weight
        flat = torch.arange(12.0)
        self.register_buffer("flat", flat)
        self.register_buffer("view", flat[3:6])
        self.register_buffer("expanded", flat[:1].expand(3))
        self.register_buffer("complex", torch.ones(3, dtype=torch.complex64))
        self.register_buffer("odd", torch.ones(7, dtype=torch.uint8)[1:4])
        self.register_buffer("transposed", torch.arange(9.0).reshape(3, 3).T)
        self.alias = flat[6:9]
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.one.weight.data.mul_(0.5)
        if self.writes:
            self.flat.data.add_(1)
            self.view.add_(1)
            self.alias.add_(1)
        self.complex.mul_(1j)
        self.odd.add_(1)
        self.transposed.data.add_(1)
        return self.one(x) + self.other(x) * self.steps + self.flat[:3] + self.expanded + self.odd + self.transposed[0]


@pytest.mark.parametrize("writes", [False, True], ids=["", "refused"])
@pytest.mark.parametrize("large", [False, True], ids=["", "large"])
def test_tensors_that_share_memory(large: bool, writes: bool) -> None:
    model, x = Sharing(writes), torch.rand(4, 3)
    if large:
        model.large = nn.Parameter(torch.zeros(2**23))
    with warnings.catch_warnings(), untouched(model, x):
        warnings.simplefilter("ignore")
        with pytest.raises(fxonnx.ExportError, match="separate in an ONNX model") if writes else nullcontext():
            fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), verify=True)


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.data.mul_(0.5),
        lambda weight: weight.detach().mul_(0.5),
        lambda weight: weight.data.numpy().fill(0.5),
    ],
    ids=["data", "detach", "numpy"],
)
def test_large_weights_that_only_eager_code_writes_to(write: Any) -> None:
    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.Parameter(torch.ones(2**23))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = x * self.large[:3]
            if not torch.compiler.is_exporting():
                write(self.large)
            return result

    model, x = Halving(), torch.rand(4, 3)
    with untouched(model, x):
        program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},), verify=True)
    torch.testing.assert_close(program(x)[0], x)
