"""Numbers that Python reads from tensors: as arguments of ``math``, as sizes of a reshape, and as numbers of classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional as F

import fxonnx

from ..functions import VariadicFunction

_SOURCE = """
def root(x, a, s): return x * math.sqrt(a) > 2
def rounded(x, a, s): return x[:, : math.ceil(s * 1.3)] + math.floor(s)
def logarithms(x, a, s): return x * math.log(a, 3) + math.log2(a + 1) * math.log10(s + 2)
def exponential(x, a, s): return x * math.exp(-s) + math.erf(math.sin(a) + math.tanh(s))
def of_sizes(x, a, s): return x * math.exp(-x.shape[1] / 4) + math.cos(x.shape[1])
"""
_NAMES: dict[str, Any] = {"math": math}
exec(_SOURCE, _NAMES)


def converted(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """``int`` of a number that ``math`` computes."""
    return x[:, : int(math.sqrt(a))] * int(-math.exp(s))


def decides(x: torch.Tensor, a: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x * 2 if math.sqrt(a) > 1.5 else x + math.hypot(3, 4)


WITHOUT_SOURCE = ["root", "rounded", "logarithms", "exponential", "of_sizes"]


def _calls() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    for width, count, scale in ((5, 3, 1.25), (7, 1, 0.75), (4, 9, 2.75)):
        yield torch.rand(2, width), torch.tensor(count), torch.tensor(scale)


def _session(model: torch.nn.Module, args: Any, path: Path, dims: Any = None) -> Callable[..., np.ndarray]:
    fxonnx.export(model, args, path, dynamic_shapes=dims)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options)
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> Any:
        given = {f"inputs_{place}": one.numpy() for place, one in enumerate(inputs)}
        return session.run(None, {name: given[name] for name in names})[0]

    return run


@pytest.mark.parametrize(
    "function", [*WITHOUT_SOURCE, converted, decides], ids=lambda one: getattr(one, "__name__", one)
)
def test_functions_of_math(function: Any, tmp_path: Path) -> None:
    model = VariadicFunction(_NAMES[function] if isinstance(function, str) else function).eval()
    first, *others = _calls()
    run = _session(model, first, tmp_path / "m.onnx", (({1: "n"}, None, None),))
    for call in (first, *others):
        torch.testing.assert_close(torch.from_numpy(run(*call)), model(*call))


class _Scaled(torch.nn.Module):
    """The number is a weight, which Python knows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : math.floor(self.count / 4)] * math.sqrt(self.count)


def test_a_number_in_a_weight_is_a_constant() -> None:
    x = torch.rand(2, 5)
    program = fxonnx.export(_Scaled().eval(), (x,))
    assert program.model.graph.outputs[0].shape == (2, 2)
    torch.testing.assert_close(program(x)[0], _Scaled()(x))


RESHAPES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "of a slice": lambda x, a: x[:, :a].reshape(-1, a),
    "to three axes": lambda x, a: x[:, :a].reshape(4, a, -1),
    "a sum of numbers": lambda x, a: torch.reshape(x[:, : (a + a)], (-1, (a + a))),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_sizes_of_a_reshape(name: str, tmp_path: Path) -> None:
    model = VariadicFunction(RESHAPES[name]).eval()
    x = torch.rand(4, 12)
    run = _session(model, (x, torch.tensor(3)), tmp_path / "m.onnx")
    for number in (3, 1, 4, 6):
        a = torch.tensor(number)
        torch.testing.assert_close(torch.from_numpy(run(x, a)), model(x.clone(), a))
    with pytest.raises(RuntimeError, match="invalid"):
        model(x, torch.tensor(13))
    with pytest.raises(Exception, match="Reshape"):
        run(x, torch.tensor(13))


def test_a_reshape_that_the_model_writes_to_is_refused(tmp_path: Path) -> None:
    """It is a view in eager torch."""
    model = VariadicFunction(lambda x, a: x[:, :a].reshape(-1, a).add_(1)).eval()
    with pytest.raises(fxonnx.CaptureError, match="input 0: only the model changes it"):
        _session(model, (torch.rand(4, 12), torch.tensor(3)), tmp_path / "m.onnx")


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_classes_are_below_their_number(shape: tuple[int, ...], tmp_path: Path) -> None:
    model = VariadicFunction(lambda x, count: F.one_hot(x, count)).eval()
    x = torch.arange(math.prod(shape)).reshape(shape)
    run = _session(model, (x, torch.tensor(5)), tmp_path / "m.onnx")
    for number in (5, 4, 9):
        found = torch.from_numpy(run(x, torch.tensor(number)))
        torch.testing.assert_close(found, model(x, torch.tensor(number)))
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        model(x + 5, torch.tensor(5))
    with pytest.raises(Exception, match="out of data bounds"):
        run(x + 5, torch.tensor(5))
