"""Convolutions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxonnx

from ..functions import VariadicFunction
from .harness import Case, T, run

F16, F64, BF16, I64 = torch.float16, torch.float64, torch.bfloat16, torch.int64
_SIGNAL, _IMAGE, _VOLUME = T(("n", 4, "h")), T(("n", 4, "h", "w")), T((2, 4, 5, 6, "w"))
_KERNEL = T((6, 4, 3))


def symbolic_conv2d(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[2] // 4, x.shape[3] - 8
    return F.conv2d(x, weight, None, (height, 1), (height, width), (1, width), x.shape[1] // 2)


def symbolic_conv_transpose2d(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    height = x.shape[2] // 4
    return F.conv_transpose2d(x, weight, None, (height, 1), (height, 1), (x.shape[2] // 8, 0), 1, (1, x.shape[3] - 8))


def gradients(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    grad = F.conv1d(x, weight).cos()
    backward = torch.ops.aten.convolution_backward.default
    return backward(grad, x, weight, [6], [1], [0], [1], False, [0], 1, [True, True, True])


CASES = (
    Case("aten.convolution_backward.default", gradients, (_SIGNAL, _KERNEL)),
    Case("aten.conv1d.default", nn.Conv1d(4, 6, 3), (_SIGNAL,), ops=("Conv",)),
    Case("aten.conv1d.default", nn.Conv1d(4, 6, 3, 2, 1, 2, 2), (_SIGNAL,), "stride padding dilation groups"),
    Case("aten.conv1d.default", nn.Conv1d(4, 6, 3, bias=False), (T((4, "h")),), "unbatched"),
    Case(
        "aten.conv1d.default", lambda x, w: F.conv1d(x, w, padding=x.shape[2] // 2), (_SIGNAL, _KERNEL), "padding = n"
    ),
    Case("aten.conv1d.default", lambda x, w: F.conv1d(x, w, stride=x.shape[2] // 4), (_SIGNAL, _KERNEL), "stride = n"),
    Case(
        "aten.conv1d.default", lambda x, w: F.conv1d(x, w, dilation=x.shape[2] // 4), (_SIGNAL, _KERNEL), "dilation = n"
    ),
    Case(
        "aten.conv1d.default",
        lambda x, w: F.conv1d(x, w, groups=x.shape[1]),
        (T((2, "n", 6)), T(("n", 1, 3))),
        "groups = n",
    ),
    Case("aten.conv2d.default", symbolic_conv2d, (_IMAGE, T((6, 2, 3, 2))), "all of sizes"),
    Case(
        "aten.conv_transpose1d.default",
        lambda x, w: F.conv_transpose1d(x, w, groups=x.shape[1]),
        (T((2, "n", 6)), T(("n", 1, 3))),
        "groups = n",
    ),
    Case("aten.conv_transpose2d.input", symbolic_conv_transpose2d, (_IMAGE, T((4, 2, 3, 2))), "all of sizes"),
    Case("aten.conv1d.padding", nn.Conv1d(4, 6, 4, padding="same"), (_SIGNAL,), "same, even kernel", ops=("Conv",)),
    Case("aten.conv1d.padding", nn.Conv1d(4, 6, 3, padding="valid", stride=2), (_SIGNAL,), "valid"),
    Case("aten.conv2d.default", nn.Conv2d(4, 6, 3, padding=1), (_IMAGE,), ops=("Conv",)),
    Case("aten.conv2d.default", nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2)), (_IMAGE,), "each axis its own"),
    Case("aten.conv2d.default", nn.Conv2d(4, 4, 3, groups=4, bias=False), (_IMAGE,), "depthwise"),
    Case("aten.conv2d.default", nn.Conv2d(4, 6, 3), (T((4, "h", "w")),), "unbatched"),
    Case("aten.conv2d.default", F.conv2d, (_IMAGE, T((6, 4, 3, 3)), T((6,))), "weight at run time"),
    Case("aten.conv2d.default", nn.Conv2d(4, 6, 3), (_IMAGE,), "opset 11", opset=11),
    Case("aten.conv1d.padding", nn.Conv1d(4, 6, 4, padding="same").double(), (T((4, "h"), F64),), "same, float64"),
    Case("aten.conv2d.default", nn.Conv2d(4, 6, 3).double(), (T(("n", 4, "h", "w"), F64),), "float64"),
    Case(
        "aten.conv2d.default",
        nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2).double(),
        (T(("n", 4, "h", "w"), F64),),
        "float64, opset 11",
        opset=11,
    ),
    Case(
        "aten.conv2d.default",
        lambda x, w, b: F.conv2d(x, w, b, 2, 1),
        (T(("n", 4, "h", "w"), I64, -(2**30), 2**30), T((3, 4, 3, 2), I64, -(2**30), 2**30), T((3,), I64, -9, 9)),
        "int64",
    ),
    Case("aten.conv2d.default", nn.Conv2d(4, 6, 3).half(), (T((2, 4, 5, 5), F16),), "float16"),
    Case("aten.conv2d.default", nn.Conv2d(4, 6, 3).bfloat16(), (T((2, 4, 5, 5), BF16),), "bfloat16"),
    Case("aten.conv2d.padding", nn.Conv2d(4, 6, 3, padding="same", dilation=2), (_IMAGE,), "same, dilation"),
    Case("aten.conv2d.padding", nn.Conv2d(4, 6, (2, 5), padding="same", dilation=(3, 1)), (_IMAGE,), "same, uneven"),
    Case("aten.conv2d.padding", nn.Conv2d(4, 6, 4, padding="same"), (T((4, "h", "w")),), "same, unbatched"),
    Case("aten.conv3d.default", nn.Conv3d(4, 6, 3, padding=1, groups=2), (_VOLUME,), ops=("Conv",)),
    Case("aten.conv3d.padding", nn.Conv3d(4, 6, 2, padding="same"), (_VOLUME,), "same"),
    Case("aten.conv_transpose1d.default", nn.ConvTranspose1d(4, 6, 3), (_SIGNAL,), ops=("ConvTranspose",)),
    Case(
        "aten.conv_transpose1d.default",
        nn.ConvTranspose1d(4, 6, 3, 3, 1, 2, 2, False, 2),
        (_SIGNAL,),
        "stride padding output_padding groups dilation",
    ),
    Case("aten.conv_transpose1d.default", nn.ConvTranspose1d(4, 6, 3), (T((4, "h")),), "unbatched"),
    Case("aten.conv_transpose2d.input", nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (_IMAGE,), ops=("ConvTranspose",)),
    Case(
        "aten.conv_transpose2d.input",
        nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (1, 0), (1, 2), 2, True, (2, 1)),
        (_IMAGE,),
        "each axis its own",
    ),
    Case("aten.conv_transpose2d.input", nn.ConvTranspose2d(4, 4, 3, groups=4), (T((4, "h", "w")),), "unbatched"),
    Case("aten.conv_transpose2d.input", F.conv_transpose2d, (_IMAGE, T((4, 3, 2, 2))), "weight at run time"),
    Case("aten.conv_transpose2d.input", nn.ConvTranspose2d(4, 6, 3, 2), (_IMAGE,), "opset 11", opset=11),
    Case("aten.conv_transpose2d.input", nn.ConvTranspose2d(4, 6, 3).double(), (T((2, 4, 5, 5), F64),), "float64"),
    Case(
        "aten.conv_transpose2d.input",
        nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (3, 0), (1, 2), 2, True, (1, 2)).double(),
        (T((4, "h", "w"), F64),),
        "float64, each axis its own",
    ),
    Case(
        "aten.conv_transpose1d.default",
        lambda x, w: F.conv_transpose1d(x, w, stride=3, padding=3),
        (T(("n", 4, "h"), I64, -(2**30), 2**30), T((4, 3, 2), I64, -(2**30), 2**30)),
        "int64, more padding than kernel",
        opset=11,
    ),
    Case(
        "aten.conv_transpose1d.default",
        nn.ConvTranspose1d(4, 6, 3, 2, 1, 2, dilation=3),
        (_SIGNAL,),
        "output padding as large as the stride",
    ),
    Case(
        "aten.conv_transpose2d.input",
        nn.ConvTranspose2d(4, 6, 3).bfloat16(),
        (T((2, 4, 5, 5), BF16),),
        "bfloat16",
        rtol=0.064,
        # On processors without bfloat16, torch rounds each of the 36 products that it adds.
        atol=0.01,
    ),
    Case("aten.conv_transpose3d.input", nn.ConvTranspose3d(4, 6, 3, 2, 1, 1, 2), (_VOLUME,)),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv(case: Case) -> None:
    run(case)


@pytest.mark.parametrize(
    ("model", "shape", "kernel"),
    [
        (nn.Conv1d(4, 6, 3), (2, 4, 8), [3]),
        (nn.Conv2d(4, 6, (3, 2), padding="same"), (2, 4, 8, 9), [3, 2]),
        (nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), (2, 4, 8, 9), [3, 3]),
        (nn.Conv3d(4, 6, (1, 2, 3)), (2, 4, 5, 6, 7), [1, 2, 3]),
        (nn.ConvTranspose1d(4, 6, 3, 2), (2, 4, 8), [3]),
        (nn.Sequential(nn.ConvTranspose2d(4, 6, (3, 2)), nn.BatchNorm2d(6)), (2, 4, 8, 9), [3, 2]),
        (nn.ConvTranspose3d(4, 6, 2), (2, 4, 3, 4, 5), [2, 2, 2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("opset", [11, 20])
def test_kernel_shape(model: nn.Module, shape: tuple[int, ...], kernel: list[int], opset: int) -> None:
    x = torch.randn(shape)
    program = fxonnx.export(model.eval(), (x,), opset_version=opset)
    (node,) = program.model.graph
    assert list(node.attributes["kernel_shape"].as_ints()) == kernel
    torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-4)


def test_kernel_shape_of_a_dynamic_kernel() -> None:
    model = VariadicFunction(F.conv1d)
    x, weight = torch.randn(2, 4, 9), torch.randn(6, 4, 3)
    plain = fxonnx.ExportOptions(guards=False)
    program = fxonnx.export(model, (x, weight), dynamic_shapes=((None, {2: "k"}),), options=plain)
    (node,) = program.model.graph
    assert "kernel_shape" not in node.attributes
    weight = torch.randn(6, 4, 5)
    torch.testing.assert_close(program(x, weight)[0], model(x, weight), rtol=1e-4, atol=1e-4)
