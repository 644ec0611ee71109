"""The functions that are rewritten: their closures, classes and defaults; they are restored, and other threads' own."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxonnx
from fxonnx import CaptureError

from ...functions import Function
from .cases import signs


class Base(nn.Module):
    def scaled(self, x: torch.Tensor, factor: float = 2.0, *, offset: float = 1.0) -> torch.Tensor:
        return x * factor + offset


class Derived(Base):
    """A method with ``super()``, private names, defaults, keyword-only parameters and attributes that change."""

    def __init__(self) -> None:
        super().__init__()
        self.__private = 3.0
        self.last: Any = None
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("calls", torch.zeros(()))

    def scaled(self, x: torch.Tensor, factor: float = 4.0, *, offset: float = 5.0) -> torch.Tensor:
        if x.sum() > 0:
            self.last = super().scaled(x, factor, offset=offset) * self.__private
        else:
            self.last = super().scaled(x) * self.weight
        return self.last

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x) + self.scaled(x + 1, offset=0.5)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) + 1

    return wrapper


def made(offset: torch.Tensor) -> Callable[..., Any]:
    @decorated
    def inner(x: torch.Tensor, *more: Any, factor: int = 2, **options: Any) -> torch.Tensor:
        return x * factor + offset if x.sum() > 0 else x - offset

    return inner


def compare(model: nn.Module) -> fxonnx.ONNXProgram:
    program = fxonnx.export(model, (signs(4)[0],))
    for x in signs(4):
        torch.testing.assert_close(program(x)[0], model(x))
    return program


def test_methods() -> None:
    before = Derived.scaled, Derived.scaled.__code__, dict(vars(Derived))
    program = compare(Derived().eval())
    (rewrite,) = program.record.rewrites
    assert (rewrite.file, rewrite.function, rewrite.construct) == (__file__, "scaled", "if on a tensor's value")
    assert str(rewrite) == f"{__file__}:{rewrite.line} in scaled: if on a tensor's value"
    assert (Derived.scaled, Derived.scaled.__code__, dict(vars(Derived))) == before


def test_closures_and_decorators() -> None:
    compare(Function(made(torch.tensor(0.5))).eval())


def test_functions_of_a_process_that_has_frozen_its_objects() -> None:
    """Servers freeze their objects before they fork."""
    model = Function(made(torch.tensor([1.0, 2.0, 3.0])))
    gc.freeze()
    try:
        compare(model)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_the_report_lists_them(tmp_path: Any) -> None:
    fxonnx.export(
        Function(made(torch.tensor(0.5))).eval(),
        (signs(4)[0],),
        diagnostics=fxonnx.Diagnostics(report=True, artifacts_dir=tmp_path),
    )
    (page,) = tmp_path.glob("*.md")
    assert "conditional expression on a tensor's value" in page.read_text()


def _mixed(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        return x
    return None


def test_functions_are_restored_after_a_failure() -> None:
    code = _mixed.__code__
    with pytest.raises(CaptureError):
        fxonnx.export(Function(_mixed).eval(), (signs(4)[0],))
    assert _mixed.__code__ is code


def test_other_threads_call_the_original() -> None:
    inside, done = threading.Event(), threading.Event()
    results = []

    def waits(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        if isinstance(x, torch._subclasses.FakeTensor) and not done.is_set():
            inside.set()
            done.wait(0.2)
        return x

    def call() -> None:
        inside.wait(30)
        results.append(waits(torch.ones(3)))
        done.set()

    thread = threading.Thread(target=call)
    thread.start()
    program = fxonnx.export(Function(waits).eval(), (torch.ones(3),))
    thread.join()
    assert program.record.rewrites
    torch.testing.assert_close(results[0], torch.full((3,), 2.0))


def _different_dtypes(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return x.int()


def _different_dims(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else x.sum()


def _different_structure(x: torch.Tensor) -> Any:
    return (x, x) if x.sum() > 0 else [x, x]


def _growing_shape(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 100:
        x = torch.cat([x, x])
    return x


def _number_becomes_tensor(x: torch.Tensor) -> torch.Tensor:
    total: Any = 0
    for _ in range((x > 0).sum()):
        total = total + x
    return total


def _none_becomes_tensor(x: torch.Tensor) -> torch.Tensor:
    last = None
    for i in range((x > 0).sum()):
        last = x * i
    return last


def _reads_list(x: torch.Tensor) -> torch.Tensor:
    values = [x]
    for i in range((x > 0).sum()):
        values.append(values[0] + i)
    return torch.stack(values)


def _while_with_list(x: torch.Tensor) -> torch.Tensor:
    values = []
    while x.sum() < 100:
        x = x * 2
        values.append(x)
    return torch.stack(values)


def _list_of_numbers(x: torch.Tensor) -> torch.Tensor:
    values = []
    for i in range((x > 0).sum()):
        values.append(i)  # noqa: PERF402 - the statement is the case
    return torch.tensor(values)


def _try(x: torch.Tensor) -> torch.Tensor:
    try:
        if x.sum() > 0:
            return x + 1
    finally:
        x = x * 2
    return x


def _try_in_loop(x: torch.Tensor) -> torch.Tensor:
    for i in range((x > 0).sum()):
        try:
            if i > 1:
                break
        finally:
            x = x + 1
    return x


def _yields(x: torch.Tensor) -> torch.Tensor:
    def parts() -> Any:
        if x.sum() > 0:
            yield x
        yield x + 1

    return sum(parts())


def _writes_to_view(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    row = y[0]
    if x.sum() > 0:
        row += 1
        y = y * 2
    return y


def _rows_of(x: torch.Tensor) -> list[torch.Tensor]:
    rows = []
    for _ in range(x.sum().to(torch.int64)):
        rows.append(x)  # noqa: PERF401 - the statement is the case
    return rows


def _steps_back(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(_rows_of(x)[::-2])


def _both_ends(x: torch.Tensor) -> torch.Tensor:
    rows: list[torch.Tensor] = []
    for _ in range(x.sum().to(torch.int64)):
        rows.append(x)
        rows.insert(0, x)
    return torch.stack(rows)


def _inserts_inside(x: torch.Tensor) -> torch.Tensor:
    rows = [x]
    for _ in range(x.sum().to(torch.int64)):
        rows.insert(1, x)
    return torch.stack(rows)


def _pops(x: torch.Tensor) -> torch.Tensor:
    rows = _rows_of(x)
    return rows.pop()


def _assigns_slice(x: torch.Tensor) -> torch.Tensor:
    rows = _rows_of(x)
    rows[:1] = [x[0]]
    return torch.stack(rows)


def _filters(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row * item for row in x for item in row if row.sum() > 0])


def _filters_range(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row * i for row in x for i in range((x > 0).sum()) if i % 2 == 0])


def _is_true(x: torch.Tensor) -> torch.Tensor:
    return x if bool(x.any()) is True else -x


def _appends(x: torch.Tensor) -> torch.Tensor:
    rows = [x[0]]
    if x.sum() > 0:
        rows.append(x)
    return rows[-1]


REFUSED = [
    (_filters, r"comprehension with a filter cannot be captured: the number of its items(?s:.*)hint: .*x\[mask\]"),
    (_filters_range, "comprehension with a filter cannot be captured: the number of its items"),
    (
        _is_true,
        r"identity of a tensor's value cannot be captured(?s:.*)hint: use the value itself, or compare it with ==",
    ),
    (
        _appends,
        r"rows has a different number of items in each branch, 2 and 1\n(?s:.*)hint: compute all items and .*items\[mask\]",
    ),
    (_pops, r"a list whose length is a dynamic size is modified or searched\n(?s:.*)hint: build it with append"),
    (
        _assigns_slice,
        r"a slice of a list whose length is not known is assigned\n(?s:.*)hint: assign the items one by one",
    ),
    (_different_dtypes, r"the returned value is a float32 tensor of shape \(4, 3\) in one branch and a int32 tensor"),
    (_different_dims, r"shape \(4, 3\) in one branch and a float32 tensor of shape \(\) in the other"),
    (_mixed, "the returned value is a float32 tensor of shape .* in one branch and None in the other"),
    (_different_structure, "of type tuple in one branch and of type list in the other"),
    (_growing_shape, r"x is a float32 tensor of shape \(4, 3\) before the loop and .*\(8, 3\) after an iteration"),
    (_number_becomes_tensor, r"total is of type int before the loop and .* after an iteration\n(?s:.*)torch.zeros"),
    (_none_becomes_tensor, "last is None before the loop"),
    (_reads_list, "a list that a loop of unknown length appends to is read inside the loop"),
    (_steps_back, r"has added items to has a negative step(?s:.*)use \[::-1\]"),
    (_both_ends, "a loop of unknown length adds items to both ends of a list"),
    (_inserts_inside, "a list that a loop of unknown length appends to is read inside the loop"),
    (_while_with_list, "it adds items to a list, whose length is not known before the loop"),
    (_list_of_numbers, "values grows by values that are not tensors"),
    (_try, "try inside it contains return, break or continue"),
    (_try_in_loop, "try inside it contains return, break or continue"),
    (_yields, "it contains yield"),
    (_writes_to_view, "a tensor is modified in place, and a view of it is used as well"),
]


@pytest.mark.parametrize(("function", "match"), REFUSED, ids=[function.__name__ for function, _ in REFUSED])
def test_constructs_that_are_refused(function: Any, match: str) -> None:
    with pytest.raises(CaptureError, match=match) as error:
        fxonnx.export(Function(function).eval(), (signs(4)[0],))
    list_errors = (
        _reads_list,
        _steps_back,
        _both_ends,
        _inserts_inside,
        _pops,
        _assigns_slice,
    )
    assert function in list_errors or "at: test_functions.py:" in str(error.value)


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([one * other for one in x for other in x])


def _filtered_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[i] * factor for i in range(x.shape[0]) for factor in (1, 2) if i % 2 == 0])


def _first_item(x: torch.Tensor) -> torch.Tensor:
    values = [x[0]]
    for row in x:
        values.append(values[0] + row)
    return torch.stack(values)


REFUSED_SIZES = [
    (
        _pairs,
        r"its inner loop has a dynamic length as well\n  at: test_functions.py:\d+ in _pairs\nhint: stack the inner",
    ),
    (_filtered_rows, r"comprehension with a filter cannot be captured(?s:.*)\nhint: select the rows with a mask"),
    (_first_item, r"appends to is read inside the loop\nhint: read its last item, outputs\[-1\]"),
]


@pytest.mark.parametrize(
    ("function", "match", "size"),
    [*((*row, 4) for row in REFUSED_SIZES), (*REFUSED_SIZES[-1], 40)],
    ids=[*(function.__name__ for function, _ in REFUSED_SIZES), "long"],
)
def test_specialized_dims_name_the_construct_and_the_remedy(function: Any, match: str, size: int) -> None:
    with pytest.raises(CaptureError, match=rf"(?s)'n', is always {size}\n.*{match}.*; or look for sizes"):
        fxonnx.export(Function(function).eval(), (torch.rand(size, 3),), dynamic_shapes={"x": {0: "n"}})


def test_loops_that_are_refused_make_only_their_dim_static() -> None:
    x, y = torch.rand(4, 3), torch.rand(5, 3)
    model = Function(lambda x, y: _pairs(x).sum() + y).eval()
    with pytest.warns(UserWarning, match="only for:\n  n == 4"):
        program = fxonnx.export(model, (x, y), dynamic_shapes={"x": {0: "n"}, "y": {0: "m"}})
    torch.testing.assert_close(program(x, torch.ones(2, 3))[0], model(x, torch.ones(2, 3)))


def test_generated_functions_have_no_source() -> None:
    namespace: dict[str, Any] = {}
    exec("def generated(x):\n    return x if x.sum() > 0 else -x", namespace)
    with pytest.raises(CaptureError, match="the model asks for the value of a tensor"):
        fxonnx.export(Function(namespace["generated"]).eval(), (signs(4)[0],))


class _Rescaled(torch.nn.Module):
    """A branch changes the state of the module, as rotary embeddings with dynamic scaling do."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.longest: Any = 4
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.grow(x.sum()) if self.change == "grow" else setattr(self, self.change, x.sum())
        return x * self.longest

    def grow(self, total: torch.Tensor) -> None:
        self.longest = total


@pytest.mark.parametrize("change", ["grow", "longest"])
def test_attributes_changed_by_calls(change: str) -> None:
    model = _Rescaled(change).eval()
    message = r"it assigns the attribute 'longest' of _Rescaled in a call(?s:.*)self\.longest = "
    with pytest.raises(CaptureError, match=message):
        fxonnx.export(model, (signs(4)[0],))
    assert model.longest == 4


class _Marked(nn.Module):
    """A part of a model that keeps notes."""

    def __init__(self) -> None:
        super().__init__()
        self.flag, self.last = 0, torch.zeros(0)
        self.maybe: int | None = None
        self.table: dict[str, int] = {}

    def mark(self, x: torch.Tensor) -> torch.Tensor:
        self.flag, self.table["mark"], self.last, self.maybe = 1, 2, x, 3
        return x * 2


class _MarksAPart(nn.Module):
    """A branch of ordinary values that marks a part; another one reads it after the branch."""

    def __init__(self, reads: Callable[[_Marked], Any], *, is_listed: bool = False) -> None:
        super().__init__()
        self.parts, self.reads = nn.ModuleList([_Marked()]), reads
        self.part = nn.Identity() if is_listed else _Marked()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part: Any = self.part if isinstance(self.part, _Marked) else self.parts[0]
        if x.sum() < 1e7:
            x = part.mark(x)
        return x * self.reads(part)


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize(
    ("reads", "problem"),
    [
        (lambda part: 1 + part.flag, "it assigns the attribute 'flag' of _Marked in a call"),
        (lambda part: part.table.get("mark", 1), "it changes a dict in a call"),
        (lambda part: part.maybe or 1, "it assigns the attribute 'maybe' of _Marked in a call"),
    ],
    ids=["attribute", "dict", "from None"],
)
def test_changes_of_a_part_that_are_read_are_refused(reads: Any, problem: str, is_listed: bool) -> None:
    """The other branch, which no run of the proof takes, would find the part marked as well."""
    model = _MarksAPart(reads, is_listed=is_listed).eval()
    with pytest.raises(CaptureError, match=problem):
        fxonnx.export(model, (signs(4)[0],))


def test_changes_of_a_part_that_nothing_reads_are_no_changes() -> None:
    model = _KeepsTheLast().eval()
    x = signs(4)[0]
    program = fxonnx.export(model, (x,))
    for value in (x, -x, x * 1e8):
        torch.testing.assert_close(program(value)[0], model(value))


class _Noted(nn.Module):
    def noted(self, x: torch.Tensor) -> torch.Tensor:
        self.unread_note = x
        return x * 2


class _KeepsTheLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = _Noted()
        self.part.unread_note = torch.zeros(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.noted(x) if x.sum() < 1e7 else x


class _Doubled(nn.Module):
    """A loop on a tensor's value in a submodule."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 100:
            x = x * 2 + 1
        return x


class _Branching(nn.Module):
    """Branches of ``torch.cond`` that call it; eager torch refuses them as well."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Doubled()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        def positive(x: torch.Tensor, y: torch.Tensor) -> Any:
            return self.inner(x), torch.cond(y.sum() > 0, lambda y: self.inner(y), lambda y: -y, (y,))

        return torch.cond(x.sum() > 0, positive, lambda x, y: (x - 1, y.clone()), (x, y))


def test_loops_inside_of_the_branches_of_cond() -> None:
    x = torch.rand(3, 4)
    program = fxonnx.export(_Branching().eval(), (x, x + 1), dynamic_shapes=({0: "n"}, {0: "n"}))
    assert [rewrite.function for rewrite in program.record.rewrites] == ["forward"]
    inner = _Doubled()
    for rows, xs, ys in ((3, 1, 1), (2, 20, -1), (5, -1, 1), (1, 60, 60)):
        x, y = torch.rand(rows, 4) * xs, torch.rand(rows, 4) * ys
        expected = (inner(x), inner(y) if y.sum() > 0 else -y) if x.sum() > 0 else (x - 1, y)
        torch.testing.assert_close(tuple(program(x, y)), expected)


def test_branches_of_cond_that_differ_are_refused() -> None:
    inner = _Doubled()

    def differing(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: inner(x), lambda x: x.long(), (x,))

    with pytest.raises(CaptureError, match=r"torch\.cond cannot be captured: the returned value is a float32 tensor"):
        fxonnx.export(Function(differing).eval(), (torch.rand(3, 4),))
