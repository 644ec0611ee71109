"""``load``: a directory of exported files as a model of transformers, whose computation ONNX Runtime does.

The model is the class of transformers without weights, so that ``generate`` and pipelines are transformers' own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, ExportError, did_you_mean
from .extras import import_extra
from .families.image_text import merged_embeddings
from .families.sound import replace_speech
from .pipelines import INDEX, load_pipeline
from .sessions import Session, like, on_cpu, parameters, replace_forward
from .untrusted import check_checkpoint, loading

__all__ = ["load", "register"]

_SINGLE, _ENCODER, _DECODER = "model", "encoder_model", "decoder_model_merged"
_EMBEDDINGS, _IMAGES = "embed_tokens", "vision_encoder"
_TEXT_ENCODER, _SOUND, _DELAYS = "text_encoder", "encodec_decode", "build_delay_pattern_mask"
_VOCODER = "decoder_postnet_and_vocoder"
_NAMES = (_DECODER, _ENCODER, _EMBEDDINGS, _IMAGES, _TEXT_ENCODER, _SOUND, _DELAYS, _VOCODER, _SINGLE)


def load(
    directory: str | os.PathLike[str],
    *,
    file: str | None = None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    session_options: Any = None,
) -> Any:
    """Load an exported directory as a model of transformers, or as a pipeline of Diffusers.

    A model is called with the output of the processor, generates with transformers' own ``generate`` (greedy,
    sampling, beams) and is accepted by ``transformers.pipeline``. It has no weights of its own.

    Args:
        directory: A directory that ``export`` wrote, with files in it or in its subdirectory ``onnx``.
        file: The end of the file names, for directories with several dtypes: "" for float32, "_fp16", "_quantized",
            "_q4" or "_q4f16". None: "" if such a file exists, otherwise the only one that does.
        providers: Execution providers of ONNX Runtime.
        session_options: ``onnxruntime.SessionOptions``.

    Raises:
        ArgumentError: If the directory has no such files.
    """
    transformers, onnxruntime = import_extra("transformers"), import_extra("onnxruntime")
    root = Path(directory)

    def opened(path: Path) -> Session:
        return Session(onnxruntime.InferenceSession(str(path), session_options, providers=list(providers)))

    if (root / INDEX).is_file():
        if file is not None:
            raise ArgumentError("file", "expected None for a pipeline of Diffusers, whose files have fixed names")
        return load_pipeline(root, opened)
    config = _config(root)
    sessions = {name: opened(path) for name, path in _files(root, file).items()}
    model_class = getattr(transformers, config.architectures[0])
    with torch.device("meta"):
        model = model_class._from_config(config)
    model.eval()
    # A sliding cache has fewer positions than the inputs of the file.
    model.__class__ = on_cpu(model_class, _prepare_cache_for_generation=_prepare_cache)
    if _IMAGES in sessions:
        encode = functools.partial(_encode_images, sessions[_IMAGES])
        # generate calls it before the first step
        model.base_model.get_image_features = like(model.base_model.get_image_features, encode)
        if hasattr(model.base_model, "get_video_features"):
            model.base_model.get_video_features = like(model.base_model.get_video_features, _refuse_videos)
        replace_forward(model, functools.partial(_decode_with_images, model, sessions))
    elif _VOCODER in sessions:
        replace_speech(model, sessions[_ENCODER], sessions[_DECODER], sessions[_VOCODER])
    elif _DECODER in sessions:
        encoder = sessions[_TEXT_ENCODER if _SOUND in sessions else _ENCODER]
        replace_forward(model.get_encoder(), functools.partial(_encode, encoder))
        if _SOUND in sessions:
            decode = functools.partial(_decode_sound, sessions[_SOUND])
            model.audio_encoder.decode = like(model.audio_encoder.decode, decode)
        replace_forward(model, functools.partial(_decode_with_encoder, model, sessions[_DECODER]))
    elif sessions[_SINGLE].caches:
        replace_forward(model, functools.partial(_decode, sessions[_SINGLE]))
    else:
        replace_forward(model, functools.partial(_call, sessions[_SINGLE]))
    if model.can_generate():
        if (root / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(root)
        # Some configurations switch the cache off, which the file has.
        model.generation_config.use_cache = model.config.use_cache = True
    return model


def _config(root: Path) -> Any:
    transformers = import_extra("transformers")
    if not (root / "config.json").is_file():
        hint = None if root.is_dir() else did_you_mean(root.name, (each.name for each in root.parent.glob("*")))
        problem = f"{root} has no config.json" if root.is_dir() else f"directory {root} does not exist"
        raise ArgumentError(
            "directory", problem, hint=hint or "pass a directory that fxonnx.huggingface.export has written"
        )
    check_checkpoint(root, "directory")
    with loading(root, "directory"):
        return transformers.AutoConfig.from_pretrained(root, local_files_only=True, trust_remote_code=False)


def _files(root: Path, suffix: str | None) -> dict[str, Path]:
    """The files of the model by the name of the component."""
    found = {
        path.stem: path for folder in (root / "onnx", root) if folder.is_dir() for path in sorted(folder.glob("*.onnx"))
    }
    by_suffix: dict[str, dict[str, Path]] = {}
    for stem, path in found.items():
        name = next((each for each in _NAMES if stem.startswith(each)), None)
        if name is not None:
            by_suffix.setdefault(stem.removeprefix(name), {})[name] = path
    if not by_suffix:
        raise ArgumentError("directory", f"{root} has no model.onnx and no decoder_model_merged.onnx")
    if suffix is None:
        suffix = "" if "" in by_suffix or len(by_suffix) > 1 else next(iter(by_suffix))
    if suffix not in by_suffix:
        raise ArgumentError("file", f"expected one of {', '.join(map(repr, sorted(by_suffix)))}, got {suffix!r}")
    return by_suffix[suffix]


def _prepare_cache(model: Any, _config: Any, kwargs: dict[str, Any], _mode: Any, _batch: int, _length: int) -> None:
    if kwargs.get("past_key_values") is None:
        transformers = import_extra("transformers")
        cache = transformers.DynamicCache()
        if model.config.is_encoder_decoder:
            cache = transformers.EncoderDecoderCache(cache, transformers.DynamicCache())
        kwargs["past_key_values"] = cache


def _call(session: Session, **inputs: Any) -> Any:
    given = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    if "attention_mask" in session.inputs and "attention_mask" not in given and "input_ids" in given:
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    if "token_type_ids" in session.inputs and "token_type_ids" not in given and "input_ids" in given:
        given["token_type_ids"] = torch.zeros_like(given["input_ids"])
    return import_extra("transformers").utils.ModelOutput(session(given))


def _encode(session: Session, **inputs: Any) -> Any:
    transformers = import_extra("transformers")
    found = _call(session, **inputs)
    return transformers.modeling_outputs.BaseModelOutput(found["last_hidden_state"])


def _decode_sound(session: Session, audio_codes: Tensor, **_scales: Any) -> Any:
    return import_extra("transformers").utils.ModelOutput(session({"audio_codes": audio_codes}))


def _states(cache: Any) -> list[tuple[Tensor, Tensor]]:
    layers = [] if cache is None else cache.layers
    return [(layer.keys, layer.values) for layer in layers if layer.keys is not None]


def _store(cache: Any, layer: int, keys: Tensor, values: Tensor) -> None:
    """Put the keys and values of all steps into a layer of a cache, without a copy."""
    if layer < len(cache.layers) and cache.layers[layer].keys is not None:
        cache.layers[layer].keys, cache.layers[layer].values = keys, values
    else:
        cache.update(keys, values, layer)


def _decode(session: Session, **inputs: Any) -> Any:
    transformers = import_extra("transformers")
    ids = inputs["input_ids"]
    cache = inputs.get("past_key_values")
    cache = transformers.DynamicCache() if cache is None else cache
    past = _states(cache)
    length = past[0][0].shape[2] if past else 0
    feeds: dict[str, Tensor] = {"input_ids": ids}
    if "inputs_embeds" in session.inputs:
        feeds = {"inputs_embeds": inputs["inputs_embeds"]}
    mask = inputs.get("attention_mask")
    feeds["attention_mask"] = (
        torch.ones(ids.shape[0], length + ids.shape[1], dtype=torch.int64) if mask is None else mask
    )
    feeds["attention_mask"] = feeds["attention_mask"].to(torch.int64)
    positions = inputs.get("position_ids")
    if positions is None:
        positions = torch.arange(length, length + ids.shape[1])[None]
    if "position_ids" in session.inputs:
        # Of several axes, transformers puts those of the text first.
        axes = positions[-3:] if positions.ndim == 3 else positions
        has_axes = len(session.inputs["position_ids"].shape) == 3
        feeds["position_ids"] = axes.expand((3, *ids.shape) if has_axes else ids.shape)
    for name in session.caches:
        _, index, kind = name.split(".")
        feeds[name] = past[int(index)][kind == "value"] if past else session.empty(name, len(ids))
    found = session(feeds)
    for layer in range(len(session.caches) // 2):
        _store(cache, layer, found[f"present.{layer}.key"], found[f"present.{layer}.value"])
    returned = None if inputs.get("use_cache") is False else cache
    return transformers.modeling_outputs.CausalLMOutputWithPast(logits=found["logits"], past_key_values=returned)


def _encode_images(session: Session, **inputs: Any) -> Any:
    given = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    calls = _single_images(given) if "image_grid_thw" in session.inputs else [given]
    features = tuple(session(call)["image_features"] for call in calls)
    transformers = import_extra("transformers")
    return transformers.modeling_outputs.BaseModelOutputWithPooling(pooler_output=features)


def _refuse_videos(**_inputs: Any) -> Any:
    raise ArgumentError("pixel_values_videos", _ONLY_IMAGES, hint="leave it out")


_ONLY_IMAGES = "the exported files compute images only, no videos and no audio"
_UNREAD = ("pixel_values_videos", "input_features", "input_values")
"""Ends of the names of inputs that files of images and text do not have."""


def _single_images(inputs: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The patches and the grid of each image."""
    grids = inputs["image_grid_thw"]
    patches = torch.split(inputs["pixel_values"], grids.prod(1).tolist())
    return [{"pixel_values": each, "image_grid_thw": grid[None]} for each, grid in zip(patches, grids, strict=True)]


def _decode_with_images(model: Any, sessions: Mapping[str, Session], **inputs: Any) -> Any:
    """A step of a decoder of images and text, whose images are in the first one."""
    for name, value in inputs.items():
        if name.endswith(_UNREAD) and value is not None:
            raise ArgumentError(name, _ONLY_IMAGES, hint="leave it out")
    if inputs.get("inputs_embeds") is None:
        ids = inputs["input_ids"]
        embeddings = sessions[_EMBEDDINGS]({"input_ids": ids})["inputs_embeds"]
        images = (inputs.get("mm_encoder_outputs") or {}).get("image")
        if images is None and inputs.get("pixel_values") is not None:
            images = _encode_images(sessions[_IMAGES], **inputs)
        if images is not None:
            embeddings = merged_embeddings(model.config, ids, embeddings, torch.cat(list(images.pooler_output)))
        inputs["inputs_embeds"] = embeddings
        compute = getattr(model.base_model, "compute_3d_position_ids", None)
        if compute is not None and inputs.get("position_ids") is None:
            names = parameters(compute)
            inputs["position_ids"] = compute(**{name: inputs.get(name) for name in names})
    return _decode(sessions[_DECODER], **{**inputs, "input_ids": inputs["inputs_embeds"][..., 0]})


def _decode_with_encoder(model: Any, session: Session, **inputs: Any) -> Any:
    transformers = import_extra("transformers")
    hidden = inputs.get("encoder_outputs")
    if hidden is None:
        names = parameters(model.get_encoder().forward)
        given = {name: inputs[name] for name in names if inputs.get(name) is not None}
        hidden = model.get_encoder()(**given)
    states = hidden[0]
    ids = inputs["decoder_input_ids"]
    cache = inputs.get("past_key_values")
    if cache is None:
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
    past = {"decoder": _states(cache.self_attention_cache), "encoder": _states(cache.cross_attention_cache)}
    feeds: dict[str, Tensor] = {
        "input_ids": ids,
        "encoder_hidden_states": states,
        "use_cache_branch": torch.tensor([bool(past["encoder"])]),
    }
    mask = inputs.get("attention_mask")
    if "encoder_attention_mask" in session.inputs:
        feeds["encoder_attention_mask"] = torch.ones(states.shape[:2], dtype=torch.int64) if mask is None else mask
    if "decoder_attention_mask" in session.inputs:
        length = ids.shape[1] + (past["decoder"][0][0].shape[2] if past["decoder"] else 0)
        given_mask = inputs.get("decoder_attention_mask")
        feeds["decoder_attention_mask"] = torch.ones(len(ids), length) if given_mask is None else given_mask
    for name in session.caches:
        _, index, part, kind = name.split(".")
        known = past[part]
        feeds[name] = known[int(index)][kind == "value"] if known else session.empty(name, len(states))
    found = session(feeds)
    for layer in range(len(session.caches) // 4):
        for part, stored in (("decoder", cache.self_attention_cache), ("encoder", cache.cross_attention_cache)):
            _store(stored, layer, found[f"present.{layer}.{part}.key"], found[f"present.{layer}.{part}.value"])
        cache.is_updated[layer] = True
    returned = None if inputs.get("use_cache") is False else cache
    return transformers.modeling_outputs.Seq2SeqLMOutput(
        logits=found["logits"],
        past_key_values=returned,
        encoder_last_hidden_state=states,
        **(_attentions(found) if inputs.get("output_attentions") else {}),
    )


def _attentions(found: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
    """The cross attentions of the layers, and none of the self attention."""
    crossed = tuple(value for name, value in found.items() if name.startswith("cross_attentions."))
    if not crossed:
        problem = "the exported file does not return attentions, as return_token_timestamps requires"
        raise ArgumentError("output_attentions", problem, hint="export with attentions=True (--attentions)")
    return {"cross_attentions": crossed, "decoder_attentions": ()}


def register() -> type[Any]:
    """Register the export format "fxonnx" with ``transformers.exporters``, which transformers has from version 5 on.

    Afterwards ``AutoHfExporter.from_config({"export_format": "fxonnx"})`` returns an exporter, and
    ``ExportedModel.from_pretrained`` loads its directories. Further calls change nothing.

    Returns:
        The class of the exporter; its ``config_class`` has the options.

    Raises:
        ExportError: If transformers is not installed, or has no ``transformers.exporters``.
    """
    transformers = import_extra("transformers")
    try:
        auto = import_module("transformers.exporters.auto")
    except ModuleNotFoundError as error:
        problem = f"transformers {transformers.__version__} has no transformers.exporters"
        raise ExportError(problem, hint="pip install -U transformers") from error
    backend = import_module(f"{__package__}.backend")  # which imports transformers.exporters
    if backend.FORMAT not in auto.EXPORT_BACKENDS:
        auto.register_backend(backend.FxonnxExporter, backend.FxonnxRunner)
    exporter: type[Any] = backend.FxonnxExporter
    return exporter
