"""Without a comparison, the weights stay in the checkpoint: the files are those of a loaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fxonnx.genai
from fxonnx._transformers import language_models

from .small_models import generated, generated_by_transformers, make_model, make_tokenizer, prompt
from .test_decoders import MODELS

pytest.importorskip("onnxruntime_genai")


def save(model: Any, directory: Path) -> Path:
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("llama", {}),
        ("llama", {"precision": "int4"}),
        ("llama", {"precision": "fp16", "target": "cuda"}),
        ("bloom", {"precision": "int4"}),
        ("gemma2", {}),
        ("gpt2", {"precision": "int4"}),
        ("gpt_neo", {}),
        ("lfm2", {"precision": "int4"}),
        ("mamba2", {}),
        ("phi3", {"precision": "bf16", "target": "cuda"}),
        ("qwen3_next", {"precision": "int4"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_files_are_those_of_a_loaded_model(
    model_type: str, options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is in bfloat16, which is converted while the file is written."""
    source = save(make_model(model_type, **MODELS[model_type]).bfloat16(), tmp_path / "checkpoint")
    made: list[Any] = []
    make = language_models.without_weights

    def recorded(*arguments: Any) -> Any:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(language_models, "without_weights", recorded)
    fxonnx.genai.export(source, tmp_path / "referenced" / "out", verify=False, **options)
    assert all(parameter.is_meta for parameter in made[0].parameters())
    monkeypatch.setattr(language_models, "without_weights", lambda *_: None)
    fxonnx.genai.export(source, tmp_path / "loaded" / "out", verify=False, **options)
    assert contents(tmp_path / "referenced") == contents(tmp_path / "loaded")


def test_tokens(tmp_path: Path) -> None:
    model = make_model("qwen3")
    fxonnx.genai.export(save(model, tmp_path / "checkpoint"), tmp_path / "out", verify=False)
    ids = prompt(2)
    assert generated(tmp_path / "out", ids) == generated_by_transformers(model, ids)


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss", "gpt_neox"])
def test_models_that_must_be_loaded(model_type: str, tmp_path: Path) -> None:
    """transformers converts names of their weights, computes buffers elsewhere, or needs values for a call."""
    source = save(make_model(model_type, **MODELS[model_type]), tmp_path / "checkpoint")
    fxonnx.genai.export(source, tmp_path / "out", verify=False)
    assert (tmp_path / "out" / "genai_config.json").is_file()


def test_a_checkpoint_without_a_weight(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = save(make_model("llama"), tmp_path / "checkpoint")
    weights = load_file(source / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(fxonnx.ArgumentError, match=r"has no weights for model\.norm\.weight"):
        fxonnx.genai.export(source, tmp_path / "out", verify=False)
    assert not (tmp_path / "out").exists()


def test_weights_of_other_shapes(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = save(make_model("llama"), tmp_path / "checkpoint")
    weights = load_file(source / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(fxonnx.ArgumentError, match=r"model\.norm\.weight has the shape \[3\], not \[64\]"):
        fxonnx.genai.export(source, tmp_path / "out", verify=False)
