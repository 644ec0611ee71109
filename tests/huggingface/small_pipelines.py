"""Small pipelines of Diffusers with random weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from tests.genai.small_models import VOCABULARY, make_tokenizer
from tests.models.torchvision_shim import import_torchvision

with suppress(ModuleNotFoundError):  # the environment of optimum has none
    import_torchvision()

__all__ = ["PIPELINES", "XL", "images", "make"]

XL = {
    **{"addition_embed_type": "text_time", "addition_time_embed_dim": 8, "transformer_layers_per_block": (1, 1)},
    **{"projection_class_embeddings_input_dim": 6 * 8 + 32, "cross_attention_dim": 64, "attention_head_dim": (2, 4)},
}
_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def text_encoder(name: str = "CLIPTextModel", width: int = 32) -> Any:
    import transformers

    if name == "T5EncoderModel":
        sizes = {"d_model": width, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        config = transformers.T5Config(**sizes, **_TOKENS, feed_forward_proj="gated-gelu")
        return transformers.T5EncoderModel(config).eval()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
    return getattr(transformers, name)(transformers.CLIPTextConfig(**sizes, **_TOKENS, projection_dim=32)).eval()


def _vae(channels: int) -> Any:
    import diffusers

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    widths = {"block_out_channels": (32, 64), "norm_num_groups": 8}
    return diffusers.AutoencoderKL(latent_channels=channels, shift_factor=0.1, **blocks, **widths)


def _unet(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    import diffusers

    sizes = {"block_out_channels": (32, 64), "norm_num_groups": 8, "layers_per_block": 1, "sample_size": 16}
    blocks = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
    given = {"cross_attention_dim": 32, **sizes, **options}
    parts = {
        "unet": diffusers.UNet2DConditionModel(down_block_types=blocks[0], up_block_types=blocks[1], **given),
        "scheduler": (diffusers.LCMScheduler if "Consistency" in name else diffusers.DDIMScheduler)(),
        "text_encoder": text_encoder(),
    }
    if "XL" in name:
        return {**parts, "text_encoder_2": text_encoder("CLIPTextModelWithProjection")}
    return {**parts, "safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}


def _transformer(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    import diffusers

    sizes = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16}
    if "PixArt" in name:
        given = {"cross_attention_dim": 32, "caption_channels": 32, "sample_size": 16, **sizes, **options}
        return {
            "transformer": diffusers.PixArtTransformer2DModel(**given),
            "scheduler": diffusers.DPMSolverMultistepScheduler(),
            "text_encoder": text_encoder("T5EncoderModel"),
        }
    parts = {"scheduler": diffusers.FlowMatchEulerDiscreteScheduler()}
    if "Flux" in name:
        given = {"in_channels": 16, "num_single_layers": 1, "axes_dims_rope": (4, 4, 8), "joint_attention_dim": 32}
        return {
            **parts,
            "transformer": diffusers.FluxTransformer2DModel(**sizes, **given, pooled_projection_dim=32, **options),
            "text_encoder": text_encoder(),
            "text_encoder_2": text_encoder("T5EncoderModel"),
        }
    given = {"in_channels": 4, "out_channels": 4, "caption_projection_dim": 32, "pos_embed_max_size": 24, **options}
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16, joint_attention_dim=64, pooled_projection_dim=64, **sizes, **given
    )
    return {
        **parts,
        "transformer": transformer,
        "text_encoder": text_encoder("CLIPTextModelWithProjection"),
        "text_encoder_2": text_encoder("CLIPTextModelWithProjection"),
        "text_encoder_3": text_encoder("T5EncoderModel", 64),
    }


def make(name: str, **options: Any) -> Any:
    """A pipeline in evaluation mode, with a tokenizer for each text encoder."""
    import diffusers

    torch.manual_seed(0)
    has_transformer = any(family in name for family in ("Diffusion3", "Flux", "PixArt"))
    parts = (_transformer if has_transformer else _unet)(name, options)
    tokenizer = copy.deepcopy(make_tokenizer())
    tokenizer.model_max_length, tokenizer.padding_side = 16, "right"
    for encoder in [key for key in parts if key.startswith("text_encoder")]:
        parts[encoder.replace("text_encoder", "tokenizer")] = tokenizer
    pipeline = getattr(diffusers, name)(vae=_vae(4).eval(), **parts)
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


PIPELINES: Mapping[str, Mapping[str, Any]] = {
    "StableDiffusionPipeline": {},
    "StableDiffusionXLPipeline": XL,
    "LatentConsistencyModelPipeline": {"time_cond_proj_dim": 16},
    "StableDiffusion3Pipeline": {},
    "FluxPipeline": {"guidance_embeds": True},
    "PixArtAlphaPipeline": {"use_additional_conditions": False},
}


def images(pipeline: Any, name: str, **inputs: Any) -> Tensor:
    """Images of two texts that are not a square, in three steps."""
    given: dict[str, Any] = {"prompt": ["the quick brown fox", "a lazy dog"], "height": 32, "width": 48, **inputs}
    if "PixArt" in name:
        given |= {"use_resolution_binning": False, "clean_caption": False}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        found: Tensor = pipeline(num_inference_steps=3, output_type="pt", generator=generator, **given).images
    return found
