"""Mistakes that users make: each is one error with the argument, the place and a remedy; and models in wrappers."""

from __future__ import annotations

import runpy
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Distribution

import fxonnx

X = torch.rand(2, 3)


class Second(nn.Module):
    """A model that ignores its second input."""

    def forward(self, x: torch.Tensor, c: Any = None) -> torch.Tensor:
        del c
        return x * 2


class WithoutReturn(nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        x.sin()


class WithGenerator(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=torch.Generator().manual_seed(0))


class WithDebugger(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        breakpoint()
        return x + 1


def _table() -> Any:
    kind = type("DataFrame", (), {"__module__": "pandas.core.frame"})
    return kind()


def _endless() -> list[Any]:
    values: list[Any] = [X]
    values.append(values)
    return values


def _second(value: Any) -> Callable[[], Any]:
    return lambda: fxonnx.export(Second(), (X,), kwargs={"c": value})


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "array": (
        lambda: fxonnx.export(Second(), (np.ones(3),)),
        fxonnx.ArgumentError,
        r"args: args\[0\] is a numpy\.ndarray, which .*\nhint: pass torch\.from_numpy\(array\)",
    ),
    "array in a list": (
        _second([X, {"a": np.ones(3)}]),
        fxonnx.ArgumentError,
        r"kwargs: kwargs\['c'\]\[1\]\['a'\] is a numpy\.ndarray",
    ),
    "number of numpy": (_second(np.int64(3)), fxonnx.ArgumentError, r"is a numpy\.int64.*\nhint: pass value\.item\(\)"),
    "table": (_second(_table()), fxonnx.ArgumentError, r"is a pandas\.DataFrame.*\nhint: .*value\.to_numpy\(\)"),
    "set": (_second({1, 2}), fxonnx.ArgumentError, r"kwargs\['c'\] is a set, .*\nhint: pass a list or a tuple"),
    "generator": (_second(i for i in ()), fxonnx.ArgumentError, r"is a generator, .*\nhint: pass list\(iterator\)"),
    "cycle": (_second(_endless()), fxonnx.ArgumentError, r"kwargs\['c'\]\[1\] contains itself\nhint: "),
    "no result": (
        lambda: fxonnx.export(WithoutReturn(), (X,)),
        fxonnx.ArgumentError,
        r"model: forward returns no tensor\nhint: return the results",
    ),
    "generator in forward": (
        lambda: fxonnx.export(WithGenerator(), (X,)),
        fxonnx.UnsupportedOperatorError,
        r"aten\.rand\.generator, .*test_mistakes\.py:\d+\n.*is an object, such as a torch\.Generator",
    ),
    "debugger": (
        lambda: fxonnx.export(WithDebugger(), (X,)),
        fxonnx.CaptureError,
        r"at: .*test_mistakes\.py:\d+ in (?s:.*)\nhint: remove breakpoint\(\)",
    ),
    "no file": (
        lambda: fxonnx.export(Second(), (X,)).save(None),  # type: ignore[arg-type]
        fxonnx.ArgumentError,
        r'destination: expected a path or a binary file, got None\nhint: write "model\.onnx"',
    ),
    "names": (
        lambda: fxonnx.export(Second(), (X,), input_names=["a", "b"]),
        fxonnx.ArgumentError,
        "input_names: 'b' is not used",
    ),
    "dims": (
        lambda: fxonnx.export(Second(), (X,), dynamic_shapes={"y": {0: "n"}}),
        fxonnx.ArgumentError,
        "dynamic_shapes: 'y' is not a parameter of forward",
    ),
}


@pytest.mark.filterwarnings("ignore:the model is in training mode")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, kind, match = MISTAKES[name]
    monkeypatch.setattr(sys, "breakpointhook", _quit)
    with pytest.raises(kind, match=match):
        make()


def _quit() -> None:
    from bdb import BdbQuit

    raise BdbQuit


def test_some_parameters_are_renamed() -> None:
    linear = nn.Linear(3, 2).eval()
    with pytest.warns(UserWarning, match="more names than the model has inputs: parameters are renamed to 'y'"):
        fxonnx.export(linear, (X,), input_names=["x", "y"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxonnx.export(linear, (X,), input_names=["x", "w", "b"])


def test_namespaces_hold_tensors() -> None:
    """A call with as many arguments as there are tensors is not one with the tensors themselves."""

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, c: Any) -> torch.Tensor:
            return x + c.a

    given = SimpleNamespace(a=torch.ones(3))
    program = fxonnx.export(Sum().eval(), (X, given))
    torch.testing.assert_close(program(X, given)[0], X + 1)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compiled", "parallel"])
def test_models_in_wrappers(wrap: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of inputs and weights are those of the module inside."""
    # torch.compile disables the validation of distributions permanently; it is restored after the test.
    monkeypatch.setattr(Distribution, "_validate_args", Distribution._validate_args)
    linear = nn.Linear(3, 2).eval()
    program = fxonnx.export(wrap(linear), (X,))
    assert [value.name for value in program.model.graph.inputs] == ["input"]
    assert {*program.model.graph.initializers} == {"weight", "bias"}
    torch.testing.assert_close(program(X)[0], linear(X))


def test_an_attribute_like_that_of_a_compiled_model() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._orig_mod(x) + 1

    model = Own().eval()
    torch.testing.assert_close(fxonnx.export(model, (X,))(X)[0], model(X))


def test_the_package_is_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fxonnx", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("fxonnx", run_name="__main__")
    assert ended.value.code == 0
    assert fxonnx.__version__ in capsys.readouterr().out
