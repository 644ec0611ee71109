"""Decoder-only models: tokens in onnxruntime-genai equal transformers'."""

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
# The second layer has attention.
SCALAR: Mapping[str, Any] = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2}
LINEAR: Mapping[str, Any] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "layer_types": ["linear_attention", "full_attention"],
}
# Keys and values in the cache have different sizes.
LATENT: Mapping[str, Any] = {
    **{"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    **{"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4},
    **{"moe_intermediate_size": 32, "num_experts_per_tok": 2, "head_dim": 8},
}
GPT: Mapping[str, Any] = {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 128}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**SCALAR, "attn_layer_indices": [1]},
    "bloom": {"n_layer": 1, "n_head": 4},
    "cohere": {},
    "cohere2": WINDOW,
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "ernie4_5": HEAD,
    "falcon": {"new_decoder_architecture": False, "multi_query": True, "alibi": False},
    "falcon_h1": {**SCALAR, **HEAD, "mamba_d_ssm": 128},
    "falcon_mamba": {"state_size": 8},
    "gemma": HEAD,
    "gemma2": {**HEAD, **WINDOW},
    "gemma3_text": {**HEAD, **WINDOW},
    # The last two layers use the keys and values of the first ones.
    "gemma3n_text": {
        **{**HEAD, **WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4},
        **{"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300},
        **{"laurel_rank": 8, "activation_sparsity_pattern": None},
    },
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
    "granitemoehybrid": {**SCALAR, **EXPERTS, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    "hunyuan_v1_dense": HEAD,
    "jamba": {
        **{"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
        **{"num_experts": 4, "mamba_d_state": 8},
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_experts": 4, "num_dense_layers": 1, **MOE},
    "llama": {},
    "llama4_text": {
        **HEAD,
        **EXPERTS,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 64,
        "attention_chunk_size": 4,
    },
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2},
    "mimo_v2_flash": {**HEAD, **MOE, **WINDOW, "n_routed_experts": 4, "swa_head_dim": 16, "v_head_dim": 8},
    "mistral": WINDOW,
    "mixtral": EXPERTS,
    "nemotron": {},
    "nemotron_h": {
        **{**HEAD, "hybrid_override_pattern": "M*-", "num_hidden_layers": 3, "mamba_num_heads": 8},
        **{"mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 8},
    },
    "olmo": {},
    "olmo2": {},
    "olmo_hybrid": LINEAR,
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 64},
    "phi": {},
    "phi3": {},
    "phimoe": EXPERTS,
    "qwen2": {},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 32, **MOE},
    "qwen3": HEAD,
    "qwen3_5_text": {**HEAD, **LINEAR},
    "qwen3_moe": {**HEAD, **MOE, "num_experts": 4},
    "qwen3_next": {**HEAD, **LINEAR, "mlp_only_layers": [0, 1]},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": WINDOW,
    "zamba2": {
        **{"layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1, "n_mamba_heads": 8},
        **{"mamba_d_state": 8, "mamba_ngroups": 1},
    },
}

ROPE: Mapping[str, Any] = {"rope_theta": 10000.0, "factor": 4.0}
YARN: Mapping[str, Any] = {"rope_type": "yarn", "original_max_position_embeddings": 32}
LLAMA3: Mapping[str, Any] = {
    **{"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 32,
}
LONG: Mapping[str, Any] = {
    **{"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32},
    "short_factor": [1.0 + 0.1 * index for index in range(8)],
    "long_factor": [2.0 + index for index in range(8)],
}

ROTARY: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "linear": ("llama", {"rope_parameters": {**ROPE, "rope_type": "linear"}}),
    "dynamic": ("llama", {"max_position_embeddings": 32, "rope_parameters": {**ROPE, "rope_type": "dynamic"}}),
    "llama3": ("llama", {"rope_parameters": {**ROPE, **LLAMA3}}),
    "longrope": ("phi3", {"original_max_position_embeddings": 32, "rope_parameters": LONG}),
    "longrope with factors": (
        "phimoe",
        {**EXPERTS, "rope_parameters": {**LONG, "short_mscale": 1.1, "long_mscale": 1.3}},
    ),
    "yarn": ("qwen3", {**HEAD, "rope_parameters": {**ROPE, **YARN}}),
}
"""Scaling of rotary embeddings beyond the length of 32 that the model was trained with."""

DISTINCT = frozenset({"gemma2", "gemma3_text", "gemma4_text", "cohere2", "gpt_oss", "llama", "smollm3"})
"""Types whose layers differ without a setting of the table, and one of the others; further ones have one layer."""

# Its own masks count padding as a part of the window: the model takes one prompt, with a warning.
PADDING_IN_WINDOW = {"gpt_neo"}


def sizes_of(model_type: str) -> Mapping[str, Any]:
    """The table's settings, with one layer if all layers of the type are equal."""
    sizes = MODELS[model_type]
    is_uniform = not any("layer" in name or name.startswith(("attn_", "hybrid_", "mlp_only")) for name in sizes)
    return {"num_hidden_layers": 1, **sizes} if is_uniform and model_type not in DISTINCT else sizes


@pytest.mark.parametrize("model_type", MODELS)
def test_tokens_are_equal(model_type: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the exported model is valid only")
        if model_type not in PADDING_IN_WINDOW:
            warnings.filterwarnings("error", message="the model takes one prompt at a time")
        model = export_small(tmp_path, model_type, sizes=sizes_of(model_type))
    for batch in (1, 3) if model_type not in PADDING_IN_WINDOW else (1,):
        ids = prompt(batch)
        assert generated(tmp_path, ids) == generated_by_transformers(model, ids)
    if model_type not in PADDING_IN_WINDOW:
        assert generated(tmp_path, padded(left=False)) == generated_by_transformers(model, padded(left=True))


@pytest.mark.filterwarnings("ignore:sequences that exceed 32 tokens")
@pytest.mark.parametrize("scaling", ROTARY)
def test_scaled_rotary_embeddings(scaling: str, tmp_path: Path) -> None:
    model_type, sizes = ROTARY[scaling]
    model = export_small(tmp_path, model_type, sizes=sizes)
    # The second one exceeds the length at the first token. Longer sequences would change the next ones in transformers.
    for ids in (prompt(1, 6), padded(left=False), prompt(1, 40)):
        left = padded(left=True) if len(ids) == 3 else ids
        assert generated(tmp_path, ids, 12) == generated_by_transformers(model, left, 12)


@pytest.mark.parametrize("model_type", ["phi3", "phimoe"])
def test_a_sequence_that_exceeds_the_original_length(model_type: str, tmp_path: Path) -> None:
    """Both libraries then compute its cache again."""
    scaling = {**LONG, "original_max_position_embeddings": 4096, "short_mscale": 1.1, "long_mscale": 1.3}
    lengths = {"original_max_position_embeddings": 4096, "max_position_embeddings": 8192}
    sizes = {**EXPERTS, **lengths, "rope_parameters": scaling, "num_hidden_layers": 1, "num_key_value_heads": 1}
    model = export_small(tmp_path, model_type, sizes={**sizes, "hidden_size": 32, "num_attention_heads": 2})
    ids = prompt(1, 4090)
    assert generated(tmp_path, ids, 12) == generated_by_transformers(model, ids, 12)


def test_the_cache_is_not_computed_again_at_other_lengths(tmp_path: Path) -> None:
    sizes = {"original_max_position_embeddings": 32, "rope_parameters": LONG, "num_hidden_layers": 1}
    with pytest.warns(
        UserWarning, match="sequences that exceed 32 tokens while they are generated continue with other"
    ):
        export_small(tmp_path, "phi3", sizes=sizes)
