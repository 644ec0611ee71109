"""Control flow with numbers, constants, sizes and closures; optimization of the subgraphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

import fxonnx

from ..functions import VariadicFunction
from .higher_order import Row, check_row, lengths, nodes_of


class Repeated(nn.Module):
    """Weights inside of a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, n: Tensor, x: Tensor) -> Any:
        return torch.while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, self.linear(x).tanh()), (n, x))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.linear, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        def region(y: Tensor) -> Tensor:
            return torch.cond(y.sum() > 0, lambda y: self.linear(y), lambda y: -y, (y,))

        return checkpoint(region, x, use_reentrant=self.reentrant) + 1


class Deep(nn.Module):
    """cond in scan in cond, with a weight and a buffer used at the innermost level."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.randn(4, 4)), nn.Buffer(torch.rand(4))

    def forward(self, x: Tensor) -> Any:
        def step(carry: Tensor, y: Tensor) -> Any:
            new = torch.cond(
                y.max() > 0.5, lambda c, y: c + y @ self.weight, lambda c, y: c * 0.5 - self.shift, (carry, y)
            )
            return new, new.sin()

        def scanned(x: Tensor) -> Any:
            return scan(step, torch.zeros(4), x)[1]

        return torch.cond(x.sum() > 0, scanned, lambda x: x @ self.weight, (x,))


def counted(x: Tensor) -> Any:
    return torch.while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x + i), (0, x))


def two_counters(x: Tensor) -> Any:
    def body(i: Any, j: Any, x: Tensor) -> Any:
        return i + 1, j + 2 * i, x * 0.5 + j

    return torch.while_loop(lambda i, j, x: i + j < 3 * x.shape[0], body, (0, 1, x))


def up_to_item(n: Tensor, x: Tensor) -> Any:
    limit = n.item()
    return torch.while_loop(lambda i, x: i < limit, lambda i, x: (i + 1, x * 1.5 + i), (0, x))[1]


def counter_used(n: Tensor, x: Tensor) -> Any:
    count, x = torch.while_loop(
        lambda i, x: (x.sum() < 10) & (i < n), lambda i, x: (i + 1, x.abs() + 1), (torch.tensor(0), x)
    )
    return x * count


def number_returned(x: Tensor) -> Any:
    return x * torch.cond(x.sum() > 0, lambda x: 2, lambda x: 3, (x,))


def first_elements(x: Tensor) -> Tensor:
    count = (x > 0).sum()
    if count > 1:
        return x[:count].sum() * 2
    return x.sum()


def fewer_elements(x: Tensor) -> Tensor:
    count, total = (x > 0).sum(), x.sum()
    while count > 0:
        total = total + x[:count].sum() * x[count % len(x)].sum()
        count = count - 1
    return total


def two_sizes(x: Tensor) -> Any:
    return torch.cond((x.shape[0] > 1) & (x.shape[1] < 5), lambda x: x + 1, lambda x: x.sin(), (x,))


def size_closed_over(x: Tensor) -> Any:
    n = x.shape[0]
    return torch.cond(x.sum() > 0, lambda x: x + n, lambda x: x * n, (x,))


def other_shape(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x[:2] * 1, lambda x: x * 2, (x,))


def three_deep(x: Tensor) -> Any:
    def second(x: Tensor) -> Any:
        return torch.cond(x.min() > -1, lambda x: x + 1, lambda x: x + 2, (x,))

    def first(x: Tensor) -> Any:
        return torch.cond(x.max() > 1, second, lambda x: x * 3, (x,))

    return torch.cond(x.sum() > 0, first, lambda x: x - 1, (x,))


def tree(x: Tensor) -> Any:
    return torch.cond(
        x.sum() > 0, lambda x: {"a": x + 1, "b": [x.sum()]}, lambda x: {"a": x * 2, "b": [x.mean()]}, (x,)
    )


def loop_of_trees(n: Tensor, x: Tensor) -> Any:
    def body(state: Any) -> Any:
        first, second = state["x"]
        return ({"i": state["i"] + 1, "x": (first * 2, second + first)},)

    return torch.while_loop(lambda state: state["i"] < n, body, ({"i": torch.tensor(0), "x": (x, x * 0)},))


def branch_in_loop(n: Tensor, x: Tensor) -> Any:
    def body(i: Tensor, x: Tensor) -> Any:
        return i + 1, torch.cond(x.sum() > 0, lambda x: x - 1, lambda x: x + 2, (x,))

    return torch.while_loop(lambda i, x: i < n, body, (torch.tensor(0), x))


def loop_in_loop(n: Tensor, x: Tensor) -> Any:
    def body(i: Tensor, x: Tensor) -> Any:
        _, x = torch.while_loop(lambda j, x: j < i, lambda j, x: (j + 1, x + j), (torch.tensor(0), x))
        return i + 1, x * 0.5

    return torch.while_loop(lambda i, x: i < n, body, (torch.tensor(0), x))


def scan_in_loop(n: Tensor, x: Tensor) -> Any:
    def body(i: Tensor, x: Tensor) -> Any:
        return i + 1, scan(lambda carry, y: (carry + y, carry * y * 0.1), torch.zeros(3), x)[1]

    return torch.while_loop(lambda i, x: i < n, body, (torch.tensor(0), x))


def fibonacci(n: Tensor) -> Any:
    return torch.while_loop(
        lambda i, a, b: i < n,
        lambda i, a, b: (i + 1, b.clone(), a + b),
        (torch.tensor(0), torch.tensor(0), torch.tensor(1)),
    )


def transforms(x: Tensor) -> Any:
    def step(carry: Tensor, y: Tensor) -> Any:
        return carry + vmap(lambda a: a * a)(y), vmap(vmap(lambda a, b: a * b, (None, 0)), (0, None))(y, carry)

    return scan(step, torch.zeros(4), x)


def gradient(x: Tensor) -> Any:
    return torch.cond(x.shape[0] > 2, lambda x: x * 2, lambda x: x - 1, (grad(lambda y: (y**3).sum())(x),))


TRIPS = [(torch.tensor(n), torch.randn(2, 3)) for n in (3, 0, 1, 2, 7)]
N, T = ({0: "n"},), (None, {0: "k"})
BOTH = [*lengths(4), *((-x,) for (x,) in lengths(4))]
ROWS = (
    Row("int counter", counted, lengths(4), N, "Loop"),
    Row("two int counters", two_counters, lengths(4), N, "Loop"),
    Row("int counter up to item", up_to_item, TRIPS, T, "Loop"),
    Row("counter used after the loop", counter_used, TRIPS, T, "Loop"),
    Row("weights", Repeated(), TRIPS, T, "Loop"),
    Row("pytree of states", loop_of_trees, TRIPS, T, "Loop"),
    Row("cond in while_loop", branch_in_loop, TRIPS, T, "If"),
    Row("while_loop in while_loop", loop_in_loop, TRIPS, T, "Loop"),
    Row("scan in while_loop", scan_in_loop, TRIPS, T, "Scan"),
    Row("states change places", fibonacci, [(torch.tensor(n),) for n in (3, 0, 1, 2, 7)], (None,), "Loop"),
    Row("int returned", number_returned, BOTH, N, "If"),
    Row("size", lambda x: torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x.sin(), (x,)), BOTH, N, "If"),
    Row("remainder", lambda x: torch.cond(x.shape[0] % 2 == 0, lambda x: x + 1, lambda x: -x, (x,)), BOTH, N, "If"),
    Row("index in a branch", first_elements, BOTH, N, "If"),
    Row("index in a loop", fewer_elements, BOTH, N, "Loop"),
    Row("two sizes", two_sizes, [(torch.randn(*s),) for s in ((3, 2), (1, 1), (2, 5))], ({0: "n", 1: "m"},), "If"),
    Row("size in closure", size_closed_over, BOTH, N, "If"),
    Row("no operands", lambda x: torch.cond(x.sum() > 0, lambda: x + 1, lambda: x * 2), BOTH, N, "If"),
    Row("other shape", other_shape, [given for given in BOTH if len(given[0]) > 2], N, "If"),
    Row("three deep", three_deep, BOTH, N, "If"),
    Row("pytree", tree, BOTH, N, "If"),
    Row("constant", lambda x: torch.cond(torch.tensor(False), lambda x: x + 1, lambda x: -x, (x,)), BOTH, N),
    Row(
        "computed constant", lambda x: torch.cond(torch.ones(3).sum() > 2, lambda x: x + 1, lambda x: -x, (x,)), BOTH, N
    ),
    Row("cond in scan in cond", Deep(), BOTH, N, "Scan"),
    Row("checkpoint", Checkpointed(False), BOTH, N, "If"),
    Row("reentrant checkpoint", Checkpointed(True), BOTH, N, "If"),
    Row("vmap in scan", transforms, lengths(4), N, "Scan"),
    Row("grad", gradient, BOTH, N, "If"),
)


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_against_eager(row: Row, opset: int) -> None:
    check_row(row, opset)


@pytest.mark.parametrize("opset", [11, 23])
@pytest.mark.parametrize("row", [row for row in ROWS if "cond in" in row.name or "int counter" in row.name], ids=str)
def test_against_eager_at_the_other_forms(row: Row, opset: int) -> None:
    check_row(row, opset)


@pytest.mark.parametrize("name", ["constant", "computed constant"])
def test_constant_condition_selects_its_branch(name: str) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    program = fxonnx.export(VariadicFunction(row.model).eval(), row.examples[0])  # type: ignore[arg-type]
    assert len(program.model_proto.graph.node) == 1


class Norm(nn.Module):
    """A decomposed layer norm in a subgraph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        def norm(x: Tensor) -> Tensor:
            centered = x - x.mean(-1, keepdim=True)
            variance = centered.pow(2).mean(-1, keepdim=True)
            return centered / torch.sqrt(variance + 1e-5) * self.weight + self.bias

        return torch.cond(x.sum() > 0, norm, lambda x: x * (torch.arange(8) * 2.0 + 1).sqrt(), (x,))


def test_patterns_and_constant_folding_inside_of_subgraphs() -> None:
    program = fxonnx.export(Norm().eval(), (torch.randn(2, 8),))
    assert program.record.patterns["layer_norm"] == 1
    kinds = [node.op_type for node in nodes_of(program.model_proto.graph)]
    assert kinds.count("LayerNormalization") == 1
    assert not {"Range", "Sqrt"} & set(kinds)
    names = [tensor.name for tensor in program.model_proto.graph.initializer]
    assert {"weight", "bias"} <= set(names)


def test_derivative_inside_of_a_branch() -> None:
    def model(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: grad(lambda y: (y**3).sum())(x), lambda x: x * 1, (x,))

    with pytest.raises(fxonnx.UnsupportedOperatorError, match=r"cond, used once[\s\S]*a tensor without values"):
        fxonnx.export(VariadicFunction(model).eval(), (torch.randn(3, 4),))
