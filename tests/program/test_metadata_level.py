"""Metadata of saved files: the levels of ``save(metadata=...)``."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import fxonnx
from fxonnx._lower.metadata import MetadataLevel
from tests.functions import Doubling


def blocks() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)) for _ in range(3)))


MODELS: dict[str, tuple[nn.Module, dict[str, Any]]] = {
    "flat": (blocks(), {}),
    "functions": (blocks(), {"functions": "repeated"}),
    "loop": (Doubling(), {}),
}


def saved(program: fxonnx.ONNXProgram, **options: Any) -> bytes:
    file = BytesIO()
    program.save(file, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", MODELS)
def test_a_file_has_the_metadata_of_an_export_of_that_level(name: str) -> None:
    model, options = MODELS[name]
    # The file has the inputs of the proof, which depend on the example.
    x = torch.rand(2, 4)
    program = fxonnx.export(model.eval(), (x,), options=fxonnx.ExportOptions(**options))
    whole = saved(program)
    assert b"stack_trace" in whole
    levels: tuple[MetadataLevel, ...] = ("full", "names", "none")
    for level in levels:
        expected = saved(fxonnx.export(model, (x,), options=fxonnx.ExportOptions(metadata=level, **options)))
        assert saved(program, metadata=level) == expected
    names, none = saved(program, metadata="names"), saved(program, metadata="none")
    assert b"stack_trace" not in names
    assert b"pkg.torch.onnx.name_scopes" in names
    assert b"pkg.torch.onnx.name_scopes" not in none
    # The program keeps everything.
    assert saved(program) == whole


def test_all_forms_of_files(tmp_path: Path) -> None:
    program = fxonnx.export(nn.Linear(20, 20).eval(), (torch.rand(1, 20),))
    for name, external_data in (("a.onnx", True), ("b.onnx", "safetensors"), ("c.onnx", False)):
        program.save(tmp_path / name, external_data=external_data, metadata="names")  # type: ignore[arg-type]
    program.save(tmp_path / "d.onnx", inline=True, metadata="names")
    fxonnx.save_all({"e": program, "f": program}, tmp_path, metadata="names")
    for path in tmp_path.glob("*.onnx"):
        keys = {entry.key for node in onnx.load(path).graph.node for entry in node.metadata_props}
        assert keys == {"namespace", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes"}


def test_wrong_levels(tmp_path: Path) -> None:
    program = fxonnx.export(nn.ReLU().eval(), (torch.rand(2),), options=fxonnx.ExportOptions(metadata="names"))
    with pytest.raises(
        fxonnx.ArgumentError, match=r"metadata: expected 'none', 'names', 'full', got 'name'\nhint: did"
    ):
        program.save(tmp_path / "m.onnx", metadata="name")  # type: ignore[arg-type]
    with pytest.raises(
        fxonnx.ArgumentError, match=r"exported with metadata='names'\nhint: export with metadata='full'"
    ):
        program.save(tmp_path / "m.onnx", metadata="full")
    with pytest.raises(fxonnx.ArgumentError, match="the program was exported with metadata='names'"):
        fxonnx.save_all({"m": program}, tmp_path, metadata="full")
    assert not list(tmp_path.iterdir())
