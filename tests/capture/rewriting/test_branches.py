"""``if``, conditional expressions, boolean operators and early returns on tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .cases import SHAPES, check, signs


def if_else(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:  # noqa: SIM108 - the statement is the case
        y = x + 1
    else:
        y = x - 1
    return y * 2


def if_only(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x * 2
    return x + 1


def if_any(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(3)
    if (x > 0).any():
        y = y + x.max()
    return y


def elif_chain(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    if total > 50:
        y = x * 2
    elif total > 0:
        y = x * 3
    elif total == 0:
        y = x + 5
    else:
        y = -x
    return y


def early_return(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    y = x * 2
    return y - 1


def two_early_returns(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    y = x * 2
    if y.sum() < -5:
        return y
    return y - 1


def nested_return(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 0:
        if x.min() > 0:
            return x * 10
        x = x + 1
    y = x * 2
    return y - 1


def nested_if(x: torch.Tensor) -> torch.Tensor:
    y = x
    if x.max() > 0:
        if x.min() > 0:  # noqa: SIM108 - the statement is the case
            y = x * 10
        else:
            y = x - 10
    return y


def temporary(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        factor = x.max()
        y = x * factor
    else:
        y = x
    return y


def defined_where_used(x: torch.Tensor) -> torch.Tensor:
    positive = x.sum() > 0
    if positive:
        factor = x.max()
    y = x
    if positive:
        y = x * factor
    return y


def ternary(x: torch.Tensor) -> torch.Tensor:
    return (x + 1 if x.sum() > 0 else x - 1) * 2


def conjunction(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0 and x.min() > 0:
        return x + 1
    return x - 1


def disjunction(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 100 or x.max() < 0 or x.min() == 0:
        return x + 1
    return x - 1


def negation(x: torch.Tensor) -> torch.Tensor:
    if not x.any():
        return x + 1
    return x - 1


def chained(x: torch.Tensor) -> torch.Tensor:
    if -5 < x.sum() < 5:
        return x + 1
    return x - 1


def any_and_all(x: torch.Tensor) -> torch.Tensor:
    if any([x.sum() > 0, x[0, 0] > 5, False]):
        x = x + 1
    return x * 2 if all(value > -3 for value in (x.sum(), x.min())) else x


def numbers(x: torch.Tensor) -> torch.Tensor:
    factor = 2
    if x.sum() > 0:
        factor = 3
    return x * factor


def floats(x: torch.Tensor) -> torch.Tensor:
    factor = 0.5 if x.sum() > 0 else 1.5
    return x * factor


def tuples(x: torch.Tensor) -> torch.Tensor:
    pair = (x, x * 2) if x.sum() > 0 else (x * 3, x)
    return pair[0] - pair[1]


def dictionary(x: torch.Tensor) -> torch.Tensor:
    cache = {"a": x}
    if x.sum() > 0:
        cache["a"] = x * 2
    return cache["a"]


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    if x.sum() > 0:
        y[0] = 7
    return y


def accumulated(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    if x.sum() > 0:
        y += 3
    else:
        y.mul_(2)
    return y


def aliases(x: torch.Tensor) -> torch.Tensor:
    y = x if x.sum() > 0 else x * 2
    return y + x


def reduced_item(x: torch.Tensor) -> torch.Tensor:
    if x.sum().item() > 0:
        return x * 2
    return x


def nested_function(x: torch.Tensor) -> torch.Tensor:
    def scaled(factor: float) -> torch.Tensor:
        if x.sum() > 0:
            return x * factor
        return x

    return scaled(2.0) + scaled(3.0)


def in_lambda(x: torch.Tensor) -> torch.Tensor:
    pick = lambda t: t * 2 if t.sum() > 0 else t  # noqa: E731
    return pick(x)


def plain_conditions(x: torch.Tensor, flag: bool = True) -> torch.Tensor:
    if flag:
        x = x + 1
    if x.dim() == 2 and flag:
        x = x * 2
    if x.sum() > 0:
        x = x - 1
    return x


def number_of_positives(x: torch.Tensor) -> torch.Tensor:
    if x[x > 0].shape[0] > 2:
        return x * 2
    return x


def with_block(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if x.sum() > 0:
            return x + 1
        y = x * 2
    return y - 1


def equal(x: torch.Tensor) -> torch.Tensor:
    if torch.equal(x, x.abs()):
        return x + 1
    return x * 2 if not x.equal(x.clamp(max=0)) else x - 1


def all_close(x: torch.Tensor) -> torch.Tensor:
    y = x + 1 if torch.allclose(x, x.relu(), atol=1e-3) and x.sum() > 0 else x - 1
    return y * int(x.allclose(x.abs())) + y


def boolean_items(x: torch.Tensor) -> torch.Tensor:
    positive = (x > 0).all().item()
    if positive and not (x > 5).any().item():
        return x + 1
    return x * positive - 1


def contained(x: torch.Tensor) -> torch.Tensor:
    if 0 in x and 5 not in x:
        return x + 1
    return x * 2 if x[0, 0] in x[0] and "a" not in {"b"} else x


def nonzero(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.is_nonzero(x.sum()) else x - 1


def as_floats(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x * float(x.max())
    return x * round(float(x.min() / 4), 0) + float(x.shape[0])


CASES = [
    *(if_else, if_only, if_any, elif_chain, early_return, two_early_returns, nested_return, nested_if, temporary),
    *(defined_where_used, ternary, conjunction, disjunction, negation, chained, numbers, floats, tuples, dictionary),
    *(in_place, accumulated, aliases, reduced_item, nested_function, in_lambda, plain_conditions),
    *(number_of_positives, with_block, any_and_all, equal, all_close, boolean_items),
    *(contained, nonzero, as_floats),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=["static", "dynamic"])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_every_branch_matches_eager_torch(function: Any, shapes: Any) -> None:
    program = check(function, signs, shapes, rows=(2, 7))
    assert program.record.rewrites
    assert {rewrite.file for rewrite in program.record.rewrites} == {__file__}
