"""Constant folding: bitwise equal to torch, and restricted to calls that may be folded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from fxonnx._prepare.constant_folding import fold_constants
from fxonnx._prepare.functionalize import functionalize
from fxonnx._prepare.inline import inline_subgraphs
from tests.prepare.helpers import capture, own_copy, run, targets, tensors

aten = torch.ops.aten


class Constants(nn.Module):
    """A function of the input and of tensors that are neither parameters nor buffers."""

    def __init__(self, function: Callable[..., Any], *constants: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.constants = list(constants)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.constants)


def folded(
    model: nn.Module | Callable[..., Any], x: torch.Tensor, dynamic: bool = False, **options: int
) -> tuple[torch.fx.GraphModule, dict[str, torch.Tensor], torch.export.ExportedProgram]:
    if not isinstance(model, nn.Module):
        model = Constants(model)
    program = capture(model, (x,), ({0: Dim.DYNAMIC},) if dynamic else None)
    gm = functional(program)
    return gm, fold_constants(gm, lifted(program), **options), program


def functional(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    gm = own_copy(program)
    inline_subgraphs(gm)
    functionalize(gm.graph)
    return gm


def lifted(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    return {name: value for name, value in tensors(program).items() if name.startswith("c_")}


def bits(value: torch.Tensor) -> tuple[Any, ...]:
    """All observable properties of a tensor, including NaN payloads and signs of zero."""
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return value.dtype, tuple(value.shape), raw.numpy().tobytes()


def depends_on_input(node: torch.fx.Node) -> bool:
    return node.name == "x" or any(map(depends_on_input, node.all_input_nodes))


X = torch.ones(3, 4)
LIMITS = torch.tensor([2**63 - 1, -(2**63), 0])
SPECIAL = torch.tensor([-0.0, math.nan, math.inf, -math.inf, 5e-324], dtype=torch.float64)

ROWS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "arange": (lambda x: x + torch.arange(4) * 2, ()),
    "mask": (lambda x: x.masked_fill(torch.tril(torch.ones(3, 4)) == 0, -math.inf), ()),
    "negative_zero": (lambda x: torch.full((2,), -0.0) * 1, ()),
    "special": (lambda x, c: c * 1.0, (SPECIAL,)),
    "bool": (lambda x: torch.arange(3) > 1, ()),
    "int64_limits": (lambda x, c: c.view(3, 1).flip(0), (LIMITS,)),
    "lifted": (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), ()),
    "eye": (lambda x: torch.eye(3) @ x, ()),
    "linspace": (lambda x: x * torch.linspace(0, 1, 4), ()),
    "multi_output": (lambda x, c: (c.split(1)[0] + x[0, 0], c.topk(2).indices), (torch.arange(3.0),)),
    "view": (lambda x, c: (c.T[0], x + c[0, 0]), (torch.arange(6.0).view(2, 3),)),
    "half": (lambda x: torch.arange(4, dtype=torch.bfloat16) / 3, ()),
    "names_of_methods": (lambda x: (torch.arange(3).to(torch.float32), torch.arange(3).float() + 1), ()),
    "empty": (lambda x: torch.arange(0) * 2, ()),
    "scalar": (lambda x: torch.tensor(2.5) * 2, ()),
}


@pytest.mark.parametrize("name", ROWS)
def test_constant_subgraphs_are_folded_bitwise_exactly(name: str) -> None:
    function, constants = ROWS[name]
    before = [constant.clone() for constant in constants]
    model = Constants(function, *constants)
    gm, made, program = folded(model, X)

    for value in made.values():
        assert value.is_contiguous()
        assert not value.requires_grad
        for constant in constants:
            assert value.untyped_storage().data_ptr() != constant.untyped_storage().data_ptr()
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            assert bits(made[node.target]) == bits(getattr(gm, node.target))
            assert node.meta["val"].dtype == made[node.target].dtype
        elif node.op == "call_function":
            assert depends_on_input(node), node
    results, expected = run(gm, program, X), model(X)
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert [bits(result) for result in results] == [bits(result) for result in expected]
    for constant, kept in zip(constants, before, strict=True):
        assert bits(constant) == bits(kept)


def test_a_folded_node_keeps_its_name() -> None:
    gm, made, _ = folded(lambda x: x + torch.arange(4) * 2, X)
    assert list(made) == ["mul"]
    assert [(node.op, node.name, node.target) for node in gm.graph.nodes][1] == ("get_attr", "mul", "mul")


def test_existing_attributes_are_not_overwritten() -> None:
    gm, made, _ = folded(lambda x: x[:, 0] + torch.arange(3).to(torch.float32), X)
    assert list(made) == ["to_1"]
    assert [(node.name, node.target) for node in gm.graph.nodes if node.op == "get_attr"] == [("to", "to_1")]
    assert callable(gm.to)


def test_only_values_used_by_the_rest_become_constants() -> None:
    gm, made, _ = folded(lambda x: x + (torch.arange(12) % 5).view(3, 4).cumsum(0), X)
    assert list(made) == ["cumsum"]
    assert targets(gm) == [aten.add.Tensor]


def test_copies_of_constants_are_eliminated() -> None:
    table = torch.randn(600, 600)
    gm, made, _ = folded(Constants(lambda x, c: c.detach().clone()[0, 0] + c.detach()[:3, :4] + x, table), X)
    assert not {aten.clone.default, aten.detach.default} & set(targets(gm))
    assert [tuple(value.shape) for value in made.values()] == [(3, 4)]
    gm, made, _ = folded(Constants(lambda x, c: x + c.clone(), torch.randn(3, 4)), X)
    assert made == {}
    assert targets(gm) == [aten.add.Tensor]


STAYING: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], Any]] = {
    "random": (lambda x: x + torch.rand(4), (), aten.rand.default),
    "random_like": (lambda x, c: x + torch.rand_like(c), (torch.ones(4),), aten.rand_like.default),
    "dropout": (lambda x, c: x + nn.functional.dropout(c, 0.5, True), (torch.ones(4),), aten.dropout.default),
    "uninitialized": (lambda x: torch.empty(4).shape[0] * x + torch.empty(4), (), aten.empty.memory_format),
    "too_large": (lambda x: x.sum() + torch.arange(1000) * 2, (), aten.arange.default),
    "expand": (lambda x, c: x.sum() + c.expand(50, 4), (torch.ones(4),), aten.expand.default),
    "uniform": (lambda x: x.sum() + torch.zeros(90, 90), (), aten.zeros.default),
    "int8_to_float": (lambda x, c: x + c.to(torch.float32), (torch.ones(4, dtype=torch.int8),), aten.to.dtype),
    "uint8_times_float": (lambda x, c: x + c * 0.5, (torch.ones(4, dtype=torch.uint8),), aten.mul.Tensor),
    "float8_to_float": (
        lambda x, c: x + c.to(torch.float32),
        (torch.ones(4).to(torch.float8_e4m3fn),),
        aten.to.dtype,
    ),
    "fake_quantize": (
        lambda x, c: x + torch.fake_quantize_per_tensor_affine(c, 0.1, 0, 0, 255),
        (torch.ones(4),),
        aten.fake_quantize_per_tensor_affine.default,
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_calls_that_must_not_be_folded(name: str) -> None:
    function, constants, target = STAYING[name]
    gm, made, _ = folded(Constants(function, *constants), X, max_elements=100)
    assert target in targets(gm)
    assert all(value.numel() <= 100 for value in made.values())


def test_symbolic_sizes_are_not_folded() -> None:
    gm, made, program = folded(lambda x: torch.arange(x.shape[0]) + torch.arange(4)[:1], X, dynamic=True)
    assert aten.arange.default in targets(gm)
    assert [tuple(value.shape) for value in made.values()] == [(1,)]
    assert run(gm, program, torch.ones(5, 4)).tolist() == [0, 1, 2, 3, 4]


def test_parameters_and_buffers_are_not_constants() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.weight * 2) + self.scale * 2

    gm, made, _ = folded(Model(), X)
    assert made == {}
    assert targets(gm).count(aten.mul.Tensor) == 3


def test_a_result_not_larger_than_its_inputs_is_folded_at_any_size() -> None:
    constant = torch.arange(200.0)
    gm, made, _ = folded(Constants(lambda x, c: x.sum() + c * 2, constant), X, max_elements=10)
    assert [value.numel() for value in made.values()] == [200]
    assert targets(gm) == [aten.sum.default, aten.add.Tensor]


def test_expanded_constant_counts_with_the_size_of_its_base() -> None:
    def function(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return x.sum() + c.expand(1000, 4) * 2

    gm, made, _ = folded(Constants(function, torch.ones(4)), X, max_elements=100)
    assert made == {}
    assert aten.expand.default in targets(gm)
    gm, made, _ = folded(Constants(function, torch.ones(4)), X, max_elements=4000)
    assert [tuple(value.shape) for value in made.values()] == [(1000, 4)]


def test_calls_torch_cannot_run_are_not_folded() -> None:
    model = Constants(lambda x, c, i: (x + torch.gather(c, 0, i) * 2, c * 3 + x[0]), torch.ones(4), torch.tensor([0]))
    program = capture(model, (X,))
    gm = functional(program)
    out_of_range = {name: value + 7 if value.dtype == torch.int64 else value for name, value in lifted(program).items()}
    assert [tuple(value.shape) for value in fold_constants(gm, out_of_range).values()] == [(4,)]
    assert targets(gm).count(aten.gather.default) == 1
    assert targets(gm).count(aten.mul.Tensor) == 1


def test_meta_tensors_are_not_constants() -> None:
    program = capture(Constants(lambda x, c: x + c * 2, torch.ones(4)), (X,))
    gm = functional(program)
    assert fold_constants(gm, {name: value.to("meta") for name, value in tensors(program).items()}) == {}


def test_folding_is_idempotent() -> None:
    model = Constants(lambda x: x @ torch.linspace(0, 1, 12).view(4, 3).sin().softmax(0), *())
    first, second = folded(model, X)[1], folded(model, X)[1]
    assert {name: bits(value) for name, value in first.items()} == {name: bits(value) for name, value in second.items()}


def test_graph_without_constants_is_unchanged() -> None:
    program = capture(nn.Linear(4, 4), (X,))
    gm = own_copy(program)
    before = str(gm.graph)
    assert fold_constants(gm, {}) == {}
    assert str(gm.graph) == before
