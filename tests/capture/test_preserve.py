"""The user's model, inputs and process are restored after success and after failure."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor

import fxonnx
from fxonnx.errors import ArgumentError, CaptureError

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
