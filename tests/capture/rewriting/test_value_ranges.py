"""``for i in range(n)`` where ``n`` is the value of an input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxonnx

from .cases import SHAPES, check


def trips(rows: int) -> list[tuple[torch.Tensor, ...]]:
    """Inputs whose second one is the trip count."""
    x = torch.arange(rows * 3.0).reshape(rows, 3) / 4 - 1
    return [(x, torch.tensor(count)) for count in (2, 5, 1, 0)]


def at_least_one(rows: int) -> list[tuple[torch.Tensor, ...]]:
    return trips(rows)[:-1]


def added(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for i in range(n):
        x = x * 0.5 + i
    return x


def converted(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for i in range(int(n)):
        x = x * 0.5 + i
    return x


def as_item(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for i in range(n.item()):
        x = x * 0.5 + i
    return x


def limits(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for i in range(1, n + 2, 2):
        total = total * 0.5 + x[0] * i
    for i in reversed(range(n)):
        total = total * 0.5 - i
    return total


def appended(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    h, outputs = x[0], []
    for i in range(n):
        h = torch.tanh(h + i)
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def comprehended(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:1] * i for i in range(n)])


def stopped(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for i in range(n):
        x = x + i
        if x.sum() > 20:
            break
    else:
        x = -x
    return x


def returned(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    for i in range(n):
        total = total + 3 * i
        if total > 20:
            return x * i
    return x - total


def fibonacci(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    one, other = torch.zeros(3), x[0]
    for _ in range(n):
        one, other = other, one + other
    return one


def nested(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for i in range(n):
        for j in range(i, n):
            total = total * 0.5 + x[0] * i - j
    return total


def written(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(n, 3)
    for i in range(n):
        out[i] = x[0] * i
    return out


def generated(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    sequence = torch.cat([x[:1], torch.zeros(n, 3)])
    for i in range(n):
        sequence[i + 1] = torch.tanh(sequence[i] + 0.5)
    return sequence


CASES = [
    *((function, trips) for function in (added, converted, as_item, limits, stopped, returned, fibonacci, nested)),
    *((function, trips) for function in (written, generated)),
    # torch.stack and torch.cat reject empty lists.
    *((function, at_least_one) for function in (appended, comprehended)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=["static", "dynamic"])
@pytest.mark.parametrize(("function", "inputs"), CASES, ids=[function.__name__ for function, _ in CASES])
def test_every_trip_count_matches_eager_torch(function: Any, inputs: Any, shapes: Any) -> None:
    program = check(function, inputs, shapes, rows=(1, 7))
    assert any("range" in rewrite.construct for rewrite in program.record.rewrites)
    assert not program.record.frozen_arguments


def grown(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for _ in range(n):
        x = torch.cat([x, x])
    return x


def number_to_tensor(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    total: Any = 0
    for i in range(n):
        total = total + x * i
    return total


def indexed(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    functions = [torch.sin, torch.cos, torch.tanh]
    for i in range(n):
        x = functions[i](x)
    return x


REFUSED = [
    (
        grown,
        r"(?s)for over .* cannot be captured: x is .* after an iteration\n  at: .*\nhint: start with.*frozen=\[\"n\"\]",
    ),
    (number_to_tensor, r"(?s)total is of type int before the loop.*hint: start with .*frozen=\[\"n\"\]"),
    (indexed, r"(?s)for i in range\(n\):.*frozen=\[\"n\"\] to make it a constant"),
]


class Counted(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x, n)
        return result


@pytest.mark.parametrize(("function", "match"), REFUSED, ids=[function.__name__ for function, _ in REFUSED])
def test_loops_that_cannot_be_operators_are_refused(function: Any, match: str) -> None:
    with pytest.raises(fxonnx.CaptureError, match=match):
        fxonnx.export(Counted(function).eval(), trips(4)[0])


@pytest.mark.parametrize("function", [function for function, _ in REFUSED], ids=lambda function: function.__name__)
def test_their_trip_count_follows_the_example_on_request(function: Any) -> None:
    (x, n), (_, other), *_ = trips(4)
    with pytest.warns(UserWarning, match="branches on the values of its inputs"):
        program = fxonnx.export(Counted(function).eval(), (x, n), data_dependent="example")
    torch.testing.assert_close(program(x, n)[0], function(x, n))
    with pytest.raises(fxonnx.ArgumentError):
        program(x, other)


def test_frozen_bounds_are_unrolled() -> None:
    x, n = trips(4)[0]
    program = fxonnx.export(Counted(added).eval(), (x, n), frozen=["n"])
    assert not program.record.rewrites
    torch.testing.assert_close(program(x, n)[0], added(x, n))
