"""TorchScript: capture of scripted functions and modules; data-dependent control flow becomes If and Loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fxonnx
from fxonnx import CaptureError


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):  # noqa: SIM108 - a statement of TorchScript
            z = x * self.scale
        else:
            z = x - y
        return z + 1


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        steps = 0
        while bool(x.sum() < 100):
            x = x * 2
            steps += 1
        return x, steps


class Repeated(nn.Module):
    def forward(self, x: torch.Tensor, times: int) -> Any:
        parts = [x]
        for step in range(times):
            if step % 2 == 0:
                parts.append(parts[-1] + step)
            else:
                parts.append(parts[-1] * 2)
        sizes = [part.size(0) for part in parts]
        assert len(sizes) == times + 1
        return torch.stack(parts), {"last": parts.pop(), "count": sizes[0]}


class Numbers(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        count = int(n)
        half = float(n) / 2
        total = x
        for step in range(count):
            total = total * half - step
        return total + count


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)])
        self.register_buffer("shift", torch.rand(3))
        self.factor = 0.5

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        if skip:
            return x
        return self.helper(x) + self.shift

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, [1, 1], value=0.25)[..., 1:-1] * self.factor


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(Layers().eval())
        self.again = self.inner
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x) + self.again(x, skip=True))


X = torch.rand(4, 3)


def kinds(program: fxonnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_scripted_module(dynamic: bool) -> None:
    plain = Layers().eval()
    shapes = ({0: "n"},) if dynamic else None
    program = fxonnx.export(torch.jit.script(plain), (X,), dynamic_shapes=shapes, verify="auto")
    expected = fxonnx.export(plain, (X,), dynamic_shapes=shapes)
    assert kinds(program) == kinds(expected)
    assert sorted(program.weights.initializers) == sorted(plain.state_dict())
    skipped = fxonnx.export(torch.jit.script(plain), (X, True), verify=True)
    assert len(kinds(skipped)) < len(kinds(program))


def test_a_traced_module() -> None:
    traced = torch.jit.trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval(), (X,))
    assert kinds(fxonnx.export(traced, (X,), verify=True)) == ["Gemm", "Relu"]


def test_scripted_parts_of_a_module() -> None:
    model = Outer().eval()
    program = fxonnx.export(model, (X,), dynamic_shapes=({0: "n"},), verify="auto")
    assert isinstance(model.inner, torch.jit.ScriptModule)
    assert model.inner is model.again
    assert "inner.layers.0.weight" in program.weights.initializers


def test_a_branch() -> None:
    model = torch.jit.script(Branch().eval())
    program = fxonnx.export(model, (X, X), dynamic_shapes=({0: "n"}, {0: "n"}), verify="auto")
    assert "If" in kinds(program)
    for x in (X, -X):
        torch.testing.assert_close(program(x, X)[0], model(x, X).detach())


def test_a_loop_with_a_data_dependent_condition() -> None:
    model = torch.jit.script(Doubled())
    program = fxonnx.export(model.eval(), (X,), verify=True)
    assert "Loop" in kinds(program)
    for x in (X, X * 1000, X / 7):
        x_, steps = model(x)
        ours = program(x)
        torch.testing.assert_close(ours[0], x_)
        assert int(ours[1]) == steps


def test_loops_with_known_bounds_are_unrolled() -> None:
    program = fxonnx.export(torch.jit.script(Repeated()).eval(), (X, 3), dynamic_shapes=({0: "n"}, None), verify="auto")
    assert "Loop" not in kinds(program)
    assert "If" not in kinds(program)


def test_numbers_read_from_tensors() -> None:
    model = torch.jit.script(Numbers())
    program = fxonnx.export(model.eval(), (X, torch.tensor(3)), verify=True)
    for count in (0, 1, 5):
        torch.testing.assert_close(program(X, torch.tensor(count))[0], model(X, torch.tensor(count)))


def test_a_scripted_function() -> None:
    @torch.jit.script
    def scaled(x, factor: float = 2.0):  # type: ignore[no-untyped-def]
        return x * factor

    assert kinds(fxonnx.export(scaled, (X,), verify=True)) == ["Mul"]


class Appended(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        kept = [x]
        if bool(x.sum() > 0):
            kept.append(x + 1)
        return torch.stack(kept)


class Inside(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        if bool(x.sum() > 0):
            kept = [x]
            for step in range(2):
                kept.append(kept[-1] + step)
            z = torch.stack(kept).sum(0)
        else:
            z = -x
        return z


class Types(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        share = 0.1
        for _ in range(int(n)):
            share = share * 1.5
        return x * float(n), x + int(n), share


class SeveralResults(nn.Module):
    """Operators with several results, in a branch as well."""

    def forward(self, x: torch.Tensor) -> Any:
        values, indices = torch.sort(x, 0, descending=True)
        greatest, where = torch.max(x, dim=1)
        if bool(x.sum() > 0):
            parts, places = torch.topk(x, 2, dim=0)
        else:
            parts, places = torch.topk(-x, 2, dim=0)
        return values * 2, indices, greatest + 1, where, parts, places


class Kinds(nn.Module):
    """Branches on the types of arguments."""

    def of_values(self, x: torch.Tensor | int | list[int]) -> int:
        if isinstance(x, torch.Tensor):
            return 1
        return 2 if isinstance(x, list) else 3

    def of_others(self, x: str | tuple[int, float] | None) -> int:
        if isinstance(x, tuple):
            return 4
        return 5 if isinstance(x, str) else 6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = [self.of_values(x), self.of_values([1, 2]), self.of_values(7)]
        codes += [self.of_others((1, 0.5)), self.of_others("a"), self.of_others(None)]
        total = 0
        for code in codes:
            total = 10 * total + code
        return x * total


class Methods(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @torch.jit.export
    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(Methods())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.twice(x) + self.inner(x)


def test_side_effects_of_data_dependent_branches_are_rejected() -> None:
    with pytest.raises(
        CaptureError, match=r"aten::append mutates a value from outside of a data-dependent branch(?s:.*)in: "
    ):
        fxonnx.export(torch.jit.script(Appended()).eval(), (X,))
    program = fxonnx.export(torch.jit.script(Inside()).eval(), (X,), verify=True)
    for x in (X, -X):
        torch.testing.assert_close(program(x)[0], Inside()(x))


def test_numbers_have_their_types_in_torchscript() -> None:
    model, x = torch.jit.script(Types()).eval(), torch.arange(3)
    program = fxonnx.export(model, (x, torch.tensor(3)), verify=True)
    product, total, share = program(x, torch.tensor(4))
    assert (product.dtype, total.dtype) == (torch.float32, torch.int64)
    assert share.item() == model(x, torch.tensor(4))[2]


def test_operators_with_several_results() -> None:
    program = fxonnx.export(torch.jit.script(SeveralResults()).eval(), (X,), dynamic_shapes=({0: "n"},), verify=True)
    for x in (X, -X, torch.randn(5, X.shape[1])):
        for ours, theirs in zip(program(x), SeveralResults()(x), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_checks_of_unbacked_sizes() -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            index = x.nonzero()
            if index.size(0) > 100:
                raise ValueError("at most 100 elements")
            assert index.size(0) >= 0
            return index * 2

    x = torch.tensor([1.0, 0.0, 2.0])
    program = fxonnx.export(torch.jit.script(Checked()).eval(), (x,))
    for tensor in (x, torch.zeros(3)):
        torch.testing.assert_close(program(tensor)[0], tensor.nonzero() * 2)


def test_types_are_tested() -> None:
    program = fxonnx.export(torch.jit.script(Kinds()).eval(), (X,))
    torch.testing.assert_close(program(X)[0], X * 123456)


def test_other_methods_of_scripted_modules() -> None:
    assert kinds(fxonnx.export(Caller().eval(), (X,), verify=True)) == ["Mul", "Add", "Add"]


class OnFound(nn.Module):
    """Branches on how many elements are found, with writes by index."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        index = mask.nonzero()[:, 0]
        x = x * 2
        if index.size(0) > 0:
            x[index] = 5.0
        if index.numel() > 1:
            x = x.index_put([index], torch.tensor(2.0), accumulate=True)
        else:
            x = x.index_put([mask], torch.tensor(3.0))
        return x


class OnContent(nn.Module):
    """Both branches write in place, also through views."""

    def forward(self, x: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        x = x + 1
        if bool((x.sum() > 0).item()):
            x[index] = value
        else:
            x[:, 0].index_put_([index], value[:, 0], accumulate=True)
            row = x[0]
            row *= 2
        return x


def test_writes_in_branches_on_an_unbacked_size() -> None:
    model = torch.jit.script(OnFound())
    x, mask = torch.rand(4, 2), torch.tensor([True, False, True, False])
    program = fxonnx.export(model.eval(), (x, mask), dynamic_shapes=({0: "n"}, {0: "n"}))
    for given in (mask, ~mask, mask & False, torch.tensor([False, True, False]), torch.ones(6, dtype=torch.bool)):
        rows = torch.rand(len(given), 2)
        torch.testing.assert_close(program(rows, given)[0], model(rows, given))


def test_writes_in_branches_on_tensor_values() -> None:
    model = torch.jit.script(OnContent())
    x, index, value = torch.rand(4, 3), torch.tensor([2, 1]), torch.rand(2, 3)
    program = fxonnx.export(model.eval(), (x, index, value), dynamic_shapes=({0: "n"}, {0: "k"}, {0: "k"}))
    assert kinds(program).count("If") == 1
    for rows in (x, x - 9, torch.rand(7, 3) - 9):
        for count in (2, 1):
            given = (rows, index[:count], value[:count])
            torch.testing.assert_close(program(*given)[0], model(*given))


# Functions that ``torch.jit.script`` compiled in the forward of a module, against the scripts at other sizes and values.


# mypy: disable-error-code="operator, arg-type"


def power(x: Tensor, n: int = 3) -> Tensor:
    return x * 2**n + torch.full((1,), 2**n)


def rounded(x: Tensor, a: float = 2.5) -> Tensor:
    return torch.full((2,), round(a)) + x.sum()


def longer_size(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1] + [3, 1])  # noqa: RUF005


def equal_size(x: Tensor) -> Tensor:
    if x.shape[1:] == [3]:
        return x + 1
    return x - 1


def integer_as_float(x: Tensor, a: float = 2) -> Tensor:
    return torch.full((2,), a) + x.sum()


def inside_of_a_script(x: Tensor) -> Tensor:
    if torch.jit.is_scripting():
        return x + 1
    return x - 1


def branch(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x * 2
    return x - 3


def halves(x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    while bool((x.abs() > 0.1).any()) and steps < 20:
        x = x / 2
        steps += 1
    return x, steps


def positive_rows(x: Tensor) -> Tensor:
    """A number that data-dependent conditions count in a loop of dynamic length."""
    count = 0
    for i in range(x.shape[0]):
        count += int(x[i].sum() > 0)
    return x + count


def columns(x: Tensor) -> Tensor:
    """Keys of a dict that are made of numbers."""
    found: dict[str, Tensor] = {}
    for i in range(x.shape[1]):
        found[str(i)] = x[:, i]
    return torch.stack([found[name] for name in found.keys()])  # noqa: SIM118


def first_positive(x: Tensor) -> Tensor:
    """A return in a loop of dynamic length."""
    for i in range(x.shape[0]):
        if bool(x[i, 0] > 0.5):
            return x[i]
    return x[0] * 0


def decayed(x: Tensor) -> Tensor:
    total = torch.zeros(3)
    for i in range(x.shape[0]):
        total = total * 0.5 + x[i]
    return total


def appended(rows: list[Tensor]) -> Tensor:
    """A script works on a copy of a list that it receives."""
    rows.append(rows[0] * 2)
    return torch.stack(rows)


def appended_inside(rows: list[list[Tensor]]) -> Tensor:
    """A script copies the lists in a list as well."""
    rows[0].append(rows[0][0] * 2)
    return torch.stack(rows[0])


scripted_branch = torch.jit.script(branch)


def calls_of_scripts(x: Tensor) -> Tensor:
    y = scripted_branch(x)
    for i in range(x.shape[0]):
        y = y + scripted_branch(x[i])
    return y


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = torch.jit.script(function)

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Lists(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.nested = function is appended_inside
        self.function = torch.jit.script(function)

    def forward(self, x: Tensor) -> Any:
        rows = [x, x + 1]
        given = [rows] if self.nested else rows
        return self.function(given), torch.stack(rows), len(rows)


FUNCTIONS = (
    power,
    rounded,
    longer_size,
    equal_size,
    integer_as_float,
    inside_of_a_script,
    branch,
    halves,
    positive_rows,
    columns,
    first_positive,
    decayed,
    appended,
    appended_inside,
    calls_of_scripts,
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_that_forward_calls(function: Callable[..., Any]) -> None:
    model = (Lists if function in (appended, appended_inside) else Calls)(function).eval()
    program = fxonnx.export(model, (torch.rand(4, 3),), dynamic_shapes=({0: "n"},))
    assert not program.record.constraints
    for size in (1, 2, 4, 7):
        for offset in (-1.0, -0.5, 0.0, 0.3):
            x = torch.rand(size, 3) + offset
            expected = [torch.as_tensor(value) for value in tree_leaves(model(x))]
            torch.testing.assert_close(tree_leaves(program(x)), expected)
