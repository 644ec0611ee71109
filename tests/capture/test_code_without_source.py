"""Models whose functions ``exec`` has compiled, as in interactive sessions: the file of their code is ``<string>``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

import fxonnx

_NAMES: dict[str, Any] = {"torch": torch}
exec(
    """
class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *inputs):
        return self.function(*inputs)

def doubles_one(x):
    if x.shape[0] == 1:
        return x * 2
    return x + 1

def pads(x):
    rest = -x.shape[1] % 4
    if rest > 0:
        x = torch.nn.functional.pad(x, (0, rest))
    return x.unflatten(1, (-1, 4)).sum(2)

def converts(x):
    return x[:, : int(x.shape[1] // 1.5)]

def counts(x):
    return x.new_zeros(x.shape[0] + (x.shape[1] > 6))

def raises(x, a):
    if a < 0:
        raise ValueError(f"a is {a}")
    return x * a

def asserts(x, a):
    assert a > 0 and not (a == 9), "a"
    return x * a

def raises_otherwise(x, a):
    if a > 0:
        return x * a
    message = "%s is not positive" % ("a",)
    raise ValueError(message)

def branches(x, a):
    if a > 3:
        x = x * 2
    return x * a

def handles(x, a):
    try:
        if a < 3:
            raise ValueError
    except ValueError:
        x = x * 2
    return x * a
""",
    _NAMES,
)


def session_of(name: str, args: tuple[Any, ...], path: Path) -> tuple[torch.nn.Module, Any]:
    """A model, and the session of its file."""
    model = _NAMES["Model"](_NAMES[name]).eval()
    dims = {0: "n", 1: "t"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fxonnx.export(model, args, path, dynamic_shapes=((dims, *(None for _ in args[1:])),), input_names=["x"])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return model, onnxruntime.InferenceSession(path, options)


@pytest.mark.parametrize("name", ["doubles_one", "pads", "converts", "counts"])
def test_conditions_and_conversions_of_sizes(name: str, tmp_path: Path) -> None:
    model, session = session_of(name, (torch.randn(3, 7),), tmp_path / "m.onnx")
    for shape in ((3, 7), (2, 8), (5, 4), (4, 13)):
        x = torch.randn(shape)
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), model(x))


def test_a_branch_for_one_row_is_a_limit(tmp_path: Path) -> None:
    _, session = session_of("doubles_one", (torch.randn(3, 7),), tmp_path / "m.onnx")
    with pytest.raises(Exception, match="requires n != 1"):
        session.run(None, {"x": torch.randn(1, 7).numpy()})


@pytest.mark.parametrize("brackets", [True, False])
@pytest.mark.parametrize("name", ["raises", "asserts", "raises_otherwise"])
def test_checks_that_only_raise(name: str, brackets: bool, tmp_path: Path) -> None:
    numbers = [torch.tensor([value] if brackets else value) for value in (4, 2, 7)]
    model, session = session_of(name, (torch.randn(3, 7), numbers[0]), tmp_path / "m.onnx")
    other = session.get_inputs()[1].name
    for rows, a in zip((3, 5, 2), numbers, strict=True):
        x = torch.randn(rows, 7)
        found = torch.from_numpy(session.run(None, {"x": x.numpy(), other: a.numpy()})[0])
        torch.testing.assert_close(found, model(x, a))


@pytest.mark.parametrize("name", ["branches", "handles"])
def test_other_branches_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(fxonnx.CaptureError, match="asks for the value of a tensor"):
        session_of(name, (torch.randn(3, 7), torch.tensor(4)), tmp_path / "m.onnx")
