"""Variables of other scopes, and Python objects that calls change, in functions with control flow on tensors."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

import fxonnx
from fxonnx.errors import CaptureError

from ...functions import Function
from .cases import SHAPES, check, signs

COUNT = 0
ITEMS: list[int] = []


def counting() -> None:
    global COUNT  # noqa: PLW0603 - the statement is the case
    COUNT += 1


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def step(self) -> None:
        self.count += 1


class Flagged:
    flag = 0

    @classmethod
    def mark(cls) -> None:
        cls.flag = 1


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def step(self) -> None:
        self.count += 1


def nonlocal_number(x: torch.Tensor) -> Any:
    n = 1

    def bump() -> None:
        nonlocal n
        n = n + 1

    if x.sum() > 0:
        bump()
    return x * n


def nonlocal_of_method(x: torch.Tensor) -> Any:
    n = 0

    class Local:
        def step(self) -> None:
            nonlocal n
            n = n + 1

    if x.sum() > 0:
        Local().step()
    return x + n


def nonlocal_in_loop(x: torch.Tensor) -> Any:
    y = x.abs() + 1
    n = 0

    def bump() -> None:
        nonlocal n
        n = n + 1

    while y.sum() < 100:
        y = y * 2
        bump()
    return y * n


def assigned_global(x: torch.Tensor) -> Any:
    global COUNT  # noqa: PLW0603 - the statement is the case
    COUNT = 0
    if x.sum() > 0:
        COUNT = 5
    return x + COUNT


def global_of_function(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        counting()
    return x + COUNT


def global_by_name(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        globals()["COUNT"] = 7
    return x * COUNT


def attribute_of_class(x: torch.Tensor) -> Any:
    Flagged.flag = 0
    if x.sum() < 1e7:
        Flagged.mark()
    return x * (1 + Flagged.flag)


def list_of_module(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        ITEMS.extend([1])
    return x * len(ITEMS)


def list_of_closure(x: torch.Tensor) -> Any:
    items = [x]

    def push() -> None:
        items.append(x + 1)

    if x.sum() > 0:
        push()
    return items[-1]


def dict_of_exec(x: torch.Tensor) -> Any:
    names = {"v": 1}
    if x.sum() > 0:
        exec("v = 2", names)
    return x * names["v"]


def default_argument(x: torch.Tensor) -> Any:
    def length(items: list[int] = []) -> int:  # noqa: B006 - the shared list is the case
        items.append(1)
        return len(items)

    n = length() if x.sum() > 0 else 0
    return x * n + length()


def set_of_items(x: torch.Tensor) -> Any:
    items = {1}
    if x.sum() > 0:
        items.add(2)
    return x * len(items)


def queue(x: torch.Tensor) -> Any:
    items = deque([1])
    if x.sum() > 0:
        items.append(2)
    return x * len(items)


def iterator(x: torch.Tensor) -> Any:
    numbers = iter([1, 2, 3])
    a = next(numbers) if x.sum() > 0 else 0
    return x * a + next(numbers)


def attribute_of_object(x: torch.Tensor) -> Any:
    counter = Counter()
    if x.sum() > 0:
        counter.step()
    return x * counter.count


def attribute_by_name(x: torch.Tensor) -> Any:
    counter = Counter()
    if x.sum() > 0:
        setattr(counter, "count", 2)  # noqa: B010 - the call is the case
    return x * counter.count


def attribute_in_slots(x: torch.Tensor) -> Any:
    counter = Slots()
    if x.sum() > 0:
        counter.step()
    return x * counter.count


def array_of_numpy(x: torch.Tensor) -> Any:
    counts = np.zeros((2, 2), dtype=np.int64)
    if x.sum() > 0:
        counts[0, 1] += 1
    return x * int(counts.sum())


def array_of_numbers(x: torch.Tensor) -> Any:
    counts = array("q", [0, 0])
    if x.sum() > 0:
        counts[1] += 1
    return x * sum(counts)


def local_names(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        y = x * 2
    return locals().get("y", x)


def local_expression(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        x = x * 2
    return eval("x * 3")


def assignment_in_condition(x: torch.Tensor) -> Any:
    y = x.abs() + 1
    while (total := y.sum()) < 100:
        y = y * 2
    return y + total


def assignment_in_any(x: torch.Tensor) -> Any:
    if any((hit := row).sum() > 0 for row in (x[0], x[1])):
        return x + hit
    return x


VARIABLE = "it changes the variable 'n' of an enclosing function in a call"
GLOBAL = "it assigns the global variable 'COUNT'"

REFUSED = [
    (nonlocal_in_loop, VARIABLE),
    (assigned_global, GLOBAL),
    (global_of_function, GLOBAL),
    (global_by_name, GLOBAL),
    (attribute_of_class, "it assigns the attribute 'flag' of the class Flagged"),
    (list_of_module, "it changes a list in a call, or in a way that is not supported"),
    (iterator, "it advances a list_iterator"),
    (local_names, r"locals\(\) of local variables cannot be captured"),
    (local_expression, r"eval\(\) of local variables cannot be captured"),
    (assignment_in_condition, "its condition assigns a variable"),
    (assignment_in_any, "a condition that is computed from a tensor must be known"),
]


@pytest.mark.parametrize(("function", "problem"), REFUSED, ids=[function.__name__ for function, _ in REFUSED])
def test_changes_of_other_scopes_are_refused_and_undone(function: Any, problem: str) -> None:
    before = COUNT, list(ITEMS)
    with pytest.raises(CaptureError, match=rf"{problem}(.|\n)*at: .*test_scopes.py:\d+"):
        fxonnx.export(Function(function).eval(), (signs(4)[0],))
    assert before == (COUNT, ITEMS) or function is assigned_global
    assert Flagged.flag == 0


def late_functions(x: torch.Tensor) -> Any:
    functions = [lambda v: v + i for i in range(3)]  # noqa: B023 - read late
    if x.sum() > 0:
        x = x * 2
    return functions[0](x) + functions[1](x) * 10


def late_functions_in_branch(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        functions = list(lambda v: v + i * 10 + j for i in range(2) for j in range(3))  # noqa: B023, C400
        x = functions[0](x)
    return x


def late_generators(x: torch.Tensor) -> Any:
    generators = [(i * k for k in (1, 2)) for i in range(3)]
    if x.sum() > 0:
        x = x * 2
    return x + sum(generators[0])


def functions_with_defaults(x: torch.Tensor) -> Any:
    functions = [lambda v, i=i: v + i for i in range(3)]
    if x.sum() > 0:
        x = functions[0](x)
    return x + functions[1](x)


def functions_of_a_loop(x: torch.Tensor) -> Any:
    functions = []
    for i in range(3):
        functions.append(lambda v: v + i)  # noqa: B023, PERF401 - read late
    if x.sum() > 0:
        x = functions[0](x)
    return x


def variable_after_function(x: torch.Tensor) -> Any:
    k = 1
    function = lambda v: v + k  # noqa: E731
    if x.sum() > 0:
        k = 5
    return function(x)


def class_body(x: torch.Tensor) -> Any:
    k = 3

    class Local:
        k = 4
        following = k + 1

        def step(self, v: torch.Tensor) -> torch.Tensor:
            return v + k

    if x.sum() > 0:
        x = x * 2
    return Local().step(x) + Local.following


def nonlocal_of_function(x: torch.Tensor) -> Any:
    n = 1

    def bump(v: torch.Tensor) -> Any:
        nonlocal n
        if v.sum() > 0:
            n = n + 1
        return n

    a = bump(x)
    return x * a + bump(-x)


def nonlocal_that_only_others_read(x: torch.Tensor) -> Any:
    total, count = x.sum() * 0, 0

    def visit(row: torch.Tensor) -> torch.Tensor:
        nonlocal total, count
        if row.sum() > 0:
            total = total + row.sum()
            count += 1
            return row
        return row * 2

    return visit(x[0]) + visit(x[1]), total, count


def walrus(x: torch.Tensor) -> Any:
    y = x
    if (total := x.sum()) > 0:  # noqa: SIM108 - the statement is the case
        z = (y := x * 2) + total
    else:
        z = x
    return y + z


def deleted(x: torch.Tensor) -> Any:
    y, t = x + 1, x * 2
    if x.sum() > 0:
        z = y * 2
        del y
        y = z + t
    del t
    return y


@pytest.mark.parametrize("shapes", SHAPES, ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "function",
    [
        *(late_functions, late_functions_in_branch, late_generators, functions_with_defaults, functions_of_a_loop),
        *(variable_after_function, class_body, nonlocal_of_function),
        *(nonlocal_that_only_others_read, walrus, deleted),
        # The call has made what a branch changes: the branches go on to the end of the function that has made it.
        *(nonlocal_number, nonlocal_of_method, list_of_closure, dict_of_exec, default_argument, set_of_items, queue),
        *(attribute_of_object, attribute_by_name, attribute_in_slots, array_of_numpy, array_of_numbers),
    ],
    ids=lambda function: function.__name__,
)
def test_scopes_match_eager_torch(function: Any, shapes: Any) -> None:
    check(function, signs, shapes, rows=(2, 7))
