"""An export restores the state of the process, also if it fails: torch, random numbers, modes, warnings."""

from __future__ import annotations

import builtins
import contextlib
import gc
import math
import os
import random
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.convert_frame  # imported by the first failing export, and registers operators
from torch import Tensor, nn
from torch.fx._symbolic_trace import is_fx_tracing
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import fxonnx

from ..functions import Function

STATE: dict[str, Callable[[], Any]] = {
    "random numbers of torch": lambda: torch.get_rng_state().tolist(),
    "random numbers of Python": random.getstate,
    "random numbers of numpy": lambda: str(np.random.get_state()),
    "default dtype": torch.get_default_dtype,
    "grad mode": lambda: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    "autocast": lambda: (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    ),
    "dispatch modes": lambda: list(map(id, _get_current_dispatch_mode_stack())),
    "function modes": lambda: list(map(id, _get_current_function_mode_stack())),
    "tracing context": torch._guards.TracingContext.try_get,
    "flags": lambda: (torch.compiler.is_compiling(), torch.compiler.is_exporting(), is_fx_tracing()),
    "is_in_onnx_export": fxonnx.is_in_onnx_export,
    "backends": lambda: (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled),
    "transforms": lambda: len(torch._C._functorch.get_interpreter_stack() or ()),
    "module hooks": lambda: [len(hooks) for name, hooks in vars(nn.modules.module).items() if name.endswith("_hooks")],
    "warnings": lambda: (list(warnings.filters), warnings.showwarning),
    "pytree nodes": lambda: set(pytree.SUPPORTED_NODES),
    "operators": lambda: set(torch._C._dispatch_get_all_op_names()),
    "builtins": lambda: (max, min, math.pow, builtins.print),
    "process": lambda: (
        os.getcwd(),
        dict(os.environ),
        list(sys.path),
        sys.getrecursionlimit(),
        torch.get_num_threads(),
    ),
}


def functions() -> dict[tuple[str, ...], Any]:
    """Every function and class in the modules of torch, and every attribute of these classes."""
    found: dict[tuple[str, ...], Any] = {}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] != "torch":
            continue
        for name, value in list(vars(module).items()):
            if callable(value):
                found[module.__name__, name] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                members = ((key, member) for key, member in vars(value).items() if _is_function(member))
                found.update({(module.__name__, name, key): member for key, member in members})
    return found


def _is_function(member: Any) -> bool:
    return callable(member) or isinstance(member, classmethod | staticmethod | property)


class Reckless(nn.Module):
    """A model that changes the state of the process, and optionally fails."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("cpu"):
            x = x * 2
            if self.fails:
                raise ValueError("on purpose")
            return x


class Stochastic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.layer(x)[0])
        return y + torch.randn_like(y) * torch.rand(1)


def _branching(x: Tensor) -> Tensor:
    # The shapes differ: this cannot be rewritten to torch.cond.
    return x + 1 if x.sum() > 0 else x.sum()


def _failing_vmap(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: row.no_such_method())(x)  # type: ignore[no-any-return]


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str | None]] = {
    "linear": (lambda: nn.Linear(3, 3).eval(), (2, 3), None),
    "pooling": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2, ceil_mode=True)).eval(), (2, 3, 8, 8), None),
    "stochastic": (lambda: Stochastic().train(), (5, 2, 3), None),
    "gradient": (lambda: Function(torch.func.grad(lambda x: x.sin().sum())).eval(), (2, 3), None),
    "reckless": (lambda: Reckless(fails=False).eval(), (2, 3), None),
    "failing": (lambda: Reckless(fails=True).eval(), (2, 3), "on purpose"),
    "branching": (lambda: Function(_branching).eval(), (2, 3), "asks for the value of a tensor"),
    "vmap": (lambda: Function(_failing_vmap).eval(), (2, 3), "no_such_method"),
    "unsupported": (lambda: Function(lambda x: torch.linalg.eig(x)[0].real).eval(), (3, 3), "linalg_eig"),
}


def reset() -> None:
    """Initial values of the state that the models of these tests change."""
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    reset()


def export(model: nn.Module, shape: tuple[int, ...], message: str | None) -> None:
    x = torch.zeros(shape)
    if message is None:
        fxonnx.torch_onnx_export(model, (x,), training=torch.onnx.TrainingMode.PRESERVE, dynamic_shapes=({0: "n"},))
        return
    with pytest.raises(fxonnx.ExportError, match=message):
        fxonnx.export(model, (x,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_the_state_of_the_process_is_restored(name: str) -> None:
    make, shape, message = CASES[name]
    model = make()
    # Modules that are imported on first use replace functions of torch permanently.
    export(model, shape, message)
    reset()
    before, functions_before = {key: read() for key, read in STATE.items()}, functions()
    export(model, shape, message)
    assert [key for key, read in STATE.items() if read() != before[key]] == []
    after = functions()
    assert [key for key, value in functions_before.items() if after.get(key) is not value] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_models_are_released(name: str) -> None:
    make, shape, message = CASES[name]
    model = make()
    references = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    with contextlib.suppress(fxonnx.ExportError):
        fxonnx.export(model, (torch.zeros(shape),), verify=message is None and name != "stochastic")
    del model
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
