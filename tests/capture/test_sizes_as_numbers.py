"""Operators and Python code that convert a size to a number: correct at other sizes, or a constraint, or an error.

Each row is exported with examples of size 1, 2 and 3 and run at 1, 2, 3, 5 and 7. A size that is a constant of the program
without a constraint would compute different results than eager torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fxonnx
from fxonnx.errors import ArgumentError, CaptureError

from ..functions import Function

EXAMPLES = (1, 2, 3)
SIZES = (1, 2, 3, 5, 7)


def rows(n: int) -> torch.Tensor:
    return torch.arange(n * 4.0).reshape(n, 4).sin()


def columns(n: int) -> torch.Tensor:
    return torch.arange(2.0 * n).reshape(2, n).sin()


def image(n: int) -> torch.Tensor:
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
    "avg_pool2d": (lambda x: F.avg_pool2d(x, x.shape[2:]), image),
    "max_pool2d": (lambda x: F.max_pool2d(x, x.shape[2:]), image),
    "avg_pool2d_half": (lambda x: F.avg_pool2d(x, max(x.shape[2] // 2, 1)), image),
    "max_pool1d_half": (lambda x: F.max_pool1d(x, max(x.shape[1] // 2, 1)), columns),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2, x.shape[3] // 2)), image),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (x.shape[2] // 2 + 1, 1)), image),
    "unfold": (lambda x: F.unfold(x, max(x.shape[2] // 2, 1)), image),
    "unfold_padded": (lambda x: F.unfold(x, 3, padding=1), image),
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


def test_iterating_over_a_dim_of_size_one_without_source_is_rejected() -> None:
    with pytest.raises(CaptureError, match=r"x axis 0, 'n', is always 1\n    at: .*sum\(map"):
        fxonnx.export(Function(lambda x: sum(map(torch.sum, x))), (rows(1),), dynamic_shapes=({0: "n"},))


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
