"""Examples in which one tensor is several inputs: a model that asks for the identity is exported for equal inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

import fxonnx

from ..functions import VariadicFunction

NAMES = ("a", "b", "c")


def same_or_difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x if x is y else x - y


def shared_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if v is not k:
        v = v * 3
    return torch.softmax(q @ k.mT, -1) @ v


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, -1) @ v


def session_of(function: Callable[..., Any], count: int, path: Path) -> Any:
    x = torch.randn(2, 3, 4)
    program = fxonnx.export(
        VariadicFunction(function).eval(),
        (x,) * count,
        path,
        input_names=NAMES[:count],
        dynamic_shapes=(tuple({0: "n"} for _ in range(count)),),
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return program, onnxruntime.InferenceSession(path, options)


@pytest.mark.parametrize(("function", "count"), [(same_or_difference, 2), (shared_keys, 3)])
def test_a_model_that_asks_for_the_identity(function: Callable[..., Any], count: int, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"inputs: \S+ is \S+ -> True"):
        program, session = session_of(function, count, tmp_path / "m.onnx")
    x = torch.randn(5, 3, 4)
    x[0, 0, 0] = torch.nan
    found = session.run(None, dict.fromkeys(NAMES[:count], x.numpy()))[0]
    torch.testing.assert_close(torch.from_numpy(found), function(*(x,) * count), equal_nan=True)
    others = [torch.randn(5, 3, 4) for _ in range(count)]
    with pytest.raises(Exception, match=r"requires .* is .* -> True"):
        session.run(None, {name: other.numpy() for name, other in zip(NAMES, others, strict=False)})
    with pytest.raises(fxonnx.ArgumentError, match="take another branch than the example"):
        program(*others)


def test_other_models_have_separate_inputs(recwarn: pytest.WarningsRecorder, tmp_path: Path) -> None:
    program, session = session_of(attention, 3, tmp_path / "m.onnx")
    assert not recwarn.list
    assert [one.change for one in program.record.capture.attempts] == [""]
    given = [torch.randn(5, 3, 4) for _ in NAMES]
    found = session.run(None, {name: one.numpy() for name, one in zip(NAMES, given, strict=True)})[0]
    torch.testing.assert_close(torch.from_numpy(found), attention(*given))


def test_examples_with_two_tensors_are_separate_for_the_identity() -> None:
    x = torch.randn(2, 3)
    program = fxonnx.export(VariadicFunction(same_or_difference).eval(), (x, x.clone()))
    assert program(x, x * 3)[0].equal(x - x * 3)
