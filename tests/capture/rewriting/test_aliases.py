"""Tensors and lists that are one object, or share memory, in eager torch, and that are written around an operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxonnx
from fxonnx.errors import CaptureError

from ...functions import Function
from .cases import SHAPES, check, signs


def chosen(x: torch.Tensor) -> Any:
    a, b = x + 1, x - 1
    c = a if x.sum() > 0 else b
    c += 10
    return a, b, c


def assigned(x: torch.Tensor) -> Any:
    a, b = x + 1, x - 1
    if x.sum() > 0:  # noqa: SIM108 - the statement is the case
        c = a
    else:
        c = b
    c += 10
    return a, b, c


def chosen_input(x: torch.Tensor) -> Any:
    c = x if x.sum() > 0 else x - 1
    c += 10
    return c


def chosen_row(x: torch.Tensor) -> Any:
    y = x * 2
    row = y[0] if x.sum() > 0 else y[1]
    row.fill_(9)
    return y


def view_of_old_value(x: torch.Tensor) -> Any:
    y = x * 2
    view = y[0]
    if x.sum() > 0:
        y = y + 1
    view.fill_(9)
    return y, view


def output_argument(x: torch.Tensor) -> Any:
    a, b = x + 1, x - 1
    torch.add(x, 5, out=a if x.sum() > 0 else b)
    return a, b


def chosen_pair(x: torch.Tensor) -> Any:
    a, b = x + 1, x - 1
    p, q = (a, b) if x.sum() > 0 else (b, a)
    p.mul_(2)
    return a, b, p, q


def item_of_dict(x: torch.Tensor) -> Any:
    a, b = x + 1, x - 1
    cache = {"a": a}
    if x.sum() > 0:
        cache["a"] = b
    cache["a"][0] = 3
    return a, b


def attribute(x: torch.Tensor) -> Any:
    state = nn.Module()
    state.h = y = x + 1
    if x.sum() > 0:
        state.h = state.h * 2
    state.h += 1
    return state.h, y


def both_results(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        a = x + 1
        b = a[0]
    else:
        a = x - 1
        b = a[1]
    b.fill_(3)
    return a, b


def returned(x: torch.Tensor) -> Any:
    def pick(t: torch.Tensor) -> torch.Tensor:
        if t.sum() > 0:
            return t
        return t * 2

    y = x + 1
    z = pick(y)
    z += 5
    return y, z


def operand_of_or(x: torch.Tensor) -> Any:
    a, b = x.sum() + 0, x.max() + 0
    c = a or b
    c += 5
    return a, b


def written_in_branch(x: torch.Tensor) -> Any:
    y = x * 2
    c = y if x.sum() > 0 else x * 3
    if x.max() > 2:
        c += 1
    return y, c


def written_in_loop(x: torch.Tensor) -> Any:
    y = x * 2
    c = y if x.sum() > 0 else x * 3
    total = torch.zeros(3)
    while total.sum() < 100:
        total = total + y.abs().sum() + 1
        c += 1
    return total, c


def two_variables_of_a_loop(x: torch.Tensor) -> Any:
    a = b = x.abs() + 1
    while a.sum() < 200:
        a += 5
        b = b * 2
    return a, b


def initial_value(x: torch.Tensor) -> Any:
    y = x.abs() + 1
    h = y
    while h.sum() < 100:
        h += 5
        h = h * 2
    return h, y


def swapped_rows(x: torch.Tensor) -> Any:
    y = x * 2
    a, b = (y[0], y[1]) if x.sum() > 0 else (y[1], y[0])
    t = a.clone()
    a.copy_(b)
    b.copy_(t)
    return y


def written_after_a_branch_that_replaces_it(x: torch.Tensor) -> Any:
    y = x.clone()
    if x.sum() > 0:
        y[0] = 9.0
        other = y * 2
    else:
        other = y
    y[1] = 5.0
    return y, other


TENSORS = [
    *(chosen, assigned, chosen_input, chosen_row, view_of_old_value, output_argument, chosen_pair, item_of_dict),
    *(attribute, both_results, returned, operand_of_or, written_in_branch, written_in_loop, initial_value),
    *(swapped_rows, two_variables_of_a_loop, written_after_a_branch_that_replaces_it),
]


def appended_same(x: torch.Tensor) -> Any:
    h = torch.zeros(3)
    outs = []
    for row in x:
        h += row
        outs.append(h)
    return torch.stack(outs)


def appended_carried(x: torch.Tensor) -> Any:
    h = torch.ones(3)
    outs = []
    for row in x:
        h.add_(row)
        h = h * 2
        outs.append(h)
    return torch.stack(outs)


def appended_row(x: torch.Tensor) -> Any:
    buffer = torch.zeros(x.shape[0], 3)
    outs = []
    for i in range(x.shape[0]):
        outs.append(buffer[i])
        buffer += x[i]
    return torch.stack(outs)


def appended_and_written_later(x: torch.Tensor) -> Any:
    y = x * 2
    outs = []
    for i in range(y.shape[0]):
        outs.append(y[i])  # noqa: PERF401 - the loop is the case
    y += 1
    return torch.stack(outs)


def written_item(x: torch.Tensor) -> Any:
    outs = [torch.zeros(3)]
    for row in x:
        outs.append(row * 2)  # noqa: PERF401 - the loop is the case
    outs[0].fill_(5)
    return torch.stack(outs)


def written_item_of_view(x: torch.Tensor) -> Any:
    y = x * 2
    outs = [y[i] for i in range(x.shape[0])]
    outs[0].fill_(7)
    return y


def one_item_several_times(x: torch.Tensor) -> Any:
    y = x * 2
    items = [y for _ in range(x.shape[0])]
    items[0] += 1
    return y, torch.stack(items)


def reversed_list(x: torch.Tensor) -> Any:
    outs = []
    for row in x:
        outs.append(row * 2)  # noqa: PERF401 - the loop is the case
    rest = outs[::-1]
    rest[0] += 4
    return torch.stack(outs)


LISTS = [
    *(appended_same, appended_carried, appended_row, appended_and_written_later, written_item),
    *(written_item_of_view, one_item_several_times, reversed_list),
]


@pytest.mark.parametrize("function", TENSORS, ids=lambda function: function.__name__)
def test_a_write_to_memory_that_an_operator_copies_is_refused(function: Any) -> None:
    with pytest.raises(CaptureError, match=r"shares memory with another one(.|\n)*shared at: (.|\n)*written at: "):
        fxonnx.export(Function(function).eval(), (signs(4)[0],))


@pytest.mark.parametrize("function", LISTS, ids=lambda function: function.__name__)
def test_a_write_to_memory_of_a_list_of_dynamic_length_is_refused(function: Any) -> None:
    with pytest.raises(CaptureError, match="shares memory with another one"):
        fxonnx.export(Function(function).eval(), (signs(4)[0],), dynamic_shapes={"x": {0: "n"}})


def test_the_error_names_the_lines_that_share_write_and_read() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x * 2
            c = y if x.sum() > 0 else x
            c += 1
            return y - 1

    with pytest.raises(CaptureError) as caught:
        fxonnx.export(Model().eval(), (torch.ones(2, 3),))
    message = str(caught.value)
    lines = (": c = y if x.sum() > 0 else x\n", ": c += 1\n", ": return y - 1\n")
    assert [message.index(line) for line in lines] == sorted(message.index(line) for line in lines)
    assert "write to a clone() of the tensor" in message


def dead_value(x: torch.Tensor) -> Any:
    y = x + 1
    if x.sum() > 0:
        y = y * 2
    y += 1
    return torch.nn.functional.relu(y, inplace=True)


def dead_value_in_loop(x: torch.Tensor) -> Any:
    y = x + 1
    for row in x:
        if row.sum() > 0:
            y = y * 2
        y += row
    return y


def read_only(x: torch.Tensor) -> Any:
    y = x * 2
    c = y if x.sum() > 0 else x
    v = c[0]
    return y + c, v


def write_in_branch(x: torch.Tensor) -> Any:
    y = x.clone()
    if x.sum() > 0:
        y += 3
    v = y[0]
    v += 1
    return y


def written_and_replaced(x: torch.Tensor) -> Any:
    y = torch.zeros_like(x)
    before = y
    valid = x > -2
    if x.sum() > 0:
        y[valid] = x[valid]
        y = y.clamp(-1, 1)
    return y, before


def written_and_replaced_in_a_branch(x: torch.Tensor) -> Any:
    y = x.clone()
    if x.sum() > 0:
        if x.max() > 1:
            y[0] = 9.0
        other = y * 2
    else:
        other = y
    return y, other


def write_of_carried(x: torch.Tensor) -> Any:
    y = x.abs() + 1
    while y.sum() < 100:
        y += 5
        y = y * 2
    return y


def exchanged(x: torch.Tensor) -> Any:
    a, b = x.abs() + 1, x.abs() * 2
    while a.sum() + b.sum() < 300:
        a += 1
        a, b = b, a
    return a, b


def previous(x: torch.Tensor) -> Any:
    y = before = x.abs() + 1
    while y.sum() < 100:
        before = y
        y = y * 2
    return y, before


def list_assigned_in_loop(x: torch.Tensor) -> Any:
    first = items = [x.abs() + 1]
    while items[0].sum() < 100:
        items = [items[0] * 2]
    return first[0], items[0]


def list_assigned_in_branch(x: torch.Tensor) -> Any:
    items = [x]
    if x.sum() > 0:
        items = [x + 2]
    items[0] = items[0] + 1
    return items[0]


def inner_list(x: torch.Tensor) -> Any:
    lists = [[x], [x * 2]]
    inner = lists[0]
    if x.sum() > 0:
        lists[1][0] = x + 1
    inner[0] = x * 9
    return lists[0][0], lists[1][0]


def sorted_list(x: torch.Tensor) -> Any:
    numbers = [3, 1, 2]
    if x.sum() > 0:
        numbers.sort()
    return x * numbers[0]


def left_by_break(x: torch.Tensor) -> Any:
    y = x.abs()
    h = y
    for _ in range(10):
        if h.sum() > 60:
            break
        h = y
        y += 1
    return h, y


def remaining_statements(x: torch.Tensor) -> Any:
    total = torch.zeros(3)
    for row in x:
        if row.sum() > 0:
            if row.max() > 5:
                continue
            total = total + 1
        elif row.min() < -4:
            continue
        total = total + row
    return total


@pytest.mark.parametrize("shapes", SHAPES, ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "function",
    [
        *(
            written_and_replaced,
            written_and_replaced_in_a_branch,
            dead_value,
            dead_value_in_loop,
            read_only,
            write_in_branch,
            write_of_carried,
            exchanged,
            previous,
        ),
        *(list_assigned_in_loop, list_assigned_in_branch, inner_list, sorted_list, remaining_statements, left_by_break),
    ],
    ids=lambda function: function.__name__,
)
def test_aliases_without_a_missing_write_match_eager_torch(function: Any, shapes: Any) -> None:
    check(function, signs, shapes, rows=(2, 7))


def stacked_and_written(x: torch.Tensor) -> Any:
    outs = []
    for row in x:
        outs.append(row + 1)  # noqa: PERF401 - the loop is the case
    joined = torch.stack(outs)
    joined += 1
    return joined, outs[0]


def unbound_and_written(x: torch.Tensor) -> Any:
    y = x + 1
    joined = torch.stack(y.unbind(0))
    if x.sum() > 0:
        joined += 1
    return joined, y


@pytest.mark.parametrize("function", [stacked_and_written, unbound_and_written], ids=lambda function: function.__name__)
def test_a_joined_list_is_a_copy(function: Any) -> None:
    check(function, signs, {"x": {0: "n"}}, rows=(2, 7))


def list_of_a_branch(x: torch.Tensor) -> Any:
    a, b = [x], [x * 3]
    c = a if x.sum() > 0 else b
    c[0] = x + 5
    return a[0] + b[0]


def list_of_a_variable(x: torch.Tensor) -> Any:
    a = b = [x]
    if x.sum() > 0:
        a = [x * 2]
    b[0] = x * 7
    return a[0]


def returned_dict(x: torch.Tensor) -> Any:
    a = {"a": x}

    def pick(t: torch.Tensor) -> dict[str, torch.Tensor]:
        if t.sum() > 0:
            return a
        return {"a": t * 2}

    pick(x)["a"] = x * 5
    return a["a"]


def changed_and_assigned(x: torch.Tensor) -> Any:
    a = b = [x]
    if x.sum() > 0:
        a[0] = x + 1
        a = [x + 2]
    return a[0], b[0]


def other_list_in_loop(x: torch.Tensor) -> Any:
    a, b = [x.abs() + 1], [x]
    while a[0].sum() < 100:
        a[0] = a[0] * 2
        b = a
    return a[0], b[0]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (list_of_a_branch, "a list that is one object with its result changes later"),
        (list_of_a_variable, "a list that is one object with its result changes later"),
        (returned_dict, "a dict that is one object with its result changes later"),
        (other_list_in_loop, "b becomes an object that exists before the iteration"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_change_of_a_list_that_an_operator_copies_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(CaptureError, match=rf"{problem}\n  at: test_aliases.py:\d+"):
        fxonnx.export(Function(function).eval(), (signs(4)[0],))


def test_a_branch_that_changes_and_assigns_a_list_goes_on_to_the_end() -> None:
    check(changed_and_assigned, signs, None)


def written_in_a_loop(x: torch.Tensor, y: torch.Tensor) -> Any:
    view, z = y.T.T, x
    total = x.sum()
    if total > 2:
        if x.shape[0] > 1:
            z = view.roll(1, 0)
        while total < 160:
            view[:1] += total
            total = total * 2
    return view.T, z


def written_in_a_branch(x: torch.Tensor, y: torch.Tensor) -> Any:
    view = y.T
    if y.sum() > 2:
        z = x * 2 if x.shape[0] > 1 else x
        view[:, 0] = z[0]
    return view, y.amax(0)


@pytest.mark.parametrize("function", [written_in_a_loop, written_in_a_branch])
def test_a_view_of_an_input_is_written_in_a_branch_that_asks_a_size(function: Any) -> None:
    """The capture reads that size from the example, whose values must not get into the file."""

    def pairs(rows: int) -> list[tuple[torch.Tensor, ...]]:
        return [(x / 4, y) for x in signs(rows) for y in signs(rows)]

    program = check(function, pairs, {"x": {0: "n"}, "y": {0: "n"}}, (3, 9))
    assert not program.exported_program.constants
