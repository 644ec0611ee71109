"""Copies that are views at other sizes, in models that write to them: limits."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import onnxruntime
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

import fxonnx

from ..functions import Function

SIZES = (1, 2, 7, 8, 9, 16)


def added_to_the_columns(x: torch.Tensor) -> torch.Tensor:
    columns = x.t().contiguous()
    columns += 1
    return x * 2


@pytest.mark.parametrize("rows", [1, 3])
def test_a_copy_that_is_a_view_of_one_row(rows: int) -> None:
    """No file has both: of one row, the columns are the input, which the model changes."""
    refused = pytest.raises(fxonnx.CaptureError, match="'n', is always 1") if rows == 1 else nullcontext()
    with refused, pytest.warns(UserWarning, match="n != 1") if rows != 1 else nullcontext():
        model = Function(added_to_the_columns)
        program = fxonnx.export(model, (torch.rand(rows, 4),), dynamic_shapes=({0: "n"},))
    if rows != 1:
        x = torch.rand(2, 4)
        torch.testing.assert_close(program(x)[0], added_to_the_columns(x))


def writes_rows(x: torch.Tensor) -> torch.Tensor:
    rows = x[:, :, :8].contiguous()
    rows += 1
    return x * rows.sum()


def writes_transposed_rows(x: torch.Tensor) -> torch.Tensor:
    columns = x[:, :, :8].transpose(2, 3).reshape(-1)
    columns += 1
    return x * columns.sum()


def writes_channels_last(x: torch.Tensor) -> torch.Tensor:
    columns = x.permute(0, 2, 3, 1).contiguous()
    columns += 1
    return x * columns.sum()


def writes_every_second(x: torch.Tensor) -> torch.Tensor:
    columns = x[..., ::2].contiguous()
    columns += 1
    return x * columns.sum()


@pytest.mark.parametrize("example", [(24, 32), (1, 7), (7, 1)], ids=str)
@pytest.mark.parametrize("function", [writes_rows, writes_transposed_rows, writes_channels_last, writes_every_second])
def test_a_written_copy_that_is_a_view_at_other_sizes(
    function: Callable[[torch.Tensor], torch.Tensor], example: tuple[int, int], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = ({0: "b", 2: "h", 3: "w"},)
        fxonnx.export(Function(function), (torch.rand(2, 3, *example),), tmp_path / "m.onnx", dynamic_shapes=shapes)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", quiet)
    count = 0
    for size in (example, *itertools.product(SIZES, SIZES)):
        x = torch.rand(2, 3, *size)
        try:
            found = session.run(None, {"x": x.numpy()})[0]
        except (Fail, InvalidArgument):
            continue
        torch.testing.assert_close(torch.from_numpy(found), function(x.clone()))
        count += 1
    assert count > 1
