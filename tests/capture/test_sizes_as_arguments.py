"""Integers that models compute from sizes, as sizes and arguments of operators: the saved file is right at other sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxonnx
from fxonnx.errors import ArgumentError

from ..functions import Function
from ..saved import run_from_file

Size = tuple[int, ...]

EXAMPLE: Size = (12, 16)
OTHERS: Sequence[Size] = ((20, 31), (9, 7), (33, 40), (64, 64))


def values(size: Size) -> Tensor:
    return torch.arange(float(math.prod(size))).reshape(size).mul(1.7).sin()


def image(x: Tensor) -> Tensor:
    return torch.stack([x, -x, x.cos()])[None]


def windows(x: Tensor, size: int) -> Tensor:
    """Attention windows of networks for images: their number is a quotient of sizes in floats."""
    n, m = x.shape
    x = F.pad(x[None, None], (0, (size - m % size) % size, 0, (size - n % size) % size), mode="reflect")[0, 0]
    height, width = x.shape
    parts = x.reshape(height // size, size, width // size, size).permute(0, 2, 1, 3).reshape(-1, size, size)
    count = int(parts.shape[0] / (height * width / size / size))
    joined = parts.softmax(1).view(count, height // size, width // size, size, size).permute(0, 1, 3, 2, 4)
    return joined.reshape(count, height, width)[:, :n, :m]


def passed_on(shape: Sequence[int], x: Tensor) -> Tensor:
    return x.reshape(shape.numel()).reshape(shape) + shape[1:].numel() + len(shape)  # type: ignore[attr-defined]


ARGUMENTS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "windows of 4": lambda x: windows(x, 4),
        "windows of 5": lambda x: windows(x, 5),
        "exact quotient": lambda x: x.new_ones(int(x.numel() / x.shape[1]), 2),
        "rounded slice": lambda x: x[: round(x.shape[0] * 0.3)],
        "rounded multiple": lambda x: F.interpolate(image(x), size=(round(x.shape[0] / 16 + 1) * 16, 8)),
        "rounded quotient of the smaller side": lambda x: x[: round(min(x.shape) / 3)],
        "padding to a multiple in floats": lambda x: F.pad(x, (0, math.ceil(x.shape[1] / 6) * 6 - x.shape[1])),
        "length of a strided convolution": lambda x: x[: math.ceil((x.shape[0] - 5) / 5 + 1.0)],
        "quotient of floats": lambda x: x.new_ones(int(x.shape[0] // 0.1), 1),
        "root of a difference": lambda x: x.new_ones(int((x.shape[0] - 1) ** 0.5), 2),
        "square root of a difference": lambda x: x.new_ones(int(math.sqrt(x.shape[1] - 3)), 2),
        "numel of a shape": lambda x: x.new_ones(x.shape.numel()) + x.size().numel(),
        "numel of a slice": lambda x: x.reshape(x.shape[:2].numel(), -1) * (2 if x.shape.numel() > 0 else 1),
        "numel of a sum": lambda x: x.new_ones((x.shape[:1] + torch.Size([4])).numel()),
        "numel in a function": lambda x: passed_on(x.shape, x),
        "one_hot": lambda x: F.one_hot(torch.arange(x.shape[0]) % 5, x.shape[0] + 2),
        "one_hot by name": lambda x: F.one_hot(torch.arange(x.shape[0]) % 5, num_classes=max(x.shape[1], 5)),
        "tril_indices": lambda x: torch.tril_indices(x.shape[0], x.shape[1]) + 0.0,
        "tril_indices of pairs": lambda x: x.sum(1)[torch.tril_indices(x.shape[0], x.shape[0], -1)].prod(0),
        "tril_indices of an offset": lambda x: torch.tril_indices(4, x.shape[0], offset=x.shape[1] - 8) + 0.0,
        "triu_indices": lambda x: torch.triu_indices(x.shape[0], x.shape[1], 1, dtype=torch.int32) + 0.0,
        "triu_indices of an offset": lambda x: torch.triu_indices(x.shape[0], 4, -x.shape[1] + 5) + 0.0,
        "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, x.shape[1] - 1),
        "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(image(x), (x.shape[0] // 2, x.shape[1] // 3)),
        "adaptive_max_pool2d of one dynamic size": lambda x: F.adaptive_max_pool2d(image(x), (None, x.shape[1] // 2)),
        "adaptive_max_pool2d to a larger size": lambda x: F.adaptive_max_pool2d(image(x), (x.shape[0] * 2, 3)),
        "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(image(x), (1, x.shape[0] // 2, x.shape[1])),
        "AdaptiveMaxPool2d": lambda x: nn.AdaptiveMaxPool2d((x.shape[0] // 2, 3))(image(x)),
        "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, x.shape[1] // 2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(image(x), (x.shape[0] // 2, x.shape[1] // 3)),
    }
)


def _is_within(program: fxonnx.ONNXProgram, x: Tensor) -> bool:
    """Whether the program accepts the size: it may be limited to sizes that reflect padding supports."""
    try:
        program(x)
    except ArgumentError:
        return False
    return True


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_sizes_as_arguments(name: str) -> None:
    function = ARGUMENTS[name]
    program = fxonnx.export(Function(function).eval(), (values(EXAMPLE),), dynamic_shapes=({0: "n", 1: "m"},))
    run_from_file(program)
    for size in (EXAMPLE, *OTHERS):
        assert _is_within(program, values(size))
        torch.testing.assert_close(program(values(size))[0], function(values(size)), atol=1e-5, rtol=1e-5)


LIMITS: Mapping[str, tuple[Callable[[Tensor], Tensor], str]] = MappingProxyType(
    {
        "window of a rounded size": (
            lambda x: F.avg_pool2d(image(x), max(1, round(min(x.shape) / 6))),
            "max(1, round(min(m, n) / 6)) == 2",
        ),
        "window of a root": (lambda x: F.avg_pool2d(image(x), int(math.sqrt(x.shape[0]))), "int(sqrt(n)) == 3"),
        "window of a power": (lambda x: F.avg_pool2d(image(x), int(x.shape[0] ** 0.5)), "int(n**0.5) == 3"),
        "branch on a padding": (lambda x: x * 2 if (8 - x.shape[1] % 8) % 8 == 0 else x + 1, "m % 8 == 0"),
        "branch on no padding": (lambda x: x * 2 if (8 - x.shape[0] % 8) % 8 == 0 else x + 1, "n % 8 != 0"),
        "branch on a rounded size": (
            lambda x: x * 2 if x.shape[1] == ((x.shape[1] - 1) // 2 + 1) * 2 else x + 1,
            "m % 2 == 0",
        ),
        "branch on a float": (lambda x: x * 2 if float(x.shape[0]) >= 3.0 else x + 1, "n >= 3"),
    }
)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_readable(name: str) -> None:
    function, text = LIMITS[name]
    with pytest.warns(UserWarning, match=re.escape(text)):
        program = fxonnx.export(Function(function).eval(), (values(EXAMPLE),), dynamic_shapes=({0: "n", 1: "m"},))
    assert text in [constraint.text for constraint in program.record.constraints]
    torch.testing.assert_close(program(values(EXAMPLE))[0], function(values(EXAMPLE)), atol=1e-5, rtol=1e-5)


def test_the_line_of_a_fixed_size_is_not_one_that_only_depends_on_it() -> None:
    def function(x: Tensor) -> Tensor:
        if x.shape[0] % 4:
            return x
        return x + torch.ones(12, 3)

    with pytest.raises(fxonnx.CaptureError, match=r"x axis 0, 'n', is always 12\n    at: .*ones\(12"):
        fxonnx.export(Function(function).eval(), (values((12, 3)),), dynamic_shapes=({0: "n"},))


def _of_a_quotient(x: Tensor, count: int) -> Tensor:
    """A write to a copy of a tensor whose size has no value where a quotient is 0."""
    source = x.new_zeros(count, 4).t()
    copy = source.reshape(-1)
    copy.add_(1)
    return source.sum() + copy


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(lambda n, m: n // (m // 2), id="n // (m // 2)"),
        pytest.param(lambda n, m: m // (n // 2), id="m // (n // 2)"),
        pytest.param(lambda n, m: 1 + int((m - 3) ** 0.5), id="root"),
    ],
)
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_sizes_that_have_no_value_at_1(count: Callable[[int, int], int]) -> None:
    def function(x: Tensor) -> Tensor:
        return _of_a_quotient(x, count(*x.shape))

    program = fxonnx.export(Function(function).eval(), (torch.rand(6, 6),), dynamic_shapes=({0: "n", 1: "m"},))
    for size in ((6, 6), (6, 8), (8, 7)):
        if _is_within(program, torch.rand(size)):
            torch.testing.assert_close(program(torch.zeros(size))[0], function(torch.zeros(size)))
