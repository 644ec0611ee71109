"""``while`` and ``for`` on tensors, with ``break``, ``continue`` and early returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx_translations._torch_compat import FakeTensor

from .cases import SHAPES, check, counts, sums


def number(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).sum()


def while_condition(x: torch.Tensor) -> torch.Tensor:
    while x.abs().sum() < 500:
        x = x * 2
    return x


def while_counter(x: torch.Tensor) -> torch.Tensor:
    n = number(x)
    i = 0
    while i < n:
        x = x + i
        i += 1
    return x * i


def while_two_conditions(x: torch.Tensor) -> torch.Tensor:
    steps = torch.tensor(0)
    while steps < number(x) and x.max() < 100:
        x = x * 2
        steps = steps + 1
    return x + steps


def while_true_break(x: torch.Tensor) -> torch.Tensor:
    total = x.abs().sum()
    while True:
        if total > 500:
            break
        total = total * 2
    return x + total


def while_continue(x: torch.Tensor) -> torch.Tensor:
    i = torch.tensor(0)
    total = torch.zeros(())
    while i < number(x):
        i = i + 1
        if i % 2 == 0:
            continue
        total = total + i
    return x + total


def collatz(x: torch.Tensor) -> torch.Tensor:
    n = int(number(x)) + 1
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return x + steps


def for_range(x: torch.Tensor) -> torch.Tensor:
    for i in range(number(x)):
        x = x + i
    return x


def for_range_item(x: torch.Tensor) -> torch.Tensor:
    for i in range(number(x).item()):
        x = x + i
    return x


def for_range_int(x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(number(x))):
        x = x * 1.5
    return x


def for_range_limits(x: torch.Tensor) -> torch.Tensor:
    for i in range(1, number(x), 2):
        x = x + i
    return x


def for_range_backwards(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(int(number(x)), 0, -1):
        total = total * 2 + i
    return x + total


def for_break(x: torch.Tensor) -> torch.Tensor:
    for i in range(number(x)):
        if x.sum() > i:
            break
        x = x + 1
    return x


def for_continue(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(number(x)):
        if i == 1:
            continue
        total = total + 10 + i
    return x + total


def for_return(x: torch.Tensor) -> torch.Tensor:
    for i in range(number(x)):
        if x.sum() > i:
            return x * 100
        x = x + 1
    return x - 1


def for_else(x: torch.Tensor) -> torch.Tensor:
    for i in range(number(x)):
        if i > 2:
            x = x + 1
            break
    else:
        x = x - 1
    return x


def static_range_break(x: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        if x.abs().sum() > 500:
            break
        x = x * 2
    return x


def long_static_range_break(x: torch.Tensor) -> torch.Tensor:
    for i in range(20):
        if x.abs().sum() > 500:
            break
        x = x * 1.5 + i
    return x


def list_of_functions_break(x: torch.Tensor) -> torch.Tensor:
    for function in (torch.sin, torch.tanh, torch.cos):
        if x.sum() > 0:
            break
        x = function(x) + 0.1
    return x


def nested_loops(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(number(x)):
        for j in range(i):
            total = total + i * j + 1
    return x + total


def loop_in_branch(x: torch.Tensor) -> torch.Tensor:
    if number(x) > 0:
        for i in range(number(x)):
            x = x + i
    else:
        x = x - 1
    return x


def branch_in_loop(x: torch.Tensor) -> torch.Tensor:
    for i in range(number(x)):
        if x.sum() > 0:  # noqa: SIM108 - the statement is the case
            x = x - i
        else:
            x = x + 2 * i + 1
    return x


def in_place_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(number(x).clamp(max=3)):
        out[:, i] = x[:, i] * 2
    return out


def in_place_accumulated(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for i in range(number(x)):
        total += x[0] * i
        total[1].add_(1)
    return total


def swapped(x: torch.Tensor) -> torch.Tensor:
    a, b = torch.tensor(0), torch.tensor(1)
    for _ in range(number(x)):
        a, b = b, a + b
    return x + a


def last_value(x: torch.Tensor) -> torch.Tensor:
    last = torch.zeros(())
    for i in range(number(x)):
        last = x.sum() * i
    return x + last


def appended_and_joined(x: torch.Tensor) -> torch.Tensor:
    values = [x[:1]]
    for i in range(number(x)):
        values.append(x[:1] + i)
        values.append(x[1:2] - i)
    return torch.cat(values)


def comprehension(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:1] * i for i in range(number(x) + 1)])


def while_true_end(x: torch.Tensor) -> torch.Tensor:
    total = x.abs().sum()
    while True:
        total = total * 1.5 + 1
        if total > 100:
            break
    return x + total


def while_true_list(x: torch.Tensor) -> torch.Tensor:
    i, n, values = 0, number(x), []
    while True:
        values.append(x[0] * i)
        i += 1
        if i >= n:
            break
    return torch.stack(values)


def last_items(x: torch.Tensor) -> torch.Tensor:
    values = [x]
    for i in range(number(x)):
        values.append(values[-1] * 0.5 + i)
    return torch.stack(values)


def carried_dictionary(x: torch.Tensor) -> torch.Tensor:
    state = {"h": x[0], "steps": torch.zeros(())}
    for i in range(number(x)):
        state["h"] = torch.tanh(state["h"] + i)
        state["steps"] = state["steps"] + 1
    return state["h"] * state["steps"]


def best_candidate(x: torch.Tensor) -> torch.Tensor:
    scores, tokens = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    for i in range(number(x)):
        scores, order = (scores + x[0] * (i + 1)).sort(descending=True)
        tokens = tokens[order] * 3 + order
    return torch.stack([scores, tokens.to(scores.dtype)])


def masked_decoding(x: torch.Tensor) -> torch.Tensor:
    done, h = torch.zeros(3, dtype=torch.bool), x[0]
    for i in range(number(x)):
        h = torch.where(done, h, h * 0.5 + i)
        done = done | (h > 2)
        if done.all():
            break
    return torch.where(done, h, -h)


def nested_tuples(x: torch.Tensor) -> torch.Tensor:
    state = (x[0], (x[0] * 2, 0))
    for _ in range(number(x)):
        one, (other, steps) = state
        state = (other, (one + other * 0.5, steps + 1))
    return state[0] - state[1][0] * state[1][1]


def list_that_may_be_empty(x: torch.Tensor) -> torch.Tensor:
    rows = [x[0] * i for i in range(number(x))]
    if not rows:
        return x[0] - 1
    return torch.stack(rows).sum(0)


def _appended(x: torch.Tensor) -> list[torch.Tensor]:
    rows = [x[0]]
    for i in range(number(x)):
        rows.append(x[1] * i)  # noqa: PERF401 - the statement is the case
    return rows


def lists_of_functions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x[0]
    for row in _appended(x):
        total = total * 0.5 + row
    return total, torch.stack([row * scale for row in _appended(x) for scale in (1, 2)])


def while_size_and_condition(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    i, total = 0, x.new_zeros(3)
    while i < x.shape[0] and total.sum() < 2:
        total = total + x[i].abs()
        i += 1
    return total, i


def while_condition_and_size(x: torch.Tensor) -> torch.Tensor:
    i, total = 0, x.new_zeros(3)
    while total.sum() < 2 and i < x.shape[0]:
        total = total + x[i].abs()
        i += 1
    return total


def while_not_size_or_condition(x: torch.Tensor) -> torch.Tensor:
    i, total = 0, x.new_zeros(3)
    while not (i >= x.shape[0] or total.sum() > 2):
        total = total + x[i].abs()
        i += 1
    return total


def first_row_after(x: torch.Tensor) -> torch.Tensor:
    i = 0
    while i < x.shape[0] and x[i].sum() > 0:
        i += 1
    return x * i


def pairs_of_rows(x: torch.Tensor) -> torch.Tensor:
    total = x.new_zeros(3)
    for i in range(x.shape[0]):
        if i < x.shape[0] - 1 and x[i].sum() > 0:
            total = total + x[i + 1]
        elif i == x.shape[0] - 1 or x[i].sum() < -4:
            total = total - x[i]
    return total


CASES = [
    *(while_size_and_condition, while_condition_and_size, while_not_size_or_condition, first_row_after, pairs_of_rows),
    *(carried_dictionary, best_candidate, masked_decoding, nested_tuples),
    *(while_true_end, while_true_list, last_items),
    *(while_condition, while_counter, while_two_conditions, while_true_break, while_continue, collatz),
    *(for_range, for_range_item, for_range_int, for_range_limits, for_range_backwards, for_break, for_continue),
    *(for_return, for_else, static_range_break, long_static_range_break, list_of_functions_break, nested_loops),
    *(loop_in_branch, branch_in_loop, in_place_columns, in_place_accumulated, swapped, last_value),
    *(appended_and_joined, comprehension, lists_of_functions, list_that_may_be_empty),
]


def halvings(rows: int) -> tuple[torch.Tensor, ...]:
    return counts(rows, (2, 0, 1, 5, 3))


def below_zero(rows: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.full((rows, 3), value) for value in (0.5, -0.05, -0.15, -1.0))


INPUTS = {
    **dict.fromkeys([while_condition, while_true_break, while_true_end], sums),
    **dict.fromkeys([static_range_break, long_static_range_break], sums),
    collatz: halvings,
    list_of_functions_break: below_zero,
}


@pytest.mark.parametrize("shapes", SHAPES, ids=["static", "dynamic"])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_every_trip_count_matches_eager_torch(function: Any, shapes: Any) -> None:
    program = check(function, INPUTS.get(function, counts), shapes, rows=(2, 7))
    assert program.record.rewrites


class LoopInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for part in x.split(4):
            total = torch.zeros(3)
            for other in x.split(5):
                total = total + torch.sinh(self.weight * part.sum() + other.sum(0))
            found.append(total)
        return torch.stack(found)


class BranchInBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            y = x * self.weight
            if x.max() > 1:
                y = torch.sinh(y)
            return y * 2
        return x * self.weight


@pytest.mark.parametrize(
    ("model", "shapes", "count"), [(LoopInLoop(), ({0: "n"},), 13), (BranchInBranch(), None, 3)], ids=["loop", "branch"]
)
def test_inner_bodies_on_trial_run_only_for_their_values(
    model: nn.Module, shapes: Any, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights that need gradients; six of the runs are those of the attempt that unrolls the loops."""
    traced, original = [0], torch.sinh

    def counted(x: torch.Tensor) -> torch.Tensor:
        traced[0] += isinstance(x, FakeTensor)
        return original(x)

    monkeypatch.setattr(torch, "sinh", counted)
    fxonnx.export(model.eval(), (torch.rand(10, 3),), tmp_path / "m.onnx", dynamic_shapes=shapes)
    assert traced[0] == count
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for size in (10, 4, 23) if shapes else (10, 10):
        x = torch.randn(size, 3)
        found = session.run(None, {"x": x.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-4)
