"""Components of pipelines of Diffusers, each a file: text encoders, the denoiser, and both directions of the VAE.

Directories, inputs, outputs and axes have the names that optimum gives them; inputs and outputs are float32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from ..parts import Component, Inputs, with_forward
from ..samples import Sizes, cast

__all__ = ["DENOISERS", "TEXT_ENCODERS", "check_denoiser", "components_of_pipeline", "denoiser_of"]

TEXT_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
DENOISERS = ("unet", "transformer")
_CONDITIONS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"addition_embed_type": (None, "text_time"), "class_embed_type": (None,), "encoder_hid_dim_type": (None,)}
)
"""Option of a UNet that adds conditions to its inputs, to the values that are supported."""
_LATENT_SIDE = 8
_BATCH = {0: "batch_size"}
_TEXT = {0: "batch_size", 1: "sequence_length"}
_IMAGE = {0: "batch_size", 2: "height", 3: "width"}
_PACKED = {0: "batch_size", 1: "packed_height_width"}
_AXES: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "sample": _IMAGE,
        **dict.fromkeys(("encoder_hidden_states", "encoder_attention_mask", "input_ids", "attention_mask"), _TEXT),
        "txt_ids": {0: "sequence_length"},
        "img_ids": {0: "packed_height_width"},
    }
)


def denoiser_of(pipeline: Any) -> tuple[str, Any]:
    """The name and the module of the UNet or transformer of a pipeline."""
    name = next(name for name in DENOISERS if getattr(pipeline, name, None) is not None)
    return name, getattr(pipeline, name)


def check_denoiser(pipeline: Any) -> None:
    """Reject a UNet with inputs that its pipeline makes of images or classes."""
    name, module = denoiser_of(pipeline)
    for option, known in _CONDITIONS.items() if name == "unet" else ():
        if module.config.get(option) not in known:
            problem = f"the UNet of {type(pipeline).__name__} has the {option} {module.config[option]!r}"
            raise ArgumentError("model", problem, hint="export its components with fxonnx.export")


def components_of_pipeline(pipeline: Any) -> list[Component]:
    """The components of a pipeline, by the names of their directories."""
    denoiser = _denoiser(*denoiser_of(pipeline))
    has_mask = "encoder_attention_mask" in denoiser.inputs(Sizes())
    encoders = {name: getattr(pipeline, name, None) for name in TEXT_ENCODERS}
    found = [_text_encoder(name, each, has_mask) for name, each in encoders.items() if each is not None]
    return [*found, denoiser, _vae_encoder(pipeline.vae), _vae_decoder(pipeline.vae)]


def _component(
    name: str,
    module: Any,
    forward: Callable[..., Mapping[str, Tensor]],
    inputs: Callable[[Sizes], Inputs],
    axes: Mapping[str, Mapping[int, str]] | None = None,
) -> Component:
    """A component whose file has float32 inputs and outputs."""

    def called(**given: Tensor) -> dict[str, Tensor]:
        found = cast(given, next(module.parameters()).dtype)
        if "timestep" in given:  # float16 rounds it
            found["timestep"] = given["timestep"]
        return {key: value.float() for key, value in forward(**found).items()}

    axes = axes or {key: _axes_of(key, value) for key, value in inputs(Sizes()).items()}
    return Component(name, with_forward(module, called), inputs, axes)


def _axes_of(name: str, value: Tensor) -> Mapping[int, str]:
    if name == "hidden_states":
        return _IMAGE if value.ndim == 4 else _PACKED
    return _AXES.get(name, _BATCH if value.ndim else {})


def _random(sizes: Sizes) -> Callable[..., Tensor]:
    return partial(torch.randn, generator=torch.Generator().manual_seed(sizes.seed))


def _sides(sizes: Sizes, unit: int) -> tuple[int, int]:
    """Height and width of a latent image, multiples of ``unit`` that differ."""
    side = int(_LATENT_SIDE * sizes.scale)
    return side * unit, (side + 1) * unit


def _text_encoder(name: str, encoder: Any, has_mask: bool) -> Component:
    config = encoder.config
    is_t5 = type(encoder).__name__ == "T5EncoderModel"
    if not is_t5:
        with torch.no_grad():  # transformers installs the hooks that record hidden states in the first call
            encoder(torch.zeros(1, 1, dtype=torch.int64), output_hidden_states=True)

    def forward(**tokens: Tensor) -> dict[str, Tensor]:
        found = encoder(**tokens, output_hidden_states=not is_t5, return_dict=True)
        if is_t5:
            return {"last_hidden_state": found.last_hidden_state}
        pooled = "text_embeds" if "text_embeds" in found else "pooler_output"
        states = {f"hidden_states.{index}": found.hidden_states[index] for index in range(config.num_hidden_layers)}
        first = {pooled: found[pooled], "last_hidden_state": found.last_hidden_state}
        return {**(first if pooled == "text_embeds" else dict(reversed(first.items()))), **states}

    def inputs(sizes: Sizes) -> Inputs:
        length = sizes.tokens if is_t5 else min(sizes.tokens, config.max_position_embeddings)
        generator = torch.Generator().manual_seed(sizes.seed)
        found: Inputs = {"input_ids": torch.randint(config.vocab_size, (sizes.batch, length), generator=generator)}
        return {**found, "attention_mask": _mask(found["input_ids"])} if has_mask else found

    return _component(name, encoder, forward, inputs)


def _mask(tokens: Tensor) -> Tensor:
    """INT64 (batch, length), without the end of the last text."""
    mask = torch.ones(tokens.shape[:2], dtype=torch.int64)
    mask[-1, -2:] = 0
    return mask


def _denoiser(name: str, module: Any) -> Component:
    if name == "unet":
        return _unet(module)
    module = _without_stored_positions(module)
    inputs = {
        "SD3Transformer2DModel": _sd3_inputs,
        "FluxTransformer2DModel": _flux_inputs,
        "PixArtTransformer2DModel": _pixart_inputs,
    }[type(module).__name__]

    def forward(**given: Tensor) -> dict[str, Tensor]:
        conditions = {key: given.pop(key) for key in ("resolution", "aspect_ratio") if key in given}
        options = {"added_cond_kwargs": conditions} if conditions else {}
        return {"out_hidden_states": module(**given, **options, return_dict=False)[0]}

    return _component(name, module, forward, partial(inputs, module))


def _without_stored_positions(module: Any) -> Any:
    """A transformer that computes the positions of every size, if it stores those of one and computes all others."""
    if getattr(getattr(module, "pos_embed", None), "pos_embed_max_size", 0) is not None:
        return module
    positions = copy.copy(module.pos_embed)
    positions.height = -1
    found = copy.copy(module)
    found._modules = {**module._modules, "pos_embed": positions}
    return found


def _sd3_inputs(module: Any, sizes: Sizes) -> Inputs:
    config, random = module.config, _random(sizes)
    return {
        "hidden_states": random(sizes.batch, config.in_channels, *_sides(sizes, config.patch_size)),
        "encoder_hidden_states": random(sizes.batch, sizes.tokens, config.joint_attention_dim),
        "pooled_projections": random(sizes.batch, config.pooled_projection_dim),
        "timestep": torch.full((sizes.batch,), 500.5),
    }


def _flux_inputs(module: Any, sizes: Sizes) -> Inputs:
    config, random = module.config, _random(sizes)
    height, width = _sides(sizes, 1)
    rows, columns = torch.arange(height).repeat_interleave(width), torch.arange(width).repeat(height)
    found = {
        "hidden_states": random(sizes.batch, height * width, config.in_channels),
        "encoder_hidden_states": random(sizes.batch, sizes.tokens, config.joint_attention_dim),
        "pooled_projections": random(sizes.batch, config.pooled_projection_dim),
        "timestep": torch.full((sizes.batch,), 0.5),
        "img_ids": torch.stack([torch.zeros_like(rows), rows, columns], 1),
        "txt_ids": torch.zeros(sizes.tokens, 3, dtype=torch.int64),
    }
    return {**found, "guidance": torch.full((sizes.batch,), 3.5)} if config.guidance_embeds else found


def _pixart_inputs(module: Any, sizes: Sizes) -> Inputs:
    config, random = module.config, _random(sizes)
    height, width = _sides(sizes, config.patch_size)
    text = random(sizes.batch, sizes.tokens, config.caption_channels or config.cross_attention_dim)
    found = {
        "hidden_states": random(sizes.batch, config.in_channels, height, width),
        "encoder_hidden_states": text,
        "timestep": torch.full((sizes.batch,), 500.0),
    }
    if module.use_additional_conditions:
        found["resolution"] = torch.tensor([[8.0 * height, 8.0 * width]]).repeat(sizes.batch, 1)
        found["aspect_ratio"] = torch.tensor([[height / width]]).repeat(sizes.batch, 1)
    return {**found, "encoder_attention_mask": _mask(text)}


def _unet(unet: Any) -> Component:
    config = unet.config

    def forward(sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, **more: Tensor) -> dict[str, Tensor]:
        options: dict[str, Any] = {"timestep_cond": more.pop("timestep_cond", None)}
        if more:
            options["added_cond_kwargs"] = more
        return {"out_sample": unet(sample, timestep, encoder_hidden_states, return_dict=False, **options)[0]}

    def inputs(sizes: Sizes) -> Inputs:
        random = _random(sizes)
        found: Inputs = {
            "sample": random(
                sizes.batch, config.in_channels, *_sides(sizes, 2 ** (len(config.block_out_channels) - 1))
            ),
            "timestep": torch.tensor(500),
            "encoder_hidden_states": random(sizes.batch, sizes.tokens, _width(config.cross_attention_dim)),
        }
        if config.addition_embed_type == "text_time":
            ids = 6  # the sizes of an image: original, crop and target
            width = config.projection_class_embeddings_input_dim - ids * config.addition_time_embed_dim
            found["text_embeds"] = random(sizes.batch, width)
            found["time_ids"] = random(sizes.batch, ids).abs() * 100
        if config.time_cond_proj_dim is not None:
            found["timestep_cond"] = random(sizes.batch, config.time_cond_proj_dim)
        return found

    return _component("unet", unet, forward, inputs)


def _width(size: Any) -> int:
    return int(size[0]) if isinstance(size, (list, tuple)) else int(size)


def _vae_encoder(vae: Any) -> Component:
    config = vae.config

    def forward(sample: Tensor) -> dict[str, Tensor]:
        return {"latent_parameters": vae.encode(sample).latent_dist.parameters}

    def inputs(sizes: Sizes) -> Inputs:
        sides = _sides(sizes, 2 ** (len(config.block_out_channels) - 1))
        return {"sample": _random(sizes)(sizes.batch, config.in_channels, *sides)}

    axes = {"sample": {0: "batch_size", 2: "sample_height", 3: "sample_width"}}
    return _component("vae_encoder", vae, forward, inputs, axes)


def _vae_decoder(vae: Any) -> Component:
    def forward(latent_sample: Tensor) -> dict[str, Tensor]:
        return {"sample": vae.decode(latent_sample, return_dict=False)[0]}

    def inputs(sizes: Sizes) -> Inputs:
        return {"latent_sample": _random(sizes)(sizes.batch, vae.config.latent_channels, *_sides(sizes, 1))}

    axes = {"latent_sample": {0: "batch_size", 2: "latent_height", 3: "latent_width"}}
    return _component("vae_decoder", vae, forward, inputs, axes)
