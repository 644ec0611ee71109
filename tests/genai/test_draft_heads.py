"""Heads for multi-token prediction, against transformers' own: ``generate(use_mtp=True)``."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import fxonnx.genai
from fxonnx import ArgumentError, VerificationError
from fxonnx._cli.commands import app
from fxonnx._transformers.sessions import session_for

from .small_models import make_model, make_tokenizer, prompt

JOB = Path(__file__).parents[2] / "examples" / "jobs" / "draft_tokens.py"

pytest.importorskip("onnxruntime_genai")
pytest.importorskip("transformers", minversion="5.23")

_EXPERTS = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
_GROUPS = {"n_group": 1, "topk_group": 1}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
_LAYERS = ["full_attention", "sliding_attention"]
SIZES: dict[str, dict[str, Any]] = {
    "glm4_moe": {**_EXPERTS, **_GROUPS, "num_mtp_layers": 1},
    "deepseek_v3": {**_EXPERTS, **_GROUPS, **_LATENT, "num_mtp_layers": 2},
    # A layer with a window of 4 tokens.
    "mellum": {
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_mtp_layers": 1,
        "sliding_window": 4,
        "layer_types": _LAYERS,
    },
}
OWN_NAMES = {
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "eh_proj": "fc",
    "shared_head.norm": "norm",
}


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a small model with heads, whose weights have the names of published checkpoints."""
    model_type = request.param
    model = make_model(model_type, **SIZES[model_type])
    directory = tmp_path / "checkpoint"
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    generator = torch.Generator().manual_seed(1)
    block = {name.removeprefix(f"model.layers.{layers - 1}."): value for name, value in weights.items()}
    block = {name: value for name, value in block.items() if not name.startswith(("model.", "lm_head."))}
    sizes = {"enorm": (width,), "hnorm": (width,), "eh_proj": (width, 2 * width), "shared_head.norm": (width,)}
    for index in range(model.config.num_mtp_layers):
        for name, value in block.items():
            there = f"mtp.layers.{index}" if model_type == "mellum" else f"model.layers.{layers + index}"
            weights[f"{there}.{name}"] = torch.randn(value.shape, generator=generator) * 0.3
        for name, shape in sizes.items():
            path = f"mtp.{OWN_NAMES[name]}" if model_type == "mellum" else f"model.layers.{layers + index}.{name}"
            weights[f"{path}.weight"] = (
                1 + 0.3 * torch.randn(shape, generator=generator)
                if len(shape) == 1
                else (torch.randn(shape, generator=generator) * 0.1)
            )
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    if model_type != "mellum":
        # transformers knows the numbers of layers of the published models only.
        monkeypatch.setattr(type(model), "_keys_to_ignore_on_load_unexpected", [rf"model\.layers\.[{layers}-9]\."])
    return directory


def tensors_of(path: Path) -> set[tuple[str, int]]:
    """Places and lengths of the tensors outside of a file."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    entries = [{entry.key: entry.value for entry in tensor.external_data} for tensor in tensors]
    return {(found["location"] + found["offset"], int(found["length"])) for found in entries if found}


def drafted_by_transformers(model: Any, ids: torch.Tensor, new: int) -> tuple[list[int], list[int]]:
    from transformers.modeling_layers import MtpModel

    found: list[int] = []
    original = MtpModel.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        found.extend(output[0][0].tolist())
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MtpModel, "forward", forward)
        options = {"max_new_tokens": new, "do_sample": False, "eos_token_id": None}
        tokens = model.generate(ids, use_mtp=True, **options)
    assert tokens.tolist() == model.generate(ids, **options).tolist()
    return tokens[0].tolist(), found


@pytest.mark.parametrize("checkpoint", ["glm4_moe", "mellum"], indirect=True)
def test_drafts_are_those_of_transformers(checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    fxonnx.genai.export(checkpoint, tmp_path / "out", mtp=True, last_logits=False)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = prompt(1)
    generate = runpy.run_path(str(JOB))["generate"]
    tokens, drafts = generate(tmp_path / "out", ids[0].tolist(), 12)
    expected_tokens, expected = drafted_by_transformers(model, ids, 12)
    assert tokens == expected_tokens
    count = min(len(drafts), len(expected))
    assert count >= 6
    assert drafts[:count] == expected[:count]
    # The embedding and the output layer are stored once.
    shared = tensors_of(tmp_path / "out" / "model.onnx") & tensors_of(tmp_path / "out" / "mtp_0.onnx")
    table = 4 * model.config.vocab_size * model.config.hidden_size
    assert sum(length == table for _, length in shared) == 2


@pytest.mark.parametrize("checkpoint", ["deepseek_v3"], indirect=True)
def test_a_head_after_another(checkpoint: Path, tmp_path: Path) -> None:
    """The comparison while exporting runs them one after the other, with weights of 8 bits here."""
    fxonnx.genai.export(checkpoint, tmp_path / "out", mtp=True, precision="int8")
    files = sorted(path.name for path in (tmp_path / "out").glob("*.onnx"))
    assert files == ["model.onnx", "mtp_0.onnx", "mtp_1.onnx"]


@pytest.mark.parametrize("checkpoint", ["glm4_moe"], indirect=True)
def test_option_of_the_command(checkpoint: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["genai", str(checkpoint), "-o", str(tmp_path / "out"), "--mtp"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "mtp_0.onnx").exists()


@pytest.mark.parametrize("checkpoint", ["glm4_moe"], indirect=True)
def test_other_weights_are_found(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a head that is not the one of the checkpoint."""
    from transformers.modeling_layers import MtpLayer

    original = MtpLayer.forward

    def wrong(self: Any, inputs_embeds: torch.Tensor, previous_hidden_state: torch.Tensor, **more: Any) -> Any:
        scale = 1.5 if torch.compiler.is_exporting() else 1
        return original(self, inputs_embeds * scale + 0.1 * (scale - 1), previous_hidden_state * scale, **more)

    monkeypatch.setattr(MtpLayer, "forward", wrong)
    with pytest.raises(VerificationError, match=r"the logits of mtp_0.onnx differ from transformers' by"):
        fxonnx.genai.export(checkpoint, tmp_path / "out", mtp=True)
    assert not (tmp_path / "out").exists()


def test_a_head_without_keys_and_values(tmp_path: Path) -> None:
    """A layer of another kind; no type of transformers has one."""
    from transformers.modeling_layers import MtpModel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MtpModel, "from_pretrained", lambda model: MtpModel(model, 1))
        patch.setattr(MtpModel, "forward_layer", lambda self, index, states, *_, **__: states)
        model = make_model("glm4_moe", **SIZES["glm4_moe"])
        model.config.name_or_path = "checkpoint"
        with pytest.raises(ArgumentError, match="mtp: layer 0 of the heads keeps no keys and values"):
            fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), mtp=True)


def test_an_older_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("transformers.modeling_layers.MtpModel")
    with pytest.raises(
        ArgumentError, match=r"mtp: transformers has no layers for it\nhint: update transformers to 5.23 or later"
    ):
        fxonnx.genai.export(make_model("llama"), tmp_path / "out", tokenizer=make_tokenizer(), mtp=True)


def test_inputs_that_numpy_does_not_have(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.BFLOAT16, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BFLOAT16, [1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "graph", [value], [result])
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "model.onnx")
    with pytest.raises(ArgumentError, match=r"mtp: x is a tensor\(bfloat16\)\nhint: pass verify=False"):
        session_for("mtp", tmp_path / "model.onnx")


def test_mistakes(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    with pytest.raises(ArgumentError, match=r"mtp: LlamaForCausalLM .* has no layers for it in transformers"):
        fxonnx.genai.export(make_model("llama"), tmp_path / "out", tokenizer=tokenizer, mtp=True)
    model = make_model("glm4_moe", **SIZES["glm4_moe"])
    with pytest.raises(
        ArgumentError, match=r"was not loaded from a checkpoint\nhint: pass the directory of a checkpoint with them"
    ):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=tokenizer, mtp=True)
    model.save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(ArgumentError, match=r"mtp: the layers of Glm4MoeForCausalLM .* cannot be loaded: "):
        fxonnx.genai.export(tmp_path / "checkpoint", tmp_path / "out", tokenizer=tokenizer, mtp=True)
    with pytest.raises(ArgumentError, match="mtp: adapters are not supported with it"):
        fxonnx.genai.export(
            make_model("llama"), tmp_path / "out", tokenizer=tokenizer, mtp=True, adapters={"a": tmp_path}
        )
    with pytest.raises(ArgumentError, match="mtp: supported for decoder-only models only"):
        fxonnx.genai.export(make_model("llama"), tmp_path / "out", tokenizer=tokenizer, pooling="mean", mtp=True)
