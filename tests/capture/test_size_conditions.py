"""Conditions on sizes are constraints, whoever evaluates them: Python, a rewritten or a scripted function, or Dynamo."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxonnx

from ..functions import Function

# The first line is data-dependent for a tensor ``total``, so that the function is rewritten.


def if_one(x: torch.Tensor, total: float = 0.0) -> torch.Tensor:
    x = x + 1 if total > 100 else x
    return x * 2 if x.shape[0] == 1 else x


def if_statement(x: torch.Tensor, total: float = 0.0) -> torch.Tensor:
    x = x + 1 if total > 100 else x
    # No graph has both results: they have different numbers of axes.
    y = x.sum(1)
    if x.shape[0] > 2:
        y = x * 3
    return y


def if_not(x: torch.Tensor, total: float = 0.0) -> torch.Tensor:
    x = x + 1 if total > 100 else x
    if not x.shape[0] > 1:
        x = x * 2
    return x


def if_both(x: torch.Tensor, total: float = 0.0) -> torch.Tensor:
    x = x + 1 if total > 100 else x
    if x.shape[0] > 1 and x.shape[1] == 3:
        x = x * 4
    return x


def if_either(x: torch.Tensor, total: float = 0.0) -> torch.Tensor:
    x = x + 1 if total > 100 else x
    return x * 4 if x.shape[0] < 2 or x.shape[1] == 2 else x


def while_size(x: torch.Tensor, total: float = 0.0) -> torch.Tensor:
    x = x + 1 if total > 100 else x
    count = x.shape[0]
    while count > 2:
        x = x * 2
        count = count // 2
    return x


CONDITIONS: dict[Callable[..., Any], list[str]] = {
    if_one: ["n != 1"],
    if_statement: ["n >= 3"],
    if_not: ["n >= 2"],
    if_both: ["n >= 2"],
    if_either: ["n >= 2"],
    while_size: ["n >= 3", "n <= 5"],
}


def called(function: Any) -> Any:
    return function


def executed(function: Any) -> Any:
    """The function as ``exec`` defines it from text: in no file, and in no module."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(inspect.getsource(function), namespace)
    return namespace[function.__name__]


def rewritten(function: Any) -> Any:
    return lambda x: function(x, x.sum())


def scripted(function: Any) -> Any:
    return torch.jit.script(function)


def scripted_module(function: Any) -> Any:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = torch.jit.script(function)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(x)

    return torch.jit.script(Inner().eval())


def in_branch(function: Any) -> Any:
    return lambda x: torch.cond(x.sum() > 100, lambda y: y.clone(), lambda y: function(y) + 0, (x,))


def checkpointed(function: Any) -> Any:
    return lambda x: checkpoint(function, x, use_reentrant=False)


def vectorized(function: Any) -> Any:
    return lambda x: torch.vmap(lambda column: function(x)[:, 0] * column, in_dims=1, out_dims=1)(x)


WAYS = [called, executed, rewritten, scripted, scripted_module, in_branch, checkpointed, vectorized]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("function", CONDITIONS, ids=lambda function: function.__name__)
def test_every_condition_is_a_constraint(function: Any, way: Any) -> None:
    conditions = way(function)
    is_loop = function is while_size and way in (called, rewritten, scripted, checkpointed)
    with nullcontext() if is_loop else pytest.warns(UserWarning, match="only for:\n  n "):
        program = fxonnx.export(Function(conditions).eval(), (torch.rand(4, 3),), dynamic_shapes={"x": {0: "n"}})
    assert [constraint.text for constraint in program.record.constraints] == ([] if is_loop else CONDITIONS[function])
    assert bool(program.record.rewrites) == (way is rewritten or is_loop)
    for size in (1, 2, 3, 5, 7):
        x = torch.rand(size, 3)
        if program.record.capture.limits.violated({"n": size}) is None:
            torch.testing.assert_close(program(x)[0], conditions(x))
        else:
            with pytest.raises(fxonnx.ArgumentError, match="the model was exported for n "):
                program(x)


def test_conditions_of_kernels_inside_a_branch_are_no_constraints() -> None:
    def branch(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 100, lambda y: y.clone(), lambda y: (y * y[:1]).reshape(-1, 3) @ torch.eye(3), (x,))

    program = fxonnx.export(Function(branch).eval(), (torch.rand(4, 3),), dynamic_shapes={"x": {0: "n"}})
    assert not program.record.constraints
    for size in (1, 2, 7):
        torch.testing.assert_close(program(x := torch.rand(size, 3))[0], branch(x))


def truncated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if y is not None and x.shape[0] < y.shape[0]:
        y = y[: x.shape[0]]
    return y * 2


def truncated_columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y, count = x.T, y.T, x.shape[0]
    if count < y.shape[1]:
        y = y[:, :count]
    return y.T + 1


def truncated_and_changed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] < y.shape[0]:
        y = y[: x.shape[0]] + 1
    return y


def truncated_otherwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] < y.shape[0]:  # noqa: SIM108 - the statement is the case
        y = y[: x.shape[0]]
    else:
        y = y + 1
    return y


def truncated_if_long(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if y.shape[0] > 5 and x.shape[0] < y.shape[0]:
        y = y[: x.shape[0]]
    return y


def truncated_in_another_dim(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # The results have different numbers of columns, also for equal sizes.
    y = y[:, :1].expand(-1, y.shape[0] + 1)
    if x.shape[0] < y.shape[0]:
        y = y[:, : x.shape[0]]
    return y


@pytest.mark.parametrize(
    "function",
    [
        *(truncated, truncated_columns, truncated_and_changed),
        *(truncated_otherwise, truncated_if_long, truncated_in_another_dim),
    ],
)
def test_truncation_to_the_smaller_of_two_sizes(function: Any, tmp_path: Path) -> None:
    """torch asks whether the size that conditions choose is at least 0, which it is in all cases."""
    path, example = tmp_path / "m.onnx", (torch.rand(4, 3), torch.rand(6, 3))
    program = fxonnx.export(Function(function).eval(), example, path, dynamic_shapes={"x": {0: "n"}, "y": {0: "m"}})
    assert not program.record.constraints
    for n, m in ((4, 6), (6, 4), (5, 5), (7, 7), (1, 9), (9, 1), (8, 6), (6, 8)):
        x, y = torch.rand(n, 3), torch.rand(m, 3)
        torch.testing.assert_close(program(x, y)[0], function(x, y))


def test_a_condition_that_only_one_element_asks(tmp_path: Path) -> None:
    """At the rows of the example, both branches are the same."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == 1:
            x = x * (2 if x.shape[0] > 9 else 1)
        return x + 1

    with pytest.warns(UserWarning, match="h != 1"):
        fxonnx.export(Function(scaled), (torch.rand(5, 3),), tmp_path / "m.onnx", dynamic_shapes=({0: "n", 1: "h"},))
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    x = torch.rand(12, 3)
    assert session.run(None, {"x": x.numpy()})[0] == pytest.approx(scaled(x).numpy())
    with pytest.raises(Exception, match=r"requires h != 1"):
        session.run(None, {"x": torch.ones(12, 1).numpy()})


def test_a_condition_that_only_other_values_ask(tmp_path: Path) -> None:
    """With the values of the example, Python asks for no size."""

    def chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = -(x[0] + y)
        return y if z.sum() > 0 and len(x) % 2 == 0 else z

    x, y = torch.tensor([[1.5, 0.25, 0.75]] * 3), torch.tensor([0.25, -1.5, -1.25])
    shapes = ({0: "n"}, None)
    with pytest.warns(UserWarning, match="n % 2 == 1"):
        fxonnx.export(Function(chosen), (x, y), tmp_path / "m.onnx", dynamic_shapes=shapes)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for rows in (1, 3, 5):
        x = torch.rand(rows, 3) - 0.5
        assert session.run(None, {"x": x.numpy(), "y": y.numpy()})[0] == pytest.approx(chosen(x, y).numpy())
    with pytest.raises(Exception, match=r"requires n % 2 == 1"):
        session.run(None, {"x": -torch.ones(2, 3).numpy(), "y": y.numpy()})


def chosen_number_cuts(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1]
    cut = n % 4 if n % 3 == 1 else 0
    end = n - cut if cut >= 2 else 1
    return x[..., :end] * 2


def chosen_number_of_two_dims(x: torch.Tensor) -> torch.Tensor:
    n, m = x.shape[-1], x.shape[0]
    cut = (n * m) % 5 if n % 3 == 1 else 0
    return x[..., :cut] if cut > 0 else x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [chosen_number_cuts, chosen_number_of_two_dims])
@pytest.mark.parametrize("example", [(3, 16), (4, 9), (2, 21)], ids=str)
def test_a_number_that_is_another_one_at_an_edge(
    function: Callable[..., Any], example: tuple[int, int], tmp_path: Path
) -> None:
    """It decides a later condition, which few sizes at the edge answer in another way than the others."""
    path, shapes = tmp_path / "m.onnx", ({0: "m", 1: "n"},)
    program = fxonnx.export(Function(function), (torch.rand(*example),), path, dynamic_shapes=shapes)
    session = onnxruntime.InferenceSession(path)
    for m in (2, 3, 8):
        for n in range(1, 30):
            x = torch.rand(m, n)
            limits = [one for one in program.record.constraints if not one.holds({"m": m, "n": n})]
            if limits:
                with pytest.raises(Exception, match="requires"):
                    session.run(None, {"x": x.numpy()})
            else:
                torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), function(x))


class _Product:
    """A lazy product, as in the kernels of GPyTorch."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor) -> None:
        self.left, self.right = left, right

    def result(self) -> torch.Tensor:
        return self.left @ self.right.mT


class _Square(_Product):
    def __init__(self, root: torch.Tensor) -> None:
        super().__init__(root, root)


def tensors_of_equal_inputs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.size() == y.size() and torch.equal(x, y):
        return x @ x.mT * 2
    return x @ y.mT


def objects_of_equal_inputs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _kernel(x * 3, y * 3).result()


def _kernel(x: torch.Tensor, y: torch.Tensor) -> _Product:
    if x.shape[0] != y.shape[0] or not torch.equal(x, y):
        return _Product(x, y)
    return _Square(x + 1)


@pytest.mark.parametrize("sizes", [(5, 4), (3, 3)], ids=str)
@pytest.mark.parametrize("function", [tensors_of_equal_inputs, objects_of_equal_inputs])
def test_a_comparison_of_tensors_after_one_of_their_sizes(
    function: Callable[..., Any], sizes: tuple[int, int], tmp_path: Path
) -> None:
    inputs = [torch.rand(size, 3) for size in sizes]
    program = fxonnx.export(
        Function(function).eval(), tuple(inputs), tmp_path / "m.onnx", dynamic_shapes=({0: "n"}, {0: "m"})
    )
    assert not [one for one in program.record.constraints if one.narrows]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    x = torch.rand(4, 3)
    for one, other in ((x, torch.rand(2, 3)), (x, torch.rand(4, 3)), (x, x.clone()), (x[:1], x)):
        (found,) = session.run(None, {"x": one.numpy(), "y": other.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), function(one, other))
