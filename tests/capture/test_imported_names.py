"""Functions of torch that a model holds itself: imported by name, under another name, in a table, as a default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, as_tensor, linspace, manual_seed, randn, tensor
from torch import linspace as other_name
from torch.autograd import grad
from torch.nn.functional import (
    adaptive_avg_pool2d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    scaled_dot_product_attention,
)

import fxonnx
from fxonnx._capture.patches.patch import FunctionPatch, TorchFunctionPatch
from fxonnx._capture.patches.table import CAPTURE_PATCHES, SEED_PATCHES
from tests.functions import Function
from tests.saved import run_from_file

TABLE: Mapping[str, Callable[..., Tensor]] = {"linspace": torch.linspace}


def _with_default(x: Tensor, function: Callable[..., Tensor] = torch.linspace) -> Tensor:
    return function(0, 1, x.shape[1])


def _causal(x: Tensor) -> Tensor:
    q = x[:, :, None]
    return scaled_dot_product_attention(q, q, q, is_causal=q.shape[1] > 1)


def _gradient(x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        return grad(x.square().sum() * x.shape[1], x)[0]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linspace": lambda x: x + linspace(0, 1, x.shape[1]),
    "another name": lambda x: x + other_name(0, 1, x.shape[1]),
    "table": lambda x: x + TABLE["linspace"](0, 1, x.shape[1]),
    "default": lambda x: x + _with_default(x),
    "as_tensor": lambda x: x * as_tensor([x.shape[0], x.shape[1]]).sum(),
    "as_tensor of a size": lambda x: x * as_tensor(x.shape[0]),
    "as_tensor of a quotient": lambda x: x * as_tensor(441 * x.shape[0] / 320).ceil().long(),
    "as_tensor of quotients": lambda x: x * as_tensor([x.shape[0] / 3, 1.0]).sum(),
    "as_tensor of a condition": lambda x: x * as_tensor(x.shape[0] > 3),
    "as_tensor of elements": lambda x: x * as_tensor([x[0, 0], x.shape[1]]).sum(),
    "tensor": lambda x: x * tensor([x.shape[0], x.shape[1]]).sum(),
    "tensor of elements": lambda x: x * tensor([x[0, 0], x.shape[1], 2.0]).sum(),
    "avg_pool1d": lambda x: avg_pool1d(x[:, None], x.shape[1]),
    "avg_pool2d": lambda x: avg_pool2d(x[:, None, None], (1, x.shape[1])),
    "avg_pool3d": lambda x: avg_pool3d(x[:, None, None, None], (1, 1, x.shape[1])),
    "max_pool1d": lambda x: max_pool1d(x[:, None], x.shape[1]),
    "max_pool2d": lambda x: max_pool2d(x[:, None, None], (1, x.shape[1])),
    "max_pool3d": lambda x: max_pool3d(x[:, None, None, None], (1, 1, x.shape[1])),
    "adaptive": lambda x: adaptive_avg_pool2d(x[:, None, None], 1),
    "attention": _causal,
    "grad": _gradient,
}


@pytest.mark.filterwarnings("error:the model cannot be exported for all requested sizes")
@pytest.mark.filterwarnings("ignore:.*requires_grad=True to a scalar:UserWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    model = Function(FUNCTIONS[name])
    program = fxonnx.export(model, (torch.rand(2, 6),), dynamic_shapes=({0: "b", 1: "n"},))
    run_from_file(program)
    for x in (torch.rand(2, 6), torch.rand(3, 9), torch.rand(2, 1)):
        torch.testing.assert_close(program(x)[0], model(x).detach())


def test_random_numbers_after_a_seed() -> None:
    def noisy(x: Tensor) -> Tensor:
        manual_seed(3)
        return x + randn(4)

    x = torch.rand(2, 4)
    state = torch.get_rng_state()
    program = fxonnx.export(Function(noisy), (x,))
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(program(x)[0], noisy(x))


def test_every_patched_function_of_torch_may_be_imported() -> None:
    """A new row for a public function is of one of the two kinds."""
    rows = {patch.target: patch for patch in (*CAPTURE_PATCHES, *SEED_PATCHES)}
    functions: dict[str, Any] = {}
    for target, patch in rows.items():
        module, _, name = target.partition(":")
        if module in ("torch", "torch.nn.functional") and "." not in name and not name.startswith("_"):
            functions[target] = patch
    # TorchDynamo's own function is called when a model is made.
    del functions["torch:compile"]
    others = [name for name, one in functions.items() if not isinstance(one, FunctionPatch | TorchFunctionPatch)]
    assert others == []
