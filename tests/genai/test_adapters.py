"""LoRA adapters in onnxruntime-genai: several of them over one base model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fxonnx.genai
from fxonnx import ArgumentError
from fxonnx._cli.commands import app

from .small_models import generated, generated_by_transformers, make_model, make_tokenizer, prompt

og = pytest.importorskip("onnxruntime_genai")
peft = pytest.importorskip("peft")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint with two adapters."""
    directory = tmp_path_factory.mktemp("lora")
    make_model("llama").save_pretrained(directory / "base")
    make_tokenizer().save_pretrained(directory / "base")
    for name, rank, alpha in (("english", 2, 8), ("german", 4, 4)):
        model = peft.get_peft_model(
            make_model("llama"),
            peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=["q_proj", "v_proj", "up_proj"]),
        )
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_" in key:
                    parameter.normal_(0, 0.3)
        model.save_pretrained(directory / name)
    return directory


def test_adapters_over_one_base(directory: Path, tmp_path: Path) -> None:
    adapters = {name: directory / name for name in ("english", "german")}
    qualities: list[Any] = []
    fxonnx.genai.export(directory / "base", tmp_path, adapters=adapters, on_quality=qualities.append)
    found = {name: generated(tmp_path, prompt(3), adapter=name) for name in (None, *adapters)}
    expected: dict[str | None, Any] = {None: generated_by_transformers(make_model("llama"), prompt(3))}
    for name in adapters:
        model = peft.PeftModel.from_pretrained(make_model("llama"), directory / name)
        expected[name] = generated_by_transformers(model, prompt(3))
    assert found == expected
    assert len({str(tokens) for tokens in expected.values()}) == 3
    assert qualities[0].kl < 1e-5


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed", "ignore:Adapter 'default'")
def test_adapters_of_different_layers(directory: Path, tmp_path: Path) -> None:
    """Layers that an adapter does not have are those of the base model; ranks and scalings differ by layer."""
    configs: dict[str, dict[str, Any]] = {
        "attention": {"r": 4, "lora_alpha": 2, "target_modules": ["q_proj", "o_proj"]},
        "mlp": {"r": 2, "lora_alpha": 8, "target_modules": ["up_proj", "down_proj"], "use_rslora": True},
        "first": {"r": 2, "target_modules": ["q_proj"], "layers_to_transform": [0], "rank_pattern": {"q_proj": 8}},
        "tokens": {"r": 3, "lora_alpha": 3, "target_modules": ["embed_tokens", "v_proj"]},
    }
    for name, config in configs.items():
        model = peft.get_peft_model(make_model("llama"), peft.LoraConfig(**config))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_" in key:
                    parameter.normal_(0, 0.3)
        model.save_pretrained(tmp_path / name)
    adapters = {name: tmp_path / name for name in configs} | {"german": directory / "german"}
    fxonnx.genai.export(directory / "base", tmp_path / "out", adapters=adapters)
    found = {name: generated(tmp_path / "out", prompt(3), adapter=name) for name in (None, *adapters)}
    expected: dict[str | None, Any] = {None: generated_by_transformers(make_model("llama"), prompt(3))}
    for name, path in adapters.items():
        model = peft.PeftModel.from_pretrained(make_model("llama"), path)
        expected[name] = generated_by_transformers(model, prompt(3))
    assert found == expected
    assert len({str(tokens) for tokens in expected.values()}) == len(expected)
    biased = peft.get_peft_model(make_model("llama"), peft.LoraConfig(target_modules=["v_proj"], lora_bias=True))
    biased.save_pretrained(tmp_path / "biased")
    unequal = {"biased": tmp_path / "biased", "mlp": tmp_path / "mlp"}
    with pytest.raises(ArgumentError, match=r"'biased' has weights that are not inputs of .*lora_B\.biased\.bias"):
        fxonnx.genai.export(directory / "base", tmp_path / "none", adapters=unequal)
    again = tmp_path / "again"
    fxonnx.genai.export(directory / "base", again, adapters=adapters, verify=False)
    assert [path.name for path in sorted(again.iterdir())] == [
        path.name for path in sorted((tmp_path / "out").iterdir())
    ]
    for path in again.glob("*.onnx*"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_invalid_adapters(directory: Path, tmp_path: Path) -> None:
    model, tokenizer = make_model("llama"), make_tokenizer()
    before = [name for name, _ in model.named_parameters()]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"a": directory / "base"}, r"adapters: .*base has no adapter_config.json"),
        ({"a.b": directory / "german"}, r"adapters: 'a.b' cannot be the name of an adapter"),
        ({"a": directory / "germam"}, r"hint: did you mean 'german'\?"),
    ]
    for adapters, match in cases:
        with pytest.raises(ArgumentError, match=match):
            fxonnx.genai.export(model, tmp_path / "out", tokenizer=tokenizer, adapters=adapters)
    other = make_model("llama", hidden_size=16)
    with pytest.raises(ArgumentError, match=r"adapters: .*german cannot be loaded: "):
        fxonnx.genai.export(other, tmp_path / "out", tokenizer=tokenizer, adapters={"a": directory / "german"})
    done = CliRunner().invoke(
        app, ["genai", str(directory / "base"), "-o", str(tmp_path / "out"), "--adapter", "german"]
    )
    assert done.exit_code == 2
    assert "'german' is not NAME=DIR" in done.output
    assert [name for name, _ in model.named_parameters()] == before
    assert not list(tmp_path.iterdir())
