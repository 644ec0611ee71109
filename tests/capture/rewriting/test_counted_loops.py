"""``while`` loops that count to a dynamic size or to the value of a tensor, with the counter as a Python number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxonnx

from ...functions import Function
from .cases import check, check_static_sizes, counts


def rows_of(count: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(count, 3) - 0.3,)


def rows(x: torch.Tensor) -> torch.Tensor:
    i, h = 0, torch.ones(3)
    while i < x.shape[0]:
        h = torch.tanh(h + x[i])
        i += 1
    return h * i


def every_second(x: torch.Tensor) -> torch.Tensor:
    i, h = 0, torch.zeros(3)
    while x.size(0) > i:
        h = h * 0.5 + x[i]
        i = i + 2
    return h + i


def pairs(x: torch.Tensor) -> torch.Tensor:
    i, total = 0, torch.zeros(3)
    while i + 2 <= len(x):
        total = total * 0.5 + x[i] * x[i + 1]
        i += 2
    return total


def appended(x: torch.Tensor) -> torch.Tensor:
    i, h, outputs = 0, torch.zeros(3), []
    while i < len(x):
        h = torch.tanh(h + x[i])
        outputs.append(h)
        i += 1
    return torch.stack(outputs)


def written_rows(x: torch.Tensor) -> torch.Tensor:
    i, out = 1, x.clone()
    while i < out.shape[0]:
        out[i] = out[i - 1] * 0.5 + x[i] * i
        i += 1
    return out


def reassigned(x: torch.Tensor) -> torch.Tensor:
    i = 0
    while i < x.shape[0]:
        x = x + i
        i += 1
    return x


def backwards(x: torch.Tensor) -> torch.Tensor:
    i, h = x.shape[0] - 1, torch.zeros(3)
    while i >= 0:
        h = torch.tanh(h + x[i])
        i -= 1
    return h


def remaining(x: torch.Tensor) -> torch.Tensor:
    n, total = x.shape[0], torch.zeros(3)
    while n > 0:
        n -= 1
        total = total * 0.5 + x[n]
    return total


def stopped(x: torch.Tensor) -> torch.Tensor:
    i, h = 0, torch.zeros(3)
    while i < x.shape[0]:
        h = h + x[i]
        if h.sum() > 1:
            break
        i += 1
    return h * i


def stopped_list(x: torch.Tensor) -> torch.Tensor:
    i, outputs = 0, []
    while i < x.shape[0]:
        outputs.append(x[i] * i)
        i += 1
        if x[i - 1].sum() > 1:
            break
    return torch.stack(outputs)


def doubled(x: torch.Tensor) -> torch.Tensor:
    i = 1
    while i < x.shape[0]:
        x = x + i
        i *= 2
    return x


def skipped(x: torch.Tensor) -> torch.Tensor:
    i, total = 0, torch.zeros(3)
    while i < x.shape[0]:
        i += 1
        if i % 2 == 0:
            continue
        total = total * 2 + i
    return total


def endless(x: torch.Tensor) -> torch.Tensor:
    i, h = 0, torch.zeros(3)
    while True:
        if i >= x.shape[0]:
            break
        h = torch.tanh(h + x[i])
        i += 1
    return h


def endless_list(x: torch.Tensor) -> torch.Tensor:
    i, outputs = 0, []
    while True:
        outputs.append(x[i] * i)
        i += 1
        if i == x.shape[0]:
            break
    return torch.stack(outputs)


def endless_backwards(x: torch.Tensor) -> torch.Tensor:
    t, h = len(x), torch.ones(3)
    while True:
        t -= 1
        h = h * 0.5 + x[t] if x[t].sum() > 0 else h - 1
        if t < 1:
            break
    return h


def endless_until_the_middle(x: torch.Tensor) -> torch.Tensor:
    i, h, outputs = 0, torch.zeros(3), []
    while True:
        h = torch.tanh(h + x[i])
        outputs.append(h)
        i += 1
        if i == x.shape[0]:
            break
        h = h * 2 - i
    return torch.stack(outputs)


def unequal(x: torch.Tensor) -> torch.Tensor:
    t, outputs = x.shape[0], [x[0]]
    while t != 0:
        t = t - 1
        outputs.append(outputs[-1] * 0.5 + x[t])
    return torch.stack(outputs)


CASES = [
    *(endless, endless_list, endless_backwards, endless_until_the_middle, unequal),
    *(rows, every_second, pairs, appended, written_rows, reassigned, backwards, remaining, stopped, stopped_list),
    *(doubled, skipped),
]
# torch.stack rejects empty lists, and (n + 1) // 2 is computed for n >= 1.
NONEMPTY = (
    endless_list,
    endless_backwards,
    endless_until_the_middle,
    unequal,
    appended,
    stopped_list,
    every_second,
    pairs,
)


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_every_size_matches_eager_torch(function: Any) -> None:
    sizes = (1, 2, 7) if function in NONEMPTY else (0, 1, 2, 7)
    program = check(function, rows_of, {"x": {0: "n"}}, rows=sizes)
    assert any(rewrite.construct == "while on a tensor's value" for rewrite in program.record.rewrites)
    assert not program.record.constraints


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_static_sizes_match_eager_torch(function: Any) -> None:
    sizes = (1, 2, 5) if function in NONEMPTY else (0, 1, 2, 5)
    check_static_sizes(function, [rows_of(size)[0] for size in sizes])


@pytest.mark.parametrize("function", [rows, appended], ids=lambda function: function.__name__)
def test_the_model_does_not_depend_on_the_example(function: Any) -> None:
    small, large = (
        fxonnx.export(Function(function).eval(), (torch.rand(size, 3),), dynamic_shapes={"x": {0: "n"}})
        for size in (8, 512)
    )
    assert len(list(small.model.graph.all_nodes())) == len(list(large.model.graph.all_nodes()))


def appended_positive(x: torch.Tensor) -> torch.Tensor:
    n = (x > 0).sum()
    i, outputs = 0, [x[0]]
    while i < n:
        outputs.append(x[0] * i)
        i += 1
    return torch.stack(outputs)


def test_list_that_a_loop_to_the_value_of_a_tensor_appends_to() -> None:
    assert check(appended_positive, counts, {"x": {0: "n"}}, rows=(2, 7)).record.rewrites


def halved(x: torch.Tensor) -> torch.Tensor:
    while x.shape[0] > 3:
        x = x[::2]
    return x


def halved_and_branched(x: torch.Tensor) -> torch.Tensor:
    y = x if x.sum() > 0 else -x
    while y.shape[0] > 3:
        y = y[::2]
    return y


@pytest.mark.parametrize("function", [halved, halved_and_branched], ids=lambda function: function.__name__)
def test_loop_that_changes_shapes_is_unrolled(function: Any) -> None:
    x = torch.rand(7, 3)
    with pytest.warns(match="only for:\n  n >= 7\n"):
        program = fxonnx.export(Function(function).eval(), (torch.rand(8, 3),), dynamic_shapes={"x": {0: "n"}})
    torch.testing.assert_close(program(x)[0], function(x))
    with pytest.raises(fxonnx.ArgumentError, match="the model was exported for n >= 7"):
        program(torch.rand(5, 3))


def test_loop_over_a_static_size_is_unrolled() -> None:
    program = fxonnx.export(Function(rows).eval(), (torch.rand(4, 3),))
    assert not program.record.rewrites
    assert "Loop" not in {node.op_type for node in program.model.graph}


def counted_list(x: torch.Tensor) -> torch.Tensor:
    outputs = [x[0]]
    while len(outputs) < x.shape[0]:
        outputs.append(x[0] * 2)
    return torch.stack(outputs)


def test_a_specialized_dim_names_the_loop() -> None:
    with pytest.raises(fxonnx.CaptureError, match=r"'n', is always 5\n.* in counted_list: while len\(outputs\)"):
        fxonnx.export(Function(counted_list).eval(), (torch.rand(5, 3),), dynamic_shapes={"x": {0: "n"}})
