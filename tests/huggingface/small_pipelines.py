"""Small pipelines of Diffusers with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from tests.models.torchvision_shim import import_torchvision

with suppress(ModuleNotFoundError):  # the environment of optimum has none
    import_torchvision()

__all__ = ["PIPELINES", "XL", "images", "make"]

XL = {
    **{"addition_embed_type": "text_time", "addition_time_embed_dim": 8, "transformer_layers_per_block": (1, 1)},
    **{"projection_class_embeddings_input_dim": 6 * 8 + 32, "cross_attention_dim": 64, "attention_head_dim": (2, 4)},
}


def text_encoder(name: str = "CLIPTextModel") -> Any:
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
    tokens = {"vocab_size": 100, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return getattr(transformers, name)(transformers.CLIPTextConfig(**sizes, **tokens, projection_dim=32)).eval()


def make(name: str, **options: Any) -> Any:
    import diffusers

    torch.manual_seed(0)
    widths = {"block_out_channels": (32, 64), "norm_num_groups": 8}
    unet = {"layers_per_block": 1, "sample_size": 16, "cross_attention_dim": 32, **widths, **options}
    blocks = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
    vae_blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    parts: dict[str, Any] = {
        "vae": diffusers.AutoencoderKL(latent_channels=4, **vae_blocks, **widths),
        "text_encoder": text_encoder(),
        "tokenizer": None,
        "unet": diffusers.UNet2DConditionModel(down_block_types=blocks[0], up_block_types=blocks[1], **unet),
        "scheduler": (diffusers.LCMScheduler if "Consistency" in name else diffusers.DDIMScheduler)(),
    }
    if "XL" in name:
        parts |= {"text_encoder_2": text_encoder("CLIPTextModelWithProjection"), "tokenizer_2": None}
    else:
        parts |= {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    pipeline = getattr(diffusers, name)(**parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


PIPELINES: Mapping[str, Mapping[str, Any]] = {
    "StableDiffusionPipeline": {},
    "StableDiffusionXLPipeline": XL,
    "LatentConsistencyModelPipeline": {"time_cond_proj_dim": 16},
}


def images(pipeline: Any, name: str) -> Tensor:
    """An image that is not a square, in three steps."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(1, 20, pipeline.unet.config.cross_attention_dim, generator=generator)
    given: dict[str, Any] = {"prompt_embeds": text}
    if "Consistency" not in name:
        given["negative_prompt_embeds"] = -text
    if "XL" in name:
        pooled = torch.randn(1, 32, generator=generator)
        given |= {"pooled_prompt_embeds": pooled, "negative_pooled_prompt_embeds": -pooled}
    latents = torch.randn(1, 4, 16, 24, generator=generator)
    options = {"num_inference_steps": 3, "output_type": "pt", "height": 32, "width": 48, "generator": generator}
    with torch.no_grad():
        found: Tensor = pipeline(**given, latents=latents, **options).images
    return found
