"""Small configurations of model types of transformers 5 that optimum-onnx does not export, or not alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks._optimum_models import MODELS

__all__ = ["NEWER_TYPES"]

_TEXT = MODELS["bert"]
_DECODER = {**MODELS["qwen3"], "head_dim": 8}
_MIXTURE = {**_DECODER, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SEQ2SEQ, _T5, _VISION, _DETR, _AUDIO = (MODELS[name] for name in ("bart", "t5", "vit", "detr", "wav2vec2"))

NEWER_TYPES: Mapping[str, Mapping[str, Any]] = {
    # Text.
    **dict.fromkeys(("ernie", "xlm-roberta-xl", "roberta-prelayernorm", "roc_bert", "fnet", "nomic_bert"), _TEXT),
    # As published: as many landmarks as tokens in a segment. With fewer ones it takes texts of one length only.
    "nystromformer": {**_TEXT, "num_landmarks": 8, "segment_means_seq_len": 8},
    "xmod": {**_TEXT, "languages": ["en"], "default_language": "en"},
    "eurobert": {**_DECODER, "num_key_value_heads": 4},
    # Decoders.
    **dict.fromkeys(
        (
            *("apertus", "cohere2", "cwm", "ernie4_5", "exaone4", "glm4", "hunyuan_v1_dense", "jais2", "ministral"),
            *("ministral3", "nanochat", "olmo3", "persimmon", "seed_oss", "starcoder2", "diffllama", "doge", "bitnet"),
            *("vaultgemma", "mellum", "internlm3"),
        ),
        _DECODER,
    ),
    "biogpt": _TEXT,
    "ctrl": {"vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "dff": 64},
    "gpt_neox_japanese": {**_TEXT, "intermediate_multiple_size": 2},
    "xglm": {"vocab_size": 128, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64},
    **dict.fromkeys(
        (
            *("mixtral", "olmoe", "phimoe", "granitemoe", "granitemoeshared", "qwen2_moe", "jetmoe", "flex_olmo"),
            *("minimax_m2", "hunyuan_v1_moe", "ernie4_5_moe", "afmoe", "glm4_moe"),
        ),
        _MIXTURE,
    ),
    "llama4_text": {**_MIXTURE, "intermediate_size_mlp": 64, "attention_chunk_size": 8},
    # The decoder of image-to-text models of the type vision-encoder-decoder.
    "trocr": {
        **{"vocab_size": 128, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64},
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128},
    },
    # Encoders and decoders.
    **dict.fromkeys(("plbart", "mvp"), _SEQ2SEQ),
    "switch_transformers": {
        **{**_T5, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        "num_experts": 4,
    },
    "umt5": _T5,
    "siglip_text_model": _TEXT,
    # Images and video.
    **dict.fromkeys(("dinov2_with_registers", "ijepa", "dinov3_vit"), _VISION),
    "dinov3_convnext": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "bit": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_groups": 4},
    "focalnet": {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [3, 3]},
    "hgnet_v2": {},
    "mobilevitv2": {"image_size": 64, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1]},
    "pvt_v2": {
        **{"image_size": 32, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "mlp_ratios": [2, 2, 2, 2]},
        **{"num_attention_heads": [1, 2, 2, 4], "sr_ratios": [4, 2, 1, 1]},
    },
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 32], "mlp_ratio": 2},
    "timesformer": {**_VISION, "num_frames": 2},
    "videomae": {**_VISION, "num_frames": 2},
    "vivit": {**_VISION, "num_frames": 2, "tubelet_size": [2, 8, 8]},
    "conditional_detr": _DETR,
    "mask2former": {
        **{"backbone": None, "use_pretrained_backbone": False, "hidden_dim": 32, "num_queries": 6},
        **{"backbone_config": MODELS["maskformer"]["backbone_config"] | {"model_type": "swin"}},
        **{"feature_size": 32, "mask_feature_size": 32, "encoder_feedforward_dim": 64, "dim_feedforward": 64},
        **{"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 4},
    },
    "upernet": {
        "backbone_config": {
            **MODELS["detr"]["backbone_config"],
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
        **{"hidden_size": 16, "auxiliary_in_channels": 16, "auxiliary_channels": 8, "pool_scales": [1, 2]},
    },
    "depth_anything": {
        "backbone_config": {
            **{**_VISION, "model_type": "dinov2", "out_features": ["stage1", "stage2"], "reshape_hidden_states": False},
        },
        **{"reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 16], "fusion_hidden_size": 16, "patch_size": 8},
        **{"reassemble_factors": [2, 1], "head_hidden_size": 8},
    },
    "clipseg": {"text_config": _TEXT, "vision_config": _VISION, "extract_layers": [0, 1], "reduce_dim": 16},
    "blip": {"text_config": _TEXT, "vision_config": _VISION},
    "altclip": {"text_config": {**_TEXT, "project_dim": 32}, "vision_config": _VISION},
    # Audio.
    "speecht5": {
        **{"vocab_size": 40, "hidden_size": 32, "encoder_layers": 2, "encoder_attention_heads": 4},
        **{"encoder_ffn_dim": 64, "decoder_layers": 2, "decoder_ffn_dim": 64, "decoder_attention_heads": 4},
        **{"num_mel_bins": 8, "speech_decoder_prenet_units": 16, "speaker_embedding_dim": 6},
        **{"speech_decoder_postnet_units": 16, "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16},
        "num_conv_pos_embedding_groups": 2,
    },
    "wav2vec2-bert": {**_AUDIO, "feature_projection_input_dim": 160},
    "parakeet_ctc": {"vocab_size": 32, "encoder_config": {**_AUDIO}},
}
