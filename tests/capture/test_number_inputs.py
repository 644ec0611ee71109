"""Numbers as inputs, as outputs and as constants of the program."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx import ArgumentError, CaptureError

from ..functions import Function

R = torch.rand


class Scaled(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        bias: float = 0.1,
        *,
        options: dict[str, Any] | None = None,
        flag: bool = False,
        n: int = 2,
    ) -> Any:
        scale = 1.0 if options is None else options["scale"]
        return torch.where(torch.as_tensor(flag), x * scale, x) + bias, x[:n] * n


class Branching(nn.Module):
    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        return {True: x + 1, False: x}[bool(flag)]


def call(**changes: Any) -> dict[str, Any]:
    return {"x": R(4, 3), "bias": 0.25, "options": {"scale": 2.0, "name": "a"}, "flag": True, "n": 3} | changes


def graph_inputs(program: fxonnx.ONNXProgram) -> dict[str, str]:
    return {
        str(value.name): f"{value.dtype}[{', '.join(map(str, value.shape or ()))}]"
        for value in program.model.graph.inputs
    }


def expect(program: fxonnx.ONNXProgram, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    expected = pytree.tree_leaves(model(*args, **kwargs))
    for one, other in zip(program(*args, **kwargs), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_scalars_are_inputs() -> None:
    model = Scaled().eval()
    names = {"bias", "options['scale']", "flag", "n"}
    program = fxonnx.export(
        model, kwargs=call(), dynamic_scalars=names, dynamic_shapes={"x": {0: "rows"}}, verify="auto"
    )
    assert graph_inputs(program) == {
        "x": "FLOAT[rows, 3]",
        "bias": "FLOAT[]",
        "options_scale": "FLOAT[]",
        "flag": "BOOL[]",
        "n": "INT64[]",
    }
    assert list(graph_inputs(program)) == ["x", "bias", "options_scale", "flag", "n"]
    assert program.record.frozen_arguments == {"options['name']": "a"}
    for changes in (
        {},
        {"bias": -1.5},
        {"bias": 2},
        {"flag": False},
        {"n": 1},
        {"options": {"scale": 0.5, "name": "a"}},
    ):
        expect(program, model, **call(**changes))
    expect(program, model, **call(x=R(5, 3)))
    expect(program, model, **call(bias=torch.tensor(0.5)))
    with pytest.raises(ArgumentError, match=r"bias: expected dtype torch\.float32, got torch\.bool"):
        program(**call(bias=True))


DTYPES = [torch.float32, torch.float16, torch.float64, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_scalar_promotes_as_in_python(dtype: torch.dtype) -> None:
    class Biased(nn.Module):
        def forward(self, x: torch.Tensor, bias: float, k: int) -> Any:
            return x + bias, x * k, bias * 2

    model, x = Biased().eval(), torch.ones(3, dtype=dtype)
    program = fxonnx.export(model, (x, 0.1, 2), dynamic_scalars={"bias", "k"})
    for bias, k in ((0.1, 2), (1.7, -3)):
        *tensors, double = program(x, bias, k)
        for one, other in zip(tensors, model(x, bias, k), strict=False):
            torch.testing.assert_close(one, other)
        assert double.item() == pytest.approx(2 * bias)


def test_invalid_dynamic_scalars() -> None:
    model = Scaled().eval()
    known = r"the numbers are: bias, options\['scale'\], flag, n; pass parameters with a default explicitly"
    for names, match in (
        ({"gain"}, rf"the example inputs have no number 'gain'\nhint: {known}"),
        ({"x"}, rf"'x' is a Tensor, not an int, a float or a bool\nhint: {known}"),
        ({"options.name"}, "'options.name' is a str, not an int"),
        ("bias", r"expected a set of names, got 'bias'\nhint: write \{\"scale\"\}"),
    ):
        with pytest.raises(ArgumentError, match=f"dynamic_scalars: {match}"):
            fxonnx.export(model, kwargs=call(), dynamic_scalars=names)
    with pytest.raises(
        CaptureError,
        match=r"branches on the value of a dynamic scalar, 'flag':\n(?s:.*)at: .*test_number_inputs.py:\d+ in forward: return \{True: x"
        r"(?s:.*)hint: remove it from dynamic_scalars",
    ):
        fxonnx.export(Branching().eval(), (R(2), True), dynamic_scalars={"flag"})


def test_frozen_arguments_are_logged_and_checked(caplog: pytest.LogCaptureFixture) -> None:
    model = Scaled().eval()
    with caplog.at_level(logging.INFO, logger="fxonnx"):
        program = fxonnx.export(model, kwargs=call())
    frozen = {"bias": 0.25, "options['scale']": 2.0, "options['name']": "a", "flag": True, "n": 3}
    assert program.record.frozen_arguments == frozen
    assert [record.getMessage() for record in caplog.records if record.name == "fxonnx"] == [
        f"the argument {label} becomes a constant of the program: {value!r}" for label, value in frozen.items()
    ]
    assert list(graph_inputs(program)) == ["x"]
    expect(program, model, **call())
    assert len(program(x=R(4, 3))) == 2  # frozen arguments are optional in the call
    with pytest.raises(
        ArgumentError,
        match=r"bias: got 0.5, but the model was exported with the constant 0.25\nhint: .*dynamic_scalars",
    ):
        program(**call(bias=0.5))


INTS = [
    pytest.param(lambda x, n: (x[:n], n), id="slice"),
    pytest.param(lambda x, n: torch.arange(n) * n, id="arange"),
    pytest.param(lambda x, n: (x * n, n + 1, n * 2.5, n > 2), id="arithmetic"),
    pytest.param(lambda x, n: torch.full((n, 2), n), id="full"),
    pytest.param(lambda x, n: x.repeat(n, 1).reshape(n, -1), id="repeat"),
    pytest.param(lambda x, n: F_pad(x, n), id="pad"),
]


def F_pad(x: torch.Tensor, n: int) -> torch.Tensor:
    return nn.functional.pad(x, (0, n))


class OfTwo(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, n: int) -> Any:
        return self.function(x, n)


@pytest.mark.parametrize("spec", ["count", Dim.DYNAMIC, Dim.AUTO], ids=["name", "DYNAMIC", "AUTO"])
@pytest.mark.parametrize("function", INTS)
def test_dynamic_ints(function: Any, spec: Any) -> None:
    model = OfTwo(function).eval()
    program = fxonnx.export(model, (R(6, 2), 3), dynamic_shapes=(None, spec))
    x = R(6, 2)
    for n in (3, 5, 4):
        expected = pytree.tree_leaves(model(x, n))
        for one, other in zip(program(x, n), expected, strict=True):
            torch.testing.assert_close(one, torch.as_tensor(other), check_dtype=False)


class Seeded(nn.Module):
    """The model of torch.onnx's notebook on tracing, whose output aliases its input there."""

    def forward(self, states: torch.Tensor) -> Any:
        _batch_size, seq_length = states.shape[:2]
        real_seq_length = seq_length
        real_seq_length += 2
        return real_seq_length + seq_length


@pytest.mark.parametrize("shapes", [None, ({0: "batch", 1: "sequence"},)], ids=["static", "dynamic"])
def test_sizes_as_outputs(shapes: Any) -> None:
    program = fxonnx.export(Seeded(), (R(2, 5),), dynamic_shapes=shapes)
    for length in (5,) if shapes is None else (5, 1, 8):
        outputs = program(R(2, length))
        assert outputs[0].dtype == torch.int64
        assert program.unflatten(outputs) == 2 * length + 2


OUTPUTS = [
    pytest.param(lambda x: x.shape[0], id="size"),
    pytest.param(lambda x: (x.shape[0] * 2, x.shape[1] / 2, x.shape[0] > 3, x + 1), id="arithmetic"),
    pytest.param(lambda x: (x, 3, 2.5, True, None, "text"), id="constants"),
    pytest.param(lambda x: {"a": x.shape[0], "b": None, "c": "text", "d": {"e": 0.1, "f": [x.shape[0]] * 2}}, id="nested"),
    pytest.param(lambda x: x.shape[0] / 3, id="float"),
    pytest.param(lambda x: x.shape[0] > 3, id="bool"),
    pytest.param(lambda x: (x.sum() > 0).item(), id="item-of-bool"),
    pytest.param(lambda x: x.long().sum().item(), id="item-of-int"),
    pytest.param(lambda x: x.double().sum().item(), id="item-of-float"),
    pytest.param(lambda x: ("text", None, 1, x.numel()), id="no-tensor"),
]  # fmt: skip


@pytest.mark.parametrize("shapes", [None, ({0: "n"},)], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", OUTPUTS)
def test_outputs_that_are_not_tensors(function: Any, shapes: Any) -> None:
    program = fxonnx.export(Function(function).eval(), (R(5, 3),), dynamic_shapes=shapes, verify=True)
    for size in (5,) if shapes is None else (5, 2, 3):
        x = R(size, 3)
        found, expected = program.unflatten(program(x)), function(x)
        assert pytree.tree_structure(found) == pytree.tree_structure(expected)
        for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
            assert type(one) is type(other)
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other)
            else:
                assert one == other if not isinstance(other, float) else one == pytest.approx(other, rel=1e-12)
