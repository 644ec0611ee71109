"""Small configurations of the model types that optimum-onnx exports.

The models of its own tests come from the Hub; these have the same layers, a few of each, with random weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

__all__ = ["GENERATION", "MODELS"]

Options = Mapping[str, Any]

_TOKENS: Options = MappingProxyType(
    {"vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
)
_LAYERS: Options = MappingProxyType(
    {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
)
_TEXT: Options = MappingProxyType({**_TOKENS, **_LAYERS, "max_position_embeddings": 128})
_GROUPED: Options = MappingProxyType({**_TEXT, "num_key_value_heads": 2})
_HEAD: Options = MappingProxyType({**_GROUPED, "head_dim": 8})
_SEQ2SEQ: Options = MappingProxyType(
    {
        **_TOKENS,
        **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
        **{"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
        **{"max_position_embeddings": 128, "decoder_start_token_id": 1, "forced_eos_token_id": None, "init_std": 0.2},
    }
)
_T5: Options = MappingProxyType(
    {**_TOKENS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
)
_VISION: Options = MappingProxyType({**_LAYERS, "image_size": 32, "patch_size": 8})
_AUDIO: Options = MappingProxyType(
    {
        **_LAYERS,
        "vocab_size": 32,
        "conv_dim": (16,) * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
    }
)
_STAGES: Options = MappingProxyType({"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2})
_XLM: Options = MappingProxyType(
    {"vocab_size": 128, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 128, "pad_token_id": 2}
)
_DEBERTA: Options = MappingProxyType(
    {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
)
_BACKBONE: Options = MappingProxyType(
    {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 16, 32],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
    }
)
_DETR: Options = MappingProxyType(
    {
        **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "num_queries": 6},
        **{"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "backbone": None},
        **{"use_timm_backbone": False, "use_pretrained_backbone": False},
        "backbone_config": {**_BACKBONE, "out_features": ["stage4"]},
    }
)
_RT_DETR: Options = MappingProxyType(
    {
        **{"d_model": 32, "encoder_hidden_dim": 32, "encoder_in_channels": [16, 16, 32], "feat_strides": [8, 16, 32]},
        **{"encoder_layers": 1, "encoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_ffn_dim": 64},
        **{"decoder_in_channels": [32, 32, 32], "decoder_layers": 2, "decoder_attention_heads": 4, "num_queries": 10},
        **{"num_denoising": 0, "anchor_image_size": None, "hidden_expansion": 0.5},
        # With the default of 0.01, features vanish, and the best queries are chosen among equal scores.
        "initializer_range": 0.2,
    }
)
_RT_BACKBONE: Options = MappingProxyType(
    {
        **{
            "model_type": "rt_detr_resnet",
            "embedding_size": 8,
            "hidden_sizes": [8, 16, 16, 32],
            "depths": [1, 1, 1, 1],
        },
        **{"layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]},
    }
)
_D_FINE_BACKBONE: Options = MappingProxyType(
    {
        **{
            "model_type": "hgnet_v2",
            "stem_channels": [3, 8, 8],
            "initializer_range": 0.3,
            "hidden_sizes": [16, 16, 16, 32],
            "depths": [1, 1, 1, 1],
        },
        **{"stage_in_channels": [8, 16, 16, 16], "stage_mid_channels": [8, 8, 8, 8], "stage_num_blocks": [1, 1, 1, 1]},
        **{"stage_out_channels": [16, 16, 16, 32], "stage_numb_of_layers": [2, 2, 2, 2]},
        **{"out_features": ["stage2", "stage3", "stage4"]},
    }
)
_SWIN: Options = MappingProxyType(
    {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}
)
_CLIP: Options = MappingProxyType(
    {
        "text_config": {**_TEXT, "projection_dim": 16},
        "vision_config": {**_VISION, "projection_dim": 16},
        "projection_dim": 16,
    }
)
_GPT2_DECODER: Options = MappingProxyType(
    {
        **{**_TOKENS, "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        **{"is_decoder": True, "add_cross_attention": True},
    }
)

MODELS: Mapping[str, Options] = MappingProxyType(
    {
        # Encoders of text.
        "albert": {**_TEXT, "embedding_size": 16},
        "bert": _TEXT,
        "big_bird": {**_TEXT, "attention_type": "original_full"},
        "camembert": _TEXT,
        "convbert": {**_TEXT, "embedding_size": 32},
        "data2vec-text": _TEXT,
        "deberta": _DEBERTA,
        "deberta-v2": _DEBERTA,
        "distilbert": {
            **_TOKENS,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 128,
        },
        "electra": {**_TEXT, "embedding_size": 16},
        "esm": {**_TEXT, "position_embedding_type": "rotary", "mask_token_id": 5, "token_dropout": True},
        "flaubert": _XLM,
        "ibert": _TEXT,
        "layoutlm": _TEXT,
        "layoutlmv3": {**_TEXT, "coordinate_size": 4, "shape_size": 8, "input_size": 32, "patch_size": 8},
        "lilt": {**_TEXT, "hidden_size": 48, "channel_shrink_ratio": 2},
        "longformer": {**_TEXT, "attention_window": 8},
        "markuplm": {**_TEXT, "xpath_unit_hidden_size": 8, "max_depth": 6},
        "megatron-bert": _TEXT,
        "mobilebert": {
            **_TEXT,
            "initializer_range": 0.02,
            "embedding_size": 32,
            "true_hidden_size": 32,
            "intra_bottleneck_size": 32,
        },
        "modernbert": {
            **_TEXT,
            "global_attn_every_n_layers": 2,
            "local_attention": 8,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
        "mpnet": _TEXT,
        "nystromformer": {**_TEXT, "num_landmarks": 8, "segment_means_seq_len": 16, "conv_kernel_size": 3},
        "rembert": {**_TEXT, "input_embedding_size": 16, "output_embedding_size": 16},
        "roberta": _TEXT,
        "roformer": _TEXT,
        "splinter": _TEXT,
        "squeezebert": {**_TEXT, "embedding_size": 32},
        "visual_bert": {**_TEXT, "visual_embedding_dim": 20},
        "xlm": _XLM,
        "xlm-roberta": _TEXT,
        # Decoders of text.
        "arcee": _GROUPED,
        "bloom": {**_TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "codegen": {
            **_TOKENS,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "n_ctx": 128,
            "rotary_dim": 4,
        },
        "cohere": _GROUPED,
        "deepseek_v3": {
            **{**_TEXT, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 2},
            **{"topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
            **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
        },
        "falcon": {**_TEXT, "new_decoder_architecture": False, "multi_query": True, "alibi": False},
        "gemma": _HEAD,
        "gemma2": {**_HEAD, "query_pre_attn_scalar": 8, "sliding_window": 8},
        "gemma3": {
            "text_config": {**_HEAD, "query_pre_attn_scalar": 8, "sliding_window": 8},
            "vision_config": {**_VISION},
            **{"mm_tokens_per_image": 4, "image_token_index": 5, "boi_token_index": 6, "eoi_token_index": 7},
        },
        "gemma3_text": {**_HEAD, "query_pre_attn_scalar": 8, "sliding_window": 8},
        "glm": _HEAD,
        "gpt2": {**_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        "gpt_bigcode": {**_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        "gpt_neo": {
            **{**_TOKENS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 128},
            **{"attention_types": [[["global", "local"], 1]], "window_size": 8},
        },
        "gpt_neox": _TEXT,
        "gpt_oss": {**_HEAD, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
        "gptj": {**_TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "rotary_dim": 4},
        "granite": _GROUPED,
        "helium": _HEAD,
        "imagegpt": {"vocab_size": 129, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
        "llama": _GROUPED,
        "mistral": {**_HEAD, "sliding_window": 8},
        "mpt": {**_TOKENS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128, "expansion_ratio": 2},
        "nemotron": {**_HEAD, "partial_rotary_factor": 0.5},
        "olmo": _GROUPED,
        "olmo2": _GROUPED,
        "opt": {
            **_TOKENS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "max_position_embeddings": 128,
            "word_embed_proj_dim": 32,
            "init_std": 0.2,
        },
        "phi": _TEXT,
        "phi3": {**_GROUPED, "sliding_window": 8},
        "qwen2": _GROUPED,
        "qwen3": _HEAD,
        "qwen3_moe": {**_HEAD, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        "smollm3": {**_GROUPED, "no_rope_layer_interval": 2},
        "stablelm": _GROUPED,
        # Encoders and decoders of text.
        "bart": _SEQ2SEQ,
        "bigbird_pegasus": {**_SEQ2SEQ, "attention_type": "original_full"},
        "blenderbot": _SEQ2SEQ,
        "blenderbot-small": _SEQ2SEQ,
        "encoder-decoder": {
            "encoder": {**_TEXT, "model_type": "bert"},
            "decoder": _GPT2_DECODER,
            **{"decoder_start_token_id": 1, "pad_token_id": 0},
        },
        "longt5": {**_T5, "local_radius": 4, "encoder_attention_type": "local"},
        "m2m_100": _SEQ2SEQ,
        "marian": _SEQ2SEQ,
        "mbart": _SEQ2SEQ,
        "mt5": _T5,
        "pegasus": _SEQ2SEQ,
        "t5": _T5,
        # Vision.
        "beit": {**_VISION, "use_relative_position_bias": True},
        "convnext": _STAGES,
        "convnextv2": _STAGES,
        "cvt": {
            **{"patch_sizes": [7, 3], "patch_stride": [4, 2], "patch_padding": [2, 1], "embed_dim": [16, 32]},
            **{"num_heads": [1, 2], "depth": [1, 2], "mlp_ratio": [2.0, 2.0], "qkv_bias": [True, True]},
            **{"attention_drop_rate": [0.0, 0.0], "drop_rate": [0.0, 0.0], "drop_path_rate": [0.0, 0.0]},
            **{"cls_token": [False, True], "qkv_projection_method": ["dw_bn", "dw_bn"], "kernel_qkv": [3, 3]},
            **{"padding_kv": [1, 1], "stride_kv": [2, 2], "padding_q": [1, 1], "stride_q": [1, 1]},
        },
        "d_fine": {
            **{**_RT_DETR, "backbone_config": _D_FINE_BACKBONE, "encoder_activation_function": "gelu"},
            "decoder_n_points": [2, 2, 2],
        },
        "data2vec-vision": _VISION,
        "deit": {**_VISION, "encoder_stride": 8},
        "detr": _DETR,
        "dinov2": _VISION,
        "donut-swin": _SWIN,
        "dpt": {
            **{**_VISION, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "is_hybrid": False},
            **{"neck_hidden_sizes": [8, 16, 16, 32], "fusion_hidden_size": 16},
        },
        "efficientnet": {
            **{"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
            **{"kernel_sizes": [3, 5], "in_channels": [32, 16], "out_channels": [16, 24], "depthwise_padding": []},
            **{"strides": [1, 2], "num_block_repeats": [1, 1], "expand_ratios": [1, 2]},
        },
        "glpn": {
            **{"num_encoder_blocks": 4, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
            **{"num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16},
        },
        "hiera": {
            **{"image_size": [32, 32], "patch_size": [7, 7], "patch_stride": [4, 4], "patch_padding": [3, 3]},
            **{"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "masked_unit_size": [4, 4], "num_query_pool": 1},
            **{"query_stride": [2, 2], "masked_unit_attention": [True, False], "decoder_depth": 1},
            **{"decoder_hidden_size": 16, "decoder_num_heads": 2},
        },
        "levit": {
            **{"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1]},
            **{"key_dim": [8, 8, 8]},
        },
        "maskformer": {
            **{"fpn_feature_size": 32, "mask_feature_size": 32, "backbone": None, "use_pretrained_backbone": False},
            "backbone_config": {
                **{**_SWIN, "patch_size": 4, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2], "embed_dim": 8},
                **{"model_type": "swin", "out_features": ["stage1", "stage2", "stage3", "stage4"]},
            },
            "decoder_config": {**_DETR, "model_type": "detr"},
        },
        "mgp-str": {
            **{"image_size": [32, 64], "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "num_bpe_labels": 99, "num_wordpiece_labels": 99, "max_token_length": 9},
        },
        "mobilenet_v1": {"image_size": 32, "depth_multiplier": 0.25, "min_depth": 8},
        "mobilenet_v2": {"image_size": 32, "depth_multiplier": 0.25, "min_depth": 8},
        "mobilevit": {
            **{"image_size": 32, "hidden_sizes": [32, 32, 32], "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32]},
            **{"num_attention_heads": 4, "expand_ratio": 2.0, "mlp_ratio": 2.0},
        },
        "poolformer": {
            **{"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "patch_sizes": [7, 3, 3, 3]},
            **{"strides": [4, 2, 2, 2], "padding": [2, 1, 1, 1]},
        },
        "pvt": {
            **{"image_size": 32, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
            **{"num_attention_heads": [1, 2, 2, 4], "sequence_reduction_ratios": [4, 2, 1, 1]},
        },
        "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "groups_width": 8},
        "resnet": _BACKBONE,
        "rt_detr": {**_RT_DETR, "backbone_config": _RT_BACKBONE},
        "rt_detr_v2": {**_RT_DETR, "backbone_config": _RT_BACKBONE},
        "segformer": {
            **{"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
            **{"decoder_hidden_size": 16},
        },
        "swin": {**_SWIN, "encoder_stride": 4},
        "swin2sr": {
            "image_size": 32,
            "patch_size": 1,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        "swinv2": {**_SWIN, "encoder_stride": 4},
        "table-transformer": _DETR,
        "vit": {**_VISION, "encoder_stride": 8},
        "vit_mae": {
            **{**_VISION, "mask_ratio": 0.5, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1},
            **{"decoder_num_attention_heads": 2, "decoder_intermediate_size": 32},
        },
        "vit_msn": _VISION,
        "vitpose": {
            "backbone_config": {
                **{**_VISION, "model_type": "vitpose_backbone", "image_size": [32, 32], "patch_size": [8, 8]},
                "out_features": ["stage2"],
            },
        },
        "yolos": {**_VISION, "image_size": [32, 32], "num_detection_tokens": 6},
        # Text and vision.
        "chinese_clip": _CLIP,
        "clip": _CLIP,
        "clip_vision_model": _VISION,
        "colpali": {
            "vlm_config": {
                **{"model_type": "paligemma", "projection_dim": 32, "image_token_index": 5, "image_token_id": 5},
                "text_config": {**_HEAD, "model_type": "gemma"},
                "vision_config": {
                    **{**_VISION, "model_type": "siglip_vision_model", "projection_dim": 32, "num_image_tokens": 16},
                },
            },
            "embedding_dim": 16,
        },
        "groupvit": {
            "text_config": _TEXT,
            "vision_config": {
                **{**_VISION, "depths": [2, 2, 1], "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 4]},
            },
            **{"projection_dim": 16, "projection_intermediate_dim": 32},
        },
        "metaclip_2": _CLIP,
        "owlv2": {**_CLIP, "projection_dim": 32},
        "owlvit": {**_CLIP, "projection_dim": 32},
        "perceiver": {
            **{"num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 2, "vocab_size": 128},
            **{"num_self_attention_heads": 4, "num_cross_attention_heads": 4, "max_position_embeddings": 128},
            **{"image_size": 32, "num_blocks": 1, "qk_channels": 32, "v_channels": 32},
        },
        "pix2struct": {
            "text_config": {**_T5, "hidden_size": 32, "max_position_embeddings": 128},
            "vision_config": {**_LAYERS, "d_ff": 64, "d_kv": 8, "patch_embed_hidden_size": 768, "seq_len": 64},
            **{"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2},
        },
        "sam": {
            "vision_config": {
                **{**_VISION, "image_size": 64, "output_channels": 16, "mlp_dim": 64, "num_pos_feats": 8},
                **{"window_size": 2, "global_attn_indexes": [1]},
            },
            "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 8},
            "mask_decoder_config": {
                **{"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16},
            },
        },
        "siglip": {"text_config": _TEXT, "vision_config": _VISION},
        "siglip_vision_model": _VISION,
        "vision-encoder-decoder": {
            "encoder": {**_VISION, "model_type": "vit"},
            "decoder": _GPT2_DECODER,
            **{"decoder_start_token_id": 1, "pad_token_id": 0},
        },
        # Audio.
        "audio-spectrogram-transformer": {**_LAYERS, "max_length": 64, "num_mel_bins": 32, "patch_size": 8},
        "data2vec-audio": _AUDIO,
        "hubert": _AUDIO,
        "mctct": {
            **{**_LAYERS, "vocab_size": 32, "attention_head_dim": 8, "input_feat_per_channel": 80, "conv_kernel": [7]},
            # optimum's example has 16000 frames.
            **{"conv_stride": [32], "num_conv_layers": 1, "max_position_embeddings": 1000},
        },
        "moonshine": {
            **{**_TOKENS, "hidden_size": 32, "intermediate_size": 64, "encoder_num_hidden_layers": 2},
            **{"decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4},
            **{"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4, "decoder_start_token_id": 1},
        },
        "musicgen": {
            "text_encoder": {**_T5, "model_type": "t5"},
            "audio_encoder": {
                **{
                    "model_type": "encodec",
                    "hidden_size": 16,
                    "num_filters": 4,
                    "codebook_size": 64,
                    "codebook_dim": 16,
                },
                **{
                    "upsampling_ratios": [4, 2],
                    "num_residual_layers": 1,
                    "num_lstm_layers": 1,
                    "sampling_rate": 32000,
                    "target_bandwidths": [160.0],
                },
            },
            "decoder": {
                **{"model_type": "musicgen_decoder", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2},
                **{"num_attention_heads": 4, "ffn_dim": 64, "num_codebooks": 4, "max_position_embeddings": 128},
                **{"pad_token_id": 64, "bos_token_id": 64},
            },
        },
        "sew": {**_AUDIO, "conv_dim": [16] * 13, "squeeze_factor": 2},
        "sew-d": {
            **_AUDIO,
            "conv_dim": [16] * 13,
            "squeeze_factor": 2,
            "max_position_embeddings": 128,
            "position_buckets": 32,
        },
        "speech_to_text": {
            **{**_SEQ2SEQ, "max_source_positions": 3000, "max_target_positions": 64, "conv_channels": 32},
            "input_feat_per_channel": 80,
        },
        "unispeech": _AUDIO,
        "unispeech-sat": {**_AUDIO, "xvector_output_dim": 32, "tdnn_dim": (32,) * 5},
        "vits": {
            **{**_LAYERS, "vocab_size": 64, "ffn_dim": 64, "flow_size": 32, "spectrogram_bins": 17},
            **{"upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4], "upsample_initial_channel": 32},
            **{"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]], "prior_encoder_num_flows": 2},
            **{"posterior_encoder_num_wavenet_layers": 2, "prior_encoder_num_wavenet_layers": 2},
            **{"wavenet_kernel_size": 3, "num_attention_heads": 2, "duration_predictor_num_flows": 2},
        },
        "wav2vec2": {**_AUDIO, "xvector_output_dim": 32, "tdnn_dim": (32,) * 5},
        "wav2vec2-conformer": {**_AUDIO, "conv_depthwise_kernel_size": 7},
        "wavlm": {**_AUDIO, "xvector_output_dim": 32, "tdnn_dim": (32,) * 5},
        "whisper": {
            **{**_SEQ2SEQ, "max_source_positions": 1500, "max_target_positions": 64, "num_mel_bins": 80},
            **{"begin_suppress_tokens": None, "suppress_tokens": None},
        },
        # Other inputs.
        "decision_transformer": {
            "state_dim": 5,
            "act_dim": 3,
            "hidden_size": 32,
            "max_ep_len": 64,
            "n_layer": 2,
            "n_head": 4,
        },
        "patchtsmixer": {
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_layers": 2,
            "num_input_channels": 2,
        },
        "patchtst": {
            **{"context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 16, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "ffn_dim": 32, "num_input_channels": 2, "prediction_length": 8},
        },
    }
)

# Decoders, and encoders with decoders, that generate.
GENERATION: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "text-generation-with-past": ("gpt2", "llama", "qwen2", "phi", "mistral", "gemma", "bloom", "gpt_neox", "opt"),
        "text2text-generation-with-past": ("t5", "bart", "marian", "mbart", "pegasus", "m2m_100"),
    }
)
