"""Small configurations of all types of transformers that generate text from images, audio or a source text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tests.genai.small_models import VOCABULARY
from tests.models.torchvision_shim import import_torchvision

from ._language_model_configs import SIZES, has, plain, with_random_weights

__all__ = ["CLASSES", "make_multimodal", "multimodal_types"]

Options = Mapping[str, Any]

CLASSES: Mapping[str, str] = {
    "AutoModelForMultimodalLM": "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "AutoModelForSpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
"""Class to its table of types; each type of AutoModelForImageTextToText is one of AutoModelForMultimodalLM."""

_TOWER: Options = {
    **{
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
    **{"num_key_value_heads": 2, "num_heads": 2, "image_size": 28, "patch_size": 14, "encoder_layers": 1},
    **{"encoder_ffn_dim": 32, "encoder_attention_heads": 2, "d_model": 16, "cross_attention_heads": 2},
}
_SEQ2SEQ: Options = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_kv": 16, "d_ff": 64, "num_layers": 2},
    **{"num_decoder_layers": 2, "num_heads": 4, "max_source_positions": 256, "max_target_positions": 256},
    **{"num_encoder_layers": 2, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4},
    **{"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1, "encoder_num_attention_heads": 4},
    **{"decoder_num_attention_heads": 4, "encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    **{"speech_encoder_layers": 1, "t2u_encoder_layers": 1, "t2u_decoder_layers": 1},
}
_TOKENS: Options = {
    **{"image_token_id": 299, "image_token_index": 299, "video_token_id": 298, "video_token_index": 298},
    **{"audio_token_id": 297, "audio_token_index": 297, "vision_start_token_id": 296, "vision_end_token_id": 295},
    **{"boi_token_id": 296, "eoi_token_id": 295, "boi_token_index": 296, "eoi_token_index": 295, "boa_token_id": 294},
    **{"eoa_token_index": 293, "eoa_token_id": 293, "decoder_start_token_id": 1},
}
_TILES: Options = {"image_size": 16, "patch_size": 4}
_SAM: Options = {
    **{"output_channels": 16, "num_hidden_layers": 2, "mlp_dim": 32, "image_size": 64, "patch_size": 4},
    **{"window_size": 2, "global_attn_indexes": [1]},
}
_GEMMA3: Options = {
    "vision_config": {"image_size": 64, "patch_size": 4},
    "text_config": {"max_position_embeddings": 600, "layer_types": ["sliding_attention", "full_attention"]},
    "mm_tokens_per_image": 256,
}
_QWEN: Options = {
    **{"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2},
    **{"depth": 2, "num_hidden_layers": ...},
}
_SECTIONS: Options = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 4]}}
_QWEN3: Options = {
    "vision_config": {
        **_QWEN,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 25,
    },
    "text_config": _SECTIONS,
}
_LINEAR: Options = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"layer_types": ["linear_attention", "full_attention"]},
    "rope_parameters": {**_SECTIONS["rope_parameters"], "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25},
}
_QWEN3_5: Options = {
    "vision_config": {**_QWEN, "out_hidden_size": 64, "num_position_embeddings": 25},
    "text_config": _LINEAR,
}
_GLM: Options = {
    "vision_config": {**_QWEN, "out_hidden_size": 64},
    "text_config": _SECTIONS,
    **{"image_start_token_id": 296, "image_end_token_id": 295},
}
_TIMM: Options = {"architecture": "test_convnext", "model_args": {}, "hidden_size": 64}
_GRANITE: Options = {
    "encoder_config": {
        "input_dim": 16,
        "hidden_dim": 16,
        "num_heads": 2,
        "dim_head": 8,
        "num_layers": 1,
        "context_size": 8,
    },
    "projector_config": {"encoder_hidden_size": 16},
    **{"window_size": 6, "downsample_rate": 3},
}
_PIXTRAL: Options = {"patch_size": 4, "image_size": 32, "head_dim": 8}
_PARAKEET: Options = {"subsampling_conv_channels": 8, "num_mel_bins": 16, "conv_kernel_size": 5}
_CROSS: Options = {"decoder": {"is_decoder": True, "add_cross_attention": True}}
_KNOWN_BY_PHI: Options = {
    name: SIZES[name]
    for name in (
        *("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "hidden_size", "intermediate_size"),
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
    )
}
_SMALL: Mapping[str, Options] = {
    **dict.fromkeys(("encoder-decoder", "speech-encoder-decoder", "vision-encoder-decoder"), _CROSS),
    "audioflamingo3": {"audio_config": {"max_source_positions": 40}},
    "aya_vision": {"vision_config": _TILES},
    "bigbird_pegasus": {"block_size": 4, "num_random_blocks": 1},
    "chameleon": {"vocabulary_map": {"<image>": 299, "IMGIMGAZ": 298}, "vq_config": {"resolution": 16}},
    "canary": {"encoder_config": {**_PARAKEET, "hidden_size": 64}, "vocab_size": VOCABULARY},
    "cohere_asr": {"encoder_config": _PARAKEET},
    "cohere2_vision": {"vision_config": _TILES, "alignment_intermediate_size": 32},
    "cohere_compass": {
        "text_config": {
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
            },
        },
    },
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "emu3": {"vocabulary_map": {"<image>": 299, "<|extra_200|>": 298, "<|visual token 000000|>": 297}},
    "exaone4_5": {"vision_config": {**_QWEN, "out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [1]}},
    "fast_vlm": {"vision_config": _TIMM},
    "gemma3": _GEMMA3,
    "shieldgemma2": _GEMMA3,
    "got_ocr2": {"vision_config": _SAM},
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [1],
        "downsample_rate": "1/2",
        "vision_config": {**_TILES, "hidden_size": 64},
    },
    "gemma3n": {
        "vision_config": {
            **{**_TIMM, "vocab_size": 4, "vocab_offset": 290},
        },
        "audio_config": {"vocab_offset": 294, "vocab_size": 6},
        "text_config": {
            **{"num_kv_shared_layers": 0, "vocab_size_per_layer_input": VOCABULARY, "altup_num_inputs": 2},
            **{"hidden_size_per_layer_input": 8, "laurel_rank": 4},
        },
        "vision_soft_tokens_per_image": 25,
    },
    "gemma4": {
        "vision_config": {
            **{"model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "pooling_kernel_size": 2},
            **{"patch_size": 4, "position_embedding_size": 64},
        },
        "text_config": {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8},
    },
    **dict.fromkeys(("glm46v", "glm4v", "glm_ocr", "glmga"), _GLM),
    "glm4v_moe": {  # half of each head is rotated
        **_GLM,
        "text_config": {"rope_parameters": {**_SECTIONS["rope_parameters"], "mrope_section": [1, 1, 2]}},
    },
    "granite_speech": _GRANITE,
    "granite_speech_plus": _GRANITE,
    "idefics3": {"vision_config": _TILES, "scale_factor": 2},
    "internvl": {"vision_config": {"image_size": [16, 16], "patch_size": [4, 4]}},
    "led": {"attention_window": 8, "max_encoder_position_embeddings": 256, "max_decoder_position_embeddings": 256},
    "lfm2_vl": {
        "vision_config": {"num_patches": 16, "patch_size": 4},
        "text_config": {"layer_types": ["conv", "full_attention"]},
        "projector_hidden_size": 32,
    },
    "lighton_ocr": {"vision_config": _PIXTRAL, "spatial_merge_size": 2},
    "llava": {"vision_config": _TILES, "vision_feature_layer": -1},
    "longt5": {"local_radius": 3, "global_block_size": 4},
    "llama4": {
        "vision_config": {
            **{**_TILES, "intermediate_size": 64, "projector_input_dim": 16, "projector_output_dim": 16},
            "vision_output_dim": 16,
        },
    },
    "minicpmv4_6": {
        "vision_config": {"patch_size": 4, "num_hidden_layers": 2},
        "text_config": _LINEAR,
        "insert_layer_id": 0,
    },
    "mistral3": {"vision_config": _PIXTRAL, "spatial_merge_size": 2, "vision_feature_layer": -1},
    "mistral4": {"num_key_value_heads": 4, "head_dim": ...},
    "moonshine_streaming": {"num_key_value_heads": 4, "encoder_config": {"hidden_size": 64, "num_key_value_heads": 2}},
    "ovis2": {
        **{"hidden_size": 64, "vocab_size": VOCABULARY, "visual_indicator_token_ids": [21, 22, 290, 291, 292]},
        "vision_config": {**_TILES, "vocab_size": 37, "hidden_stride": 1},
    },
    "paddleocr_vl": {"vision_config": {"spatial_merge_size": 2, "patch_size": 4}, "text_config": _SECTIONS},
    "paligemma": {"vision_config": {**_TILES, "projection_dim": 64}, "projection_dim": 64},
    "prophetnet": {"num_hidden_layers": ..., "hidden_size": 64},
    "pegasus_x": {"block_size": 8, "num_global_tokens": 4},
    "perception_lm": {"vision_config": {"architecture": "vit_tiny_patch16_224", "model_args": {"embed_dim": 192}}},
    "phi4_multimodal": {
        **{**_KNOWN_BY_PHI, "original_max_position_embeddings": 256},
        "vision_config": {
            **{"image_size": 16, "crop_size": 16, "patch_size": 4, "num_hidden_layers": 2, "image_token_id": 299},
        },
        "audio_config": {
            **{"num_blocks": 1, "audio_token_id": 297, "ext_pw_out_channel": 16, "nemo_conv_channels": 16},
            **{"nemo_final_size": 16, "depthwise_separable_out_channel": 16},
        },
    },
    "pp_chart2table": {"vision_config": _SAM},
    "qwen2_5_vl": {
        "vision_config": {**_QWEN, "out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [1]},
        "text_config": _SECTIONS,
    },
    "qwen2_5_omni_thinker": {
        **{"vision_start_token_id": 296, "vision_end_token_id": 295, "image_token_id": 299, "video_token_id": 298},
        "vision_config": {**_QWEN, "out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [1]},
        "text_config": _SECTIONS,
    },
    "qwen2_vl": {
        "vision_config": {**_QWEN, "embed_dim": 16, "hidden_size": 64, "mlp_ratio": 2},
        "text_config": _SECTIONS,
    },
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen3_asr": {
        "audio_config": {
            **{"num_mel_bins": 16, "downsample_hidden_size": 4, "output_dim": 64, "n_window_infer": 200},
        },
    },
    "qwen3_omni_moe": {
        "talker_config": {"text_config": {"shared_expert_intermediate_size": 32}, "spatial_merge_size": 2},
    },
    "qwen3_vl": _QWEN3,
    # transformers' cache would read a window that the model does not have.
    "qwen3_vl_moe": {**_QWEN3, "text_config": {**_SECTIONS, "sliding_window": ...}},
    "smolvlm": {"vision_config": _TILES, "scale_factor": 2},
    "vipllava": {"vision_config": _TILES, "vision_feature_layers": [-1]},
    "voxtral": {"audio_config": {"max_source_positions": 40}},
    "whisper": {"max_source_positions": 1500, "num_mel_bins": 8},
}
_LARGE = 50_000_000
"""Number of weights of a model that is made without them: each of a type that the export refuses."""


def multimodal_types(auto_class: str) -> list[str]:
    """The types of a class.

    Args:
        auto_class: A key of ``CLASSES``.
    """
    from transformers.models.auto import modeling_auto

    return sorted(getattr(modeling_auto, CLASSES[auto_class]))


def make_multimodal(auto_class: str, model_type: str) -> Any:
    """A model of a type with random weights that make its tokens differ.

    Args:
        auto_class: A key of ``CLASSES``.
        model_type: One of its types.
    """
    import_torchvision()  # towers of timm import it
    import transformers

    default = transformers.AutoConfig.for_model(model_type)
    made = getattr(transformers, auto_class)
    try:
        config = transformers.AutoConfig.for_model(model_type, **_settings(default, _SMALL.get(model_type, {})))
        with torch.device("meta"):
            model = made.from_config(config)
    except Exception:  # noqa: BLE001 - parts that must have related sizes
        with torch.device("meta"):
            return made.from_config(default).eval()
    if sum(parameter.numel() for parameter in model.parameters()) > _LARGE:
        return model.eval()
    torch.manual_seed(0)
    return with_random_weights(made.from_config(config))


def _settings(default: Any, overrides: Options, part: str = "") -> dict[str, Any]:
    """The settings of a configuration and its parts.

    Args:
        default: The configuration without settings.
        overrides: Settings of the type; ``...`` leaves one out.
        part: The name of the configuration in another one.
    """
    import transformers

    parts = {name: value for name, value in vars(default).items() if isinstance(value, transformers.PreTrainedConfig)}
    reads_text = not part or any(word in part for word in ("text", "decoder", "thinker", "talker", "vlm"))
    sizes = {**SIZES, **_SEQ2SEQ, **_TOKENS} if reads_text else _TOWER
    # A configuration with one part, such as the encoder of moonshine_streaming, has the sizes of the rest itself.
    known = {**_TOKENS, "tie_word_embeddings": False} if len(parts) > 1 else sizes
    settings: dict[str, Any] = {name: value for name, value in known.items() if has(default, name)}
    for name, value in parts.items():
        given = overrides.get(name, {})
        if isinstance(given, Mapping) and given.get("model_type", value.model_type) != value.model_type:
            value = transformers.AutoConfig.for_model(given["model_type"])
        if given is None or given is ...:
            settings[name] = given
        else:
            own = {"model_type": value.model_type} if value.model_type else {}
            settings[name] = own | _settings(value, given, name)
    settings |= {name: value for name, value in overrides.items() if name not in parts}
    return {name: plain(value) for name, value in settings.items() if value is not ...}
