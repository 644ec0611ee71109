"""Hidden states as an output, and embeddings as an input, on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

import fxonnx.genai
from fxonnx import ArgumentError
from fxonnx._cli.commands import app

from .small_models import make_model, make_tokenizer, prompt

og = pytest.importorskip("onnxruntime_genai")


def states_of(directory: Path, ids: torch.Tensor) -> list[torch.Tensor]:
    """The hidden states of a prompt and of two steps after it, in onnxruntime-genai."""
    parameters = og.GeneratorParams(model := og.Model(str(directory)))
    parameters.set_search_options(max_length=ids.shape[1] + 4, batch_size=len(ids), do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens(ids.to(torch.int32).numpy())
    found = []
    for _ in range(3):
        found.append(torch.from_numpy(generator.get_output("hidden_states").copy()))
        generator.generate_next_token()
    return [*found, torch.tensor([generator.get_sequence(row).tolist() for row in range(len(ids))])]


@pytest.mark.parametrize(
    ("model_type", "options"),
    [("llama", {}), ("llama", {"last_logits": False}), ("gpt2", {}), ("gemma2", {}), ("lfm2", {})],
    ids=str,
)
def test_hidden_states(tmp_path: Path, model_type: str, options: dict[str, Any]) -> None:
    """Of all positions, also where the logits are of the last one only."""
    layers = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}
    model = make_model(model_type, **(layers if model_type == "lfm2" else {}))
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), hidden_states=True, **options)
    ids = prompt(1) if model_type == "lfm2" else torch.cat([prompt(1), prompt(2)])
    *found, tokens = states_of(tmp_path, ids)
    with torch.no_grad():
        expected = model.base_model(tokens).last_hidden_state
    torch.testing.assert_close(found[0], expected[:, : ids.shape[1]], atol=1e-3, rtol=1e-3)
    # The first token is chosen without another run.
    torch.testing.assert_close(found[2], expected[:, ids.shape[1] :][:, :1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("model_type", "options"),
    [("llama", {}), ("gpt2", {}), ("gemma2", {}), ("llama", {"precision": "int8"})],
    ids=str,
)
def test_embeddings_as_inputs(tmp_path: Path, model_type: str, options: dict[str, Any]) -> None:
    """Soft prompts: embeddings that are those of no tokens."""
    model = make_model(model_type)
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), inputs_embeds=True, hidden_states=True, **options)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    inputs = {value.name: value for value in session.get_inputs()}
    assert "input_ids" not in inputs
    config = json.loads((tmp_path / "genai_config.json").read_text())["model"]["decoder"]["inputs"]
    assert config["inputs_embeds"] == "inputs_embeds"
    embedding = onnxruntime.InferenceSession(tmp_path / "embedding.onnx", providers=["CPUExecutionProvider"])
    ids = torch.cat([prompt(1), prompt(2), prompt(3)])
    embeddings = torch.from_numpy(embedding.run(None, {"input_ids": ids.numpy()})[0])
    tolerance = 1e-4 if not options else 0.05
    with torch.no_grad():
        torch.testing.assert_close(embeddings, model.get_input_embeddings()(ids), atol=1e-5, rtol=1e-5)
        embeddings = embeddings + torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0)) * 0.02
        expected = model(inputs_embeds=embeddings).logits[:, -1:]
    feeds = {
        "inputs_embeds": embeddings.numpy(),
        "attention_mask": torch.ones_like(ids).numpy(),
        "position_ids": torch.arange(ids.shape[1]).expand(ids.shape).numpy(),
    }
    for name, value in inputs.items():
        if name.startswith("past_key_values."):
            feeds[name] = torch.zeros(len(ids), value.shape[1], 0, value.shape[3]).numpy()
    logits = session.run(["logits"], {name: feeds[name] for name in inputs})[0]
    difference = (torch.from_numpy(logits) - expected).abs().max() / (expected.max() - expected.min())
    assert difference < tolerance


def test_options_of_the_command(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path / "checkpoint")
    make_tokenizer().save_pretrained(tmp_path / "checkpoint")
    command = ["genai", str(tmp_path / "checkpoint"), "-o", str(tmp_path / "out"), "--hidden-states", "--inputs-embeds"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    outputs = [
        value.name for value in onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph.output
    ]
    assert "hidden_states" in outputs


def test_mistakes(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    with pytest.raises(ArgumentError, match="inputs_embeds: adapters are not supported with it"):
        fxonnx.genai.export(
            make_model("llama"), tmp_path / "out", tokenizer=tokenizer, inputs_embeds=True, adapters={"a": tmp_path}
        )
    for argument in ("hidden_states", "inputs_embeds"):
        with pytest.raises(ArgumentError, match=f"{argument}: supported for decoder-only models only"):
            fxonnx.genai.export(
                make_model("llama"), tmp_path / "out", tokenizer=tokenizer, pooling="mean", **{argument: True}
            )
