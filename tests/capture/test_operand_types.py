"""Operators whose operands must have one dtype: the capture refuses them like eager torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxonnx
from fxonnx import CaptureError

from ..functions import Function
from .captures import capture

FLOAT, DOUBLE, HALF, BFLOAT, LONG = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64
PAIRS = (
    *((FLOAT, other) for other in (DOUBLE, HALF, LONG)),
    *((other, FLOAT) for other in (DOUBLE, BFLOAT, LONG)),
    (HALF, BFLOAT),
)


@dataclass(frozen=True)
class Row:
    """A call of two operands.

    Attributes:
        name: The operator, and the operand whose dtype differs if there are several.
        function: The call.
        shapes: The shapes of the operands.
    """

    name: str
    function: Callable[[torch.Tensor, torch.Tensor], Any]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def __str__(self) -> str:
        return self.name

    def operands(self, first: torch.dtype, second: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(self.shapes[0], dtype=first), torch.ones(self.shapes[1], dtype=second)

    def eager_error(self, first: torch.dtype, second: torch.dtype) -> str | None:
        """The message of eager torch, None if it accepts the dtypes."""
        try:
            self.function(*self.operands(first, second))
        except (RuntimeError, ValueError, IndexError) as error:
            return str(error).splitlines()[0]
        return None


INDEX = torch.zeros(2, dtype=torch.int64)


def assigned(x: torch.Tensor, index: Any, value: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[index] = value
    return x


def ones(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return x.new_ones(shape)


ROWS = (
    Row("linear", F.linear, ((2, 3), (4, 3))),
    Row("linear bias", lambda x, b: F.linear(x, ones(x, 4, 3), b), ((2, 3), (4,))),
    Row("linear 1d", F.linear, ((3,), (4, 3))),
    Row("linear 3d", F.linear, ((2, 2, 3), (4, 3))),
    Row("matmul", torch.matmul, ((2, 3), (3, 4))),
    Row("matmul of vectors", torch.matmul, ((3,), (3,))),
    Row("matmul vector matrix", torch.matmul, ((3,), (3, 4))),
    Row("matmul matrix vector", torch.matmul, ((2, 3), (3,))),
    Row("matmul folded", torch.matmul, ((2, 2, 3), (3, 4))),
    Row("matmul batches", torch.matmul, ((2, 2, 3), (2, 3, 4))),
    Row("mm", torch.mm, ((2, 3), (3, 4))),
    Row("bmm", torch.bmm, ((2, 2, 3), (2, 3, 4))),
    Row("mv", torch.mv, ((2, 3), (3,))),
    Row("dot", torch.dot, ((3,), (3,))),
    Row("inner", torch.inner, ((2, 3), (4, 3))),
    Row("addmm self", lambda x, m: torch.addmm(x, m, ones(m, 3, 4)), ((2, 4), (2, 3))),
    Row("addmm mat2", lambda x, m: torch.addmm(x, ones(x, 2, 3), m), ((2, 4), (3, 4))),
    Row("addmv", lambda x, m: torch.addmv(x, m, ones(m, 3)), ((2,), (2, 3))),
    Row("addbmm", lambda x, m: torch.addbmm(x, m, ones(m, 2, 3, 4)), ((2, 4), (2, 2, 3))),
    Row("baddbmm", lambda x, m: torch.baddbmm(x, m, ones(m, 2, 3, 4)), ((2, 2, 4), (2, 2, 3))),
    Row("einsum of a product", lambda x, y: torch.einsum("ij,jk->ik", x, y), ((2, 3), (3, 4))),
    Row("tensordot", lambda x, y: torch.tensordot(x, y, 1), ((2, 3), (3, 4))),
    Row("bilinear", lambda x, w: F.bilinear(x, x, w), ((2, 3), (4, 3, 3))),
    Row("conv1d", F.conv1d, ((1, 2, 5), (3, 2, 2))),
    Row("conv2d", F.conv2d, ((1, 2, 5, 5), (3, 2, 2, 2))),
    Row("conv2d bias", lambda x, b: F.conv2d(x, ones(x, 3, 2, 2, 2), b), ((1, 2, 5, 5), (3,))),
    Row("conv3d", F.conv3d, ((1, 2, 5, 5, 5), (3, 2, 2, 2, 2))),
    Row("conv_transpose1d", F.conv_transpose1d, ((1, 2, 5), (2, 3, 2))),
    Row("conv_transpose2d", F.conv_transpose2d, ((1, 2, 5, 5), (2, 3, 2, 2))),
    Row(
        "conv_transpose3d bias", lambda x, b: F.conv_transpose3d(x, ones(x, 2, 3, 2, 2, 2), b), ((1, 2, 5, 5, 5), (3,))
    ),
    Row("layer_norm", lambda x, w: F.layer_norm(x, (4,), w, w), ((2, 4), (4,))),
    Row("layer_norm bias", lambda x, b: F.layer_norm(x, (4,), ones(x, 4), b), ((2, 4), (4,))),
    Row("group_norm", lambda x, w: F.group_norm(x, 2, w, w), ((2, 4), (4,))),
    Row("batch_norm", lambda x, w: F.batch_norm(x, w, w, w, w), ((2, 4, 3), (4,))),
    Row("batch_norm statistics", lambda x, w: F.batch_norm(x, w, w), ((2, 4, 3), (4,))),
    Row("batch_norm weight", lambda x, w: F.batch_norm(x, ones(x, 4), ones(x, 4), w, w), ((2, 4, 3), (4,))),
    Row("batch_norm variance", lambda x, v: F.batch_norm(x, ones(x, 4), v), ((2, 4, 3), (4,))),
    Row("instance_norm", lambda x, w: F.instance_norm(x, None, None, w, w), ((2, 4, 3), (4,))),
    Row("prelu", F.prelu, ((2, 3), (3,))),
    Row("lstm_cell", lambda x, h: torch.lstm_cell(x, (h, h), ones(x, 8, 3), ones(x, 8, 2)), ((1, 3), (1, 2))),
    Row("gru_cell", lambda x, w: torch.gru_cell(x, ones(x, 1, 2), w, ones(x, 6, 2)), ((1, 3), (6, 3))),
    Row("rnn_tanh_cell", lambda x, w: torch.rnn_tanh_cell(x, ones(x, 1, 2), w, ones(x, 2, 2)), ((1, 3), (2, 3))),
    Row("attention", lambda q, k: F.scaled_dot_product_attention(q, k, q), ((1, 2, 3, 4), (1, 2, 3, 4))),
    Row("embedding indices", lambda i, w: F.embedding(i.clamp(0, 0), w), ((2,), (3, 4))),
    Row(
        "embedding_bag",
        lambda w, p: F.embedding_bag(INDEX.view(1, 2), w, per_sample_weights=p, mode="sum"),
        ((3, 4), (1, 2)),
    ),
    Row("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), ((1, 1, 3, 3), (1, 2, 2, 2))),
    Row("cdist", torch.cdist, ((2, 3), (4, 3))),
    Row("cross", torch.linalg.cross, ((2, 3), (2, 3))),
    Row("heaviside", torch.heaviside, ((2,), (2,))),
    Row("index_put", lambda x, v: x.index_put((INDEX,), v), ((3, 4), (2, 4))),
    Row("index_put_ of one value", lambda x, v: assigned(x, INDEX, v), ((3, 4), ())),
    Row("index_put_ of a mask", lambda x, v: assigned(x, torch.ones(3, dtype=torch.bool), v), ((3, 4), (3, 4))),
    Row("index_put float index", lambda v, i: v.index_put((i,), v.sum()), ((3,), (2,))),
    Row("index_add", lambda x, v: x.index_add(0, INDEX, v), ((3, 4), (2, 4))),
    Row("index_copy_", lambda x, v: x.clone().index_copy_(0, INDEX[:1], v), ((3, 4), (1, 4))),
    Row("index_select float index", lambda x, i: x.index_select(0, i), ((3, 4), (2,))),
    Row("scatter", lambda x, v: x.scatter(0, INDEX.view(1, 2), v), ((3, 4), (1, 2))),
    Row("masked_scatter", lambda x, v: x.masked_scatter(torch.ones(3, dtype=torch.bool), v), ((3,), (3,))),
    Row("lerp", lambda x, y: torch.lerp(x, y, 0.5), ((2,), (2,))),
    Row("binary_cross_entropy", F.binary_cross_entropy, ((2,), (2,))),
    Row("binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits, ((2,), (2,))),
    Row("nll_loss weight", lambda x, w: F.nll_loss(x, INDEX, w), ((2, 3), (3,))),
    Row("cross_entropy weight", lambda x, w: F.cross_entropy(x, INDEX, w), ((2, 3), (3,))),
    Row("huber_loss", F.huber_loss, ((2,), (2,))),
    Row("bitwise_and", torch.bitwise_and, ((2,), (2,))),
)
PROMOTED = (
    Row("add", torch.add, ((2,), (2,))),
    Row("cat", lambda x, y: torch.cat([x, y]), ((2,), (2,))),
    Row("stack", lambda x, y: torch.stack([x, y]), ((2,), (2,))),
    Row("where", lambda x, y: torch.where(torch.tensor([True, False]), x, y), ((2,), (2,))),
    Row("maximum", torch.maximum, ((2,), (2,))),
    Row("outer", torch.outer, ((2,), (3,))),
    Row("einsum of elements", lambda x, y: torch.einsum("i,i->i", x, y), ((2,), (2,))),
    Row("mse_loss", F.mse_loss, ((2,), (2,))),
    Row("assignment of a slice", lambda x, y: assigned(x, slice(0, 2), y), ((3, 4), (2, 4))),
    Row("assignment of one value by a mask", lambda x, y: assigned(x, torch.tensor([True, False]), y), ((2,), ())),
)


@pytest.mark.parametrize("row", ROWS + PROMOTED, ids=str)
def test_the_capture_refuses_what_eager_torch_refuses(row: Row) -> None:
    module = Function(row.function).eval()
    for pair in PAIRS:
        if row.eager_error(*pair) is None:
            capture(module, row.operands(*pair))
        else:
            with pytest.raises(CaptureError):
                capture(module, row.operands(*pair))


@pytest.mark.parametrize("row", PROMOTED, ids=str)
def test_operands_that_eager_torch_promotes_are_exported(row: Row) -> None:
    for pair in ((FLOAT, DOUBLE), (LONG, FLOAT)):
        operands = row.operands(*pair)
        (found,) = fxonnx.export(Function(row.function).eval(), operands)(*operands)
        torch.testing.assert_close(found, row.function(*operands))


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(batch["x"].relu())


X = torch.ones(2, 4, dtype=DOUBLE)
ATTENTION = nn.MultiheadAttention(4, 2)
MESSAGES = (
    (nn.Linear(4, 4), (X,), r"aten\.linear: mat1 and mat2 must have the same dtype, but got Double and Float"),
    (nn.Linear(4, 4), (X,), r"(?s)  input: float64 \(the input 'input'\)\n  weight: float32 \('weight'\)"),
    (
        nn.Linear(4, 4),
        (X,),
        r"hint: pass input\.float\(\) as the example input, or convert the model: model\.double\(\)",
    ),
    (Product(), (X,), r"(?s)aten\.matmul: expected m1 and m2 .*test_operand_types.py:\d+ in forward: return x @ self"),
    (Nested(), ({"x": X},), r"(?s)\(the input \"batch\['x'\]\"\).*  in: layer\n.*batch\['x'\]\.float\(\)"),
    (nn.LayerNorm(4), (X,), r"aten\.layer_norm: mixed dtype \(CPU\): all inputs must share same datatype"),
    (ATTENTION, (X, X, X), r"(?s)\(the input 'query'\)\n  weight: float32 \('in_proj_weight'\)"),
    (nn.Conv1d(4, 4, 1), (X[..., None],), r"(?s)should be the same.*hint: pass input\.float\(\) as the example input$"),
    (nn.LSTM(4, 4), (X,), r"RNN input dtype \(torch.float64\) does not match weight dtype"),
    (Function(torch.mm), (X, X.T.float()), r"hint: pass y\.double\(\) as the example input$"),
    (Function(torch.bmm), (X[None], X.T[None].float()), r"hint: pass y\.double\(\) as the example input$"),
    (Function(lambda x: x @ torch.ones(4, 4)), (X,), r"hint: pass x\.float\(\) as the example input$"),
    (Function(lambda x: x.int() @ torch.ones(4, 4)), (X,), r"hint: convert the operands to one dtype"),
    (Function(lambda x: x.int() @ torch.ones(4, 4, 4)), (X,), r"hint: convert the operands to one dtype$"),
    (
        Function(torch.bitwise_and),
        (X, X),
        r"\"bitwise_and_cpu\" not implemented for 'Double'(?s:.*)to integers, such as",
    ),
)


@pytest.mark.parametrize(("model", "args", "message"), MESSAGES)
def test_the_error_names_operator_operands_and_remedy(model: nn.Module, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(model.eval(), args)


def test_an_exported_program_and_dynamic_shapes_are_checked() -> None:
    program = torch.export.export(nn.Linear(4, 4), (X,))
    with pytest.raises(CaptureError, match=r"eager torch refuses this call of aten\.linear"):
        fxonnx.export(program)
    with pytest.raises(CaptureError, match=r"eager torch refuses this call of aten\.linear"):
        fxonnx.export(nn.Linear(4, 4).eval(), (X,), dynamic_shapes=({0: "n"},))


@pytest.mark.parametrize("order", [1, -1])
def test_branches_are_checked(order: int) -> None:
    weight = torch.ones(4, 4)

    def run(dtype: torch.dtype) -> None:
        branches = [lambda x: x.sin(), lambda x: x.cos() @ weight.to(dtype)][::order]
        capture(Function(lambda x: torch.cond(x.sum() > 0, *branches, (x,))).eval(), (X,))

    run(DOUBLE)
    with pytest.raises(CaptureError, match=r"eager torch refuses this call of aten\.matmul"):
        run(FLOAT)


def test_autocast_and_norms_in_half_precision_mix_dtypes() -> None:
    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=BFLOAT):
                return self.layer(x.bfloat16()) @ self.layer.weight

    x = torch.randn(2, 4)
    model = Autocast()
    (found,) = fxonnx.export(model.eval(), (x,))(x)
    torch.testing.assert_close(found, model(x), atol=0.05, rtol=0.05)
    for layer in (nn.LayerNorm(4), nn.BatchNorm1d(4), nn.GroupNorm(2, 4)):
        (found,) = fxonnx.export(layer.eval(), (x.bfloat16(),))(x.bfloat16())
        torch.testing.assert_close(found, layer(x.bfloat16()), atol=0.05, rtol=0.05)
