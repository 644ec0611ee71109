"""Valid and invalid models, args and kwargs, their binding to forward, and numbers as inputs, outputs and constants."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import fxonnx
from fxonnx._capture.suspicions.departures import DepartureKind
from fxonnx.errors import ArgumentError, CaptureError

from ..functions import Function
from .captures import capture


def x(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


class Optional(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, z: torch.Tensor | None = None) -> torch.Tensor:
        out = x * 2
        out = out if y is None else out + y
        return out if z is None else out - z


class TakesDict(nn.Module):
    def forward(self, x: torch.Tensor, d: dict[str, torch.Tensor]) -> torch.Tensor:
        return x + d["b"]


class TakesMaybeDict(nn.Module):
    def forward(self, x: torch.Tensor, d: Any = None, **options: torch.Tensor) -> torch.Tensor:
        return x + sum(d.values()) if isinstance(d, dict) else x - sum(options.values())


class KeywordOnly(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return x * scale


class Variadic(nn.Module):
    def forward(self, x: torch.Tensor, *rest: torch.Tensor, **more: torch.Tensor) -> Any:
        return x + 1, [value * 2 for value in rest], {key: value - 1 for key, value in more.items()}


BOUND = [
    pytest.param(Optional(), x(3), None, x(3) * 2, id="bare-tensor"),
    pytest.param(Optional(), (x(3),), None, x(3) * 2, id="one"),
    pytest.param(Optional(), (x(3), x(3) + 1), {}, x(3) * 3 + 1, id="two"),
    pytest.param(Optional(), (), {"y": x(3) + 1, "x": x(3)}, x(3) * 3 + 1, id="keywords"),
    pytest.param(Optional(), (x(3),), {"z": x(3)}, x(3), id="default-between"),
    pytest.param(Optional(), (x(3), {"z": x(3)}), None, x(3), id="last-dict-names-parameters"),
    pytest.param(Optional(), (x(3), {}), None, x(3) * 2, id="empty-dict-is-no-input"),
    pytest.param(KeywordOnly(), (x(3), {"scale": x(3)}), None, x(3) * x(3), id="last-dict-fits-only-as-keywords"),
    pytest.param(TakesDict(), (x(3), {"x": 0, "b": x(3)}), None, x(3) * 2, id="last-dict-repeats-a-parameter"),
    pytest.param(TakesDict(), (x(3), {"b": x(3)}), None, x(3) * 2, id="last-dict-is-an-input"),
    pytest.param(TakesDict(), (x(3), {"b": x(3)}, {}), None, x(3) * 2, id="last-dict-and-empty-keywords"),
    pytest.param(TakesDict(), (x(3),), {"d": {"b": x(3)}}, x(3) * 2, id="dict-by-keyword"),
    pytest.param(TakesMaybeDict(), (x(3), {"q": x(3)}), None, x(3) * 2, id="both-fit-unknown-keys-are-an-input"),
]


@pytest.mark.parametrize(("model", "args", "kwargs", "expected"), BOUND)
def test_inputs_are_bound_like_a_call(model: nn.Module, args: Any, kwargs: Any, expected: torch.Tensor) -> None:
    program = capture(model.eval(), args, kwargs).exported_program
    given, named = program.example_inputs
    torch.testing.assert_close(program.module()(*given, **named), expected)


def test_graph_inputs_have_the_order_of_the_keywords() -> None:
    program = capture(Optional().eval(), (), {"y": x(3), "x": x(3)}).exported_program
    assert program.graph_signature.user_inputs == ("y", "x")


def test_a_tensor_passed_twice_is_two_inputs() -> None:
    same = x(3)
    program = capture(Optional().eval(), (same, same)).exported_program
    torch.testing.assert_close(program.module()(torch.ones(3), torch.full((3,), 5.0)), torch.full((3,), 7.0))


def test_variadic_inputs() -> None:
    program = capture(Variadic().eval(), (x(2), x(3)), {"k": x(4)}, {"x": {0: "n"}, "k": {0: "m"}}).exported_program
    first, rest, more = program.module()(x(5), x(3), k=x(7))
    torch.testing.assert_close((first, rest[0], more["k"]), (x(5) + 1, x(3) * 2, x(7) - 1))


def test_the_graph_is_not_decomposed() -> None:
    program = capture(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).eval(), (x(2, 3),)).exported_program
    targets = [
        node.target for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    ]
    assert len(targets) == 1
    assert program.graph.find_nodes(op="call_function", target=torch.ops.aten.layer_norm.default)


def test_an_exported_program_is_not_traced_again() -> None:
    program = torch.export.export(Optional().eval(), (x(3),))
    captured = capture(program)
    assert captured.exported_program is program
    assert (captured.dim_names, captured.dim_aliases) == ({}, {})


def test_training_mode_is_kept_and_warned_about() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    with pytest.warns(UserWarning, match="the model is in training mode"):
        captured = capture(model, (x(2, 3),))
    assert model.training
    assert any("dropout" in str(node.target) for node in captured.exported_program.graph.nodes)


class Reading(nn.Module):
    """A module of a user whose results depend on its mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x


class Asking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return next(value + 1 if getattr(self, "training", False) else value for value in (x,))


def in_float32(function: Any) -> Any:
    @functools.wraps(function)
    def called(*args: Any) -> Any:
        return function(*args)

    return called


class Decorated(nn.Module):
    @in_float32
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x


def noise(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5, module.training)


class Calling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return noise(self, x)


def hooked() -> nn.Module:
    model = nn.Linear(3, 3)
    model.register_forward_hook(lambda module, _, result: result + 1 if module.training else result)
    return model


class Plain(nn.Module):
    @in_float32
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return plain(x)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize(
    "model",
    [Reading(), Asking(), Decorated(), Calling(), hooked(), nn.BatchNorm1d(3), nn.RReLU()],
    ids=lambda one: type(one).__name__,
)
def test_results_that_depend_on_the_mode_are_warned_about(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match="the model is in training mode"):
        capture(nn.Sequential(model), (x(2, 3),))


@pytest.mark.parametrize(
    "model",
    [nn.Linear(3, 3), Plain(), nn.Dropout(0.0), nn.BatchNorm1d(3, track_running_stats=False), nn.GRU(3, 3)],
    ids=lambda one: type(one).__name__,
)
def test_results_without_a_mode_are_not_warned_about(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        capture(model, (x(2, 3),))


def test_eval_mode_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(nn.LSTM(3, 4).eval(), (x(2, 1, 3),))


def double(value: torch.Tensor) -> torch.Tensor:
    return value * 2


WRONG = [
    pytest.param(
        double, (x(3),), None, r"model: .*got the function double\nhint: call it from the forward", id="function"
    ),
    pytest.param(nn.ReLU, (x(3),), None, r"model: ReLU is a class\nhint: pass an instance", id="class"),
    pytest.param(3, (x(3),), None, r"model: expected an nn.Module or an ExportedProgram, got an int", id="int"),
    pytest.param(Optional(), [x(3)], None, r"args: .*got a list\nhint: .*\(\[a, b\],\)", id="list"),
    pytest.param(Optional(), {"x": x(3)}, None, r"args: .*got a dict\nhint: pass inputs by name as kwargs", id="dict"),
    pytest.param(Optional(), None, None, r"args: .*got a NoneType\nhint: pass a tuple", id="none"),
    pytest.param(Optional(), (), None, r"args: .*forward\(x: .*missing a required argument: 'x'", id="missing"),
    pytest.param(Optional(), (x(3),) * 4, None, r"args: .*too many positional arguments", id="too-many"),
    pytest.param(Optional(), (x(3),), {"q": x(3)}, r"kwargs: .*unexpected keyword argument 'q'", id="unknown-keyword"),
    pytest.param(
        Optional(), ({"y": x(3)},), None, r"args: .*missing a required argument: 'x'", id="last-dict-lacks-a-parameter"
    ),
    pytest.param(
        Optional(), (x(3),), [x(3)], r"kwargs: expected a dict of inputs by name, got a list", id="kwargs-list"
    ),
    pytest.param(Optional(), (x(3),), {3: x(3)}, r"kwargs: .*as keys, got 3", id="kwargs-key"),
]


@pytest.mark.parametrize(("model", "args", "kwargs", "match"), WRONG)
def test_invalid_arguments(model: Any, args: Any, kwargs: Any, match: str) -> None:
    if isinstance(model, nn.Module):
        model.eval()
    with pytest.raises(ArgumentError, match=match):
        capture(model, args, kwargs)


def test_module_without_readable_signature() -> None:
    model = nn.ReLU().eval()
    model.forward = 3  # type: ignore[assignment,method-assign]
    with pytest.raises(ArgumentError, match="model: the signature of its forward cannot be read"):
        capture(model, (x(3),))


def test_exported_program_without_call_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Optional().eval(), (x(3),))
    monkeypatch.setattr(type(program), "call_spec", SimpleNamespace(in_spec=None))
    with pytest.raises(ArgumentError, match=r"model: the ExportedProgram has no call_spec\.in_spec"):
        capture(program, dynamic_shapes=({0: "n"},))


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return x.sum()


def test_capture_failure_shows_the_first_error_and_the_users_line() -> None:
    with pytest.raises(
        CaptureError,
        match=r"(?s)asks for the value of a tensor.*at: test_inputs.py:\d+ in forward",
    ) as info:
        capture(DataDependent().eval(), (x(3),))
    assert type(info.value.__cause__).__name__ == "GuardOnDataDependentSymNode"
    assert "TORCH_LOGS" not in str(info.value)


class UsesNumPy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Fake tensors have no array; TorchDynamo captures functions of NumPy as torch's.
        return x * float(torch.tensor([1.0, 2.0]).numpy().sum())


def test_strict_mode_is_for_listed_limits_of_torch() -> None:
    captured = capture(UsesNumPy().eval(), (x(3),))
    torch.testing.assert_close(captured.exported_program.module()(x(3)), x(3) * 3)
    assert DepartureKind.STRICT in {one.kind for one in captured.departures}


def test_an_error_of_the_model_is_raised_once() -> None:
    calls = []

    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            raise ValueError("of the model: .numpy() is not supported for tensor subclasses.")

    with pytest.raises(CaptureError, match=r"ValueError\n  of the model: (.|\n)*in forward: raise ValueError"):
        capture(Raises().eval(), (x(3),))
    # In the capture, and in eager mode, which raises it as well.
    assert len(calls) == 2


# Numbers as inputs, as outputs and as constants of the program.


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
        match=r"branches on the value of a dynamic scalar, 'flag':\n(?s:.*)at: .*test_inputs.py:\d+ in forward: return \{True: x"
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
