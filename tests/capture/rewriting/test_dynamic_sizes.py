"""Loops over dynamic sizes: one iteration in the body, whatever the size of the example."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx

from ...functions import Function
from .cases import check, check_static_sizes


def rows_of(count: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(count, 3) - 0.5, torch.rand(count, 3))


def rows(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for row in x:
        total = total * 0.5 + row
    return total


def steps(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
    return h


def stacked(x: torch.Tensor) -> torch.Tensor:
    h, outputs = torch.zeros(3), []
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def joined(x: torch.Tensor) -> torch.Tensor:
    outputs = []
    for row in x.unbind(0):
        outputs.append((row * 2)[None])  # noqa: PERF401 - the statement is the case
    return torch.cat(outputs, 0)


def comprehended(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[i] * i for i in range(len(x))])


def enumerated(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for i, row in enumerate(x):
        total = total + row * i
    return total


def zipped(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for one, other in zip(x, x.flip(0), strict=False):
        total = total * 0.5 + one * other
    return total


def zipped_reversed(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for one, t in zip(x, reversed(range(x.size(0)))):  # noqa: B905 - the case without options
        total = total * 0.5 + one * t
    return total


def backwards(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for t in reversed(range(x.size(0))):
        h = h * 0.5 + x[t]
    return h


def every_second(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for t in range(0, x.shape[0], 2):
        h = h * 0.5 + x[t]
    return h


def one_step(x: torch.Tensor) -> torch.Tensor:
    n, parts = x.shape[0], []
    for start in range(0, n, n):
        parts.append(x[start : start + n] * 2)  # noqa: PERF401 - the statement is the case
    return torch.cat(parts)


def written_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in range(x.shape[0]):
        out[t] = x[t] * t
    return out


def stopped(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for row in x:
        h = h + row
        if h.sum() > 2:
            break
    return h


def inserted(x: torch.Tensor) -> torch.Tensor:
    h, outputs = torch.zeros(3), [x[0]]
    for t in reversed(range(x.shape[0])):
        h = torch.tanh(h + x[t])
        outputs.insert(0, h)
        outputs.insert(0, h * 2)
    return torch.stack(outputs)


def inserted_and_stopped(x: torch.Tensor) -> torch.Tensor:
    outputs = []
    for row in x:
        outputs.insert(0, row)
        if row.sum() > 2:
            break
    return torch.stack(outputs)


def turned(x: torch.Tensor) -> torch.Tensor:
    outputs = []
    for row in x:
        outputs.append(row * 2)  # noqa: PERF401 - the statement is the case
    outputs.reverse()
    return torch.stack(outputs[::-1]) + torch.stack(list(reversed(outputs))) * len(outputs)


def generated(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(tuple(x[index] * index for index in range(x.shape[0]))) + torch.stack(list(row for row in x))  # noqa: C400


def sliced_list(x: torch.Tensor) -> torch.Tensor:
    outputs = [row * 2 for row in x]
    outputs.insert(1, x[0])
    return torch.stack(outputs[1:])


def iterated_list(x: torch.Tensor) -> torch.Tensor:
    outputs = [row * 2 for row in x]
    total = torch.zeros(3)
    for row in outputs:
        total = total * 0.5 + row
    return total


def summed(x: torch.Tensor) -> torch.Tensor:
    return sum(row * 2 for row in x) + sum([row + 1 for row in x], start=x[0]) + sum(x)


def summed_integers(x: torch.Tensor) -> torch.Tensor:
    return sum((row > 0).to(torch.int32) for row in x) + sum(row > 0 for row in x)


def filled(x: torch.Tensor) -> torch.Tensor:
    h, outputs = torch.zeros(3), [None] * x.shape[0]
    for t in reversed(range(x.shape[0])):
        h = torch.tanh(h + x[t])
        outputs[t] = h
    return torch.stack(outputs, dim=1)


def filled_by_comprehensions(x: torch.Tensor) -> torch.Tensor:
    outputs = [None for _ in range(x.shape[0])]
    zeros = [torch.zeros(3)] * len(x)
    for t in range(x.shape[0]):
        outputs[t] = x[t] * t
        if x[t].sum() > 0:
            zeros[t] = x[t] * 2
    return torch.stack(outputs) + torch.stack(zeros)


def split_rows(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for row in x.split(1):
        h = torch.tanh(h + row[0])
    for one, other in zip(torch.split(x, 1, dim=0), x.flip(0).chunk(x.shape[0]), strict=False):
        h = h * 0.5 + one[0] - other.squeeze(0) * 2
    return h


def unbound_rows(x: torch.Tensor) -> torch.Tensor:
    rows = x.unbind(0)
    h = rows[-1]
    for t in range(len(rows)):
        h = torch.tanh(h + rows[t])
    for t, row in enumerate(reversed(x.unbind())):
        h = h * 0.5 + row * t
    return h + torch.stack(torch.unbind(x)[1:] + rows[:1]).sum(0)


def mapped(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for row in map(lambda row: row * 2, x):  # noqa: C417 - the case
        h = torch.tanh(h + row)
    doubled = list(map(lambda t: x[t] * t, range(x.shape[0])))  # noqa: C417
    return torch.stack(doubled) + torch.stack(tuple(map(torch.tanh, x.unbind(0)))) + torch.cat([*(h[None] for _ in x)])


def nested(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.stack([(x[i] * x[j]).sum() for j in range(x.shape[0])]) for i in range(x.shape[0])])


def extended(x: torch.Tensor) -> torch.Tensor:
    outputs = []
    for row in x:
        outputs += [row, row * 2]
    for t in range(x.shape[0]):
        outputs.append(x[t] * 3)
    more = outputs + [x[0]]  # noqa: RUF005 - the case
    more.extend(outputs)
    return torch.stack([x[0]] + more)  # noqa: RUF005


def last_items(x: torch.Tensor) -> torch.Tensor:
    outputs = [torch.zeros(3)]
    for row in x:
        outputs.append(torch.tanh(outputs[-1] + row))
        outputs.append(outputs[-1] * 2)
    return torch.stack(outputs)


def last_while_inserting(x: torch.Tensor) -> torch.Tensor:
    outputs = [torch.ones(3)]
    for row in x:
        outputs.insert(0, row + outputs[-1])
    return torch.stack(outputs)


def scaled_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row * scale + offset for row in x for scale in (1, 2) for offset in (0.5, 1.5)])


def products(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row * scale for scale in (1.0, -2.0) for row in x])


def decided_by_rows(x: torch.Tensor) -> torch.Tensor:
    if any(row.sum() > 2 for row in x):
        x = x + 1
    flags = [row.sum() > -1 for row in x]
    return x * 2 if all(flags) else x - 1


def extremes(x: torch.Tensor) -> torch.Tensor:
    return max(row.sum() for row in x) - min([row[:1] for row in x])


def running_sum(x: torch.Tensor) -> torch.Tensor:
    total, means, last = torch.zeros(3), torch.zeros_like(x), -1
    for t in range(x.shape[0]):
        if last == -1:
            total += x[0]
        else:
            if t > 2:
                total -= x[t - 2]
            if t < x.shape[0] - 1:
                total += x[t + 1]
        last = t
        means[t, :] = x[t] - total
    return means


WEIGHT = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))


def written_result(x: torch.Tensor) -> torch.Tensor:
    score = WEIGHT + x[0]
    for t in range(1, x.shape[0]):
        score = torch.tanh(score + x[t])
    score += WEIGHT
    score[0] *= 2
    return score


CASES = [
    *(decided_by_rows, extremes),
    *(last_items, last_while_inserting, scaled_rows, products),
    *(filled, filled_by_comprehensions, unbound_rows, mapped, nested, extended),
    *(inserted, inserted_and_stopped, turned, generated, sliced_list, iterated_list, summed, summed_integers),
    *(rows, steps, stacked, joined, comprehended, enumerated, zipped, zipped_reversed, backwards, every_second),
    *(written_rows, stopped, running_sum, written_result),
]
# torch.stack, torch.cat, max and min reject empty lists, sum() returns the number 0, and (n + 1) // 2 is computed for n >= 1.
NONEMPTY = [
    *(scaled_rows, products, extremes),
    *(inserted, inserted_and_stopped, turned, generated, sliced_list, summed, summed_integers),
    *(stacked, joined, comprehended, every_second, written_result),
    *(filled, filled_by_comprehensions, unbound_rows, mapped, nested, extended),
]


def added_steps(x: torch.Tensor) -> torch.Tensor:
    total = torch.ones(3)
    for t in range(x.shape[0]):
        total = total * 2 + t
    return total


@pytest.mark.parametrize("function", [*CASES, added_steps], ids=lambda function: function.__name__)
def test_every_size_matches_eager_torch(function: Any) -> None:
    rows = (1, 2, 7) if function in NONEMPTY else (0, 1, 2, 7)
    program = check(function, rows_of, {"x": {0: "n"}}, rows=rows)
    assert program.record.rewrites
    assert not program.record.constraints


def test_range_with_one_step_is_no_loop() -> None:
    program = check(one_step, rows_of, {"x": {0: "n"}}, rows=(1, 2, 7))
    assert not program.record.constraints
    assert "Loop" not in {node.op_type for node in program.model.graph}


@pytest.mark.parametrize("function", [*CASES, added_steps], ids=lambda function: function.__name__)
def test_static_sizes_match_eager_torch(function: Any) -> None:
    sizes = (1, 2, 5) if function in NONEMPTY else (0, 1, 2, 5)
    check_static_sizes(function, [rows_of(size)[0] for size in sizes])


@pytest.mark.parametrize(
    "function", [stacked, rows, comprehended, filled, split_rows], ids=lambda function: function.__name__
)
def test_the_model_does_not_depend_on_the_example(function: Any) -> None:
    small, large = (
        fxonnx.export(Function(function).eval(), (torch.rand(size, 3),), dynamic_shapes={"x": {0: "n"}})
        for size in (8, 512)
    )
    assert len(list(small.model.graph.all_nodes())) == len(list(large.model.graph.all_nodes()))


def test_long_examples_are_not_unrolled(caplog: pytest.LogCaptureFixture) -> None:
    def cell(h: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            logging.getLogger("steps").warning("a step")
        return torch.tanh(h + row)

    def counted(x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(3)
        for row in x:
            h = cell(h, row)
        t = 0
        while t < x.shape[0]:
            h = cell(h, x[t])
            t += 1
        return h

    program = fxonnx.export(Function(counted).eval(), (torch.rand(512, 3),), dynamic_shapes={"x": {0: "n"}})
    assert 0 < sum(record.name == "steps" for record in caplog.records) < 64
    for size in (0, 5):
        x = torch.rand(size, 3)
        torch.testing.assert_close(program(x)[0], counted(x))


@pytest.mark.parametrize("size", [4, 40], ids=["short", "long"])
def test_handlers_of_the_model_do_not_handle_failures_of_the_capture(size: int) -> None:
    def falls_back(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(3)
        try:
            for row in x:
                total = total * 0.5 + row
        except:  # noqa: E722 - the case
            return x.sum(0)
        return total

    with pytest.raises(fxonnx.CaptureError, match=rf"'n', is always {size}\n(?s:.*)move the statements to a function"):
        fxonnx.export(Function(falls_back).eval(), (torch.rand(size, 3),), dynamic_shapes={"x": {0: "n"}})


def test_loops_over_static_sizes_are_unrolled() -> None:
    program = fxonnx.export(Function(rows).eval(), (torch.rand(4, 3),))
    assert not program.record.rewrites
    assert "Loop" not in {node.op_type for node in program.model.graph}


class Cell(nn.Module):
    """A recurrent network with a hand-written cell, and its sequence in the second dim."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(8, 20)

    def step(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        h, c = state
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        state = x.new_zeros(x.shape[0], 5), x.new_zeros(x.shape[0], 5)
        outputs = []
        for t in range(x.shape[1]):
            state = self.step(x[:, t], state)
            outputs.append(state[0])
        return torch.stack(outputs, 1), state


def test_hand_written_cell() -> None:
    model = Cell().eval()
    program = fxonnx.export(model, (torch.rand(2, 6, 3),), dynamic_shapes={"x": {0: "batch", 1: "time"}})
    assert [node.op_type for node in program.model.graph].count("Loop") == 1
    for batch, time in ((2, 6), (1, 1), (3, 11)):
        x = torch.rand(batch, time, 3)
        output, (h, c) = model(x)
        for actual, expected in zip(program(x), (output, h, c), strict=True):
            torch.testing.assert_close(actual, expected)


def unless_empty(x: torch.Tensor) -> torch.Tensor:
    outputs = [row * 2 for row in x]
    if not outputs:
        return x.sum(0) - 1
    return torch.stack(outputs).sum(0)


def test_whether_a_list_is_empty_is_a_constraint() -> None:
    with pytest.warns(match=r"only for:\n  n >= 1\n    at: .* in unless_empty: if not outputs:"):
        program = fxonnx.export(Function(unless_empty).eval(), (torch.rand(3, 3),), dynamic_shapes={"x": {0: "n"}})
    torch.testing.assert_close(program(x := torch.rand(1, 3))[0], unless_empty(x))
    with pytest.raises(fxonnx.ArgumentError, match="the model was exported for n >= 1, got n = 0"):
        program(torch.rand(0, 3))


PLACES, MASK = torch.tensor([2, 0]), torch.tensor([True, False, True])
INDICES: dict[str, tuple[tuple[int, ...], Any, Any]] = {
    "tensor": ((3,), lambda i, row: (i, PLACES), lambda row: row[:2]),
    "tensor first": ((3,), lambda i, row: (PLACES, i), lambda row: row[:2]),
    "list": ((3,), lambda i, row: (i, [1, 2]), lambda row: row[:2]),
    "mask": ((3,), lambda i, row: (i, row > 0), lambda row: 7.0),
    "order": ((3,), lambda i, row: (i, row.argsort()), lambda row: torch.arange(3.0)),
    "slice between": ((4, 3), lambda i, row: (i, slice(None), PLACES), lambda row: row[:2]),
    "ellipsis": ((4, 3), lambda i, row: (i, ..., MASK), lambda row: row[:2]),
    "slice": ((3, 4), lambda i, row: (slice(i, i + 1), PLACES, slice(2)), lambda row: row[:2]),
    "new dim": ((3, 3), lambda i, row: (i, None, PLACES), lambda row: row),
}


@pytest.mark.parametrize("name", INDICES)
def test_writes_at_a_counter_beside_tensors(name: str) -> None:
    shape, index, value = INDICES[name]

    def written(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(*((3, x.shape[0]) if name == "tensor first" else (x.shape[0], *shape)))
        for i in range(x.shape[0]):
            y[index(i, x[i])] = value(x[i])
        return y

    program = check(written, rows_of, {"x": {0: "n"}}, rows=(1, 2, 7))
    assert not program.record.constraints
