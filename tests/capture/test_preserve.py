"""The user's model, inputs and process are as before after success and after failure, whatever ``forward`` changes."""

from __future__ import annotations

import copy
import functools
import importlib.util
import itertools
import random
import subprocess
import sys
import warnings
from collections import OrderedDict, deque
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn.utils import parametrizations, parametrize

import fxonnx
from fxonnx.errors import ArgumentError, CaptureError
from tests.untouched import untouched

from ..saved import run_from_file
from .captures import capture


class Messy(nn.Module):
    """A forward that mutates the module, its attributes and the process."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails = fails
        self.register_buffer("count", torch.zeros(1))
        self.linear = nn.Linear(3, 3)
        self.linear.weight.requires_grad_(False)
        self.plain = torch.ones(3)
        self.history: list[Any] = [1]
        self.queue: deque[Any] = deque([torch.ones(2)])
        self.seen: set[Any] = {1}
        self.table: dict[str, Any] = {"k": [torch.ones(1)]}
        self.holder = SimpleNamespace(cache=None, steps=[], inner=SimpleNamespace(last=0))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.plain.add_(1)
        self.calls += 1
        self.cache = x * 2
        self.linear.cache = x
        self.history.append(x * 3)
        self.queue.append(x)
        self.seen.add(2)
        self.table["k"].append(x * 4)
        self.table["new"] = x
        self.holder.cache = x * 5
        self.holder.steps.append(x)
        self.holder.inner.last = x
        self.linear.bias.requires_grad_(False)
        self.train()
        torch.set_grad_enabled(False)
        x.add_(1)
        if self.fails:
            raise RuntimeError("on purpose")
        return self.linear(x) * self.count + self.plain


def fakes(value: Any, seen: set[int]) -> bool:
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return isinstance(value, FakeTensor)
    children: list[Any] = []
    if isinstance(value, dict):
        children = list(value.values())
    elif isinstance(value, list | tuple | set | deque):
        children = list(value)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        children = list(vars(value).values())
    return any(fakes(child, seen) for child in children)


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
@pytest.mark.parametrize("fails", [False, True], ids=["success", "failure"])
@pytest.mark.parametrize("grad", [False, True], ids=["no-grad", "grad"])
def test_model_inputs_and_process_are_restored(fails: bool, grad: bool) -> None:
    model = Messy(fails).eval()
    reference = copy.deepcopy(model)
    keys = {name: list(vars(module)) for name, module in model.named_modules()}
    containers = (model.history, model.queue, model.seen, model.table, model.holder, model.table["k"])
    x = torch.zeros(4, 3)
    with torch.set_grad_enabled(grad):
        if fails:
            with pytest.raises(CaptureError, match=r"(?s)RuntimeError\n  on purpose\n  at: .*raise RuntimeError"):
                capture(model, (x,), None, ({0: "n"},))
        else:
            capture(model, (x,), None, ({0: "n"},))
        assert torch.is_grad_enabled() is grad
    assert not fakes(model, set())
    assert {name: list(vars(module)) for name, module in model.named_modules()} == keys
    now = (model.history, model.queue, model.seen, model.table, model.holder, model.table["k"])
    assert all(a is b for a, b in zip(containers, now, strict=True))
    assert (model.calls, model.history, model.seen, list(model.table)) == (0, [1], {1}, ["k"])
    assert (len(model.queue), len(model.table["k"]), vars(model.holder.inner)) == (1, 1, {"last": 0})
    assert (model.holder.cache, model.holder.steps) == (None, [])
    assert not any(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in reference.parameters()]
    torch.testing.assert_close(model.state_dict(), reference.state_dict())
    torch.testing.assert_close(model.plain, reference.plain)
    assert torch.equal(x, torch.zeros(4, 3))
    assert vars(x) == {}
    model.fails = reference.fails = False
    torch.testing.assert_close(model(torch.ones(2, 3)), reference(torch.ones(2, 3)))
    torch.set_grad_enabled(True)


def test_a_mutated_constant_is_exported_with_its_initial_value() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = torch.ones(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.offset.add_(1)

    model = Counter().eval()
    program = capture(model, (torch.zeros(3),)).exported_program
    torch.testing.assert_close(model.offset, torch.ones(3))
    torch.testing.assert_close(program.module()(torch.zeros(3)), torch.full((3,), 2.0))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_weights_of_recurrent_layers_remain_the_parameters(layer: type[nn.RNNBase]) -> None:
    model = layer(3, 4, num_layers=2).eval()
    weights = model._flat_weights
    capture(model, (torch.zeros(5, 2, 3),), None, ({0: "t", 1: "n"},))
    assert model._flat_weights is weights
    assert all(a is b for a, b in zip(weights, model.parameters(), strict=True))


def test_other_tensors_assigned_to_attributes_still_warn() -> None:
    class Leaves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.left = x * 2
            return self.left

    with pytest.warns(UserWarning, match=r"self\.left was assigned during export"):
        capture(Leaves().eval(), (torch.zeros(3),))


def test_forward_of_a_model_with_var_keywords_is_restored() -> None:
    class Keywords(nn.Module):
        def forward(self, **named: torch.Tensor) -> torch.Tensor:
            return sum(named.values())

    model = Keywords().eval()
    capture(model, (), {"a": torch.zeros(3), "b": torch.zeros(3)}, {"a": {0: "n"}, "b": {0: "n"}})
    assert "forward" not in vars(model)


def test_attributes_of_inputs_are_restored() -> None:
    x = torch.zeros(4, 3)
    x.note = "mine"
    capture(nn.ReLU().eval(), (x,), None, ({0: "n"},))
    assert vars(x) == {"note": "mine"}


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.LazyLinear(3), nn.ReLU()), torch.zeros(2, 4)),
        (nn.LazyConv2d(3, 1), torch.zeros(1, 2, 4, 4)),
        (nn.LazyBatchNorm1d(), torch.zeros(2, 4)),
    ],
)
def test_lazy_modules_are_refused_and_unchanged_until_they_have_run(model: nn.Module, x: torch.Tensor) -> None:
    types = [type(module) for module in model.eval().modules()]
    with pytest.raises(ArgumentError, match=r"lazy modules create their parameters.*weight(?s:.*)model\(\*args\)"):
        fxonnx.export(model, (x,))
    assert [type(module) for module in model.modules()] == types
    assert all(map(torch.nn.parameter.is_lazy, model.parameters()))
    expected = model(x)
    torch.testing.assert_close(fxonnx.export(model, (x,))(x)[0], expected)


@functools.lru_cache(maxsize=2)
def table(size: int) -> torch.Tensor:
    return torch.arange(size).float()


class Cached(nn.Module):
    """Calls functions that keep their results, also in a branch on a tensor's value."""

    @functools.lru_cache(maxsize=2)  # noqa: B019 - the method is the case
    def scale(self, size: int) -> torch.Tensor:
        return torch.ones(size) * 2

    def offset(self, size: int, known: dict[int, torch.Tensor] = {}) -> torch.Tensor:  # noqa: B006
        if size not in known:
            known[size] = torch.ones(size)
        return known[size]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.offset(3)
        if x.sum() > 6:
            return x * self.scale(3) + table(3)
        return x - table(3)


@pytest.mark.parametrize("has_run", [False, True])
def test_caches_of_functions_have_no_traced_results(has_run: bool) -> None:
    table.cache_clear()
    Cached.scale.cache_clear()
    model, x = Cached().eval(), torch.ones(2, 3)
    if has_run:
        model(x)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},))
    for inputs in (x, -x, torch.ones(5, 3)):
        torch.testing.assert_close(program(inputs)[0], model(inputs))


class Drawing(nn.Module):
    """Advances a counter and a generator of random numbers, in a capture of several attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = itertools.count(1, 2)
        self.random = random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = next(self.steps) + self.random.random()
        if x.sum() > 0:
            x = x * 2
        return x * factor


def test_counters_and_generators_are_set_back() -> None:
    model, x = Drawing().eval(), torch.ones(2, 3)
    with (
        pytest.warns(UserWarning, match="draws random numbers of Python"),
        pytest.warns(UserWarning, match=r"'steps': count\(1, 2\) becomes count\(3, 2\)"),
    ):
        program = fxonnx.export(model, (x,))
    assert repr(model.steps) == "count(1, 2)"
    torch.testing.assert_close(program(x)[0], model(x))


# An export changes nothing of the caller's model, inputs and process, whatever ``forward`` changes.


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
    "plain tensor assigned through data": f"{STEP}\nself.plain.data = self.plain.data * 0.5\nreturn x + self.plain",
    "the capture fails": f"{STEP}\nself.w.data.mul_(0.5)\nself.norm(x)\nreturn x * float(x.numpy().sum())",
    "errors are handled": "try:\n    n = x.numpy().sum()\nexcept RuntimeError:\n    n = 1\n"
    "self.w.data.mul_(0.5)\nself.norm(x)\nreturn x * float(n)",
}


def made(body: str, folder: Path) -> nn.Module:
    """A model in training mode, with a forward whose source code is in a file."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    path = folder / "changing_program.py"
    path.write_text(
        "import random\nimport numpy as np\nimport torch\nfrom tests.capture.test_preserve import Model\n"
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


class _KeptRow(nn.Module):
    """It keeps a tensor of the last call of ``vmap`` or ``grad``."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform
        self.row: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def total(row: torch.Tensor) -> torch.Tensor:
            self.row = row * 2
            return self.row.square().sum()

        return self.transform(total)(x)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad], ids=["vmap", "grad"])
def test_tensors_of_function_transforms_that_a_call_has_left(transform: Any) -> None:
    model = _KeptRow(transform).eval()
    model(torch.randn(3, 4))
    program = fxonnx.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    run_from_file(program)
    for n in (3, 5, 1):
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x)[0], model(x))


FIRST_CAPTURE = """
import torch
import fxonnx


class Cache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values, self.position = torch.zeros(24, 3), torch.tensor(0)
        self.register_buffer("queue", torch.zeros(3, 6))
        self.register_buffer("next", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = int(self.position)
        self.values[first : first + 3] = x
        self.position += 3
        x = self.values[first : first + 3] * 2
        first = int(self.next)
        self.queue.narrow(1, first, 2).copy_(x[:1].expand(2, 3).T)
        self.next.fill_((first + 2) % 6)
        return x + self.queue.sum(1)


before = torch.get_rng_state()
try:
    fxonnx.export(Cache().eval(), (torch.ones(3, 3),), state="io")
except fxonnx.CaptureError:
    pass
print(torch.equal(before, torch.get_rng_state()))
"""


def test_the_first_capture_of_a_process_draws_no_random_numbers(tmp_path: Path) -> None:
    """torch draws some when it captures in strict mode for the first time."""
    (tmp_path / "first.py").write_text(FIRST_CAPTURE)
    command = [sys.executable, "-W", "ignore", "first.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True"]


class MakesOnDemand(OrderedDict[str, Any]):
    """As transformers' table of activations: it has classes, and returns new objects of them."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


ACTIVATIONS = MakesOnDemand(relu=nn.ReLU, silu=nn.SiLU)
ACTIVATIONS.move_to_end("relu")


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = MakesOnDemand(relu=nn.ReLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS["silu"](self.table["relu"](x))


def test_a_dictionary_that_makes_its_values_keeps_what_it_has() -> None:
    model, x = WithTable().eval(), torch.rand(2, 3)
    program = fxonnx.export(model, (x,), dynamic_shapes=({0: "n"},))
    torch.testing.assert_close(torch.as_tensor(program(x)[0]), model(x))
    assert list(OrderedDict.items(ACTIVATIONS)) == [("silu", nn.SiLU), ("relu", nn.ReLU)]
    assert list(OrderedDict.items(model.table)) == [("relu", nn.ReLU)]
