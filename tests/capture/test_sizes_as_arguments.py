"""Sizes and numbers computed from them, as arguments of operators, as Python numbers and in tensors: right at other sizes, or refused."""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from torch import Tensor, nn, tensor

import fxonnx
from fxonnx.errors import ArgumentError, CaptureError

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
            lambda x: F.avg_pool2d(image(x), max(1, round(min(x.shape) / 6)), 1),
            "m <= 15 or n <= 15",
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


# Operators and Python code that convert a size to a number: correct at other sizes, or a constraint, or an error.


EXAMPLES = (1, 2, 3)
SIZES = (1, 2, 3, 5, 7)


def rows(n: int) -> torch.Tensor:
    return torch.arange(n * 4.0).reshape(n, 4).sin()


def columns(n: int) -> torch.Tensor:
    return torch.arange(2.0 * n).reshape(2, n).sin()


def square_image(n: int) -> torch.Tensor:
    return torch.arange(2.0 * n * n).reshape(1, 2, n, n).sin()


def matrices(n: int) -> torch.Tensor:
    return torch.arange(n * 9.0).reshape(n, 3, 3).sin()


def zeros(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int64)


def iterated(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([row + 1 for row in x])


def doubled_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(x.shape[0] // 2):
        x = x * 2
    return x


Question = tuple[Callable[[torch.Tensor], Any], Callable[[int], torch.Tensor]]

QUESTIONS: dict[str, Question] = {
    "linspace": (lambda x: torch.linspace(0, 1, x.shape[0] - 1), rows),
    "logspace": (lambda x: torch.logspace(0, 1, x.shape[0] - 1), rows),
    "arange": (lambda x: torch.arange(x.shape[0] - 1), rows),
    "split": (lambda x: x.split(2), rows),
    "split_first": (lambda x: x.split(2)[0], rows),
    "chunk": (lambda x: x.chunk(2), rows),
    "chunk_last": (lambda x: x.chunk(3)[-1], rows),
    "split_of_slice": (lambda x: x[2:].split(2)[-1], rows),
    "chunk_of_slice": (lambda x: x[2:].chunk(2)[-1], rows),
    "chunk_of_steps": (lambda x: x[2:-1:2].chunk(2)[-1], rows),
    "unsafe_chunk_of_slice": (lambda x: torch.unsafe_chunk(x[2:], 2)[-1], rows),
    "tensor_split": (lambda x: x.tensor_split(2), rows),
    "tensor_split_thirds": (lambda x: x.tensor_split(3, dim=1), columns),
    "tensor_split_by_index": (lambda x: x.tensor_split((x.shape[0] // 2,)), rows),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, x.shape[2:]), square_image),
    "max_pool2d": (lambda x: F.max_pool2d(x, x.shape[2:]), square_image),
    "avg_pool2d_half": (lambda x: F.avg_pool2d(x, max(x.shape[2] // 2, 1)), square_image),
    "max_pool1d_half": (lambda x: F.max_pool1d(x, max(x.shape[1] // 2, 1)), columns),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2, x.shape[3] // 2)), square_image),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (x.shape[2] // 2 + 1, 1)), square_image),
    "unfold": (lambda x: F.unfold(x, max(x.shape[2] // 2, 1)), square_image),
    "unfold_padded": (lambda x: F.unfold(x, 3, padding=1), square_image),
    "cartesian_prod": (lambda x: torch.cartesian_prod(x[0], x[1]), columns),
    "std": (lambda x: x.std(1, correction=x.shape[1] - 2), columns),
    "tensor_unfold": (lambda x: x.unfold(1, max(x.shape[1] // 2, 1), 1), columns),
    "tensor_unfold_step": (lambda x: x.unfold(1, 1, max(x.shape[1] // 2, 1)), columns),
    "diagonal": (lambda x: x.diagonal(x.shape[1] - 1), columns),
    "diagonal_half": (lambda x: x.diagonal(x.shape[1] // 2), columns),
    "one_hot": (lambda i: F.one_hot(i, i.shape[0]), zeros),
    "one_hot_less_one": (lambda i: F.one_hot(i, max(i.shape[0] - 1, 1)), zeros),
    "int_of_half": (lambda x: x[: int(x.shape[0] * 0.5)], rows),
    "int_of_scaled": (lambda x: torch.zeros(int(x.shape[0] * 1.5)), rows),
    "round_of_half": (lambda x: torch.zeros(round(x.shape[0] * 0.5)), rows),
    "ceil_of_half": (lambda x: torch.zeros(math.ceil(x.shape[0] / 2)), rows),
    "int_of_root": (lambda x: torch.zeros(int(math.sqrt(x.shape[0]))), rows),
    "hann_window": (lambda x: torch.hann_window(x.shape[0]), rows),
    "hamming_window": (lambda x: torch.hamming_window(x.shape[0] - 1), rows),
    "blackman_window": (lambda x: torch.blackman_window(x.shape[0], periodic=False), rows),
    "bartlett_window": (lambda x: torch.bartlett_window(x.shape[0]), rows),
    "kaiser_window": (lambda x: torch.kaiser_window(x.shape[0]), rows),
    "tril_indices": (lambda x: torch.tril_indices(x.shape[0], x.shape[0]), rows),
    "triu_indices": (lambda x: torch.triu_indices(x.shape[0] - 1, x.shape[0]), rows),
    "vander": (lambda x: torch.vander(x[:, 0], x.shape[0] - 1), rows),
    "matrix_power": (lambda x: torch.matrix_power(x[0], x.shape[0] // 2), matrices),
    "matrix_power_less_one": (lambda x: torch.matrix_power(x[0], x.shape[0] - 1), matrices),
    "histc": (lambda x: torch.histc(x, bins=x.shape[1] // 2 + 1, min=-1, max=1), columns),
    "iteration": (iterated, rows),
    "unbind": (lambda x: torch.stack(x.unbind(0)), rows),
    "unbind_half": (lambda x: torch.stack(x[: (x.shape[0] + 1) // 2].unbind(0)), rows),
    "unbind_section": (lambda x: torch.stack(x.tensor_split(2, 1)[0].unbind(-1)), columns),
    "iteration_half": (lambda x: iterated(x[: (x.shape[0] + 1) // 2]), rows),
    "loop": (doubled_in_a_loop, rows),
    "slices": (lambda x: torch.cat([x[:, i : i + 1] for i in range(0, x.shape[1], 2)], 1), columns),
    "branch": (lambda x: x * 2 if x.shape[0] == 1 else x * 3, rows),
    "parity": (lambda x: x * 2 if x.shape[0] % 2 else x, rows),
    "truth": (lambda x: x * 2 if x.shape[0] // 2 else x, rows),
    "squeeze": (lambda x: x.squeeze(0), rows),
    "padding": (lambda x: F.pad(x, (0, -x.shape[1] % 4)), columns),
    "topk": (lambda x: x.topk(x.shape[1] // 2 + 1, 1)[0], columns),
    "repeat_interleave": (lambda x: x.repeat_interleave(x.shape[1] - 1, 1), columns),
    "eye": (lambda x: torch.eye(x.shape[1], x.shape[1] - 1), columns),
    "logarithm": (lambda x: x * math.log(x.shape[1]), columns),
    "scaling": (lambda x: x / math.sqrt(x.shape[1]) + x * float(x.shape[1]), columns),
}


@pytest.mark.parametrize("size", EXAMPLES)
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_size_converted_to_a_number_is_never_silently_constant(name: str, size: int) -> None:
    function, make = QUESTIONS[name]
    spec = {axis: "n" for axis in range(make(5).dim()) if make(5).shape[axis] != make(7).shape[axis]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            program = fxonnx.export(Function(function).eval(), (make(size),), dynamic_shapes=({**spec},))
        except CaptureError:
            return
    warned = any("only for:\n" in str(warning.message) for warning in caught)
    _compare(program, function, make(size))
    for other in SIZES:
        if warned and _is_refused(program, make(other)):
            continue
        _compare(program, function, make(other))


def _is_refused(program: fxonnx.ONNXProgram, x: torch.Tensor) -> bool:
    try:
        program(x)
    except ArgumentError:
        return True
    return False


def _compare(program: fxonnx.ONNXProgram, function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    try:
        expected = torch.utils._pytree.tree_leaves(function(x))
    except (RuntimeError, ValueError, IndexError):
        return  # eager torch does not support this size either
    torch.testing.assert_close(program(x), expected, rtol=1e-4, atol=1e-5)


def test_iterating_over_a_dim_of_size_one_is_a_loop() -> None:
    program = fxonnx.export(Function(iterated).eval(), (rows(1),), dynamic_shapes=({0: "n"},))
    for size in SIZES:
        torch.testing.assert_close(program(rows(size))[0], iterated(rows(size)))


class _Stateful(torch.nn.Module):
    def forward(self, x: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        if previous.size(0) == 0:
            return x * 2
        return torch.cat([previous, x])


def test_the_example_must_satisfy_the_constraints() -> None:
    shapes = ({0: "n"}, {0: "past"})
    with pytest.raises(
        CaptureError,
        match=r"the captured program requires past >= 1, but the example has past = 0\n  at: .*size\(0\) == 0",
    ):
        fxonnx.export(_Stateful(), (rows(2), rows(0)), dynamic_shapes=shapes)
    with pytest.warns(UserWarning, match="past >= 1"):
        program = fxonnx.export(_Stateful(), (rows(2), rows(1)), dynamic_shapes=shapes)
    torch.testing.assert_close(program(rows(3), rows(5))[0], torch.cat([rows(5), rows(3)]))
    with pytest.raises(ArgumentError, match="the model was exported for past >= 1, got past = 0"):
        program(rows(3), rows(0))


@pytest.mark.parametrize("function", [np.sqrt, np.log, np.exp], ids=lambda function: function.__name__)
def test_functions_of_numpy_for_sizes_are_rejected(function: Callable[[int], float]) -> None:
    with pytest.raises(
        CaptureError, match=r"at: .*function\(x.shape(.|\n)*hint: NumPy has this function for numbers only"
    ):
        fxonnx.export(Function(lambda x: x * function(x.shape[0])), (rows(3),), dynamic_shapes=({0: "n"},))


# ``torch.tensor`` of a list of numbers that are tensors, such as the elements of an input.


def _rotation(x: Tensor) -> Tensor:
    cosine, sine = x[0, 0].cos(), x[0, 0].sin()
    return torch.tensor([[cosine, -sine, 0], [sine, cosine, 1]]) @ torch.arange(3.0)


FUNCTIONS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: torch.tensor([x[0, 0], x[0, 1]]),
    _rotation,
    lambda x: torch.as_tensor([[x[0, 0], x.shape[0]]], dtype=torch.float64),
    lambda x: torch.tensor([x.argmax(), 3]),
    lambda x: torch.tensor((x[0, 0].half(), 1.0)),
    lambda x: torch.tensor([x[0, 0].half(), 1]),
    lambda x: torch.tensor([True, x[0, 0] > 0]),
    lambda x: tensor(x.shape[0], device=x.device) * tensor([x[0, 0], 2.0]),  # imported by its name
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_sizes_and_values(function: Callable[[Tensor], Any]) -> None:
    program = fxonnx.export(Function(function).eval(), (torch.randn(2, 4),), dynamic_shapes=({0: "n"},))
    for x in (torch.randn(2, 4), torch.randn(1, 4), -torch.rand(5, 4)):
        torch.testing.assert_close(program(x)[0], function(x))


class _Argument:
    def __init__(self, value: Tensor) -> None:
        self.value = value


def _compile(graph: Any, return_code: bool = False) -> Any:
    names: dict[str, Any] = {"torch": torch}
    exec(graph.code, names)
    return (names["op"], graph.code) if return_code else names["op"]


def _traced(argument: _Argument) -> Any:
    return SimpleNamespace(shape=tuple(int(size) for size in argument.value.shape))


@pytest.fixture(scope="module")
def compiled() -> Iterator[Callable[..., Tensor]]:
    """A function with the interface of einx, which compiles text for the sizes of its tensors.

    Patches keep the modules that they have found, so that all tests use the same ones.
    """
    names = ("_src.frontend.api", "_src.tracer", "_src.tracer.compiler.python")
    api, tracer, compiler = (ModuleType(f"einx.{name}") for name in names)
    vars(api).update(_split_tensors=lambda _, args: (list(map(_Argument, args)), {}, args), _to_tracer=_traced)
    tensor_of = SimpleNamespace(Tensor=lambda _, shape: SimpleNamespace(shape=tuple(shape)))
    vars(tracer).update(signature=SimpleNamespace(classical=tensor_of))
    vars(compiler).update(compile=_compile)

    @cache
    def function_for(text: Callable[..., str], *shapes: tuple[int, ...]) -> Any:
        code = f"def op(*tensors):\n    return {text(*shapes)}"
        graph = SimpleNamespace(inputs=[SimpleNamespace(shape=shape) for shape in shapes], code=code)
        return vars(compiler)["compile"](graph)

    def call(text: Callable[..., str], *tensors: Tensor) -> Tensor:
        arguments, _, found = vars(api)["_split_tensors"](None, tensors)
        result: Tensor = function_for(text, *(vars(api)["_to_tracer"](one).shape for one in arguments))(*found)
        return result

    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in (api, tracer, compiler):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        yield call


def _outer(one: Size, other: Size) -> str:
    return (
        f"torch.reshape(tensors[0], ({one[0]}, {one[1]}, 1)) - torch.reshape(tensors[1], (1, {other[0]}, {other[1]}))"
    )


def _flattened(one: Size, _: Size) -> str:
    return f"torch.reshape(tensors[0], ({one[0] * one[1] * 2 // 2},)) * torch.arange({one[0] * one[1]}) * 2017"


def _widened(one: Size, _: Size) -> str:
    return f"torch.broadcast_to(torch.reshape(tensors[0], (1, {one[0]}, {one[1]})), (3, {one[0]}, {one[1]}))"


@pytest.mark.parametrize("text", [_outer, _flattened, _widened])
def test_functions_that_are_compiled_for_sizes(text: Callable[..., str], compiled: Callable[..., Tensor]) -> None:
    function = partial(compiled, text)
    model = Function(lambda x, y: function(x, y))
    shapes = ({0: "n", 1: "m"}, {0: "m"})
    program = fxonnx.export(model.eval(), (torch.randn(3, 5), torch.randn(5, 8)), dynamic_shapes=shapes)
    assert not [one for one in program.record.constraints if one.narrows]
    for n, m in ((3, 5), (1, 1), (1, 7), (4, 1), (6, 6), (1009, 2), (2, 1193), (1300, 1)):
        x, y = torch.randn(n, m), torch.randn(m, 8)
        torch.testing.assert_close(program(x, y)[0], function(x, y))


def _cut(one: Size, _: Size) -> str:
    return f"torch.cat(torch.split(tensors[0], [{one[1] - 1}, 1], dim=1)[::-1], dim=1)"


def test_a_function_compiled_for_a_sum_of_sizes_keeps_its_limit(compiled: Callable[..., Tensor]) -> None:
    model = Function(lambda x, y: compiled(_cut, x, y)).eval()
    with pytest.raises(CaptureError, match="'n', is always 3"):
        fxonnx.export(model, (torch.randn(3, 5), torch.randn(5, 8)), dynamic_shapes=({0: "n", 1: "m"}, {0: "m"}))


def _middle(x: Tensor) -> slice:
    return slice(x.shape[1] // 2 - 4, x.shape[1] // 2 + 4)


def _written_in_the_middle(x: Tensor) -> Tensor:
    y = torch.zeros(x.shape)
    y[:, _middle(x)] = x[:, _middle(x)] * 2
    return y


def _spectrum_in_the_middle(x: Tensor) -> Tensor:
    z, y = torch.complex(x, x * 2), torch.zeros(x.shape, dtype=torch.cfloat)
    y[:, _middle(x)] = z[:, _middle(x)] * 2
    return torch.view_as_real(torch.fft.fftshift(y, dim=1))


def _counted_in_the_middle(x: Tensor) -> Tensor:
    y = x[:, _middle(x)]
    return y.cumsum(1) * sorted((y.shape[1], 5))[0]


def _counted_before_the_end(x: Tensor) -> Tensor:
    y = x[:, : x.shape[1] - 9 : 2]
    return y.cumsum(1) * sorted((y.shape[1], 2))[1]


@pytest.mark.parametrize(
    ("function", "example", "limits"),
    [
        (_counted_in_the_middle, 12, ["n >= 8"]),
        (_counted_in_the_middle, 5, ["n <= 7"]),
        (_counted_before_the_end, 16, ["n >= 14"]),
        (_counted_before_the_end, 5, ["n <= 6"]),
    ],
)
def test_parts_whose_size_python_needs_have_the_signs_of_the_example(
    function: Callable[[Tensor], Tensor], example: int, limits: list[str], tmp_path: Path
) -> None:
    path, module = tmp_path / "m.onnx", Function(function).eval()
    program = fxonnx.export(module, (torch.randn(3, example),), path, dynamic_shapes=({0: "b", 1: "n"},))
    constraints = [one for one in program.record.constraints if one.narrows]
    assert [one.text for one in constraints] == limits
    session = onnxruntime.InferenceSession(path)
    for n in range(1, 24):
        for b in (1, 5):
            x = torch.randn(b, n)
            if all(one.holds({"b": b, "n": n}) for one in constraints):
                (found,) = session.run(None, {"x": x.numpy()})
                torch.testing.assert_close(torch.from_numpy(found), function(x))
            else:
                with pytest.raises(Fail):
                    session.run(None, {"x": x.numpy()})


def _compares_many(x: Tensor) -> Tensor:
    y, count = _counted_in_the_middle(x), 0
    for number in range(2, 90):
        count += sorted((x.shape[0] * number, x.shape[1] * (number * number - 1)))[0] == 0
    return y + count


def test_a_search_that_compares_many_sizes_ends_the_attempt(tmp_path: Path) -> None:
    report = fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path)
    shapes = ({0: "b", 1: "n"},)
    with pytest.raises(fxonnx.CaptureError, match="asks for the value of a tensor"):
        fxonnx.export(Function(_compares_many).eval(), (torch.randn(3, 12),), dynamic_shapes=shapes, diagnostics=report)
    (page,) = tmp_path.glob("*.html")
    assert "it has many limits" in page.read_text()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("function", [_written_in_the_middle, _spectrum_in_the_middle])
def test_writes_between_sizes_of_either_sign(function: Callable[[Tensor], Tensor], rows: int) -> None:
    """The slices of value and target have sizes that torch does not know to be equal."""
    program = fxonnx.export(Function(function).eval(), (torch.randn(rows, 32),), dynamic_shapes=({0: "b", 1: "h"},))
    assert not [one for one in program.record.constraints if one.narrows]
    for size in ((1, 32), (2, 48), (3, 9), (1, 10), (2, 7), (1, 3), (2, 1)):
        x = torch.randn(size)
        torch.testing.assert_close(program(x)[0], function(x))
