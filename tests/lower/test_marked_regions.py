"""Regions of ``torch.compiler.nested_compile_region`` as ONNX functions."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
from torch import nn

import fxonnx

from .repeated_models import OTHER_ROWS, ROWS, dynamic, saved


@torch.compiler.nested_compile_region
def scaled(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(x, weight)) * 2


class Marked(nn.Module):
    """Regions: a function, a method that calls it, and a closure."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.compiler.nested_compile_region
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).tanh() + scaled(self.linear.weight, x)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.layers = nn.ModuleList(self.Layer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean()

        @torch.compiler.nested_compile_region
        def closed(x: torch.Tensor) -> torch.Tensor:
            return x.sin() * mean + self.one.bias

        x = scaled(self.two.weight, scaled(self.one.weight, x))
        for layer in self.layers:
            x = layer(x)
        return closed(x)


@pytest.mark.parametrize("others", [None, (OTHER_ROWS,)], ids=["static", "dynamic"])
def test_marked_regions(others: tuple[Any, ...] | None) -> None:
    torch.manual_seed(0)
    model = Marked().eval()
    program = fxonnx.export(model, (ROWS,), dynamic_shapes=dynamic((ROWS,), others))
    calls = [(node.domain, node.op_type) for node in program.model.graph if node.domain]
    assert calls == [("fxonnx.regions", name) for name in ("scaled", "scaled", "Layer", "Layer", "closed")]
    functions = {function.name: function for function in program.model.functions.values()}
    assert [node.op_type for node in functions["Layer"]] == ["Gemm", "Tanh", "scaled", "Add"]
    assert [value.name for value in functions["Layer"].inputs][1:] == ["linear.weight", "linear.bias"]
    assert functions["Layer"].opset_imports == {"": 20, "fxonnx.regions": 1}
    onnx.checker.check_model(program.model_proto, full_check=True)
    program.verify(others)
    flat = fxonnx.export(
        model, (ROWS,), dynamic_shapes=dynamic((ROWS,), others), options=fxonnx.ExportOptions(functions="none")
    )
    assert saved(program, inline=True) == saved(flat)
    repeated = fxonnx.export(model, (ROWS,), options=fxonnx.ExportOptions(functions="repeated"))
    assert [node.op_type for node in repeated.model.graph] == [node.op_type for node in program.model.graph]


def test_marked_regions_of_a_flat_graph() -> None:
    for options in ({"options": fxonnx.ExportOptions(functions="none")}, {"opset_version": 14}):
        program = fxonnx.export(Marked().eval(), (ROWS,), **options)
        assert not program.model.functions
        assert not any(node.domain for node in program.model.graph)
        program.verify()


def test_marked_regions_of_a_captured_program() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled(self.two.weight, scaled(self.one.weight, x))

    captured = torch.export.export(Twice().eval().requires_grad_(False), (ROWS,), strict=True)
    assert any(node.target is torch.ops.higher_order.invoke_subgraph for node in captured.graph.nodes)
    program = fxonnx.export(captured)
    (function,) = program.model.functions.values()
    assert [node.domain for node in program.model.graph] == ["fxonnx.regions"] * 2
    assert len(function.inputs) == 2
    program.verify()


class Mixed(nn.Module):
    """Regions with another constant or another size, and one that updates a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        @torch.compiler.nested_compile_region
        def times(x: torch.Tensor, factor: int) -> torch.Tensor:
            return (x.sin() * factor).relu()

        @torch.compiler.nested_compile_region
        def step(x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x.mean(0))
            return self.linear(x) + self.total

        return times(x, 2), times(y, 2), times(x + 1, 3), times(x.cos(), 2), step(step(x))


def test_one_function_for_each_distinct_region() -> None:
    args = (ROWS, torch.ones(5, 2))
    program = fxonnx.export(Mixed().eval(), args, dynamic_shapes=({0: "a"}, {0: "b"}), state="io")
    calls = [node.op_type for node in program.model.graph if node.domain]
    assert calls == ["times", "times_1", "times_2", "times", "step", "step"]
    (step,) = (function for function in program.model.functions.values() if function.name == "step")
    assert [value.name for value in step.inputs] == ["x", "total.in", "linear.weight", "linear.bias"]
    assert len(step.outputs) == 2
    program.verify(sizes="auto")
