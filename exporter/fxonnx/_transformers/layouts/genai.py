"""``fxonnx.genai.export``: from a checkpoint to a directory that onnxruntime-genai loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import torch

from ... import QuantizeConfig, Target
from ...errors import ArgumentError
from ..core import from_torch, profile_of
from ..decoders.caches import CacheType, check_cache_type
from ..directory import LAST, keep_checkpoint_files, staged_directory, write_json
from ..extras import check_choice
from ..families.decoder import export_decoder
from ..families.embedding import export_embedding, export_reranker
from ..families.encoder_decoder import export_encoder_decoder, export_whisper
from ..families.sentences import POOLINGS, Pooling
from ..families.vision_language import export_vision_language
from ..generation import Quality, check_can_verify
from ..hub import download, is_hub_id
from ..language_models import ChatTemplate, LanguageModel, load_language_model, prompt_template
from ..parts import Request
from ..precision import (
    RECIPES,
    Precision,
    PrecisionPlan,
    Recipe,
    check_recipe,
    config_of_precision,
    config_of_recipe,
    read_precision,
    with_accuracy_level,
    with_quantization,
)
from ..tasks import FAMILIES, Family, check_modalities

__all__ = ["export"]

Device: TypeAlias = Literal["cpu", "cuda", "webgpu", "directml", "tensorrt-rtx"]

_TARGETS: Mapping[Device, Target] = MappingProxyType(
    {
        "cpu": "onnxruntime-genai",
        "cuda": "onnxruntime-genai-cuda",
        "webgpu": "onnxruntime-genai-webgpu",
        "directml": "onnxruntime-genai-directml",
        "tensorrt-rtx": "onnxruntime-genai-tensorrt-rtx",
    }
)
_PLAIN_TARGETS: Mapping[Device, Target] = MappingProxyType({"cpu": "onnxruntime", "cuda": "onnxruntime-cuda"})
_INTEGERS = ("int4", "int8")
_WITHOUT_INTEGER_TABLES: Device = "tensorrt-rtx"
_WRITTEN = (LAST, "genai", "inference", "model.onnx", "encoder", "decoder", "embedding", "vision", "audio", "weights")
"""Beginnings of the names of files that replace others in the directory of the checkpoint."""


def export(
    model: Any,
    out: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    chat_template: ChatTemplate = None,
    precision: Precision = "fp32",
    target: Device = "cpu",
    quantize: QuantizeConfig | Literal["int4", "int8"] | None = None,
    recipe: Recipe | None = None,
    accuracy_level: int | None = None,
    cache: CacheType = "float",
    opset_version: int | None = None,
    last_logits: bool = True,
    adapters: Mapping[str, str | os.PathLike[str]] = MappingProxyType({}),
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    text_only: bool = False,
    hidden_states: bool = False,
    inputs_embeds: bool = False,
    mtp: bool = False,
    verify: bool = True,
    revision: str | None = None,
    token: str | None = None,
    on_stage: Callable[[str], None] | None = None,
    on_quality: Callable[[Quality], None] | None = None,
) -> Path:
    """Export a language model of transformers for onnxruntime-genai.

    Besides decoder-only models: Whisper and vision-language models, in several files; embedding models, rerankers and
    other encoder-decoder models of text, speech or images, which ONNX Runtime runs without onnxruntime-genai.

    Args:
        model: A local directory, as ``save_pretrained`` or a download writes it, an id of the Hub, a GGUF file, or a
            model object, which is left unchanged.
        out: The directory to write: the ONNX files, genai_config.json, generation_config.json and the tokenizer's
            files. It is complete or not written at all; other files in it are kept.
        tokenizer: The tokenizer, or its directory; by default the one in the model's directory or GGUF file.
        chat_template: A Jinja template, or a file with one, in place of the tokenizer's; False for a decoder-only
            model that does not chat, whose tokenizer has none.
        precision: "fp32", "fp16" or "bf16": the dtype of weights and activations; "int4" or "int8": weights of linear
            layers in 4 or 8 bits, computed in float32 on the CPU and in float16 on other devices.
        target: The device that onnxruntime-genai runs the model on: "cpu", "cuda", or for decoder-only models "webgpu",
            "directml" or "tensorrt-rtx".
        quantize: Quantization of the weights in more detail, as for ``fxonnx.export``. By default, a checkpoint of
            GPTQ, AWQ or compressed-tensors and a GGUF file keep their integers.
        recipe: In place of ``precision`` and ``quantize``, for decoder-only models: "exact", float32; "balanced", 4-bit
            weights in blocks of 32, with 8-bit queries, keys and values, embeddings and logits; "fast", 4-bit weights
            in blocks of 128, with 8-bit embeddings and logits; "prefill", 8-bit weights and activations, the fastest
            for long prompts. For 4 bits the model runs on a text once, to measure which weights matter.
        accuracy_level: How products with quantized weights are computed on the CPU: 4 rounds activations to 8 bits, 1
            computes in float32, which is slower. By default that of ``quantize``, or 4. The integers of GGUF files
            that have 8 bits are always multiplied by rounded activations.
        cache: "int8": the keys and values of earlier tokens are 8-bit integers, a quarter of the bytes, with one scale
            for each channel, measured on a text; for decoder-only models on the CPU.
        opset_version: The opset; by default the target's.
        last_logits: Compute the logits of the last token of each row only, which generation needs.
        adapters: Name to directory of LoRA adapters, as PEFT writes them. Each becomes a file ``<name>.onnx_adapter``
            for ``Adapters`` of onnxruntime-genai; without an active adapter the model is the base model.
        pooling: Export an embedding model with this pooling of the hidden states: "cls", "last", "max", "mean",
            "mean_sqrt_len" or "weighted_mean"; by default the one in modules.json of sentence-transformers, if the
            directory has it.
        normalize: Normalize the embeddings; by default if modules.json specifies it.
        text_only: Export a model that also takes images or audio as one of text.
        hidden_states: Return the hidden states after the last layer and its norm as well, of all positions:
            ``generator.get_output("hidden_states")``. For decoder-only models.
        inputs_embeds: Take embeddings in place of tokens; ``embedding.onnx`` makes embeddings of tokens. For programs
            that call ONNX Runtime: onnxruntime-genai passes embeddings to models with images only.
        mtp: Write the heads for multi-token prediction of the checkpoint as well, mtp_0.onnx and so on, for programs
            that call ONNX Runtime, and return the hidden states that they take.
        verify: Compare greedily generated tokens in onnxruntime-genai with transformers'; embeddings and scores
            in ONNX Runtime with eager torch's.
        revision: Branch, tag or commit on the Hub.
        token: Token of the Hub.
        on_stage: Called with the name of each stage as it begins.
        on_quality: Called with the probabilities of a verified decoder for a text, over those of the original.

    Returns:
        The path of the directory.

    Raises:
        ArgumentError: If an argument is invalid, or the model has inputs that onnxruntime-genai cannot provide.
        VerificationError: With ``verify``, if the tokens differ.
        SaveError: If ``out`` cannot be written.
        ExportError: If transformers or onnxruntime-genai is not installed, or the export fails.
    """
    _check_choices(target, pooling, cache)
    name = recipe or ("" if quantize is not None else precision)
    precision, quantize = _with_recipe(recipe, precision, quantize)
    plan = read_precision(precision, quantize, target)
    _check_device(plan.dtype, quantize if recipe is None else None, target)
    if cache != "float":
        plan = with_quantization(plan, plan.quantize)
    announce = on_stage or (lambda _stage: None)

    def check(family: Family) -> None:
        if verify and FAMILIES[family].in_genai:
            check_can_verify(target, plan.dtype)

    with staged_directory(Path(out)) as staging:
        announce("load")
        model = _downloaded(model, revision, token)
        is_embedding = pooling is not None or normalize is not None
        # In the directory of the checkpoint, its files become the external data.
        has_values = verify or adapters or inputs_embeds or mtp or cache != "float" or recipe in ("balanced", "fast")
        is_needed = bool(has_values) or _is_directory(model, Path(out))
        loaded = load_language_model(
            model, tokenizer, plan.dtype, is_embedding, chat_template, check, with_weights=is_needed
        )
        family = check_modalities(loaded.family, loaded.model, text_only=text_only)
        loaded = replace(loaded, family=family, is_packed=loaded.is_packed and quantize is None)
        if loaded.is_packed:
            plan, name = _plan_of_checkpoint(loaded, plan, bool(adapters)), ""
        given = {"adapters": adapters, "recipe": recipe, "hidden_states": hidden_states, "inputs_embeds": inputs_embeds}
        others = {"mtp": mtp, "cache": cache != "float", "target": target not in _PLAIN_TARGETS}
        _check_family(loaded, given | others)
        plan = _plan_of_model(loaded, plan, recipe, precision, target, accuracy_level)
        _write_tokenizer(loaded, staging, Path(out).absolute().name)
        options = {
            "target": _TARGETS[target] if FAMILIES[loaded.family].in_genai else _PLAIN_TARGETS[target],
            "quantize": plan.quantize,
            "opset_version": opset_version,
        }
        request = Request(
            *(staging, target, options, last_logits, adapters, pooling, normalize, plan.tolerance, verify, announce),
            checkpoint=loaded.directory if loaded.is_in(Path(out)) else None,
            hidden_states=hidden_states or mtp,
            name=name,
            on_quality=on_quality,
            cache=cache,
            inputs_embeds=inputs_embeds,
            mtp=mtp,
        )
        _EXPORTS[loaded.family](loaded, request)
        if request.checkpoint is not None:
            keep_checkpoint_files(staging, request.checkpoint, _WRITTEN)
    return Path(out)


def _with_recipe(recipe: Recipe | None, precision: Precision, quantize: Any) -> tuple[Precision, Any]:
    """The precision and quantization of a recipe; those given without one."""
    if recipe is None:
        return precision, quantize
    check_recipe(recipe, precision, quantize)
    quantize = RECIPES[recipe]
    return "fp32" if quantize is None else "int4", quantize


def _downloaded(model: Any, revision: str | None, token: str | None) -> Any:
    """The directory of a model of the Hub; any other model as it is."""
    is_id = isinstance(model, (str, os.PathLike)) and is_hub_id(model)
    return download(model, revision, token) if is_id else model


def _check_choices(target: str, pooling: str | None, cache: str) -> None:
    """Check arguments that are one of some names."""
    check_choice("target", target, _TARGETS)
    check_choice("pooling", pooling, (None, *POOLINGS))
    check_cache_type(cache, target)


def _check_device(dtype: torch.dtype, quantize: Any, device: Device) -> None:
    """Check that a device multiplies matrices of a dtype, and has a kernel for embeddings in integers."""
    embeddings = getattr(quantize, "embeddings", None)
    if device == _WITHOUT_INTEGER_TABLES and embeddings not in (None, "float"):
        raise ArgumentError(
            "quantize",
            f"TensorRT reads no rows of a table of integers: embeddings={embeddings!r}",
            hint='pass embeddings="float" (--embeddings float)',
        )
    name = str(dtype).removeprefix("torch.")
    profile = profile_of(_TARGETS[device])
    if not profile.has_kernel("MatMul", from_torch(dtype), profile.default_opset) and device not in _PLAIN_TARGETS:
        raise ArgumentError("precision", f"{profile.runtime} does not compute in {name}", hint='pass precision="fp16"')


def _check_family(loaded: LanguageModel, given: Mapping[str, Any]) -> None:
    """Check arguments that are for decoder-only models."""
    for argument, value in given.items():
        if value and loaded.family != "decoder":
            raise ArgumentError(argument, "supported for decoder-only models only")
    adapters = given["adapters"]
    for argument in ("inputs_embeds", "mtp"):
        if given[argument] and (adapters or loaded.is_packed):
            reason = "adapters are not supported" if adapters else "weights that the checkpoint has as integers are not"
            raise ArgumentError(argument, f"{reason} with it", hint='leave it out, or pass quantize="int4"')


def _plan_of_model(
    loaded: LanguageModel,
    plan: PrecisionPlan,
    recipe: Recipe | None,
    precision: Precision,
    target: str,
    accuracy_level: int | None,
) -> PrecisionPlan:
    """The precision with the quantization that a recipe, "int4" or "int8" implies for a model."""
    if recipe is not None and RECIPES[recipe] is not None:
        plan = replace(plan, quantize=config_of_recipe(recipe, loaded.model, loaded.tokenizer))
    elif not loaded.is_packed and loaded.family == "decoder" and (precision in _INTEGERS or plan.quantize in _INTEGERS):
        plan = replace(plan, quantize=config_of_precision(plan.quantize, target))
    if target == _WITHOUT_INTEGER_TABLES and isinstance(plan.quantize, QuantizeConfig):
        plan = replace(plan, quantize=replace(plan.quantize, embeddings="float"))
    return plan if accuracy_level is None else with_accuracy_level(plan, accuracy_level)


def _plan_of_checkpoint(loaded: LanguageModel, plan: PrecisionPlan, has_adapters: bool) -> PrecisionPlan:
    """The precision with the integers of a quantized checkpoint."""
    if has_adapters or loaded.family != "decoder":
        argument = "adapters" if has_adapters else "model"
        hint = 'pass quantize="int4" to round the dequantized weights to nearest'
        raise ArgumentError(argument, "the weights of the checkpoint are quantized", hint=hint)
    return with_quantization(plan, loaded.stored_quantization())


def _write_tokenizer(loaded: LanguageModel, directory: Path, name: str) -> None:
    loaded.tokenizer.save_pretrained(directory)
    settings = directory / "tokenizer_config.json"
    if settings.is_file():
        # onnxruntime-genai refuses this class, which has the same algorithm; the comparison encodes a text.
        text = settings.read_text(encoding="utf-8")
        settings.write_text(text.replace('"Qwen3_5Tokenizer"', '"Qwen2Tokenizer"'), encoding="utf-8")
    template = prompt_template(loaded.tokenizer) if FAMILIES[loaded.family].chats else None
    if template is not None:
        # By this file, Foundry Local finds the model under its cache directory.
        write_json(directory / "inference_model.json", {"Name": name, "PromptTemplate": template})
    if loaded.family in ("embedding", "reranker"):
        return
    # save_pretrained would refuse settings without effect, which many checkpoints have.
    loaded.model.generation_config.to_json_file(directory / "generation_config.json")


_EXPORTS: Mapping[Family, Callable[[LanguageModel, Request], None]] = MappingProxyType(
    {
        "audio-language": export_vision_language,
        "decoder": export_decoder,
        "embedding": export_embedding,
        "encoder-decoder": export_encoder_decoder,
        "image": export_encoder_decoder,
        "reranker": export_reranker,
        "speech": export_encoder_decoder,
        "vision-language": export_vision_language,
        "whisper": export_whisper,
    }
)


def _is_directory(model: Any, directory: Path) -> bool:
    """Whether a model is a path of this directory."""
    return isinstance(model, (str, os.PathLike)) and Path(model).resolve() == directory.resolve()
