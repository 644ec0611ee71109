"""Pipelines of Diffusers: where they come from, their files, and ``load`` for them."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from .extras import import_extra
from .families.diffusion import TEXT_ENCODERS, check_denoiser, denoiser_of
from .hub import download_errors, is_hub_id
from .sessions import OpenSession, Session, on_cpu, replace_forward
from .untrusted import check_checkpoint, loading, read_settings

__all__ = ["INDEX", "has_adapters", "load_pipeline", "pipeline_of", "prepared_pipeline", "write_pipeline"]

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
    """The pipeline of a directory, an id of the Hub or an object; None for anything else."""
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
    """The directory of a pipeline of the Hub; None if the name is not one of a pipeline."""
    hub = import_extra("huggingface_hub")
    errors = download_errors()
    try:
        hub.hf_hub_download(name, INDEX, revision=revision, token=token)
    except errors:  # a model of transformers, or a name for which its error has the reason
        return None
    diffusers = import_extra("diffusers")
    try:
        return Path(diffusers.DiffusionPipeline.download(name, revision=revision, token=token))
    except errors as error:
        hint = f"on a machine with network access, run: hf download {name}"
        problem = f"the pipeline {name} cannot be downloaded: {str(error).splitlines()[0]}"
        raise ArgumentError("model", problem, hint=hint) from error


def _load(directory: Path) -> Any:
    """Load a pipeline, whose text encoders transformers would complete by random weights."""
    diffusers, transformers = import_extra("diffusers"), import_extra("transformers")
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

    Modules that need no change are the given pipeline's, which is left unchanged.
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
    """Write the files of a pipeline other than the weights of its components."""
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


_FILE = "model.onnx"
_FORMS = ("output_hidden_states", "return_dict")
"""Arguments that choose the form of a result."""


def load_pipeline(root: Path, opened: OpenSession) -> Any:
    """Load an exported pipeline."""
    diffusers = import_extra("diffusers")
    check_checkpoint(root, "directory")
    index = read_settings(root / INDEX, "directory")
    pipeline_class = getattr(diffusers, index["_class_name"])
    names = inspect.signature(pipeline_class).parameters
    return pipeline_class(**{name: _part(root, name, index[name], opened) for name in names if name in index})


def _part(root: Path, name: str, entry: Any, opened: OpenSession) -> Any:
    """A part of a pipeline, for an entry of its index: an option, or library and class."""
    if not isinstance(entry, list):
        return entry
    library, class_name = entry
    if class_name is None:
        return None
    part_class = getattr(import_extra(library), class_name)
    if name == "vae":
        return _vae(root, part_class, opened)
    if not issubclass(part_class, torch.nn.Module):
        return part_class.from_pretrained(root / name, local_files_only=True)
    module = _without_weights(part_class, root / name)
    compute = _denoise if library == "diffusers" else _encode_text
    replace_forward(module, functools.partial(compute, _session(root / name, opened)))
    return module


def _session(folder: Path, opened: OpenSession) -> Session:
    if not (folder / _FILE).is_file():
        raise ArgumentError("directory", f"{folder} has no {_FILE}")
    return opened(folder / _FILE)


def _without_weights(part_class: Any, folder: Path) -> Any:
    with torch.device("meta"):
        if hasattr(part_class, "config_class"):  # of transformers
            module = part_class._from_config(part_class.config_class.from_pretrained(folder))
        else:
            module = part_class.from_config(part_class.load_config(folder))
    module.__class__ = on_cpu(part_class)
    return module.eval()


def _vae(root: Path, part_class: Any, opened: OpenSession) -> Any:
    """A VAE, whose encoder and decoder are files of their own."""
    diffusers = import_extra("diffusers")
    encoder, decoder = (_session(root / name, opened) for name in ("vae_encoder", "vae_decoder"))
    module = _without_weights(part_class, root / "vae_decoder")
    output_class = diffusers.models.modeling_outputs.AutoencoderKLOutput
    distribution_class = diffusers.models.autoencoders.vae.DiagonalGaussianDistribution

    def encode(images: Tensor, **_options: Any) -> Any:
        (parameters,) = encoder({"sample": images}).values()
        return output_class(latent_dist=distribution_class(parameters))

    module.encode = encode
    module.decode = lambda latents, **_options: tuple(decoder({"latent_sample": latents}).values())
    return module


def _denoise(session: Session, **given: Any) -> tuple[Tensor, ...]:
    given |= given.pop("added_cond_kwargs", None) or {}
    return tuple(session(_checked(session, given)).values())


def _encode_text(session: Session, **given: Any) -> Any:
    found: dict[str, Any] = session(_checked(session, given))
    states = [found.pop(name) for name in session.outputs if name.startswith("hidden_states.")]
    if states:  # the last one is not an output: pipelines count from the end, and read those before it
        found["hidden_states"] = (*states, found["last_hidden_state"])
    return import_extra("transformers").utils.ModelOutput(found)


def _checked(session: Session, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs of a file."""
    for name, value in given.items():
        is_empty = value is None or (isinstance(value, Mapping) and not value)
        if not is_empty and name not in session.inputs and name not in _FORMS:
            raise ArgumentError(name, "the exported file has no such input")
    return {name: value for name, value in given.items() if name in session.inputs}
