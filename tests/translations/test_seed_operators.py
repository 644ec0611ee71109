"""The operators that PyTorch's own pages on ONNX export have listed over the years, without the limits noted there.

Those limits were: ``alpha`` and ``beta`` other than 1, ``ceil_mode``, ``padding_idx``, one PReLU weight for all channels,
thresholds and values other than zero, training mode of dropout, softmax of any other than the last axis, indexing with
anything but constant integers, and in-place operators, which were exported as if they returned something new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxonnx

from ..functions import VariadicFunction
from .harness import T

INT64, BOOL = torch.int64, torch.bool
Function = Callable[..., Any]

# Shapes that most rows share; a letter is a dynamic dim.
MATRIX = T(("n", 3))
OTHER = T(("n", 3))
POSITIVE = T(("n", 3), low=0.1)
UNIT = T(("n", 3), low=-0.9, high=0.9)
INTEGERS = T(("n", 3), INT64, 0, 9)
FLAGS, OTHER_FLAGS = T(("n", 3), BOOL), T(("n", 3), BOOL)
LINE = T(("n", 4, "w"))
IMAGE = T(("n", 4, "h", "w"))
VOLUME = T(("n", 4, 6, "h", "w"))
INDICES = torch.tensor([2, 0, -1])
CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 2.0])
SQUARES = T(("n", 3, 3))


@dataclass(frozen=True)
class Row:
    """One use of a listed operator; ``values`` is False for random results, of which dtype and shape are compared."""

    name: str
    function: Function
    inputs: tuple[Any, ...]
    values: bool = True


def _in_place(write: Function) -> Function:
    """The operator writes to a tensor that is read afterwards."""

    def function(x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        z = write(y, *others)
        return y + 1, z

    return function


def _set(index: Any, *, accumulate: bool = False) -> Function:
    def function(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.index_put_(index, values, accumulate)
        return y

    return function


def _same(name: str, *functions: Function, inputs: tuple[Any, ...] = (MATRIX,), values: bool = True) -> tuple[Row, ...]:
    return tuple(Row(name, function, inputs, values) for function in functions)


class Weighted(nn.Module):
    """A layer whose weight is computed from another parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 5))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


class First(nn.Module):
    """A recurrent layer on a batch of sequences."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


POINTWISE = tuple(
    Row(name, function, (source,))
    for source, functions in (
        (
            MATRIX,
            {
                "abs": torch.abs,
                "absolute": torch.absolute,
                "atan": torch.atan,
                "ceil": torch.ceil,
                "celu": lambda x: F.celu(x, 0.7),
                "cos": torch.cos,
                "elu": lambda x: F.elu(x, 0.3),
                "erf": torch.erf,
                "exp": torch.exp,
                "floor": torch.floor,
                "gelu": lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")),
                "hardtanh": lambda x: (F.hardtanh(x), F.hardtanh(x, -0.5, 1.5), _in_place(F.hardtanh_)(x)),
                "isnan": lambda x: torch.isnan(x / x.round()),
                "leaky_relu": lambda x: (F.leaky_relu(x, 0.3), _in_place(F.leaky_relu_)(x)),
                "log_sigmoid": F.logsigmoid,
                "neg": lambda x: (-x, _in_place(torch.neg_)(x)),
                "reciprocal": lambda x: (x + 3).reciprocal(),
                "relu": lambda x: (F.relu(x), _in_place(F.relu_)(x)),
                "round": lambda x: (torch.round(x), torch.round(x, decimals=2)),
                "rrelu": lambda x: F.rrelu(x, 0.2, 0.4),
                "selu": F.selu,
                "sigmoid": lambda x: (torch.sigmoid(x), _in_place(torch.sigmoid_)(x)),
                "sign": torch.sign,
                "sin": torch.sin,
                "softplus": lambda x: (F.softplus(x), F.softplus(x, 2.0, 1.5)),
                "tanh": lambda x: (torch.tanh(x), _in_place(torch.tanh_)(x)),
                "threshold": lambda x: (F.threshold(x, 0.0, 0.0), F.threshold(x, 0.5, -2.0)),
            },
        ),
        (
            POSITIVE,
            {
                "log": torch.log,
                "log1p": torch.log1p,
                "log2": torch.log2,
                "rsqrt": torch.rsqrt,
                "sqrt": torch.sqrt,
                "pow": lambda x: (x**2, x**0.5, x**x, 2.0**x),
            },
        ),
        (UNIT, {"acos": torch.acos, "asin": torch.asin, "tan": torch.tan}),
    )
    for name, function in functions.items()
)
ARITHMETIC = (
    *_same(
        "add",
        torch.add,
        lambda x, y: torch.add(x, y, alpha=2.5),
        lambda x, y: x + 1,
        _in_place(lambda x, y: x.add_(y, alpha=-2)),
        inputs=(MATRIX, OTHER),
    ),
    *_same("sub", lambda x, y: torch.sub(x, y, alpha=0.5), _in_place(torch.Tensor.sub_), inputs=(MATRIX, OTHER)),
    *_same("rsub", lambda x, y: (torch.rsub(x, y, alpha=2), 3 - x), inputs=(MATRIX, OTHER)),
    *_same("mul", torch.mul, _in_place(torch.Tensor.mul_), inputs=(MATRIX, OTHER)),
    *(
        Row("div", lambda x, y, m=mode: torch.div(x, y, rounding_mode=m), (MATRIX, POSITIVE))
        for mode in (None, "floor", "trunc")
    ),
    *_same("floor_divide", torch.floor_divide, lambda x, y: x // 2, inputs=(MATRIX, POSITIVE)),
    *_same("true_divide", torch.true_divide, inputs=(INTEGERS, POSITIVE)),
    *_same("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), inputs=(T((5,)), MATRIX, T((3, 5)))),
    *_same(
        "baddbmm",
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2),
        inputs=(T((5,)), T(("n", 2, 3)), T(("n", 3, 5))),
    ),
    *_same("mm", torch.mm, inputs=(MATRIX, T((3, "m")))),
    *_same("einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), inputs=(SQUARES, T(("n", 5, 3)))),
    *_same("det", torch.det, inputs=(SQUARES,)),
    *_same("logdet", lambda x: torch.logdet(x @ x.mT + torch.eye(3)), inputs=(SQUARES,)),
    *(
        Row(name, function, (INTEGERS, T(("n", 3), INT64, 0, 9)))
        for name, function in (
            ("eq", torch.eq),
            ("ge", torch.ge),
            ("gt", torch.gt),
            ("le", torch.le),
            ("lt", torch.lt),
            ("ne", torch.ne),
        )
    ),
    *_same("and", torch.logical_and, lambda a, b: a & b, inputs=(FLAGS, OTHER_FLAGS)),
    *_same("or", torch.logical_or, lambda a, b: a | b, inputs=(FLAGS, OTHER_FLAGS)),
    *_same("bitshift", lambda x: (x << 2, x >> 1), inputs=(INTEGERS,)),
    *_same("clamp", lambda x: x.clamp(-0.5, 0.7), lambda x: x.clamp(min=0.1)),
    *_same("clamp_max", lambda x: x.clamp_max(0.3)),
    *_same("clamp_min", lambda x: x.clamp_min(0.3)),
    *_same("where", lambda x, y: (torch.where(x > 0, x, y), torch.where(x > 0)), inputs=(MATRIX, OTHER)),
    *_same("masked_fill", lambda x: x.masked_fill(x > 0, -1.5), lambda x: x.masked_fill(x > 0, torch.tensor(2.5))),
    *_same("masked_scatter", lambda x, y: x.masked_scatter(x > 0, y), inputs=(MATRIX, OTHER)),
    *_same("masked_select", lambda x: x.masked_select(x > 0)),
    *_same("prelu", lambda x: F.prelu(x, torch.tensor([0.3])), lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3]))),
)
REDUCTIONS = (
    *_same("argmax", lambda x: (x.argmax(), x.argmax(1), x.argmax(0, keepdim=True))),
    *_same("argmin", lambda x: (x.argmin(), x.argmin(1), x.argmin(0, keepdim=True))),
    *_same("max", lambda x, y: (x.max(), *x.max(1), *x.max(0, keepdim=True), torch.max(x, y)), inputs=(MATRIX, OTHER)),
    *_same("min", lambda x, y: (x.min(), *x.min(1), *x.min(0, keepdim=True), torch.min(x, y)), inputs=(MATRIX, OTHER)),
    *_same("mean", lambda x: (x.mean(), x.mean(1), x.mean((0, 1), keepdim=True))),
    *_same("sum", lambda x: (x.sum(), x.sum(1), x.sum((0, 1), keepdim=True), x.sum(dtype=torch.float64))),
    *_same("prod", lambda x: (x.prod(), x.prod(1), x.prod(0, keepdim=True))),
    *_same("std", lambda x: (x.std(), x.std(1), x.std(0, unbiased=False), x.std(0, correction=2))),
    *_same("cumsum", lambda x: (x.cumsum(0), x.cumsum(-1))),
    *_same("frobenius_norm", lambda x: torch.norm(x, "fro", dim=1)),
    *_same("norm", lambda x: (x.norm(), x.norm(1), x.norm(3, dim=1), x.norm(torch.inf))),
    *_same("logsumexp", lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True))),
    *_same("softmax", lambda x: (x.softmax(-1), x.softmax(0), x.softmax(1)), inputs=(LINE,)),
    *_same("log_softmax", lambda x: (x.log_softmax(-1), x.log_softmax(0), x.log_softmax(1)), inputs=(LINE,)),
    *_same("sort", lambda x: (*x.sort(), *x.sort(0, descending=True))),
    *_same("topk", lambda x: (*x.topk(2), *x.topk(2, 0, largest=False))),
    *_same(
        "unique",
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        torch.unique_consecutive,
        inputs=(INTEGERS,),
    ),
    *_same("nonzero", lambda x: (x > 0).nonzero()),
)
SHAPES = (
    *_same("cat", lambda x, y: torch.cat([x, y]), inputs=(MATRIX, T(("m", 3)))),
    *_same("concat", lambda x, y: torch.concat([x, y], -1), inputs=(MATRIX, OTHER)),
    *_same("stack", lambda x, y: torch.stack([x, y], 1), inputs=(MATRIX, OTHER)),
    *_same("split", lambda x: (*x.split(2), *x.split([1, 2], 1)), inputs=(T((5, 3)),)),
    *_same("unbind", lambda x: x.unbind(1)),
    *_same("expand", lambda x: x[:, None].expand(-1, 2, -1)),
    *_same("expand_as", lambda x, y: x[:1].expand_as(y), inputs=(MATRIX, OTHER)),
    *_same("repeat", lambda x: x.repeat(2, 1, 3)),
    *_same("flatten", lambda x: (x.flatten(), x.flatten(1, 2)), inputs=(IMAGE,)),
    *_same("view", lambda x: x.view(-1)),
    *_same("reshape", lambda x: (x.reshape(-1), x.reshape(x.shape[0], 1, 3))),
    *_same("reshape_as", lambda x, y: x.t().reshape_as(y), inputs=(MATRIX, OTHER)),
    *_same("permute", lambda x: x.permute(2, 0, 1), inputs=(LINE,)),
    *_same("transpose", lambda x: x.transpose(0, -1), inputs=(LINE,)),
    *_same("t", lambda x: x.t()),
    *_same(
        "squeeze", lambda x: (x.squeeze(), x.squeeze(1), _in_place(lambda y: y.squeeze_(1))(x)), inputs=(T((4, 1, 3)),)
    ),
    *_same("unsqueeze", lambda x: (x.unsqueeze(0), x.unsqueeze(-1))),
    *_same("narrow", lambda x: x.narrow(1, 1, 2)),
    *_same("select", lambda x: (x.select(1, 2), x[-1])),
    *_same("slice", lambda x: (x[1:], x[:, ::2], x[1:-1, 1:])),
    *_same("size", lambda x: x * x.size(0) + x.shape[1]),
    *_same("unfold", lambda x: x.unfold(1, 2, 1)),
    *_same("im2col", lambda x: F.unfold(x, (2, 3), dilation=2, padding=1, stride=2), inputs=(T(("n", 4, 8, 9)),)),
    *_same("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), inputs=(IMAGE,)),
    *_same("Index", lambda x, i: (x[i], x[:, [0, 2]], x[x > 0], x[1, 2]), inputs=(MATRIX, INDICES)),
    *_same("index_select", lambda x, i: x.index_select(1, i.abs()), inputs=(MATRIX, INDICES)),
    *_same("index_copy", lambda x, y: x.index_copy(1, torch.tensor([2, 0]), y), inputs=(MATRIX, T(("n", 2)))),
    *_same("index_fill", lambda x: x.index_fill(1, torch.tensor([2, 0]), -3.0)),
    *_same("index_put", _set((INDICES,)), _set((INDICES,), accumulate=True), inputs=(T((5, 3)), T((3, 3)))),
    *_same("gather", lambda x: x.gather(1, torch.tensor([[0, 2], [1, 1], [2, 0], [0, 0]])), inputs=(T((4, 3)),)),
    *_same(
        "scatter",
        lambda x, y: x.scatter(1, torch.tensor([[0, 2], [1, 2]]), y),
        lambda x, y: x.scatter(1, torch.tensor([[0, 2], [1, 2]]), 2.5),
        inputs=(T((2, 3)), T((2, 2))),
    ),
    *_same(
        "scatter_add", lambda x, y: x.scatter_add(1, torch.tensor([[0, 0], [1, 2]]), y), inputs=(T((2, 3)), T((2, 2)))
    ),
    *_same("copy", _in_place(torch.Tensor.copy_), inputs=(MATRIX, OTHER)),
)
CREATION = (
    *_same(
        "arange", lambda x: (torch.arange(x.shape[0]), torch.arange(1, 2 * x.shape[0], 2), torch.arange(0.0, 1.0, 0.3))
    ),
    *_same("dim_arange", lambda x: torch.arange(x.shape[1])),
    *_same("empty", lambda x: torch.empty(x.shape[0], 2), values=False),
    *_same("empty_like", torch.empty_like, values=False),
    *_same("full", lambda x: torch.full((x.shape[0], 2), 1.5)),
    *_same("full_like", lambda x: torch.full_like(x, 2, dtype=INT64)),
    *_same("ones", lambda x: torch.ones(x.shape[0], 2)),
    *_same("ones_like", torch.ones_like),
    *_same("zeros", lambda x: torch.zeros(x.shape[0], 2)),
    *_same("zeros_like", torch.zeros_like),
    *_same("scalar_tensor", lambda x: x + torch.scalar_tensor(3.5)),
    *_same("to", lambda x: (x.to(INT64), x.to(torch.float16), x.to(BOOL))),
    *_same("type_as", lambda x, y: x.type_as(y), inputs=(MATRIX, INTEGERS)),
    *_same("rand", lambda x: torch.rand(x.shape[0], 2), values=False),
    *_same("randn", lambda x: torch.randn(x.shape[0], 2), values=False),
    *_same("randn_like", torch.randn_like, values=False),
    *_same("multinomial", lambda x: torch.multinomial(x, 2, replacement=True), inputs=(POSITIVE,), values=False),
)
LAYERS = (
    *_same("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), inputs=(T(("n", 4, 9)),)),
    *_same("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), inputs=(T(("n", 4, 7, 9)),)),
    *_same("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), inputs=(T(("n", 2, 5, 7, 4)),)),
    *_same("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3), inputs=(T(("n", 4, 9)),)),
    *_same("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (2, 3)), inputs=(T(("n", 4, 7, 9)),)),
    *_same("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 3, 1)), inputs=(T(("n", 2, 5, 7, 4)),)),
    *_same("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1, ceil_mode=True), inputs=(LINE,)),
    *_same(
        "avg_pool2d",
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda x: F.avg_pool2d(x, 3, 2, divisor_override=5),
        inputs=(IMAGE,),
    ),
    *_same("avg_pool3d", lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True), inputs=(VOLUME,)),
    *_same("MaxPool1d", nn.MaxPool1d(3, 2, 1, ceil_mode=True), inputs=(T(("n", 4, 9)),)),
    *_same(
        "MaxPool2d",
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(3, 2, 1, return_indices=True),
        inputs=(IMAGE,),
    ),
    *_same("MaxPool3d", nn.MaxPool3d(3, 2, 1, ceil_mode=True), inputs=(VOLUME,)),
    *_same("BatchNorm", nn.BatchNorm2d(4), inputs=(IMAGE,)),
    *_same("BatchNorm", nn.BatchNorm2d(4, affine=False, track_running_stats=False), inputs=(IMAGE,)),
    *_same("group_norm", nn.GroupNorm(2, 4), inputs=(IMAGE,)),
    *_same("instance_norm", nn.InstanceNorm2d(4, affine=True), inputs=(IMAGE,)),
    *_same("layer_norm", nn.LayerNorm(3), lambda x: F.layer_norm(x, (3,))),
    *_same("Conv", nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(4, 6, 3, padding="same", groups=2), inputs=(IMAGE,)),
    *_same("Conv", nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), inputs=(IMAGE,)),
    *_same("ConstantPadNd", nn.ConstantPad2d((1, -1, 0, 2), 3.5), inputs=(IMAGE,)),
    *_same("reflection_pad", nn.ReflectionPad2d((1, 2, 0, 1)), inputs=(IMAGE,)),
    *_same("replication_pad", nn.ReplicationPad2d((1, 2, 0, 1)), inputs=(IMAGE,)),
    *_same("Dropout", nn.Dropout(0.5), nn.Dropout(0.5, inplace=True)),
    *_same("FeatureDropout", nn.Dropout2d(0.5), inputs=(IMAGE,)),
    *_same("FeatureDropout", lambda x: F.dropout2d(x, 0.5, training=True), inputs=(IMAGE,), values=False),
    *_same("Dropout", lambda x: F.dropout(x, 0.5, training=True), values=False),
    *_same("Embedding", nn.Embedding(9, 5), nn.Embedding(9, 5, padding_idx=2), inputs=(INTEGERS,)),
    *_same("glu", lambda x: F.glu(x, 1), inputs=(IMAGE,)),
    *_same(
        "interpolate",
        *(
            lambda x, m=mode, a=align: F.interpolate(x, scale_factor=1.5, mode=m, align_corners=a)
            for mode, align in (("nearest", None), ("bilinear", False), ("bilinear", True), ("bicubic", False))
        ),
        lambda x: F.interpolate(x, (5, 7), mode="bilinear", antialias=True),
        inputs=(IMAGE,),
    ),
    *_same("interpolate", lambda x: F.interpolate(x, 7, mode="linear"), inputs=(LINE,)),
    *_same("interpolate", lambda x: F.interpolate(x, (4, 5, 7), mode="trilinear"), inputs=(VOLUME,)),
    *_same("interpolate", lambda x: F.interpolate(x, (4, 5), mode="area"), inputs=(T(("n", 4, 8, 9)),)),
    *_same("upsample_nearest1d", lambda x: F.interpolate(x, 7, mode="nearest"), inputs=(LINE,)),
    *_same("upsample_nearest2d", lambda x: F.interpolate(x, (5, 7), mode="nearest"), inputs=(IMAGE,)),
    *_same("upsample_nearest3d", lambda x: F.interpolate(x, (4, 5, 7), mode="nearest"), inputs=(VOLUME,)),
    *(
        Row(
            "nll_loss",
            lambda x, target, r=reduction: F.nll_loss(x, target, CLASS_WEIGHTS, ignore_index=1, reduction=r),
            (MATRIX, T(("n",), INT64, 0, 3)),
        )
        for reduction in ("mean", "sum", "none")
    ),
    *(
        Row("RNN", First(layer(4, 5, 2, batch_first=True, bidirectional=True)), (T(("n", "t", 4)),))
        for layer in (nn.LSTM, nn.GRU, nn.RNN)
    ),
    *_same("weight_norm", Weighted()),
)
ROWS = (*POINTWISE, *ARITHMETIC, *REDUCTIONS, *SHAPES, *CREATION, *LAYERS)


def test_every_listed_operator_has_a_row() -> None:
    assert len({row.name for row in ROWS}) == 165


def _example(row: Row, second: bool) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(item.make(second, generator) if isinstance(item, T) else item for item in row.inputs)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.name}-{number}" for number, row in enumerate(ROWS)])
def test_listed_operator(row: Row) -> None:
    model = VariadicFunction(row.function).eval()
    specs = tuple(item.dynamic if isinstance(item, T) else None for item in row.inputs)
    inputs = _example(row, second=False)
    program = fxonnx.export(model, inputs, dynamic_shapes=(specs,) if any(specs) else None)
    for example in (inputs, _example(row, second=True)) if any(specs) else (inputs,):
        with torch.no_grad():
            expected = torch.utils._pytree.tree_leaves(model(*(item.clone() for item in example)))
        found = program(*example)
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            if row.values:
                rtol, atol = torch.testing._comparison.default_tolerances(theirs)
                torch.testing.assert_close(ours, theirs, rtol=4 * rtol, atol=4 * atol, equal_nan=True)
