"""Temporary files: those of killed processes go with the next save to the same place, those of others stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fxonnx
from fxonnx import ArgumentError, ONNXProgram
from fxonnx._program.atomic_file import AtomicFile

DEAD = [".m.onnx.0123abcd.tmp", ".m.onnx.data.0123abcd.tmp", ".m.onnx.1.data.0123abcd.tmp"]
DEAD += [".m.onnx.safetensors.0123abcd.tmp"]
DEAD_WEIGHTS = ".weights.0123456789abcdef.data.0123abcd.tmp"
OTHERS = [".other.onnx.0123abcd.tmp", ".m.onnx.tmp", ".m.onnx.0123abcx.tmp", "m.onnx.0123abcd.tmp"]


@pytest.fixture(scope="module")
def program() -> ONNXProgram:
    return fxonnx.export(torch.nn.Linear(16, 16).eval(), (torch.ones(2, 16),))


_SAVES: dict[str, Callable[[ONNXProgram, Path], Any]] = {
    "one-file": lambda program, folder: program.save(folder / "m.onnx", external_data=False),
    "data": lambda program, folder: program.save(folder / "m.onnx", external_data=True),
    "safetensors": lambda program, folder: program.save(folder / "m.onnx", external_data="safetensors"),
    "several": lambda program, folder: fxonnx.save_all({"m": program}, folder),
}


@pytest.mark.parametrize("name", _SAVES)
def test_temporary_files_of_killed_processes_are_removed(name: str, program: ONNXProgram, tmp_path: Path) -> None:
    for leftover in (*DEAD, DEAD_WEIGHTS, *OTHERS):
        (tmp_path / leftover).touch()
    with AtomicFile(tmp_path / "m.onnx.data") as running:
        _SAVES[name](program, tmp_path)
        assert running._temporary.exists()
        kept = {path.name for path in tmp_path.glob(".*") if path != running._temporary}
    expected = {other for other in OTHERS if other.startswith(".")}
    assert kept == (expected if name == "several" else expected | {DEAD_WEIGHTS})
    assert (tmp_path / OTHERS[-1]).exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a\0b", r"programs: 'a\\x00b' is not the name of a file: it has a null byte"),
        ("a/b", r"programs: 'a/b' is not a file name without a directory"),
        (3, r"programs: 3 is not a file name without a directory"),
    ],
)
def test_names_of_programs(name: Any, expected: str, program: ONNXProgram, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=expected):
        fxonnx.save_all({name: program}, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_directory_with_a_null_byte(program: ONNXProgram) -> None:
    with pytest.raises(ArgumentError, match=r"directory: 'a\\x00' is not the name of a file: it has a null byte"):
        fxonnx.save_all({"m": program}, "a\0")
