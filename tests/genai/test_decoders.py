"""Decoder-only models: tokens in onnxruntime-genai equal those of transformers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from .small_models import export_small, generated, generated_by_transformers, padded, prompt

pytest.importorskip("onnxruntime_genai")

MOE: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
EXPERTS: Mapping[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
# Shorter than the generated sequences.
WINDOW: Mapping[str, Any] = {"sliding_window": 4}
HEAD: Mapping[str, Any] = {"head_dim": 16}
GPT: Mapping[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "cohere": {},
    "cohere2": WINDOW,
    "ernie4_5": HEAD,
    "falcon": {"new_decoder_architecture": False, "multi_query": True, "alibi": False},
    "gemma": HEAD,
    "gemma2": {**HEAD, **WINDOW},
    "gemma3_text": {**HEAD, **WINDOW},
    "gemma4_text": {**HEAD, "global_head_dim": 32, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300},
    "gpt2": GPT,
    "gpt_neo": {
        **{"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4},
        "hidden_size": 64,
    },
    "gpt_neox": {},
    "gpt_oss": {**HEAD, **WINDOW, **EXPERTS},
    "granite": {},
    "granitemoe": EXPERTS,
    "hunyuan_v1_dense": HEAD,
    "llama": {},
    "mistral": WINDOW,
    "mixtral": EXPERTS,
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 64},
    "phi": {},
    "phi3": {},
    "phimoe": EXPERTS,
    "qwen2": {},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 32, **MOE},
    "qwen3": HEAD,
    "qwen3_moe": {**HEAD, **MOE, "num_experts": 4},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": WINDOW,
}

# Local attention that is not fused counts padding as a part of the window; the comparison of the export warns.
PADDING_IN_WINDOW = {"gpt_neo"}


@pytest.mark.parametrize("model_type", MODELS)
def test_tokens_are_equal(model_type: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the exported model is valid only")
        model = export_small(tmp_path, model_type, sizes=MODELS[model_type])
    for batch in (1, 3):
        ids = prompt(batch)
        assert generated(tmp_path, ids) == generated_by_transformers(model, ids)
    if model_type not in PADDING_IN_WINDOW:
        assert generated(tmp_path, padded(left=False)) == generated_by_transformers(model, padded(left=True))
