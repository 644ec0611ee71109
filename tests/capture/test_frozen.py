"""Frozen inputs: tensors whose example values become constants of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fxonnx


class Tower(nn.Module):
    """Split patches by grids, as the vision towers of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor, grid_thw: Tensor, extra: dict[str, Tensor] | None = None) -> Tensor:
        parts = self.norm(x).split(grid_thw.prod(-1).tolist())
        rows = [
            part.reshape(height, width, -1).mean(1) for part, (_, height, width) in zip(parts, grid_thw, strict=True)
        ]
        result = torch.cat(rows)
        return result if extra is None else result[: int(extra["rows"])]


GRID = torch.tensor([[1, 2, 2], [1, 3, 2]])
X = torch.rand(10, 4)


@pytest.mark.parametrize("on_meta", [False, True], ids=["cpu", "meta"])
def test_frozen_values_are_constants(on_meta: bool, tmp_path: Path) -> None:
    model = Tower().eval()
    exported = Tower().eval().to("meta") if on_meta else model
    program = fxonnx.export(exported, (X, GRID), frozen=["grid_thw"])
    assert [value.name for value in program.model.graph.inputs] == ["x"]
    assert torch.equal(program.record.frozen_arguments["grid_thw"], GRID)
    if on_meta:
        program.apply_weights(model.state_dict())
    for given in ((X, GRID), (X,), (X, None), (X, GRID.clone())):
        torch.testing.assert_close(program(*given)[0], model(X, GRID))
    torch.testing.assert_close(program(X, grid_thw=GRID)[0], model(X, GRID))
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": X.numpy()})[0]), model(X, GRID))
    if not on_meta:
        program.verify()


def test_keyword_and_nested_inputs_match_patterns() -> None:
    model = Tower().eval()
    kwargs = {"grid_thw": GRID, "extra": {"rows": torch.tensor(3)}}
    program = fxonnx.export(model, (X,), kwargs=kwargs, frozen=["grid*", "extra.rows"])
    assert set(program.record.frozen_arguments) == {"grid_thw", "extra['rows']"}
    torch.testing.assert_close(program(X, **kwargs)[0], model(X, **kwargs))
    with pytest.raises(fxonnx.ArgumentError, match=r"extra: got 2, but the argument is frozen .* at export are 3"):
        program(X, GRID, {"rows": torch.tensor(2)})


def test_other_values_are_refused() -> None:
    program = fxonnx.export(Tower().eval(), (X, GRID), frozen=["grid_thw"])
    with pytest.raises(
        fxonnx.ArgumentError,
        match=r"(?s)grid_thw: got \[\[1, 2, 2\], \[1, 2, 3\]\], but .* \[1, 3, 2\]\]\nhint: pass the values of the example",
    ):
        program(X, torch.tensor([[1, 2, 2], [1, 2, 3]]))
    with pytest.raises(fxonnx.ArgumentError, match=r"grid_thw: got other values, but the argument is frozen"):
        program(X, "grid")


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        ("grid_thw", r"frozen: expected a list of names, got 'grid_thw'\nhint: write \[\"image_grid_thw\"\]"),
        ([1], r"frozen: expected a list of names, got \[1\]"),
        (["grid_thv"], r"frozen: 'grid_thv' matches no tensor of the example inputs\nhint: did you mean 'grid_thw'"),
        (["z*"], r"frozen: 'z\*' matches no tensor"),
    ],
)
def test_invalid_names(frozen: Any, message: str) -> None:
    with pytest.raises(fxonnx.ArgumentError, match=message):
        fxonnx.export(Tower().eval(), (X, GRID), frozen=frozen)


def test_a_frozen_tensor_needs_values() -> None:
    with pytest.raises(fxonnx.ArgumentError, match=r"frozen: grid_thw has no values\nhint: pass a tensor on the CPU"):
        fxonnx.export(Tower().eval(), (X, GRID.to("meta")), frozen=["grid_thw"])


def test_a_captured_program_has_no_frozen_inputs() -> None:
    program = torch.export.export(nn.Linear(4, 4), (X,))
    with pytest.raises(fxonnx.ArgumentError, match=r"frozen: an ExportedProgram is already captured"):
        fxonnx.export(program, frozen=["input"])


def test_a_frozen_tensor_has_no_dynamic_dims() -> None:
    with pytest.raises(fxonnx.ArgumentError, match=r"dynamic_shapes: grid_thw is None or frozen, which has no dims"):
        fxonnx.export(Tower().eval(), (X, GRID), frozen=["grid_thw"], dynamic_shapes={"grid_thw": {0: "images"}})
