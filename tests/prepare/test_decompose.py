"""Decompositions agree with their operators, also at other sizes, and add no guards."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim
from torch.testing import assert_close

import fxonnx
from fxonnx._prepare.decompose import REASON_KEY, decompose
from fxonnx._prepare.inline import inline_subgraphs
from fxonnx._prepare.tracing import TraceError, splice_trace, trace_call
from tests.prepare.helpers import capture, own_copy, run, targets

aten = torch.ops.aten
D = Dim.DYNAMIC


def is_core(node: torch.fx.Node) -> bool:
    return torch.Tag.core in node.target.tags or node.target in {
        aten.matmul.default,
        aten.linear.default,
        aten.to.dtype,
        aten.pad.default,
        aten.stft.default,
        aten.sym_size.int,
        aten.lift_fresh_copy.default,
        aten.linalg_vector_norm.default,
        aten.var.correction,
        aten.batch_norm.default,
    }


def without(target: Any) -> Callable[[torch.fx.Node], bool]:
    return lambda node: is_core(node) and node.target is not target


def shape_env(gm: torch.fx.GraphModule) -> Any:
    return next(node.meta["val"].fake_mode.shape_env for node in gm.graph.nodes if node.op == "placeholder")


def nothing(node: torch.fx.Node) -> bool:
    return False


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


ROWS: dict[str, tuple[Any, Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "hardswish": (aten.hardswish.default, F.hardswish, lambda n: (r(n, 3),)),
    "hardswish_half": (aten.hardswish.default, F.hardswish, lambda n: (r(n, 3, dtype=torch.bfloat16),)),
    "instance_norm": (aten.instance_norm.default, lambda x: F.instance_norm(x), lambda n: (r(n, 4, 5),)),
    "cross_entropy": (
        aten.cross_entropy_loss.default,
        lambda x: F.cross_entropy(x, x.argmax(1), label_smoothing=0.1),
        lambda n: (r(n, 4),),
    ),
    "group_norm": (aten.group_norm.default, lambda x: F.group_norm(x, 2), lambda n: (r(n, 4, 5),)),
    "tile": (aten.tile.default, lambda x: torch.tile(x, (2, 1, 3)), lambda n: (r(n, 3),)),
    "var_mean": (aten.var_mean.dim, lambda x: torch.var_mean(x, 1), lambda n: (r(n, 4),)),
    "std": (aten.std.dim, lambda x: torch.std(x, 0), lambda n: (r(n, 4),)),
    "addcdiv": (
        aten.addcdiv.default,
        lambda x, y: torch.addcdiv(x, y, y * 2, value=3),
        lambda n: (r(n, 4), r(n, 4) + 10),
    ),
    "logsumexp": (aten.logsumexp.default, lambda x: torch.logsumexp(x, -1), lambda n: (r(n, 4),)),
    "pad": (aten.pad.default, lambda x: F.pad(x, (2, 1), mode="reflect"), lambda n: (r(n, 4, 5),)),
    "pixel_unshuffle": (aten.pixel_unshuffle.default, lambda x: F.pixel_unshuffle(x, 2), lambda n: (r(n, 3, 4, 4),)),
    "weight_norm": (aten._weight_norm.default, lambda x, g: torch._weight_norm(x, g, 0), lambda n: (r(n, 3), r(n, 1))),
    "cosine": (aten.cosine_similarity.default, lambda x, y: F.cosine_similarity(x, y), lambda n: (r(n, 4), r(n, 4))),
    "unflatten": (aten.unflatten.int, lambda x: x.unflatten(1, (2, 2)), lambda n: (r(n, 4),)),
    "huber": (aten.huber_loss.default, lambda x, y: F.huber_loss(x, y), lambda n: (r(n, 4), r(n, 4) * 3)),
    "block_diag": (aten.block_diag.default, lambda x: torch.block_diag(x[0], x[1]), lambda n: (r(n, 4),)),
    "silu": (aten.silu.default, F.silu, lambda n: (r(n, 4),)),
    "softplus": (aten.softplus.default, lambda x: F.softplus(x, 2.0), lambda n: (r(n, 4),)),
    "square": (aten.square.default, torch.square, lambda n: (r(n, 4),)),
    "einsum": (aten.einsum.default, lambda x, y: torch.einsum("bi,bj->bij", x, y), lambda n: (r(n, 4), r(n, 3))),
    "roll": (aten.roll.default, lambda x: torch.roll(x, 1, 0), lambda n: (r(n, 4),)),
    "rot90": (aten.rot90.default, lambda x: torch.rot90(x), lambda n: (r(n, 4),)),
    "meshgrid": (aten.meshgrid.indexing, lambda x, y: torch.meshgrid(x, y, indexing="ij"), lambda n: (r(n), r(4))),
    "addr": (aten.addr.default, lambda m, x, y: torch.addr(m, x, y), lambda n: (r(n, 4), r(n), r(4))),
    "diff": (aten.diff.default, lambda x: torch.diff(x, dim=1), lambda n: (r(n, 4),)),
    "take_along_dim": (
        aten.take_along_dim.default,
        lambda x: torch.take_along_dim(x, x.argsort(1), 1),
        lambda n: (r(n, 4),),
    ),
    "glu": (aten.glu.default, lambda x: F.glu(x, 1), lambda n: (r(n, 4),)),
    "layer_norm": (aten.layer_norm.default, lambda x: F.layer_norm(x, (4,)), lambda n: (r(n, 4),)),
    "triu": (aten.triu.default, torch.triu, lambda n: (r(n, 4),)),
    "tensor_split": (aten.tensor_split.indices, lambda x: torch.tensor_split(x, [1, 2], 1), lambda n: (r(n, 4),)),
    "vector_norm": (aten.linalg_vector_norm.default, lambda x: F.normalize(x), lambda n: (r(n, 4),)),
    "kl_div": (aten.kl_div.default, lambda x, y: F.kl_div(x, y.softmax(1)), lambda n: (r(n, 4), r(n, 4))),
    "triplet": (
        aten.triplet_margin_loss.default,
        lambda x, y: F.triplet_margin_loss(x, y, x + y),
        lambda n: (r(n, 4), r(n, 4)),
    ),
    "cdist": (aten.cdist.default, lambda x, y: torch.cdist(x, y), lambda n: (r(n, 4), r(3, 4))),
    "conv_padding": (
        aten.conv1d.padding,
        lambda x: F.conv1d(x, torch.ones(2, 4, 3), padding="same"),
        lambda n: (r(n, 4, 5),),
    ),
    "native_group_norm": (
        aten.native_group_norm.default,
        lambda x: aten.native_group_norm(x, None, None, x.shape[0], 4, 5, 2, 1e-5)[0],
        lambda n: (r(n, 4, 5),),
    ),
    "dropout_eval": (aten.dropout.default, lambda x: F.dropout(x, 0.5, False) + 1, lambda n: (r(n, 4),)),
    "dropout_alone": (aten.dropout.default, lambda x: F.dropout(x, 0.5, False), lambda n: (r(n, 4),)),
    "feature_dropout": (
        aten.feature_dropout.default,
        lambda x: F.dropout2d(x, 0.5, False) + 1,
        lambda n: (r(n, 4, 3, 3),),
    ),
}


STATIC = ("hardswish", "cross_entropy", "var_mean", "tensor_split", "roll", "einsum", "take_along_dim")
CASES = [*((name, True) for name in ROWS if name != "take_along_dim"), *((name, False) for name in STATIC)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "dynamic"), CASES, ids=[f"{name}{'-dynamic' * dynamic}" for name, dynamic in CASES])
def test_decomposition_agrees_with_the_operator(name: str, dynamic: bool) -> None:
    target, function, inputs = ROWS[name]
    args = inputs(5)
    program = capture(function, args, tuple({0: D} if arg.shape[0] == 5 else None for arg in args) if dynamic else None)
    gm = own_copy(program)
    inline_subgraphs(gm)
    assert target in targets(gm)
    placeholders = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    results = str(next(iter(reversed(gm.graph.nodes))).args)
    guards = len(shape_env(gm).guards) if dynamic else 0
    keep = without(target)

    assert decompose(gm, keep) == []

    for node in gm.graph.nodes:
        if node.op == "call_function":
            assert node.meta.get("nn_module_stack"), node
            assert "val" in node.meta, node
            if isinstance(node.target, torch._ops.OpOverload) and node.users:
                assert keep(node), node.target
    assert [node.name for node in gm.graph.nodes if node.op == "placeholder"] == placeholders
    if name != "dropout_alone":
        assert str(next(iter(reversed(gm.graph.nodes))).args) == results
    assert_close(run(gm, program, *args), function(*args))
    if dynamic:
        assert len(shape_env(gm).guards) == guards
        other = inputs(7)
        assert_close(run(gm, program, *other), function(*other))


def test_the_same_call_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def counting(node: torch.fx.Node, function: Callable[..., Any]) -> torch.fx.GraphModule:
        traced.append(str(node.target))
        return trace_call(node, function)

    monkeypatch.setattr("fxonnx._prepare.decompose.trace_call", counting)
    x = r(5, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.silu(F.silu(F.silu(x)) + F.silu(x[:, :2]).sum())

    program = capture(function, (x,), ({0: D},))
    gm = own_copy(program)
    assert decompose(gm, without(aten.silu.default)) == []
    assert traced.count("aten.silu.default") == 2
    assert_close(run(gm, program, x), function(x))


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, 1.0), (2.0, float("nan"))])
def test_calls_with_different_constants_have_different_keys(one: float, other: float) -> None:
    x = torch.tensor([-0.0, 1.0])

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.threshold(x, 0.5, one), F.threshold(x, 0.5, other)

    program = capture(function, (x,))
    gm = own_copy(program)
    assert decompose(gm, without(aten.threshold.default)) == []
    for found, expected in zip(run(gm, program, x), function(x), strict=True):
        assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit(), expected.signbit())


def test_operator_without_decomposition_is_reported_and_unchanged() -> None:
    program = capture(lambda x: torch.linalg.eig(x)[0] + F.silu(x), (torch.eye(3),))
    gm = own_copy(program)
    left = decompose(gm, lambda node: node.target not in (aten.linalg_eig.default, aten.silu.default))
    assert [node.target for node in left] == [aten.linalg_eig.default]
    assert left[0].meta[REASON_KEY] == "torch has no decomposition for it"
    assert aten.silu.default not in targets(gm)


def test_incomplete_decomposition_is_not_applied() -> None:
    program = capture(lambda x: F.instance_norm(x), (r(2, 4, 5),))
    gm = own_copy(program)
    before = targets(gm)
    left = decompose(gm, nothing)
    assert [node.target for node in left] == [aten.instance_norm.default]
    assert targets(gm) == before
    assert "it needs aten." in left[0].meta[REASON_KEY]


def test_an_operator_that_decomposes_into_itself_is_reported() -> None:
    program = capture(lambda x: x.sum(0), (r(2, 4),))
    gm = own_copy(program)
    left = decompose(gm, nothing)
    assert [node.target for node in left] == [aten.sum.dim_IntList]
    assert "aten.sum.dim_IntList decomposes into itself" in left[0].meta[REASON_KEY]


def test_decompositions_add_no_guards() -> None:
    def compare(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.mul(other) if self.shape[0] == 7 else self.add(other)

    program = capture(lambda x: x * 2.0, (r(5, 4),), ({0: D},))
    gm = own_copy(program)
    node = next(node for node in gm.graph.nodes if node.target is aten.mul.Tensor)
    guards = len(shape_env(gm).guards)
    with pytest.raises(TraceError, match="Guard attempted while ShapeEnv guards are frozen"):
        trace_call(node, compare)
    assert len(shape_env(gm).guards) == guards


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda x, y: x.double(), "returns torch.float64, the operator torch.float32"),
        (lambda x, y: x[0], r"returns shape \(4,\), the operator \(5, 4\)"),
        (lambda x, y: None, None),
        (lambda x, y: 3, "returns int, the operator a tensor"),
        (lambda x, y: x.add_(1), "writes to its arguments"),
        (lambda x, y: x.clone().resize_(x.numel() + 4)[:-4].view(x.shape), "cannot be functionalized: aten.resize_"),
        (lambda x, y: {}["no such key"], "KeyError: 'no such key'"),
        (lambda x, y: x.nonzero().sum() * x, "whose result has a size known only at run time"),
    ],
)
def test_decomposition_with_wrong_result_is_rejected(function: Callable[..., Any], problem: str | None) -> None:
    program = capture(lambda x: x * 2.0, (r(5, 4),))
    node = next(node for node in own_copy(program).graph.nodes if node.target is aten.mul.Tensor)
    if problem is None:
        assert targets(trace_call(node, function)) == []
        return
    with pytest.raises(TraceError, match=problem):
        trace_call(node, function)


def test_decomposition_with_wrong_number_of_results_is_rejected() -> None:
    program = capture(lambda x: torch.var_mean(x, 1)[0], (r(5, 4),))
    node = next(node for node in own_copy(program).graph.nodes if node.target is aten.var_mean.dim)
    with pytest.raises(TraceError, match="does not return 2 values"):
        trace_call(node, lambda x, *_: x)


def test_tensor_created_by_a_decomposition_needs_values() -> None:
    program = capture(lambda x: x * 2.0, (r(5, 4),))
    node = next(node for node in own_copy(program).graph.nodes if node.target is aten.mul.Tensor)
    fake = node.meta["val"].clone()
    with pytest.raises(TraceError, match="creates a tensor _tensor_constant0 whose values are unknown"):
        trace_call(node, lambda x, y: x * fake)


def test_constants_of_a_decomposition_become_attributes() -> None:
    program = capture(lambda x: x * 2.0 + 1, (r(5, 4),))
    gm = own_copy(program)
    node = next(node for node in gm.graph.nodes if node.target is aten.mul.Tensor)
    trace = trace_call(node, lambda x, y: x * torch.tensor([1.0, 2.0, 3.0, 4.0]))
    splice_trace(gm, node, trace)
    names = [node.target for node in gm.graph.nodes if node.op == "get_attr"]
    assert [getattr(gm, name).tolist() for name in names] == [[1.0, 2.0, 3.0, 4.0]]
    x = r(5, 4)
    assert_close(run(gm, program, x), x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + 1)


def test_subgraphs_of_control_flow_are_decomposed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, F.silu, lambda value: F.hardswish(value) + 1, (x,))

    program = capture(function, (r(5, 4),))
    before = program.graph_module.print_readable(print_output=False)
    gm = own_copy(program)
    inline_subgraphs(gm)
    keep = without(aten.silu.default)
    assert decompose(gm, keep) == []
    bodies = [module for name, module in gm.named_modules() if name and isinstance(module, torch.fx.GraphModule)]
    assert len(bodies) == 2
    for body in bodies:
        assert not {aten.silu.default, aten.hardswish.default} & set(targets(body))
        body.recompile()
    assert program.graph_module.print_readable(print_output=False) == before
    for sign in (1, -1):
        x = r(5, 4).abs() * sign
        assert_close(run(gm, program, x), function(x))


def test_list_of_results_as_an_argument() -> None:
    program = capture(lambda x: x.sin(), (r(4, 4),))
    gm = own_copy(program)
    sin = next(node for node in gm.graph.nodes if node.target is aten.sin.default)
    with gm.graph.inserting_before(sin):
        split = gm.graph.call_function(aten.tensor_split.sections, (sin.args[0], 2))
        cat = gm.graph.call_function(aten.hstack.default, (split,))
    val = sin.meta["val"]
    with val.fake_mode:
        split.meta["val"] = aten.tensor_split.sections(val, 2)
        cat.meta["val"] = aten.hstack.default(split.meta["val"])
    sin.replace_all_uses_with(cat)
    assert decompose(gm, without(aten.hstack.default)) == []
    assert not {aten.hstack.default, aten.tensor_split.sections} & set(targets(gm))
    x = r(4, 4)
    assert_close(run(gm, program, x), torch.hstack(torch.tensor_split(x, 2)))


def test_nodes_that_a_pass_of_the_user_inserted_without_values() -> None:
    """Passes over a program, as transformers.exporters has, insert nodes without ``meta["val"]``."""
    program = torch.export.export(Largest().eval(), (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    graph = program.graph_module.graph
    relu = next(node for node in graph.nodes if node.target is aten.relu.default)
    with graph.inserting_before(relu.next):
        largest = graph.call_function(aten.topk.default, (relu, 2))
        values = graph.call_function(getitem, (largest, 0))
        doubled = graph.call_function(aten.mul.Tensor, (values, 2.0))
    relu.replace_all_uses_with(doubled, delete_user_cb=lambda user: user is not largest)
    program.graph_module.recompile()
    x = torch.randn(5, 4)
    assert_close(fxonnx.export(program)(x)[0], (x.relu().topk(2)[0] * 2).sum(1))


class Largest(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu().sum(1)
