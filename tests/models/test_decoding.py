"""Decoding: a model exported once with a past runs in a loop from an empty past and agrees with ``generate``."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from packaging.version import Version

import fxonnx
from fxonnx._capture.inputs.pytree_objects import object_parts

from .torchvision_shim import import_torchvision

import_torchvision()
transformers = pytest.importorskip("transformers")

SMALL = MappingProxyType(
    {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
)
GPT: Mapping[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MOE: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT: Mapping[str, Any] = {
    **{"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    **{"n_routed_experts": 4, "first_k_dense_replace": 1, "num_key_value_heads": 4, **MOE},
}
# Shorter than the generated sequences.
WINDOW: Mapping[str, Any] = {"sliding_window": 4}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "Bloom": {"n_layer": 2, "n_head": 4},
    "CodeGen": {**GPT, "rotary_dim": 4},
    "Cohere": {},
    "Cohere2": WINDOW,
    "DeepseekV2": {**LATENT, "topk_method": "greedy"},
    "DeepseekV3": {**LATENT, "n_group": 2, "topk_group": 1},
    "Ernie4_5": {"head_dim": 8},
    "Falcon": {"new_decoder_architecture": False, "multi_query": True, "alibi": False},
    "Gemma": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, **WINDOW},
    "Gemma3": {"head_dim": 8, **WINDOW},
    "Glm": {"head_dim": 8},
    "GPT2": GPT,
    "GPTJ": {**GPT, "rotary_dim": 4},
    "GPTNeoX": {},
    "GptOss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, **WINDOW},
    "Granite": {},
    "Helium": {"head_dim": 8},
    "Llama": {},
    "Mistral": WINDOW,
    "Mixtral": {"num_local_experts": 4},
    "Nemotron": {},
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "Olmo": {},
    "Olmo2": {},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Phi": {},
    "Phi3": {},
    "Qwen2": {},
    "Qwen2Moe": {"num_experts": 4, "shared_expert_intermediate_size": 32, **MOE},
    "Qwen3": {"head_dim": 8},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, **MOE},
    "StableLm": {},
}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
CLASSES = {"GPT2": "GPT2LMHeadModel"}


def _model(name: str) -> torch.nn.Module:
    config = getattr(transformers, CONFIGS.get(name, f"{name}Config"))(**{**SMALL, **MODELS[name]})
    torch.manual_seed(0)
    model: torch.nn.Module = getattr(transformers, CLASSES.get(name, f"{name}ForCausalLM"))(config)
    return model.eval()


def _step(model: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of a step of two tokens after six others, and their dynamic shapes.

    The windows are full, so that the captured mask is sliced to them, which is also correct before they are full.
    """
    tokens = torch.randint(3, 50, (2, 8))
    with torch.no_grad():
        cache = model(input_ids=tokens[:, :6], use_cache=True).past_key_values
    parts = object_parts(cache)
    past = {name: {0: "batch", 2: "past"} for name, part in parts.items() if isinstance(part, torch.Tensor)}
    inputs = {"input_ids": tokens[:, 6:], "attention_mask": torch.ones_like(tokens), "past_key_values": cache}
    return inputs, {
        "input_ids": {0: "batch", 1: "tokens"},
        "attention_mask": {0: "batch", 1: "total"},
        "past_key_values": past,
    }


def _generated(session: onnxruntime.InferenceSession, tokens: np.ndarray, count: int) -> np.ndarray:
    """Greedy decoding from an empty past."""
    state = {
        given.name: np.zeros(
            [
                size if isinstance(size, int) else len(tokens) if axis == 0 else 0
                for axis, size in enumerate(given.shape)
            ],
            np.float32 if given.type == "tensor(float)" else np.int64,
        )
        for given in session.get_inputs()
        if given.name.startswith("past_key_values.")
    }
    names = [made.name for made in session.get_outputs()]
    found, new = tokens, tokens
    for _ in range(count):
        feeds = {"input_ids": new, "attention_mask": np.ones_like(found), **state}
        made = dict(zip(names, session.run(None, feeds), strict=True))
        new = made["logits"][:, -1].argmax(-1)[:, None]
        found = np.concatenate([found, new], 1)
        state = {name: made[name.replace("past_key_values", "present", 1)] for name in state}
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.xfail(
                name == "DeepseekV2" and Version(transformers.__version__) < Version("5"),
                raises=fxonnx.CaptureError,
                reason="ours: a list to which a branch on data adds items, of which a loop over the experts consists",
            ),
        )
        for name in MODELS
    ],
)
def test_greedy_tokens_agree_with_generate(name: str) -> None:
    model = _model(name)
    inputs, shapes = _step(model)
    file = BytesIO()
    fxonnx.export(model, (), file, kwargs=inputs, dynamic_shapes=shapes)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    tokens = torch.randint(3, 50, (3, 2))
    expected = model.generate(tokens, max_new_tokens=8, do_sample=False)
    assert _generated(session, tokens.numpy(), 8).tolist() == expected.tolist()


@pytest.mark.xfail(
    Version(onnxruntime.__version__) < Version("1.24"),
    raises=fxonnx.RuntimeSessionError,
    reason="ort: Attention of 1.23 has no present keys without past ones; its default opset, 20, has no Attention",
)
@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_the_first_step_creates_the_cache(name: str) -> None:
    """The keys and values are concatenated to empty tensors of rank 1, with which a cache begins."""
    model = _model(name)
    kwargs = {"input_ids": torch.randint(3, 50, (2, 6)), "use_cache": True}
    shapes = {"input_ids": {0: "batch", 1: "tokens"}, "use_cache": None}
    plain, fused = (
        fxonnx.export(model, kwargs=kwargs, dynamic_shapes=shapes, opset_version=opset) for opset in (20, 23)
    )
    assert any(node.op_type == "Attention" for node in fused.model.graph)
    plain.verify(sizes="auto")
    fused.verify(sizes="auto")
