"""Hooks of all modules of the process belong to the model: they are captured, for its modules only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import fxonnx
from fxonnx import CaptureError

Registers = Callable[[], Any]
X = torch.randn(2, 4)
HOOKS: dict[str, Registers] = {
    "all results": lambda: register_module_forward_hook(lambda module, args, result: result * 2),
    "with keywords": lambda: register_module_forward_hook(lambda module, args, result: result + 1, always_call=True),
    "results of a class": lambda: register_module_forward_hook(
        lambda module, args, result: result * 3 if isinstance(module, nn.Linear) else None
    ),
    "inputs": lambda: register_module_forward_pre_hook(lambda module, args: (args[0] + 1,)),
}


@pytest.fixture
def hook(request: pytest.FixtureRequest) -> Iterator[None]:
    handle = HOOKS[request.param]()
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("hook", HOOKS, indirect=True)
def test_global_hooks_are_captured(hook: None) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n"},), verify=True)
    for x in (X, torch.randn(5, 4)):
        torch.testing.assert_close(program(x)[0], model(x))


def test_global_hooks_see_the_modules_of_the_model_and_remain_registered() -> None:
    seen: list[type[nn.Module]] = []
    handle = register_module_forward_hook(lambda module, args, result: seen.append(type(module)))
    try:
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
        fxonnx.export(model, (X,))
        assert set(seen) == {nn.Linear, nn.ReLU, nn.Sequential}
        seen.clear()
        model(X)
        assert seen == [nn.Linear, nn.ReLU, nn.Sequential]
        traced = torch.fx.symbolic_trace(model)
        with pytest.raises(CaptureError, match=r"global forward hooks.*GraphModule(?s:.*)hint: call remove\(\)"):
            fxonnx.export(traced, (X,))
    finally:
        handle.remove()
