"""Lowering of ``scan`` and ``map`` to Scan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan

import fxonnx

from ..functions import VariadicFunction
from .higher_order import Row, check_row, lengths, nodes_of


class Recurrent(nn.Module):
    """A hand-written loop over a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 5)

    def forward(self, x: Tensor) -> Any:
        def step(state: Tensor, x: Tensor) -> Any:
            state = self.cell(x, state)
            return state, state.clone()

        return scan(step, torch.zeros(x.shape[1], 5), x)


class Normalized(nn.Module):
    """An LSTM cell with a norm written by hand, a buffer, and the batch as the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.scale = nn.LSTMCell(4, 5), nn.Buffer(torch.tensor(0.5))
        self.weight = nn.Parameter(torch.rand(5))

    def forward(self, x: Tensor) -> Any:
        def step(state: Any, x: Tensor) -> Any:
            state = self.cell(x, state)
            centered = state[0] * self.scale - (state[0] * self.scale).mean(-1, keepdim=True)
            return state, centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5) * self.weight

        zeros = torch.zeros(x.shape[0], 5)
        (hidden, cell), out = scan(step, (zeros, zeros), x, dim=1)
        return hidden, cell, out


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return map_over(lambda y: self.linear(y).softmax(-1), x)


def total(x: Tensor) -> Any:
    return scan(lambda carry, y: (carry + y, (carry + y).clone()), torch.zeros(x.shape[1:]), x)


def decayed(x: Tensor, dim: int = 0, reverse: bool = False) -> Any:
    first = x.select(dim, 0) * 0
    return scan(lambda carry, y: (carry * 0.5 + y, carry - y), first, x, dim=dim, reverse=reverse)


def trees(x: Tensor, y: Tensor) -> Any:
    def step(carry: Any, given: Any) -> Any:
        a = torch.tanh(carry["a"] + given["x"])
        b, count = carry["b"]
        return {"a": a, "b": (b * given["y"], count + 1)}, [a + b, (count * 2, b.sum())]

    init = {"a": torch.zeros(3), "b": (torch.ones(3), torch.zeros((), dtype=torch.int64))}
    return scan(step, init, {"x": x, "y": y})


def branching(x: Tensor) -> Any:
    def step(carry: Tensor, y: Tensor) -> Any:
        new = torch.cond(y.sum() > 0, lambda a, b: a + b, lambda a, b: a - 2 * b, (carry, y))
        return new, new.cos()

    return scan(step, torch.zeros(4), x)


def nested(x: Tensor) -> Any:
    def row(carry: Tensor, y: Tensor) -> Any:
        return scan(lambda carry, z: (carry * z + 1, carry + z), carry, y)

    return scan(row, torch.zeros(()), x)


def looping(x: Tensor) -> Any:
    def step(carry: Tensor, y: Tensor) -> Any:
        _, new = torch.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 0.5 + y), (torch.tensor(0), carry))
        return new, new + y

    return scan(step, torch.zeros(4), x)


def complex_numbers(x: Tensor) -> Any:
    rotation = torch.polar(torch.ones(4), torch.arange(4.0))
    last, out = scan(lambda carry, y: (carry * rotation + y, carry * y), torch.zeros(4, dtype=torch.complex64), x)
    return torch.view_as_real(last), torch.view_as_real(out)


def matrices(x: Tensor, weight: Tensor) -> Any:
    return scan(lambda carry, y: (torch.tanh(y @ weight + carry), carry.sin()), torch.zeros(4), x)


def branching_map(x: Tensor) -> Tensor:
    return map_over(lambda y: torch.cond(y.sum() > 0, lambda y: y.exp(), lambda y: -y, (y,)), x)


def associated(combine: Any, xs: Any, dim: int = 0, **options: Any) -> Any:
    return associative_scan(combine, xs, dim, combine_mode="generic", **options)


def linear_recurrence(a: Tensor, x: Tensor) -> Any:
    return associated(lambda left, right: (left[0] * right[0], left[1] * right[0] + right[1]), (a, x))


N = ({0: "n"},)
WITH_WEIGHT = [(x, torch.randn(4, 4)) for (x,) in lengths(4)]
INTEGERS = [(torch.arange(n) + 1,) for n in (3, 1, 2, 7)]
BATCHES = [(torch.randn(b, n, 4),) for b, n in ((2, 3), (1, 1), (3, 2), (2, 7))]
ROWS = (
    Row("total", total, lengths(4), N, "Scan"),
    Row("reverse", lambda x: decayed(x, reverse=True), lengths(4), N, "Scan"),
    Row("dim", lambda x: decayed(x, 1), BATCHES, ({0: "b", 1: "n"},), "Scan"),
    Row("last dim, reverse", lambda x: decayed(x, 2, True), BATCHES, ({0: "b", 1: "n"},), "Scan"),
    Row("dim, reverse", lambda x: decayed(x, 1, True), BATCHES, ({0: "b", 1: "n"},), "Scan"),
    Row("pytrees", trees, lengths(3, count=2), ({0: "n"}, {0: "n"}), "Scan"),
    Row("closed over", matrices, WITH_WEIGHT, ({0: "n"}, None), "Scan"),
    Row(
        "integers",
        lambda x: scan(lambda a, y: (a + y, a * y), torch.zeros((), dtype=torch.int64), x),
        INTEGERS,
        N,
        "Scan",
    ),
    Row("complex", complex_numbers, lengths(4), N, "Scan"),
    Row("weights", Recurrent(), lengths(2, 4), ({0: "n"},), "Scan"),
    Row("weights and buffers", Normalized(), BATCHES, ({0: "b", 1: "n"},), "Scan"),
    Row("cond in scan", branching, lengths(4), N, "If"),
    Row("scan in scan", nested, [(torch.randn(*s),) for s in ((3, 2), (1, 1), (2, 5))], ({0: "n", 1: "m"},), "Scan"),
    Row("while_loop in scan", looping, lengths(4), N, "Loop"),
    Row("map", lambda x: map_over(lambda y: y.sin() + 1, x), lengths(4), N, "Scan"),
    Row(
        "map, argument", lambda x, w: map_over(lambda y, w: (y @ w).relu(), x, w), WITH_WEIGHT, ({0: "n"}, None), "Scan"
    ),
    Row(
        "map, pytrees",
        lambda x, y: map_over(lambda t: (t["a"] + t["b"], t["a"].sum()), {"a": x, "b": y}),
        lengths(4, count=2),
        ({0: "n"}, {0: "n"}),
        "Scan",
    ),
    Row("map, weights", Mapped(), lengths(2, 4), N, "Scan"),
    Row("cond in map", branching_map, lengths(4), N, "If"),
    Row("associative", lambda x: associated(lambda a, b: a + b, x), lengths(4), N, "Scan"),
    Row("associative, reverse", lambda x: associated(lambda a, b: a * b, x, 0, reverse=True), lengths(4), N, "Scan"),
    Row("associative, dim", lambda x: associated(torch.maximum, x, 1), BATCHES, ({0: "b", 1: "n"},), "Scan"),
    Row("associative, matrices", lambda x: associated(lambda a, b: a @ b, x), lengths(3, 3), N, "Scan"),
    Row("associative, pytrees", linear_recurrence, lengths(4, count=2), ({0: "n"}, {0: "n"}), "Scan"),
)


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_against_eager(row: Row, opset: int) -> None:
    check_row(row, opset)


@pytest.mark.parametrize("opset", [11, 23])
@pytest.mark.parametrize("row", ROWS[9:12], ids=str)
def test_against_eager_at_the_other_forms(row: Row, opset: int) -> None:
    check_row(row, opset)


def test_size_of_the_model_is_independent_of_the_length() -> None:
    counts = {
        len(nodes_of(fxonnx.export(Recurrent().eval(), (torch.randn(n, 2, 4),)).model_proto.graph)) for n in (8, 512)
    }
    assert len(counts) == 1


def test_weights_of_a_body_are_initializers_of_the_main_graph() -> None:
    program = fxonnx.export(Recurrent().eval(), (torch.randn(3, 2, 4),))
    (scan_node,) = (node for node in program.model_proto.graph.node if node.op_type == "Scan")
    assert {"cell.weight_ih", "cell.weight_hh"} <= {
        name.partition("::")[0] for name in (tensor.name for tensor in program.model_proto.graph.initializer)
    }
    assert not scan_node.attribute[0].g.initializer


def test_earlier_calls_do_not_specialize_a_dynamic_length() -> None:
    model = VariadicFunction(total).eval()
    for n in (3, 5):
        model(torch.randn(n, 4))
        fxonnx.export(model, (torch.randn(n, 4),))
    program = fxonnx.export(model, (torch.randn(3, 4),), dynamic_shapes=(({0: "n"},),))
    assert program.model_proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_nodes_of_an_associative_scan_grow_with_the_logarithm_of_a_static_length() -> None:
    model = VariadicFunction(lambda x: associated(lambda a, b: a + b, x)).eval()
    counts = [len(fxonnx.export(model, (torch.randn(n, 4),)).model_proto.graph.node) for n in (16, 256)]
    assert counts[1] <= 2.5 * counts[0]
