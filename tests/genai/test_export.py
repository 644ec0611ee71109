"""fxonnx.genai.export: files, the comparison at the end, the command line, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fxonnx.genai
from fxonnx._cli.commands import app

from .small_models import generated, generated_by_transformers, make_model, make_tokenizer, prompt

og = pytest.importorskip("onnxruntime_genai")


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


@pytest.fixture(scope="module")
def checkpoint(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


def test_a_directory_becomes_a_directory(model: Any, checkpoint: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    out = fxonnx.genai.export(checkpoint, tmp_path / "above" / "out", on_stage=stages.append)
    assert out == tmp_path / "above" / "out"
    files = {path.name for path in out.iterdir()}
    assert {"model.onnx", "genai_config.json", "generation_config.json", "tokenizer.json"} <= files
    assert stages[0] == "load"
    assert stages[-1] == "verify"
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert generated(out, prompt(1)) == generated_by_transformers(model, prompt(1))
    written = og.Tokenizer(og.Model(str(out)))
    assert written.encode("the lazy fox").tolist() == make_tokenizer()("the lazy fox").input_ids
    assert "lazy" in written.apply_chat_template(json.dumps([{"role": "user", "content": "lazy"}]))


def test_the_model_is_left_unchanged(model: Any, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), verify=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config.to_dict() == config


def test_the_command_writes_the_same_files(checkpoint: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["genai", str(checkpoint), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "verify ..." in done.output
    assert re.search(r"^wrote .*out: [\d.]+ KiB, verified$", done.output, re.MULTILINE)
    fxonnx.genai.export(checkpoint, tmp_path / "again", verify=False)
    for path in (tmp_path / "again").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_the_command_shows_one_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["genai", str(tmp_path / "none"), "-o", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert f"error[FX001]: model: directory {tmp_path / 'none'} does not exist" in done.output
    assert not list(tmp_path.iterdir())
