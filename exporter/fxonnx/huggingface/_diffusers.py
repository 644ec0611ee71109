"""Pipelines of Diffusers: their components, each a file in the directory that optimum's ORTDiffusionPipeline loads."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ._components import Component, Inputs, with_forward
from ._extra import import_extra
from ._samples import Sizes, cast

__all__ = ["components_of_pipeline", "pipeline_of", "write_pipeline"]

_INDEX = "model_index.json"
_TEXT_ENCODERS = ("text_encoder", "text_encoder_2")
_SAVED = ("scheduler", "tokenizer", "tokenizer_2", "feature_extractor")
_OMITTED = ("safety_checker", "image_encoder")
_PIPELINES = frozenset(
    {
        *("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline"),
        *("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"),
        *("LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline"),
    }
)
_LATENT_SIDE = 8


def pipeline_of(model: Any) -> Any:
    """The pipeline of a directory or an object; None for anything else.

    Args:
        model: The user's argument.

    Raises:
        ArgumentError: If the pipeline cannot be loaded, or is not one of Stable Diffusion.
    """
    if isinstance(model, (str, os.PathLike)):
        directory = Path(model)
        if not (directory / _INDEX).is_file():
            return None
        model = _load(directory)
    if type(model).__module__.partition(".")[0] != "diffusers" or not hasattr(model, "components"):
        return None
    name = type(model).__name__
    hint = "export its components with fxonnx.export"
    if name not in _PIPELINES:
        problem = f"{name} is not a pipeline of Stable Diffusion 1, 2, XL or of Latent Consistency"
        raise ArgumentError("model", problem, hint=hint)
    config = model.unet.config
    conditions = {
        "addition_embed_type": (None, "text_time"),
        "class_embed_type": (None,),
        "encoder_hid_dim_type": (None,),
    }
    for option, known in conditions.items():
        if config.get(option) not in known:
            raise ArgumentError("model", f"the UNet of {name} has the {option} {config[option]!r}", hint=hint)
    return model


def _load(directory: Path) -> Any:
    """Load a pipeline, whose text encoders transformers would complete by random weights.

    Raises:
        ArgumentError: If it cannot be loaded, or lacks weights.
    """
    diffusers, transformers = import_extra("diffusers", "diffusers"), import_extra("transformers")
    encoders = {}
    try:
        index = json.loads((directory / _INDEX).read_text(encoding="utf-8"))
        for name in _TEXT_ENCODERS:
            if (index.get(name) or [None])[0] == "transformers":
                encoders[name], report = getattr(transformers, index[name][1]).from_pretrained(
                    directory / name, local_files_only=True, dtype=torch.float32, output_loading_info=True
                )
                for missing in sorted(report["missing_keys"])[:1]:
                    raise ArgumentError("model", f"{directory / name} has no weights for {missing}")
        return diffusers.DiffusionPipeline.from_pretrained(
            directory, local_files_only=True, torch_dtype=torch.float32, **encoders
        )
    except (OSError, ValueError, KeyError, AttributeError, ImportError) as error:
        raise ArgumentError("model", f"{directory} cannot be loaded: {error}") from error


def components_of_pipeline(pipeline: Any, dtype: torch.dtype, *, merges_adapters: bool) -> list[Component]:
    """The components of a pipeline, by the names of their directories.

    Args:
        pipeline: The pipeline, which is left unchanged.
        dtype: The dtype of the weights; those of a VAE stay in float32 where the pipeline computes it in float32.
        merges_adapters: Whether LoRA adapters are a part of the weights.
    """
    prepare = partial(_prepared, merges_adapters=merges_adapters)
    found = [
        _text_encoder(name, prepare(getattr(pipeline, name), dtype))
        for name in _TEXT_ENCODERS
        if getattr(pipeline, name, None) is not None
    ]
    is_upcast = "XL" in type(pipeline).__name__ and pipeline.vae.config.force_upcast
    vae = prepare(pipeline.vae, torch.float32 if is_upcast else dtype)
    return [*found, _unet(prepare(pipeline.unet, dtype)), _vae_encoder(vae), _vae_decoder(vae)]


def write_pipeline(pipeline: Any, directory: Path) -> None:
    """Write the files of a pipeline other than the weights of its components.

    Args:
        pipeline: The pipeline.
        directory: The directory to write.
    """
    pipeline.save_config(directory)
    index = json.loads((directory / _INDEX).read_text(encoding="utf-8"))
    for name in _OMITTED:
        if name in index:
            index[name] = [None, None]
    (directory / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for name in _SAVED:
        if getattr(pipeline, name, None) is not None:
            getattr(pipeline, name).save_pretrained(directory / name)
    pipeline.unet.save_config(directory / "unet")
    for name in ("vae_encoder", "vae_decoder"):
        pipeline.vae.save_config(directory / name)
    for name in _TEXT_ENCODERS:
        if getattr(pipeline, name, None) is not None:
            getattr(pipeline, name).config.save_pretrained(directory / name)


def _prepared(module: Any, dtype: torch.dtype, *, merges_adapters: bool) -> Any:
    """A copy of a component in a dtype and in evaluation mode, with its active LoRA adapters merged on request."""
    found = copy.deepcopy(module).eval().to(dtype)
    for layer in found.modules() if merges_adapters else ():
        if hasattr(layer, "lora_A") and not (layer.merged or layer.disable_adapters):
            layer.merge()
    return found


def _component(
    name: str,
    module: Any,
    forward: Callable[..., Mapping[str, Tensor]],
    inputs: Callable[[Sizes], Inputs],
    axes: Mapping[str, Mapping[int, str]],
) -> Component:
    """A component whose file has float32 inputs and outputs."""

    def called(**given: Tensor) -> dict[str, Tensor]:
        found = forward(**cast(given, next(module.parameters()).dtype))
        return {key: value.float() for key, value in found.items()}

    return Component(name, with_forward(module, called), inputs, axes)


def _text_encoder(name: str, encoder: Any) -> Component:
    config = encoder.config
    with torch.no_grad():  # transformers installs the hooks that record hidden states in the first call
        encoder(torch.zeros(1, 1, dtype=torch.int64), output_hidden_states=True)

    def forward(input_ids: Tensor) -> dict[str, Tensor]:
        found = encoder(input_ids, output_hidden_states=True, return_dict=True)
        pooled = "text_embeds" if "text_embeds" in found else "pooler_output"
        states = {f"hidden_states.{index}": found.hidden_states[index] for index in range(config.num_hidden_layers)}
        first = {pooled: found[pooled], "last_hidden_state": found.last_hidden_state}
        return {**(first if pooled == "text_embeds" else dict(reversed(first.items()))), **states}

    def inputs(sizes: Sizes) -> Inputs:
        length = min(sizes.tokens, config.max_position_embeddings)
        generator = torch.Generator().manual_seed(sizes.seed)
        return {"input_ids": torch.randint(config.vocab_size, (sizes.batch, length), generator=generator)}

    return _component(name, encoder, forward, inputs, {"input_ids": {0: "batch_size", 1: "sequence_length"}})


def _unet(unet: Any) -> Component:
    config = unet.config

    def forward(sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, **more: Tensor) -> dict[str, Tensor]:
        options: dict[str, Any] = {"timestep_cond": more.pop("timestep_cond", None)}
        if more:
            options["added_cond_kwargs"] = more
        return {"out_sample": unet(sample, timestep, encoder_hidden_states, return_dict=False, **options)[0]}

    def inputs(sizes: Sizes) -> Inputs:
        random = partial(torch.randn, generator=torch.Generator().manual_seed(sizes.seed))
        side = int(_LATENT_SIDE * sizes.scale) * 2 ** (len(config.block_out_channels) - 1)
        found: Inputs = {
            "sample": random(sizes.batch, config.in_channels, side, side),
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

    axes: dict[str, Mapping[int, str]] = {
        "sample": {0: "batch_size", 2: "height", 3: "width"},
        "encoder_hidden_states": {0: "batch_size", 1: "sequence_length"},
    }
    conditions = [name for name in inputs(Sizes()) if name in ("text_embeds", "time_ids", "timestep_cond")]
    axes |= {name: {0: "batch_size"} for name in conditions}
    return _component("unet", unet, forward, inputs, axes)


def _width(size: Any) -> int:
    return int(size[0]) if isinstance(size, (list, tuple)) else int(size)


def _vae_encoder(vae: Any) -> Component:
    def forward(sample: Tensor) -> dict[str, Tensor]:
        return {"latent_parameters": vae.encode(sample).latent_dist.parameters}

    def inputs(sizes: Sizes) -> Inputs:
        side = int(_LATENT_SIDE * sizes.scale) * 2 ** (len(vae.config.block_out_channels) - 1)
        generator = torch.Generator().manual_seed(sizes.seed)
        return {"sample": torch.randn(sizes.batch, vae.config.in_channels, side, side, generator=generator)}

    axes = {"sample": {0: "batch_size", 2: "sample_height", 3: "sample_width"}}
    return _component("vae_encoder", vae, forward, inputs, axes)


def _vae_decoder(vae: Any) -> Component:
    def forward(latent_sample: Tensor) -> dict[str, Tensor]:
        return {"sample": vae.decode(latent_sample, return_dict=False)[0]}

    def inputs(sizes: Sizes) -> Inputs:
        side = int(_LATENT_SIDE * sizes.scale)
        generator = torch.Generator().manual_seed(sizes.seed)
        return {"latent_sample": torch.randn(sizes.batch, vae.config.latent_channels, side, side, generator=generator)}

    axes = {"latent_sample": {0: "batch_size", 2: "latent_height", 3: "latent_width"}}
    return _component("vae_decoder", vae, forward, inputs, axes)
