"""Structure of functional graphs, reported mutations, and rejected ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxonnx
from fxonnx._prepare.functionalize import functionalize
from fxonnx._prepare.inline import inline_subgraphs
from fxonnx.errors import PrepareError

from .functionalize_harness import Model, X, Y, check, copied, export, functional, run, same, targets


def halve_in_place(x: Tensor) -> None:
    x.mul_(0.5)


def corner(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y[1:, 2:][0].mul_(3)
    return y


def unused(m: Model, x: Tensor) -> Any:
    y = x.clone()
    y[0].add_(1)
    return x * 2


def test_graph_without_mutations_is_unchanged() -> None:
    program = export(lambda m, x: x.view(-1)[1:].relu() + m.state.sum(), X)
    module, mutations = functional(program)
    assert str(module.graph) == str(program.graph)
    assert mutations == []


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda m, x: (x + 1).relu_(), ["aten.add.Tensor", "aten.relu.default"]),
        (lambda m, x: nn.functional.dropout(x * 2, 0.5, True, True), ["aten.mul.Tensor", "aten.dropout.default"]),
        (lambda m, x: nn.functional.dropout(x * 2, 0.5, False, True), ["aten.mul.Tensor", "aten.dropout.default"]),
        (lambda m, x: (x * 2).add_(x), ["aten.mul.Tensor", "aten.add.Tensor"]),
        (unused, ["aten.mul.Tensor"]),
        (lambda m, x: x.clone().zero_(), ["aten.full.default"]),
        (lambda m, x: x.clone().view(-1).relu_(), ["aten.clone.default", "aten.reshape.default", "aten.relu.default"]),
    ],
    ids=["relu", "dropout", "eval-dropout", "add", "unused", "zero", "last-alias"],
)
def test_number_of_emitted_nodes(function: Callable[..., Any], wanted: list[str]) -> None:
    program = export(function, X)
    module, mutations = check(program, (X,))
    assert [target for target in targets(module) if target != "aten.clone.default" or target in wanted] == wanted
    assert mutations == []


def test_views_without_writes_are_not_written_back() -> None:
    def rows(m: Model, x: Tensor) -> Any:
        y = x.clone()
        a, b, c, d = y.unbind(0)
        a.mul_(2)
        b.add_(a)
        evens, odds = y[:, ::2], y[:, 1::2]
        return a + b, c - d, evens.shape[0], odds.shape[1]

    module, _ = check(export(rows, X), (X,))
    assert not [target for target in targets(module) if "scatter" in target or "slice" in target]


def test_in_place_node_keeps_its_name() -> None:
    module, _ = check(export(lambda m, x: (x + 1).relu_().mul_(2), X), (X,))
    assert [node.name for node in module.graph.nodes][-4:] == ["add", "relu_", "mul_", "output"]


def test_custom_in_place_op_becomes_its_functional_variant() -> None:
    library = torch.library.Library("fxonnx_twins", "DEF")
    library.define("halve_(Tensor(a!) x) -> ()")
    library.define("halve(Tensor x) -> Tensor")
    library.impl("halve_", halve_in_place, "CompositeExplicitAutograd")
    library.impl("halve", lambda x: x * 0.5, "CompositeExplicitAutograd")

    def twice(m: Model, x: Tensor) -> Any:
        y = x.clone()
        torch.ops.fxonnx_twins.halve_(y[1:])
        return y

    module, _ = check(export(twice, X), (X,))
    assert "fxonnx_twins.halve.default" in targets(module)
    library._destroy()


def test_new_nodes_have_provenance() -> None:
    module, _ = check(export(corner, X), (X,))
    scatters = [node for node in module.graph.nodes if "scatter" in node.name]
    assert scatters
    for node in scatters:
        assert "functionalize_harness.py" in node.meta["stack_trace"]
        assert node.meta["nn_module_stack"]


def test_mutations_are_reported_by_placeholder() -> None:
    def writes(m: Model, x: Tensor, y: Tensor) -> Any:
        m.count += 1
        m.state.mul_(2)[0, 0].zero_()
        y[0].copy_(x[0])
        return x + m.state.sum()

    _, mutations = check(export(writes, X, Y), (X, Y))
    assert [mutation.target for mutation in mutations] == ["b_state", "b_count", "args_1"]


class Shared(nn.Module):
    """Two names for one buffer, and two buffers that are halves of one storage."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.arange(12.0)
        self.register_buffer("first", memory[:6].view(2, 3))
        self.register_buffer("again", self.first)
        self.register_buffer("second", memory[6:])

    def forward(self, x: Tensor) -> Tensor:
        self.first.add_(x)
        self.second.mul_(2)
        return self.again + self.second.view(2, 3)


class Overlapping(Shared):
    def forward(self, x: Tensor) -> Tensor:
        self.first.add_(x)
        self.row.mul_(2)
        return self.first * 1

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("row", self.first[0])


def test_buffers_that_share_memory() -> None:
    program = torch.export.export(Shared(), (torch.ones(2, 3),))
    module, mutations = functional(program)
    assert sorted(mutation.target for mutation in mutations) == ["b_again", "b_first", "b_second"]
    values = {mutation.target: mutation.value for mutation in mutations}
    assert values["b_again"] is values["b_first"]
    state = Shared()
    given = [state.first.clone(), state.again.clone(), state.second.clone(), torch.ones(2, 3)]
    outputs, finals = run(module, given, [values["b_first"], values["b_second"]])
    same(outputs[0], Shared()(torch.ones(2, 3)))
    same(finals[0], state.first + 1)
    same(finals[1], state.second * 2)


def test_overlapping_buffers_are_rejected() -> None:
    program = torch.export.export(Overlapping(), (torch.ones(2, 3),))
    with pytest.raises(PrepareError, match=r"it writes to memory that b_.* and b_row share"):
        functional(program)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[0].add_(1)

        def then(value: Tensor) -> Tensor:
            local = value * 2
            local[0].zero_()
            return local.relu_()

        def otherwise(value: Tensor) -> Tensor:
            return value - 1

        return torch.cond(x.sum() > 0, then, otherwise, (y,))


class Regions(nn.Module):
    def forward(self, x: Tensor) -> Any:
        y = x.clone()
        with torch.no_grad():
            z = y * 2
            row = y[1]
            row.add_(1)
            y.mul_(3)
        return y + z, row


def test_inlined_regions_mutate_outer_tensors() -> None:
    module = copied(torch.export.export(Regions(), (X,)))
    inline_subgraphs(module)
    assert functionalize(module.graph) == []
    outputs, _ = run(module, [X])
    for left, right in zip(outputs, Regions()(X), strict=True):
        same(left, right)


def test_subgraph_that_mutates_its_arguments_is_rejected() -> None:
    program = torch.export.export(Regions(), (X,))
    with pytest.raises(
        PrepareError, match="wrap_with_set_grad_enabled: its subgraph submod_1 writes to its argument clone"
    ):
        functional(program)


def test_subgraphs_of_higher_order_ops_are_functionalized() -> None:
    program = torch.export.export(Branches(), (X,))
    text = str(program.graph_module.true_graph_0.graph)
    module, _ = check(program, (X,))
    check(program, (X - 10,))
    assert not any(target.endswith("_.default") for target in targets(module.true_graph_0))
    assert str(program.graph_module.true_graph_0.graph) == text


@torch.library.custom_op("fxonnx_tests::scramble", mutates_args=["x"])
def scramble(x: Tensor) -> None:
    x.copy_(x.flip(0))


def _strided_writes_to_transposed(m: Model, x: Tensor) -> Any:
    y = x.t().clone()
    y.as_strided((2,), (1,)).add_(1)
    return y


def _out_with_view(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    result = torch.empty(0)
    view = result.view(0, 1)
    torch.add(x, 1, out=result)
    return result, view


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: x.clone().resize_(2, 2), r"aten\.resize_\.default: .*changes the storage"),
        (lambda m, x: x[:1].clone().expand(3, 6).add_(1), r"aten\.add_\.Tensor: .*a view with overlapping elements"),
        (
            lambda m, x: x.clone().unfold(1, 3, 1).zero_(),
            r"aten\.zero_\.default: .*unfold.* a view with overlapping elements",
        ),
        (lambda m, x: x.reshape(2, 2, 6)[:, :, :2].clone().fill_diagonal_(1), "matrices without wrap only"),
        (_strided_writes_to_transposed, "that is not contiguous"),
        (lambda m, x: torch.polygamma(1, x.clone()).polygamma_(1), r"aten\.polygamma_\.default: .* no functional form"),
        (lambda m, x: torch._foreach_add_([x.clone()], 1), "which is not a single tensor"),
        (_out_with_view, r"the out tensor of shape \(0,\), whose memory is used elsewhere, would be resized"),
        (lambda m, x: torch.add(x, 1, out=x[:0, 0]), r"the out tensor of shape \(0,\), .* would be resized"),
        (lambda m, x: torch.einsum("ij->ji", x).add_(1), r"aten\.einsum\.default: .*writing through this view"),
        (lambda m, x: scramble(x), r"fxonnx_tests\.scramble\.default: .*writes to its arguments"),
    ],
    ids=[
        "resize",
        "expand",
        "unfold",
        "fill_diagonal",
        "as_strided",
        "polygamma",
        "foreach",
        "resized-out-with-view",
        "resized-out-of-input",
        "einsum",
        "custom",
    ],
)
def test_mutations_without_functional_form_are_rejected(function: Callable[..., Any], message: str) -> None:
    program = export(function, X)
    with pytest.raises(PrepareError, match=message) as caught:
        functional(program)
    assert "functionalize_harness.py" in str(caught.value)


def test_a_view_whose_form_depends_on_values() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            places = torch.argwhere(x)
            strided = places.as_strided((x.shape[0] // 2, 2), (2, 1), 0)
            places.clamp_(min=0)
            return places, strided

    with pytest.raises(
        PrepareError, match=r"as_strided.*: the form of a view of a mutated tensor depends on values"
    ) as error:
        fxonnx.export(Model().eval(), (torch.rand(4, 4),), dynamic_shapes=({0: "n"},))
    assert "test_functionalize_structure.py:" in str(error.value)
