"""Derivatives in forward: ``torch.func`` transforms and ``torch.autograd``, recorded as plain operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

import fxonnx

from ..functions import Function


class Surface(nn.Module):
    """A signed distance with its normals: the gradient of a network with respect to its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Softplus(10), nn.Linear(8, 8), nn.GELU())
        self.head = nn.Linear(8, 1)

    def forward(self, points: Tensor) -> Any:
        normals = grad(lambda given: self.head(self.net(given)).sum())(points)
        return self.head(self.net(points)), normals / normals.norm(dim=-1, keepdim=True)


class Adapted(nn.Module):
    """One step of gradient descent on the weights inside of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        weights = dict(self.layer.named_parameters())
        slopes, loss = grad_and_value(lambda given: functional_call(self.layer, given, (x,)).pow(2).mean())(weights)
        changed = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
        return functional_call(self.layer, changed, (x,)), loss


def sizes_from_outside(x: Tensor) -> Tensor:
    half = x.shape[0] // 2
    return grad(lambda given: (given[:half] * x.shape[0]).pow(3).sum() / half)(x)


def several(x: Tensor) -> Any:
    return grad(lambda one, other: ((one * other).sum(), one.exp()), argnums=(0, 1), has_aux=True)(x, x.cos())


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: grad(lambda given: given.sin().pow(2).sum())(x),
    "grad of grad": lambda x: grad(lambda one: grad(lambda other: other.sin().pow(3).sum())(one).sum())(x),
    "several arguments": several,
    "sizes from outside": sizes_from_outside,
    "jacrev": lambda x: jacrev(lambda given: given.sin() * given.sum())(x[:, 0]),
    "jacfwd": lambda x: jacfwd(lambda given: given.sin() * given.sum())(x.sum(1)),
    "hessian": lambda x: hessian(lambda given: (given.sin() * given.sum()).sum())(x[0]),
    "jvp": lambda x: jvp(lambda given: given.softmax(-1), (x,), (x.cos(),)),
    "vjp": lambda x: vjp(lambda given: given.softmax(-1), x)[1](x.cos())[0],
    "vmap of grad": lambda x: vmap(grad(lambda row: row.sin().pow(2).sum()))(x),
    "vmap of jacrev": lambda x: vmap(jacrev(lambda row: row.sin() * row.sum()))(x),
    "vmap of jacfwd": lambda x: vmap(jacfwd(lambda row: row.sin() * row.sum()))(x),
    "vmap of hessian": lambda x: vmap(hessian(lambda row: (row.sin() * row.sum()).sum()))(x),
    "vmap of hessian, with empty zeros": lambda x: vmap(hessian(lambda row: row.pow(3).sum()))(x),
    "hessian of a dynamic size": lambda x: hessian(lambda given: (given.sin() * given.sum()).sum())(x.sum(1)),
    "forward over forward": lambda x: vmap(jacfwd(jacfwd(lambda row: (row.sin() * row.sum()).sum())))(x),
    "nested vmap": lambda x: vmap(vmap(torch.dot, in_dims=(0, None)), in_dims=(None, 1), out_dims=1)(x, x.t() @ x),
    "nested vmap of grad": lambda x: vmap(vmap(grad(lambda one: one.sin() * one)), in_dims=1)(x),
    "vmap alone": lambda x: vmap(lambda row: row.sin() * row.sum())(x),
    "autograd.functional": lambda x: torch.autograd.functional.jacobian(lambda given: given.sin(), x[0]),
}

MODELS: dict[str, nn.Module] = {"surface": Surface(), "adapted": Adapted()} | {
    name: Function(function) for name, function in FUNCTIONS.items()
}


@pytest.mark.parametrize("name", MODELS)
def test_derivatives_match_eager_torch(name: str) -> None:
    model = MODELS[name].eval()
    program = fxonnx.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))
    for size in (4, 2, 5):
        x = torch.randn(size, 3)
        expected = torch.utils._pytree.tree_leaves(model(x))
        found = program(x)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)


def test_a_failure_is_one_error_and_unwinds_functorch() -> None:
    def on_content(x: Tensor) -> Tensor:
        return vmap(grad(lambda row: (row if row.sum() > 0 else -row).sum()))(x)

    with pytest.raises(fxonnx.CaptureError, match=r"at: .*test_function_transforms.py"):
        fxonnx.export(Function(on_content), (torch.randn(4, 3),))
    assert torch._C._functorch.get_interpreter_stack() is None
    assert torch.autograd.forward_ad._current_level == -1
    torch.testing.assert_close(grad(lambda x: F.relu(x).sum())(torch.ones(2)), torch.ones(2))


def test_vmap_over_a_dynamic_batch_with_a_shared_weight() -> None:
    model = Function(lambda x, y: vmap(lambda row, weight: row @ weight, in_dims=(0, None), out_dims=1)(x, y)).eval()
    shapes = ({0: "n"}, None)
    fxonnx.export(model, (torch.randn(3, 4), torch.randn(4, 3)), dynamic_shapes=shapes, verify="auto")


def test_constants_of_a_vmapped_function() -> None:
    model = Function(lambda x: vmap(lambda row: row * torch.tensor([1.5, -1.0]) + torch.tensor(-1.5))(x)).eval()
    program = fxonnx.export(model, (torch.randn(3, 2),), dynamic_shapes=({0: "n"},))
    for x in (torch.randn(3, 2), torch.randn(5, 2)):
        torch.testing.assert_close(program(x)[0], model(x))


def test_slices_of_a_dynamic_batch() -> None:
    def forward(x: Tensor) -> Tensor:
        weight, bias = x[:, :6].view(-1, 2, 3), x[:, 6:8]
        return vmap(lambda w, b, row: F.linear(row, w, b))(weight, bias, x[:, :3])

    program = fxonnx.export(Function(forward).eval(), (torch.randn(3, 8),), dynamic_shapes=({0: "n"},))
    for x in (torch.randn(3, 8), torch.randn(1, 8), torch.randn(5, 8)):
        torch.testing.assert_close(program(x)[0], forward(x))


class Selected(nn.Module):
    """vmap beside a rewritten loop, which records the memory of its tensors."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = vmap(lambda row: row * 2 + row.flip(0))(x)
        out = torch.zeros_like(x)
        for i in x.sum(1).gt(0).nonzero()[:, 0]:
            out[i] = mixed[i]
        return out


def test_vmap_beside_a_rewritten_loop() -> None:
    model = Selected().eval()
    program = fxonnx.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))
    for x in (torch.randn(6, 3), -torch.ones(2, 3)):
        torch.testing.assert_close(program(x)[0], model(x))
