"""Pipelines of Diffusers: where they come from, and their files other than the weights of their components."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import torch

from ..errors import ArgumentError
from ..genai._hub import download_errors, is_hub_id
from ..genai._untrusted import check_checkpoint, loading, read_settings
from ._diffusion_components import TEXT_ENCODERS, check_denoiser, denoiser_of
from ._extra import import_extra

__all__ = ["INDEX", "has_adapters", "pipeline_of", "prepared_pipeline", "write_pipeline"]

INDEX = "model_index.json"
_SAVED = ("scheduler", "tokenizer", "tokenizer_2", "tokenizer_3", "feature_extractor")
_OMITTED = ("safety_checker", "image_encoder")
_PIPELINES = frozenset(
    {
        *("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline"),
        *("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"),
        *("StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline", "StableDiffusion3InpaintPipeline"),
        *("LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline"),
        *("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline"),
        *("PixArtAlphaPipeline", "PixArtSigmaPipeline"),
    }
)


def pipeline_of(model: Any, revision: str | None = None, token: str | None = None) -> Any:
    """The pipeline of a directory, an id of the Hub or an object; None for anything else.

    Args:
        model: The user's argument.
        revision: Branch, tag or commit on the Hub.
        token: Token of the Hub.

    Raises:
        ArgumentError: If the pipeline cannot be loaded, or is not one that can be exported.
    """
    if isinstance(model, (str, os.PathLike)):
        directory = _downloaded(os.fspath(model), revision, token) if is_hub_id(model) else Path(model)
        if directory is None or not (directory / INDEX).is_file():
            return None
        model = _load(directory)
    if type(model).__module__.partition(".")[0] != "diffusers" or not hasattr(model, "components"):
        return None
    name = type(model).__name__
    if name not in _PIPELINES:
        problem = f"{name} is not a pipeline of Stable Diffusion 1, 2, XL or 3, Latent Consistency, Flux or PixArt"
        raise ArgumentError("model", problem, hint="export its components with fxonnx.export")
    check_denoiser(model)
    return model


def _downloaded(name: str, revision: str | None, token: str | None) -> Path | None:
    """The directory of a pipeline of the Hub; None if the name is not one of a pipeline.

    Raises:
        ArgumentError: If the pipeline cannot be downloaded.
    """
    hub = import_extra("huggingface_hub")
    errors = download_errors()
    try:
        hub.hf_hub_download(name, INDEX, revision=revision, token=token)
    except errors:  # a model of transformers, or a name for which its error has the reason
        return None
    diffusers = import_extra("diffusers", "diffusers")
    try:
        return Path(diffusers.DiffusionPipeline.download(name, revision=revision, token=token))
    except errors as error:
        hint = f"on a machine with network access, run: hf download {name}"
        problem = f"the pipeline {name} cannot be downloaded: {str(error).splitlines()[0]}"
        raise ArgumentError("model", problem, hint=hint) from error


def _load(directory: Path) -> Any:
    """Load a pipeline, whose text encoders transformers would complete by random weights.

    Raises:
        ArgumentError: If it cannot be loaded, or lacks weights.
    """
    diffusers, transformers = import_extra("diffusers", "diffusers"), import_extra("transformers")
    encoders = {}
    check_checkpoint(directory)
    index = read_settings(directory / INDEX)
    with loading(directory):
        for name in TEXT_ENCODERS:
            if (index.get(name) or [None])[0] == "transformers":
                encoders[name], report = getattr(transformers, index[name][1]).from_pretrained(
                    directory / name, local_files_only=True, dtype=torch.float32, output_loading_info=True
                )
                for missing in sorted(report["missing_keys"])[:1]:
                    raise ArgumentError("model", f"{directory / name} has no weights for {missing}")
        return diffusers.DiffusionPipeline.from_pretrained(
            directory, local_files_only=True, torch_dtype=torch.float32, **encoders
        )


def prepared_pipeline(pipeline: Any, dtype: torch.dtype, *, merges_adapters: bool) -> Any:
    """A pipeline with modules of a dtype in evaluation mode, and with a scheduler of its own.

    Modules that need no change are those of the given pipeline, which is left unchanged.

    Args:
        pipeline: The pipeline.
        dtype: The dtype of the weights; those of a VAE stay in float32 where the pipeline computes it in float32.
        merges_adapters: Whether active LoRA adapters become a part of the weights.
    """
    found = copy.copy(pipeline)
    found.scheduler = copy.deepcopy(pipeline.scheduler)
    for name in (name for name in _OMITTED if getattr(pipeline, name, None) is not None):
        setattr(found, name, None)
    is_upcast = "XL" in type(pipeline).__name__ and pipeline.vae.config.force_upcast
    for name in (*TEXT_ENCODERS, denoiser_of(pipeline)[0], "vae"):
        if getattr(pipeline, name, None) is not None:
            chosen = torch.float32 if name == "vae" and is_upcast else dtype
            setattr(found, name, _prepared(getattr(pipeline, name), chosen, merges_adapters=merges_adapters))
    return found


def has_adapters(pipeline: Any) -> bool:
    """Whether a module of a pipeline has LoRA adapters that are active and not a part of its weights."""
    modules = [each for each in pipeline.components.values() if isinstance(each, torch.nn.Module)]
    return any(_adapters(module) for module in modules)


def _adapters(module: Any) -> list[Any]:
    layers = [layer for layer in module.modules() if hasattr(layer, "lora_A")]
    return [layer for layer in layers if not (layer.merged or layer.disable_adapters)]


def _prepared(module: Any, dtype: torch.dtype, *, merges_adapters: bool) -> Any:
    """The module itself, or a copy if it is in training mode, has another dtype or adapters to be merged.

    T5 computes some layers in float32, whose values exceed the range of float16.
    """
    kept = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    if not (module.training or dtypes - {dtype} or (merges_adapters and _adapters(module))):
        return module
    found = copy.deepcopy(module).eval().to(dtype)
    for name, part in found.named_modules():
        if name.rpartition(".")[2] in kept:
            part.float()
    for layer in _adapters(found) if merges_adapters else ():
        layer.merge()
    return found


def write_pipeline(pipeline: Any, directory: Path) -> None:
    """Write the files of a pipeline other than the weights of its components.

    Args:
        pipeline: The pipeline.
        directory: The directory to write.
    """
    pipeline.save_config(directory)
    index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    for name in _OMITTED:
        if name in index:
            index[name] = [None, None]
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for name in _SAVED:
        if getattr(pipeline, name, None) is not None:
            getattr(pipeline, name).save_pretrained(directory / name)
    name, denoiser = denoiser_of(pipeline)
    denoiser.save_config(directory / name)
    for name in ("vae_encoder", "vae_decoder"):
        pipeline.vae.save_config(directory / name)
    for name in TEXT_ENCODERS:
        if getattr(pipeline, name, None) is not None:
            getattr(pipeline, name).config.save_pretrained(directory / name)
