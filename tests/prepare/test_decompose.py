"""Every decomposition computes what the operator computes, at other sizes, too, and assumes nothing about sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fxonnx.prepare.decompose import decompose
from torch import nn
from torch.export import Dim
from torch.testing import assert_close

aten = torch.ops.aten


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


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


def captured(function: Callable[..., Any], args: tuple[Any, ...], dynamic: Any = None) -> torch.fx.GraphModule:
    """A graph module of our own, as the pipeline makes it."""
    program = torch.export.export(Function(function).eval(), args, dynamic_shapes=dynamic, strict=False)
    graph = torch.fx.Graph()
    output = graph.graph_copy(program.graph, {}, return_output_node=True)
    graph.output(output[0])
    return torch.fx.GraphModule(program.graph_module, graph)


def targets(gm: torch.fx.GraphModule) -> set[Any]:
    return {node.target for node in gm.graph.nodes if node.op == "call_function"}


def shape_env(gm: torch.fx.GraphModule) -> Any:
    return next(node.meta["val"].fake_mode.shape_env for node in gm.graph.nodes if node.op == "placeholder")


def run(gm: torch.fx.GraphModule, args: tuple[Any, ...]) -> Any:
    gm.graph.lint()
    gm.recompile()
    result = gm(*args)
    return result[0] if len(result) == 1 else result


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
    "stft_pad": (aten.pad.default, lambda x: F.pad(x, (2, 1), mode="reflect"), lambda n: (r(n, 4, 5),)),
    "pixel_unshuffle": (aten.pixel_unshuffle.default, lambda x: F.pixel_unshuffle(x, 2), lambda n: (r(n, 3, 4, 4),)),
    "weight_norm": (aten._weight_norm.default, lambda x, g: torch._weight_norm(x, g, 0), lambda n: (r(n, 3), r(n, 1))),
    "cosine": (aten.cosine_similarity.default, lambda x, y: F.cosine_similarity(x, y), lambda n: (r(n, 4), r(n, 4))),
    "unflatten": (aten.unflatten.int, lambda x: x.unflatten(1, (2, 2)), lambda n: (r(n, 4),)),
    "huber": (aten.huber_loss.default, lambda x, y: F.huber_loss(x, y), lambda n: (r(n, 4), r(n, 4) * 3)),
    "block_diag": (aten.block_diag.default, lambda x: torch.block_diag(x[0], x[1]), lambda n: (r(n, 4),)),
    "silu": (aten.silu.default, F.silu, lambda n: (r(n, 4),)),
    "softplus": (aten.softplus.default, lambda x: F.softplus(x, 2.0), lambda n: (r(n, 4),)),
    "cumprod_sum": (aten.square.default, torch.square, lambda n: (r(n, 4),)),
    "einsum": (aten.einsum.default, lambda x, y: torch.einsum("bi,bj->bij", x, y), lambda n: (r(n, 4), r(n, 3))),
    "roll": (aten.roll.default, lambda x: torch.roll(x, 1, 0), lambda n: (r(n, 4),)),
    "rot90": (aten.rot90.default, lambda x: torch.rot90(x), lambda n: (r(n, 4),)),
    "meshgrid": (aten.meshgrid.indexing, lambda x, y: torch.meshgrid(x, y, indexing="ij"), lambda n: (r(n), r(4))),
    "addr": (aten.addr.default, lambda m, x, y: torch.addr(m, x, y), lambda n: (r(n, 4), r(n), r(4))),
    "linspace": (aten.diff.default, lambda x: torch.diff(x, dim=1), lambda n: (r(n, 4),)),
    "take_along": (
        aten.take_along_dim.default,
        lambda x: torch.take_along_dim(x, x.argsort(1), 1),
        lambda n: (r(n, 4),),
    ),
    "glu": (aten.glu.default, lambda x: F.glu(x, 1), lambda n: (r(n, 4),)),
    "layer_norm": (aten.layer_norm.default, lambda x: F.layer_norm(x, (4,)), lambda n: (r(n, 4),)),
    "triu": (aten.triu.default, torch.triu, lambda n: (r(n, 4),)),
    "split": (aten.tensor_split.indices, lambda x: torch.tensor_split(x, [1, 2], 1), lambda n: (r(n, 4),)),
    "normalize": (aten.linalg_vector_norm.default, lambda x: F.normalize(x), lambda n: (r(n, 4),)),
    "kl_div": (aten.kl_div.default, lambda x, y: F.kl_div(x, y.softmax(1)), lambda n: (r(n, 4), r(n, 4))),
    "triplet": (
        aten.triplet_margin_loss.default,
        lambda x, y: F.triplet_margin_loss(x, y, x + y),
        lambda n: (r(n, 4), r(n, 4)),
    ),
    "embedding_bag": (aten.cdist.default, lambda x, y: torch.cdist(x, y), lambda n: (r(n, 4), r(3, 4))),
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
    "feature_dropout": (aten.feature_dropout.default, lambda x: F.dropout2d(x, 0.5, False), lambda n: (r(n, 4, 3, 3),)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ROWS)
def test_a_decomposition_computes_the_same(name: str, dynamic: bool) -> None:
    target, function, inputs = ROWS[name]
    args = inputs(4)
    shapes = tuple({0: Dim.DYNAMIC} if arg.shape[0] == 4 else None for arg in args) if dynamic else None
    if name == "meshgrid" and dynamic:
        shapes = ({0: Dim.DYNAMIC}, None)
    gm = captured(function, args, (shapes,) if dynamic else None)
    assert target in targets(gm)
    placeholders = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    guards = len(shape_env(gm).guards) if dynamic else 0
    keep = without(target)

    assert decompose(gm, keep) == []

    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert keep(node), node.target
        if node.op != "output":
            assert "val" in node.meta, node
    assert [node.name for node in gm.graph.nodes if node.op == "placeholder"] == placeholders
    assert_close(run(gm, args), function(*args))
    if dynamic:
        assert len(shape_env(gm).guards) == guards
        other = inputs(6)
        assert_close(run(gm, other), function(*other))
