"""Lowering of torch.cond and torch.while_loop to If and Loop."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn

import fxonnx

from ..hygiene import check_graph


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.one(x).relu(), lambda x: self.other(x) - 1, (x,)) * 2


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        def inner(x: torch.Tensor, y: torch.Tensor) -> Any:
            return torch.cond(y.mean() > 0.5, lambda x, y: (x + y, y.sin()), lambda x, y: (x - y, y.cos()), (x, y))

        return torch.cond(x.sum() > 0, inner, lambda x, y: (x.exp(), y.abs()), (x, y))


class Powers(nn.Module):
    def forward(self, n: torch.Tensor, x: torch.Tensor) -> Any:
        def goes_on(step: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return step < 4

        def body(step: torch.Tensor, value: torch.Tensor) -> Any:
            return step + 1, torch.nn.functional.gelu(value @ value.T @ value)

        return torch.while_loop(goes_on, body, (n, x))


class Written(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def then(x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[0] = 7
            return y + torch.tensor([1.0, 2.0, 3.0])

        return torch.cond(x.sum() > 0, then, lambda x: torch.kthvalue(x, 1, 1, True)[0].expand(x.shape).clone(), (x,))


class OnSizes(nn.Module):
    """A branch on a dynamic size, lowered to If, with index_put in both subgraphs."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        def then(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[index] = 1.0
            return x

        def otherwise(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return x.index_put((index,), torch.tensor(0.5)) * 2

        return torch.cond(x.shape[0] > 3, then, otherwise, (x, index))


X = torch.rand(2, 3)
INDEX = torch.tensor([0, 1])


@pytest.mark.parametrize("opset", [11, 13, 17, 20, 24])
@pytest.mark.parametrize(
    ("model", "inputs", "shapes"),
    [
        pytest.param(Branches(), [(X,), (-X,)], ({0: "n"},), id="branches"),
        pytest.param(Nested(), [(X, X), (X, X - 1), (-X, X)], ({0: "n"}, {0: "n"}), id="nested"),
        pytest.param(Powers(), [(torch.tensor(0), X), (torch.tensor(9), X)], (None, {0: "n"}), id="loop"),
        pytest.param(Written(), [(X,), (-X,)], ({0: "n"},), id="written"),
        pytest.param(OnSizes(), [(X, INDEX), (X, INDEX[:1])], ({0: "n"}, {0: "k"}), id="on sizes"),
    ],
)
def test_against_eager(model: nn.Module, inputs: list[Any], shapes: Any, opset: int) -> None:
    program = fxonnx.export(model.eval(), inputs[0], dynamic_shapes=shapes, opset_version=opset, verify=True)
    check_graph(program.model_proto)
    for given in inputs:
        larger = tuple(x if x.dim() == 0 else torch.cat([x, x]) for x in given)
        for args in (given, larger):
            expected = model(*args)
            expected = expected if isinstance(expected, tuple) else (expected,)
            for ours, theirs in zip(program(*args), expected, strict=True):
                torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)


def test_exported_program_is_not_changed() -> None:
    program = torch.export.export(Written().eval(), (X,))
    before = program.graph_module.print_readable(print_output=False)
    fxonnx.export(program, verify=True)
    assert program.graph_module.print_readable(print_output=False) == before


def test_unsupported_operator_in_a_subgraph() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def then(x: torch.Tensor) -> torch.Tensor:
                return torch.ops.aten._standard_gamma_grad.default(x, x).sum()

            return torch.cond(x.sum() > 0, then, lambda x: x.sum(), (x,))

    with pytest.raises(fxonnx.UnsupportedOperatorError, match=r"aten\._standard_gamma_grad\.default, used once"):
        fxonnx.export(Model().eval(), (torch.rand(3, 3),))


def test_nodes_of_subgraphs_have_the_users_lines() -> None:
    """Not those of generated code, whose file names count the compilations of the process."""

    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def positive(x: torch.Tensor) -> torch.Tensor:
                return torch.sin(x)

            return torch.cond(x.sum() > 0, positive, torch.neg, (x,))

    contents = []
    for _ in range(2):
        program = fxonnx.export(torch.nn.Sequential(Branches()).eval(), (torch.ones(3),))
        contents.append(program.model_proto.SerializeToString(deterministic=True))
    (sine,) = (node for node in program.model.graph.all_nodes() if node.op_type == "Sin")
    assert "in positive\n    return torch.sin(x)" in sine.metadata_props["pkg.torch.onnx.stack_trace"]
    assert "0: " in sine.metadata_props["namespace"]
    assert contents[0] == contents[1]


def test_nodes_of_a_body_belong_to_the_modules_that_it_calls() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            step = torch.zeros((), dtype=torch.int64)
            while step < count:
                x = self.layer(x)
                step = step + 1
            return x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Steps(), Steps()])

        def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            return self.blocks[1](self.blocks[0](x, count), count)

    program = fxonnx.export(Model().eval(), (torch.rand(2, 4), torch.tensor(3)))
    nodes = [node for node in ir.traversal.RecursiveGraphIterator(program.model.graph) if node.op_type == "Relu"]
    assert [ast.literal_eval(node.metadata_props["pkg.torch.onnx.name_scopes"])[:-1] for node in nodes] == [
        ["", f"blocks.{index}", f"blocks.{index}.layer", f"blocks.{index}.layer.1"] for index in range(2)
    ]
