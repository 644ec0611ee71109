"""Each hint of the capture, followed by a program: the refused one prints it, and the changed one is exported right."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import fxonnx
from fxonnx import CaptureError

from .functions import Function
from .hints import capture_hints
from .messages import check_message

ROOT = Path(__file__).parent.parent
X = torch.tensor([[0.5, -1.0, 1.5], [1.0, 0.25, 2.0]])
N: dict[str, Any] = {"dynamic_shapes": ({0: "n"},)}
_Model = Callable[[torch.Tensor], Any]
_Step = tuple[_Model, _Model, dict[str, Any]]
"""The refused program, the one after the hint, and the options of both exports."""


def _branch_of_types(x: torch.Tensor) -> Any:
    if x.sum() > 0:  # noqa: SIM108
        y = x
    else:
        y = [x]
    return y


def _branch_of_one_type(x: torch.Tensor) -> Any:
    if x.sum() > 0:  # noqa: SIM108
        y = [x]
    else:
        y = [x * 2]
    return y[0]


def _branch_of_dtypes(x: torch.Tensor) -> Any:
    if x.sum() > 0:  # noqa: SIM108
        y = x
    else:
        y = x.int()
    return y


def _branch_of_one_dtype(x: torch.Tensor) -> Any:
    if x.sum() > 0:  # noqa: SIM108
        y = x
    else:
        y = x.int().float()
    return y


def _branch_of_counts(x: torch.Tensor) -> Any:
    rows = [x, x + 1] if x.sum() > 0 else [x]
    return torch.stack(rows)


def _masked_items(x: torch.Tensor) -> Any:
    items, mask = torch.stack([x, x + 1]), torch.stack([torch.tensor(True), x.sum() > 0])
    return items[mask]


def _items_and_list(x: torch.Tensor) -> Any:
    items = [x, x]
    while items[1].sum() > 1:
        items[0] = items[0] * 2
        items = [items[0], items[1] / 2]
    return items[0] + items[1]


def _list_only(x: torch.Tensor) -> Any:
    items = [x, x]
    while items[1].sum() > 1:
        items = [items[0] * 2, items[1] / 2]
    return items[0] + items[1]


def _new_list(x: torch.Tensor) -> Any:
    items = [x]
    if x.sum() > 0:
        items = [*items, x * 2]
    return torch.stack(items)


def _two_names(x: torch.Tensor) -> Any:
    out = [x[0]]
    same = out
    for row in x:
        if row.sum() > 0:
            out.append(row)  # noqa: PERF401 - the statement is the case
    return torch.stack(same)


def _one_name(x: torch.Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.append(row)  # noqa: PERF401 - the statement is the case
    return torch.stack(out)


def _written_view(x: torch.Tensor) -> Any:
    y = x.clone()
    row = y[0]
    if x.sum() > 0:
        row += 1
        y = y * 2
    return y


def _written_clone(x: torch.Tensor) -> Any:
    y = x.clone()
    row = y[0].clone()
    if x.sum() > 0:
        row += 1
        y = torch.cat([row[None], y[1:]]) * 2
    return y


def _written_later(x: torch.Tensor) -> Any:
    x = x.clone()
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.append(row)  # noqa: PERF401 - the statement is the case
    x.mul_(2)
    return torch.stack(out) + x.sum()


def _computed_later(x: torch.Tensor) -> Any:
    out = [x[0]]
    for row in x:
        if row.sum() > 0:
            out.append(row)  # noqa: PERF401 - the statement is the case
    y = x * 2
    return torch.stack(out) + y.sum()


def _changed_result(x: torch.Tensor) -> Any:
    a, b = [x], [x * 3]
    c = a if x.sum() > 0 else b
    c[0] = x + 5
    return a[0] + b[0] + c[0]


def _changed_copy(x: torch.Tensor) -> Any:
    a, b = [x], [x * 3]
    c = a if x.sum() > 0 else b
    c = [*c, x + 5]
    return a[0] + b[0] + c[1]


def _both_ends(x: torch.Tensor) -> Any:
    items: list[torch.Tensor] = []
    for _ in range(x.sum().to(torch.int64)):
        items.append(x)
        items.insert(0, x + 1)
    return torch.stack(items)


def _each_end(x: torch.Tensor) -> Any:
    first: list[torch.Tensor] = []
    last: list[torch.Tensor] = []
    for _ in range(x.sum().to(torch.int64)):
        last.append(x)
        first.append(x + 1)
    return torch.cat([torch.stack(first).flip(0), torch.stack(last)])


def _read_inside(x: torch.Tensor) -> Any:
    values = [x]
    for i in range((x > 0).sum()):
        values.append(values[0] + i)
    return torch.stack(values)


def _last_item(x: torch.Tensor) -> Any:
    first, values = x, [x]
    for i in range((x > 0).sum()):
        values.append(first + values[-1] * 0 + i)
    return torch.stack(values)


def _list_in_while(x: torch.Tensor) -> Any:
    found = []
    while x.sum() > 0.1:
        x = x / 2
        found.append(x)
    return torch.stack(found)


def _list_in_for(x: torch.Tensor) -> Any:
    found = []
    for _ in range(6):
        x = torch.where(x.sum() > 0.1, x / 2, x)
        found.append(x)
    return torch.stack(found)


def _number_before(x: torch.Tensor) -> Any:
    y: Any = 0
    while x.sum() > 0.1:
        x = x / 2
        y = x
    return y


def _zeros_before(x: torch.Tensor) -> Any:
    y = torch.zeros(2, 3)
    while x.sum() > 0.1:
        x = x / 2
        y = x
    return y


def _list_before(x: torch.Tensor) -> Any:
    y: Any = (x, x)
    while x.sum() > 0.1:
        x = x / 2
        y = [x]
    return y[0]


def _other_shapes(x: torch.Tensor) -> Any:
    return torch.cat([x[: i + 1] for i in range(x.shape[0])])


def _one_shape(x: torch.Tensor) -> Any:
    return torch.cat([x[i : i + 1] for i in range(x.shape[0])])


def _numbers(x: torch.Tensor) -> Any:
    items = []
    for i in range((x > 0).sum()):
        items.append(i)  # noqa: PERF402 - the statement is the case
    return x * len(items)


def _tensors(x: torch.Tensor) -> Any:
    items = []
    for _ in range((x > 0).sum()):
        items.append(x)  # noqa: PERF401 - the statement is the case
    return torch.stack(items)


def _same_object(x: torch.Tensor) -> Any:
    keep = [x]
    items: list[torch.Tensor] = []
    for _ in range((x > 0).sum()):
        items = keep
        items.append(x)
    return torch.stack(items)


def _copied_object(x: torch.Tensor) -> Any:
    keep = [x]
    for _ in range((x > 0).sum()):
        items = [*keep]
        items.append(x)
        x = x + items[-1]
    return x


def _slice_of_items(x: torch.Tensor) -> Any:
    items = [x[i] for i in range(x.shape[0])]
    items[1:3] = [x[0], x[0]]
    return torch.stack(items)


def _single_items(x: torch.Tensor) -> Any:
    items = [x[i] for i in range(x.shape[0])]
    items[1] = x[0]
    return torch.stack(items)


def _popped(x: torch.Tensor) -> Any:
    items = [x[i] for i in range(x.shape[0])]
    items.remove(items[0])
    return torch.stack(items)


def _appended(x: torch.Tensor) -> Any:
    items = []
    for i in range(x.shape[0] - 1):
        items.append(x[i + 1])  # noqa: PERF401 - the statement is the case
    return torch.stack(items)


def _steps(x: torch.Tensor) -> Any:
    rows = []
    for _ in range((x > 0).sum()):
        rows.append(x)  # noqa: PERF401 - the statement is the case
    return torch.stack(rows[::-2])


def _sliced_stack(x: torch.Tensor) -> Any:
    rows = []
    for _ in range((x > 0).sum()):
        rows.append(x)  # noqa: PERF401 - the statement is the case
    return torch.stack(rows[::-1])[::2]


def _gradients(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        z = y.sin() if y.sum() > 0 else y.cos()
        return torch.autograd.grad(z.sum(), y)[0]


def _gradients_of_both(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        z = torch.where(y.sum() > 0, y.sin(), y.cos())
        return torch.autograd.grad(z.sum(), y)[0]


def _fails(x: torch.Tensor) -> torch.Tensor:
    raise ValueError


def _handled_error(x: torch.Tensor) -> Any:
    try:
        y = _fails(x) if x.sum() > 0 else x + 1
    except ValueError:
        y = x * 100
    return y


def _selected(x: torch.Tensor) -> Any:
    return torch.where(x.sum() > 0, x * 100, x + 1)


def _handled_address(x: torch.Tensor) -> Any:
    with suppress(RuntimeError):
        x.data_ptr()
        return x + 1
    return x * 100


def _in_place(x: torch.Tensor) -> Any:
    x.unsqueeze_(0)
    return x * 2


@functools.cache
def _cached(count: int) -> torch.Tensor:
    return torch.rand(count)


class _Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.rand(8))

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.noise[: x.shape[1]]


def _generator(x: torch.Tensor) -> Any:
    return x + torch.rand(3, generator=torch.Generator().manual_seed(0))


def _last_chunk(x: torch.Tensor) -> Any:
    items = [x[start : start + 2] * 2 for start in range(0, x.shape[0], 2)]
    return items[-1]


def _joined_chunks(x: torch.Tensor) -> Any:
    items = [x[start : start + 2] * 2 for start in range(0, x.shape[0], 2)]
    return torch.cat(items, 0)


def _sum_of_items(x: torch.Tensor) -> Any:
    return sum([row for row in x if row.sum() > -9])


def _stacked_sum(x: torch.Tensor) -> Any:
    return torch.stack([row for row in x if row.sum() > -9]).sum(0)


def _of_lists(x: torch.Tensor) -> Any:
    items = [row * 2 for row in x]
    return torch.stack(torch._foreach_add(items, 1.0))


def _of_tensors(x: torch.Tensor) -> Any:
    items = [row * 2 for row in x]
    return torch.stack(items) + 1.0


def _item_of_another_type(x: torch.Tensor) -> Any:
    items: list[Any] = [None] * x.shape[0]
    for i in range(x.shape[0]):
        items[i] = i
    return x * len(items)


def _item_of_one_shape(x: torch.Tensor) -> Any:
    items: list[Any] = [None] * x.shape[0]
    for i in range(x.shape[0]):
        items[i] = x[i] * i
    return torch.stack(items)


def _text_in_a_branch(x: torch.Tensor) -> Any:
    return x if x.sum() > 0 else "none"


def _tensor_in_each_branch(x: torch.Tensor) -> Any:
    return x if x.sum() > 0 else x * 2


def _no_key_before(x: torch.Tensor) -> Any:
    y: Any = {}
    while x.sum() > 0.1:
        x = x / 2
        y = {"a": x}
    return y["a"] if y else x


def _key_before(x: torch.Tensor) -> Any:
    y = {"a": x}
    while x.sum() > 0.1:
        x = x / 2
        y = {"a": x}
    return y["a"]


_TEXTS: dict[str, Any] = {"torch": torch}
exec("def _made(x):\n    return x if x.sum() > 0 else [x]", _TEXTS)

FOLLOWED: dict[str, _Step] = {
    "assign values of the same type and structure in both branches": (_branch_of_types, _branch_of_one_type, {}),
    "assign values of the same type in both branches: tensors of the same dtype and number of dims": (
        _branch_of_dtypes,
        _branch_of_one_dtype,
        {},
    ),
    "compute all items and select those": (_branch_of_counts, _masked_items, {}),
    "assign a new value only": (_items_and_list, _list_only, {}),
    "refer to the list as": (_two_names, _one_name, N),
    "write to a clone() of the tensor": (_written_view, _written_clone, {}),
    "or compute a new one: y = y + 1": (_written_later, _computed_later, N),
    "change a copy: items = [*items, item]": (_changed_result, _changed_copy, {}),
    "use one list for each end": (_both_ends, _each_end, {}),
    "read its last item, outputs[-1]": (_read_inside, _last_item, {}),
    "use a for loop over a range": (_list_in_while, _list_in_for, {}),
    "start with a tensor of the same shape and dtype": (_number_before, _zeros_before, {}),
    "append tensors of one shape in every iteration": (_other_shapes, _one_shape, N),
    "append tensors only": (_numbers, _tensors, {}),
    "assign a copy": (_same_object, _copied_object, {}),
    "assign the items one by one": (_slice_of_items, _single_items, N),
    "build it with append, insert, extend": (_popped, _appended, N),
    "slice the result of torch.stack": (_steps, _sliced_stack, {}),
    "use tensor operators such as torch.where": (_gradients, _gradients_of_both, {}),
    "select the result with torch.where": (_handled_error, _selected, {}),
    "during the capture, tensors have no values and no memory": (_handled_address, lambda x: x + 1, {}),
    "assign the result to a variable": (_in_place, lambda x: x.unsqueeze(0) * 2, {}),
    "keep them with register_buffer": (lambda x: x + _cached(3), _Noise(), {}),
    "omit generator=": (_generator, _Noise(), {}),
    "define the function in a file": (_TEXTS["_made"], _branch_of_one_type, {}),
    "in a function with def": (lambda x: x if x.sum() > 0 else x.int().float(), _branch_of_one_dtype, {}),
    "join it with torch.cat(items": (_last_chunk, _joined_chunks, N),
    "use torch.stack(items).sum(0)": (_sum_of_items, _stacked_sum, N),
    "pass the result of torch.stack to a function": (_of_lists, _of_tensors, N),
    "assign tensors of one shape": (_item_of_another_type, _item_of_one_shape, N),
    "assign values of the same type, dtype and number of dims": (_text_in_a_branch, _tensor_in_each_branch, {}),
    "start with a value of the same type and structure": (_no_key_before, _key_before, {}),
    "return the tensor, and compute with functions of torch": (lambda x: x.numpy(), lambda x: x + 0, {}),
    "export one model after the other": (
        lambda x: fxonnx.export(nn.ReLU(), (x,)) and x,
        lambda x: x.relu(),
        {},
    ),
}

ELSEWHERE = {
    "skip the call in the model, or change the sizes": "tests/capture/test_constraints.py::test_an_intermediate_tensor_that_is_empty_at_every_size_is_refused",
    "call model.eval(), or draw them after": "tests/capture/rewriting/test_mixed_types.py::test_random_numbers_before_values_of_different_types_are_refused",
    "run the model once before the export: model": "tests/capture/test_attribute_changes.py::test_weights_that_the_first_call_creates_are_refused_until_it_has_run",
    "call model(*args, **kwargs) until it runs": "an error of the model itself, of which each has another remedy",
    "pass dynamic_shapes to torch.export.export": "test_hints_about_sizes",
    "pass an example of a different size": "test_hints_about_sizes",
    "pass strict_shapes=False": "test_hints_about_sizes",
    "call remove() on the handles": "test_hints_about_the_call",
    "remove it from dynamic_scalars": "test_hints_about_the_call",
    "remove a number that Python reads": "test_hints_about_the_call",
    "pass a clone() of one of them": "test_hints_about_the_call",
    "reload the module or restart the process": "tests/capture/rewriting/test_source.py::test_a_function_is_not_rewritten_from_an_edited_file",
    "that still exists during the export": "for a function whose file is gone; define the function in a file is followed above",
    "assign values of the same type in every iteration": "for types that alternate, as the hint about the value before the loop",
    "{}; or {}": "two hints that are listed themselves",
    "{}; {}": "two hints that are listed themselves",
}
"""Hints that are followed by other tests, or why no program here follows them."""


def _model(function: _Model) -> nn.Module:
    return function.eval() if isinstance(function, nn.Module) else Function(function).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hint", FOLLOWED)
def test_a_followed_hint_exports(hint: str) -> None:
    refused, followed, options = FOLLOWED[hint]
    with pytest.raises(CaptureError) as caught:
        fxonnx.export(_model(refused), (X.clone(),), **options)
    check_message(caught.value)
    assert hint in (caught.value.hint or "")
    model = _model(followed)
    program = fxonnx.export(model, (X.clone(),), **options)
    for x in (X, X * 2, -X + 1, *([torch.cat([X, X + 1])] if options else [])):
        torch.testing.assert_close(program(x.clone())[0], model(x.clone()), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_hints_about_sizes() -> None:
    view = Function(lambda x: x.squeeze(0).sum(0)).eval()
    with pytest.raises(CaptureError, match="hint: pass an example of a different size"):
        fxonnx.export(view, (X[:1],), strict_shapes=True, **N)
    torch.testing.assert_close(fxonnx.export(view, (X,), **N)(X)[0], view(X))
    torch.testing.assert_close(fxonnx.export(view, (X[:1],))(X[:1])[0], view(X[:1]))
    both = Function(lambda x, y: x + y).eval()
    separate: Any = ({0: "n"}, {0: "m"})
    with pytest.raises(CaptureError, match="hint: pass strict_shapes=False"):
        fxonnx.export(both, (X, X), dynamic_shapes=separate, strict_shapes=True)
    torch.testing.assert_close(fxonnx.export(both, (X, X), dynamic_shapes=separate)(X[:1], X[:1])[0], X[:1] * 2)
    linear = nn.Linear(3, 2).eval()
    with pytest.raises(CaptureError, match=r"hint: pass dynamic_shapes to torch\.export\.export"):
        fxonnx.export(torch.export.export(linear, (X,)), dynamic_shapes={"input": {0: "n"}})
    dynamic = torch.export.export(linear, (X,), dynamic_shapes={"input": {0: torch.export.Dim("n")}})
    for model in (dynamic, linear):
        program = fxonnx.export(model, (X,), dynamic_shapes={"input": {0: "n"}})
        torch.testing.assert_close(program(X[:1])[0], linear(X[:1]).detach())


@pytest.mark.filterwarnings("ignore")
def test_hints_about_the_call() -> None:
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2)).eval())
    handle = register_module_forward_hook(lambda *_: None)
    with pytest.raises(CaptureError, match=r"hint: call remove\(\) on the handles"):
        fxonnx.export(traced, (X,))
    handle.remove()
    torch.testing.assert_close(fxonnx.export(traced, (X,))(X)[0], traced(X).detach())

    flagged = Function(lambda x, y: {True: x, False: x * 2}[y]).eval()
    with pytest.raises(CaptureError, match=r"place of dynamic scalars, 'y'(?s:.*)hint: remove a number"):
        fxonnx.export(flagged, (X, True), dynamic_scalars={"y"})
    asked = Function(lambda x, y: {True: x, False: x * 2}[bool(y)]).eval()
    with pytest.raises(CaptureError, match="hint: remove it from dynamic_scalars and export once for each"):
        fxonnx.export(asked, (X, True), dynamic_scalars={"y"})
    for value in (True, False):
        torch.testing.assert_close(fxonnx.export(flagged, (X, value))(X, value)[0], flagged(X, value))

    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    shared = X.clone()
    with pytest.raises(CaptureError, match=r"hint: pass a clone\(\) of one of them"):
        fxonnx.export(Function(writes).eval(), (shared, shared[:]))
    program = fxonnx.export(Function(writes).eval(), (shared, shared.clone()))
    torch.testing.assert_close(program(X.clone(), X.clone())[0], X * 2)


def test_every_hint_of_the_capture_is_followed() -> None:
    """A new hint has a row in FOLLOWED, or a reason in ELSEWHERE."""
    known = [*FOLLOWED, *ELSEWHERE]
    found = list(capture_hints())
    assert len(found) > 40
    assert [(place, text) for place, text in found if not any(one in text for one in known)] == []
    for reason in ELSEWHERE.values():
        file, _, name = reason.partition(",")[0].partition(" ")[0].partition("::")
        if file.startswith("tests/"):
            assert f"def {name}(" in (ROOT / file).read_text()
