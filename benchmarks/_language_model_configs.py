"""Small configurations of all causal language models of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from tests.genai.small_models import VOCABULARY
from tests.models.torchvision_shim import import_torchvision

__all__ = ["PARTS_OF_OTHERS", "SIZES", "all_types", "has", "make_type", "plain", "with_random_weights"]

Options = Mapping[str, Any]

SIZES: Options = MappingProxyType(
    {
        **{"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        "tie_word_embeddings": False,  # a model with equal ones would often repeat its last token
        **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256},
        **{"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1, "attention_chunk_size": 8},
        # Mixtures of experts.
        **{"num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "moe_num_experts": 4},
        **{"num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "n_group": 2, "topk_group": 1},
        **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "first_k_dense_replace": 1},
        **{"num_shared_experts": 1, "n_shared_experts": 1},
        # Latent attention.
        **{"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16},
    }
)
"""Settings of the types that have them: caches would read a window that a model does not have."""

_HYBRID: Options = {"layer_types": ["linear_attention", "full_attention"]}
_LINEAR: Options = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **_HYBRID,
}
_SCALAR: Options = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2}
_LATENT: Options = {"num_key_value_heads": 4, "head_dim": 8}
# With few heads, many tokens have the score 0, and it is not defined which of equal ones are selected.
_INDEXER: Options = {
    **{**_LATENT, "index_n_heads": 16, "index_head_dim": 16, "index_topk": 8, "q_lora_rank": 16, "kv_lora_rank": 32},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16},
}
_NOTE: Options = {
    **{**_INDEXER, "shared_experts_intermediate_size": 32, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4},
    **{"swa_q_lora_rank": 16, "swa_kv_lora_rank": 16, "swa_head_dim": 16, "swa_qk_nope_head_dim": 8},
    **{"swa_qk_rope_head_dim": 8, "swa_v_head_dim": 16, "attention_chunk_size": ...},
}
_BOTH: Options = {"layer_types": ["sliding_attention", "full_attention"]}
_ENCODER: Options = {"is_decoder": True, "embedding_size": 64}
_DECODER: Options = {
    **{"is_decoder": True, "is_encoder_decoder": False, "d_model": 64, "encoder_layers": 1, "decoder_layers": 2},
    **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
}
_GPT: Options = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
_VISION: Options = {
    **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 28, "patch_size": 14},
}
_GEMMA3N: Options = {
    **{"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2},
    **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "laurel_rank": 8},
    "activation_sparsity_pattern": None,
}
_GEMMA4: Options = {
    **{"global_head_dim": 32, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY},
    **_BOTH,
}

_DRAFT = "a draft model, which reads the states of another model"
_COMPOSED = "transformers makes no language model of the configuration"
PARTS_OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), _DRAFT),
    **dict.fromkeys(("musicgen", "musicgen_melody", "evolla"), _COMPOSED),
    "pi0": "it returns actions of a robot, not tokens",
}
"""Types that are not models of their own, with the reason."""

_PARTS = ("text_config", "encoder_config", "decoder_config", "global_config", "patcher_config")
"""Configurations that are parts of another one, and that have the same settings."""

_EXPERIMENTAL: Options = {
    **{**_LINEAR, "hc_count": 2, "hc_lowrank": 8, "indexer_n_heads": 2, "indexer_kv_heads": 1},
    **{"indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 2},
}
_OVERRIDES: Mapping[str, Options] = {
    **dict.fromkeys(
        (
            *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
            *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
            *("xlm-roberta", "xlm-roberta-xl"),
        ),
        _ENCODER,
    ),
    "xmod": {**_ENCODER, "languages": ["en"], "default_language": "en"},
    "reformer": {
        **_ENCODER,
        **{"attn_layers": ["local", "lsh"], "axial_pos_embds_dim": [32, 32], "axial_pos_shape": [16, 16]},
        **{"feed_forward_size": 64, "attention_head_size": 16, "num_buckets": 4},
    },
    **dict.fromkeys(
        (
            *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus"),
            *("plbart", "trocr"),
        ),
        _DECODER,
    ),
    "whisper": {**_DECODER, "max_target_positions": 256, "suppress_tokens": None, "begin_suppress_tokens": None},
    "prophetnet": {
        **{"num_hidden_layers": ..., "hidden_size": 64, "add_cross_attention": False},
        **{"is_decoder": True, "num_encoder_layers": 1, "num_decoder_layers": 2, "num_encoder_attention_heads": 4},
        **{"num_decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
        "is_encoder_decoder": False,
    },
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"), _LATENT),
    "dots3_note": {
        "text_config": _NOTE,
        "vision_config": {**_VISION, "num_hidden_layers": 42, "adapter_in_dim": 16, "adapter_out_dim": 64},
        "audio_config": {
            **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"downsample_hidden_size": 8, "adapter_input_size": 16, "adapter_out_dim": 64},
        },
    },
    "dots3_note_text": _NOTE,
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), _INDEXER),
    "longcat_flash": {
        **_LATENT,
        **{"num_layers": 1, "ffn_hidden_size": 64, "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "head_dim": 8},
    },
    **dict.fromkeys(("gemma2", "gemma3_text", "lfm3", "olmo3"), _BOTH),
    "cohere_compass_text": {
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
        },
    },
    "bailing_hybrid": {**_LATENT, **_HYBRID, "head_dim": 8, "num_hidden_layers": 2, "first_k_dense_replace": 1},
    "kimi_linear": {**_LATENT, **_HYBRID, "linear_head_dim": 16, "linear_num_heads": 4, "first_k_dense_replace": 1},
    "bamba": {**_SCALAR, "attn_layer_indices": [1]},
    "falcon_h1": {**_SCALAR, "mamba_d_ssm": 128},
    "falcon_mamba": {"state_size": 8},
    "granitemoehybrid": {**_SCALAR, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    "granitemoeshared": {"shared_intermediate_size": 32},
    "jamba": {
        **{"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
        "mamba_d_state": 8,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2},
    "nemotron_h": {
        **{"layers_block_type": ["mamba", "attention", "moe"], "mamba_num_heads": 8, "mamba_head_dim": 16},
        **{"n_groups": 2, "ssm_state_size": 8, "moe_shared_expert_intermediate_size": 32, "num_hidden_layers": 3},
    },
    "recurrent_gemma": {
        **{"attention_window_size": 8, "lru_width": 64, "num_hidden_layers": 3},
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "num_hidden_layers": 4},
    "zamba2": {
        **{"layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1, "n_mamba_heads": 8},
        **{"mamba_d_state": 8, "mamba_ngroups": 1},
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 32},
    "qwen3_next": _LINEAR,
    "qwen3_5_text": _LINEAR,
    "qwen3_5_moe_text": _LINEAR,
    "qwen3_5": {"text_config": _LINEAR},
    "qwen3_5_moe": {"text_config": _LINEAR},
    "qwen4_exp_text": _EXPERIMENTAL,
    "qwen4_exp": {"text_config": _EXPERIMENTAL},
    "olmo_hybrid": _LINEAR,
    "codegen": {**_GPT, "rotary_dim": 8},
    "gptj": {**_GPT, "rotary_dim": 8},
    "ctrl": {"dff": 64},
    "falcon": {"alibi": False, "head_dim": ...},
    "gpt_neo": {
        **{"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    },
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 64},
    "biogpt": {},
    "xglm": {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64},
    "xlm": {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "causal": True, "pad_index": 0},
    "xlnet": {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 64, "max_position_embeddings": ...},
    "xlstm": {"num_blocks": 2, "num_heads": 4, "qk_dim_factor": 0.5, "v_head_dim": ...},
    "rwkv": {"attention_hidden_size": 64},
    "modernbert-decoder": {"local_attention": 8, "global_attn_every_n_layers": 2},
    "phi4_multimodal": {
        "vision_config": {
            **{**_VISION, "image_size": 16, "crop_size": 16, "patch_size": 4, "num_hidden_layers": 2},
            "image_token_id": 298,  # which it does not generate
        },
        **{"audio_config": {"hidden_size": 16, "intermediate_size": 16, "num_blocks": 1, "num_attention_heads": 2}},
    },
    "cpmant": {"dim_head": 16, "dim_ff": 64, "prompt_types": 4, "prompt_length": 4, "segment_types": 4},
    "dbrx": {
        **{"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},
        **{"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
        **{"ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64}},
    },
    "gemma3": {
        "text_config": {**_BOTH, "max_position_embeddings": 600},
        "vision_config": {**_VISION, "image_size": 64, "patch_size": 4},
        **{"mm_tokens_per_image": 256, "image_token_id": 299},
    },
    "gemma3n_text": _GEMMA3N,
    "gemma3n": {
        "text_config": _GEMMA3N,
        "audio_config": {
            **{"hidden_size": 16, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 1, "vocab_size": 8},
            **{"sscp_conv_channel_size": [4, 4], "vocab_offset": 292},
        },
        "vision_config": {
            **{"architecture": "test_convnext", "model_args": {}, "hidden_size": 64, "vocab_size": 4},
            "vocab_offset": 288,
        },
        **{"image_token_id": 299, "audio_token_id": 297, "vision_soft_tokens_per_image": 25},
    },
    "gemma4_text": _GEMMA4,
    "gemma4": {"text_config": _GEMMA4, "vision_config": None, "audio_config": None},
    "gemma4_unified": {"text_config": _BOTH},
    "fuyu": {"text_config": {"model_type": "persimmon"}},
    "git": {"vision_config": _VISION},
    "got_ocr2": {"text_config": {}, "vision_config": {**_VISION, "output_channels": 16}, "image_token_id": 299},
    "emu3": {"text_config": {}},
    "llama4": {"text_config": {"intermediate_size_mlp": 64, "num_experts_per_tok": 1}},
    "llama4_text": {"intermediate_size_mlp": 64, "num_experts_per_tok": 1},
    "mllama": {"text_config": {"cross_attention_layers": []}},
    "moshi": {"ffn_dim": 64, "audio_vocab_size": 32},
    "moss_transcribe_diarize": {
        "text_config": {"model_type": "qwen3"},
        "audio_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    },
    "blt": {f"{part}_config": {"hidden_size_global": 64} for part in ("encoder", "decoder", "global", "patcher")},
}


def all_types() -> list[str]:
    """The types of ``AutoModelForCausalLM``."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def make_type(model_type: str) -> Any:
    """A model of a type with random weights that make its tokens differ.

    Args:
        model_type: A type of ``AutoModelForCausalLM``.
    """
    import_torchvision()  # towers of timm import it
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        model_type, **_settings(AutoConfig.for_model(model_type), _OVERRIDES.get(model_type, {}))
    )
    torch.manual_seed(0)
    return with_random_weights(AutoModelForCausalLM.from_config(config))


def with_random_weights(model: Any) -> Any:
    """The model with weights that make its tokens differ."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = 2
    model.generation_config.forced_eos_token_id = None  # the last token of Bart
    return model


def _settings(default: Any, overrides: Options) -> dict[str, Any]:
    """The settings of a configuration, with its parts.

    Args:
        default: The configuration without settings.
        overrides: Settings of the type; ``...`` leaves one out.
    """
    known = {name: value for name, value in SIZES.items() if has(default, name)}
    given = {
        name: _settings(getattr(default, name), value) if name in _PARTS else value for name, value in overrides.items()
    }
    return {name: plain(value) for name, value in {**known, **given}.items() if value is not ...}


def has(config: Any, name: str) -> bool:
    try:
        getattr(config, name)
    except AttributeError:
        return False
    except Exception:  # noqa: BLE001 - it has a value for each layer
        return True
    return True


def plain(options: Any) -> Any:
    """A copy in dicts and lists, which configurations may change."""
    if isinstance(options, Mapping):
        return {key: plain(value) for key, value in options.items()}
    return [*map(plain, options)] if isinstance(options, (list, tuple)) else options
