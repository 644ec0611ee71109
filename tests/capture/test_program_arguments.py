"""Arguments beside an ExportedProgram: inputs and dims that are not its own are errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram

import fxonnx
from fxonnx import ArgumentError


class Model(torch.nn.Module):
    """Inputs in a dict, a list, a constant and an optional one."""

    def forward(self, x: Any, more: Any, k: int = 2, *, z: Any = None, shape: Any = None) -> Any:
        y = x * k + more["a"] + more["b"][0]
        return y if z is None else y + z


N = Dim("n", min=2, max=10)


def x(rows: int = 3, columns: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=dtype)


def more(rows: int = 3, **changed: Any) -> dict[str, Any]:
    return {"a": x(rows), "b": [x(rows)], **changed}


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    shapes = {"x": {0: N}, "more": {"a": {0: N}, "b": [{0: N}]}, "k": None, "z": None}
    return torch.export.export(Model(), (x(), more(), 3), {"z": torch.ones(4)}, dynamic_shapes=shapes)


_Row = tuple[Any, Mapping[str, Any] | None, Any]
Z = {"z": torch.zeros(4)}
OWN: dict[str, _Row] = {
    "nothing": ((), None, None),
    "equal": ((x(), more(), 3), {"z": torch.ones(4)}, None),
    "other-values": ((x() * 7, more(), 3), Z, None),
    "other-size": ((x(5), more(5), 3), Z, None),
    "constant-left-out": ((x(), more()), Z, None),
    "by-name": ((), {"more": more(), "x": x(), **Z}, None),
    "names": ((), None, {"x": {0: "rows"}, "more": None, "k": None, "z": None}),
    "dim-without-range": ((), None, {"x": {0: Dim("rows")}, "more": None, "k": None, "z": None}),
    "the-same-dim": ((), None, {"x": {0: N}, "more": None, "k": None, "z": None}),
    "auto": ((), None, {"x": {0: Dim.AUTO, 1: Dim.AUTO}, "more": None, "k": None, "z": None}),
}
OTHER: dict[str, tuple[Any, Mapping[str, Any] | None, Any, str]] = {
    "rank": ((torch.ones(4), more(), 3), Z, None, r"args: 'x' has the shape \[4\], but \[s\d+, 4\]"),
    "static-size": ((x(3, 5), more(), 3), Z, None, r"args: 'x' has the shape \[3, 5\]"),
    "out-of-range": ((x(11), more(11), 3), Z, None, r"args: 'x' has the shape \[11, 4\]"),
    "unequal": ((x(5), more(4), 3), Z, None, r"args: 'more' has the shape \[4, 4\]"),
    "dtype": ((x(dtype=torch.int32), more(), 3), Z, None, r"args: 'x' is torch.int32, but torch.float32"),
    "no-tensor": (("a", more(), 3), Z, None, r"args: 'x' is a str, but a tensor"),
    "constant": ((x(), more(), 4), Z, None, r"args: 'k' is 4, but the constant 3"),
    "constant-tensor": ((x(), more(), torch.ones(())), Z, None, r"args: 'k' is a Tensor, but the constant 3"),
    "keys": ((x(), more(c=x()), 3), Z, None, r"args: 'more' has another structure"),
    "list": ((x(), more(b=[x(), x()]), 3), Z, None, r"args: 'more' has another structure"),
    "missing": ((x(),), None, None, r"args: the input 'more' of the ExportedProgram is missing"),
    "missing-keyword": ((x(), more(), 3), {"k": 3}, None, r"kwargs: 'k' is also given by position"),
    "unknown": ((x(), more()), {"zz": 1, **Z}, None, r"kwargs: the ExportedProgram has no input 'zz'"),
    "keyword-shape": ((x(), more()), {"z": torch.ones(5)}, None, r"kwargs: 'z' has the shape \[5\], but \[4\]"),
    "too-many": ((x(), more(), 3, torch.ones(4), 1), None, None, r"takes 4 inputs, got 5 positional ones"),
    "no-tuple": ({"x": x()}, None, None, r"args: expected a tuple or a tensor, got a dict"),
    "bare": (x(3, 5), None, None, r"args: 'x' has the shape \[3, 5\]"),
    "static": ((), None, {"x": {0: 3}, "more": None, "k": None, "z": None}, r"dynamic_shapes: x axis 0 is dynamic"),
    "dim-static": (
        *((), None, {"x": None, "more": {"a": {0: Dim.STATIC}, "b": None}, "k": None, "z": None}),
        r"dynamic_shapes: more\['a'\] axis 0 is dynamic in the ExportedProgram, not static",
    ),
    "range": (
        *((), None, {"x": {0: Dim("n", min=3, max=4)}, "more": None, "k": None, "z": None}),
        r"dynamic_shapes: x axis 0 is 2 to 10 in the ExportedProgram, not 3 to 4",
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_own_arguments(name: str, program: ExportedProgram) -> None:
    args, kwargs, shapes = OWN[name]
    exported = fxonnx.export(program, args, kwargs=kwargs, dynamic_shapes=shapes)
    inputs = (x(4), more(4), 3), {"z": torch.rand(4)}
    torch.testing.assert_close(exported(*inputs[0], **inputs[1])[0], Model()(*inputs[0], **inputs[1]))


@pytest.mark.parametrize("name", OTHER)
def test_other_arguments(name: str, program: ExportedProgram) -> None:
    args, kwargs, shapes, expected = OTHER[name]
    with pytest.raises(ArgumentError, match=expected):
        fxonnx.export(program, args, kwargs=kwargs, dynamic_shapes=shapes)
