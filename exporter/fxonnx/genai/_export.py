"""``fxonnx.genai.export``: from a checkpoint to a directory that onnxruntime-genai loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from .._export import export as export_model
from .._program import ONNXProgram
from .._targets import Target
from .._warnings import ignoring_warnings, warn_user
from ..errors import ArgumentError, did_you_mean
from ._adapters import ADAPTER_PATTERN, Adapters, load_adapters, save_adapters
from ._config import context_length, genai_config
from ._directory import LAST, staged_directory, write_json
from ._embedding import export_embedding, export_reranker
from ._encoder_decoder import export_encoder_decoder
from ._example import DYNAMIC_SHAPES, example_inputs
from ._extra import import_extra
from ._families import Family
from ._last_logits import last_logits_only
from ._loading import DTYPES, LanguageModel, load_language_model
from ._parts import Request
from ._sentence_modules import POOLINGS, Pooling
from ._sizes import decoder_calls, narrowing_constraints
from ._verification import compare_tokens
from ._vision_language import export_vision_language
from ._whisper import export_whisper

__all__ = ["Precision", "export"]

Precision = Literal["fp32", "fp16", "bf16"]
_TARGETS: dict[str, Target] = {"cpu": "onnxruntime", "cuda": "onnxruntime-cuda"}
_MODEL_FILE = "model.onnx"


def export(
    model: Any,
    out: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    precision: Precision = "fp32",
    target: Literal["cpu", "cuda"] = "cpu",
    last_logits: bool = True,
    adapters: Mapping[str, str | os.PathLike[str]] = MappingProxyType({}),
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    verify: bool = True,
    on_stage: Callable[[str], None] | None = None,
) -> Path:
    """Export a language model of transformers for onnxruntime-genai.

    Besides decoder-only models: Whisper and vision-language models, in several files; embedding models, rerankers and
    other encoder-decoder models, which ONNX Runtime runs without onnxruntime-genai.

    Args:
        model: A local directory, as ``save_pretrained`` or a download writes it, or a model object, which is left
            unchanged.
        out: The directory to write: the ONNX files, genai_config.json, generation_config.json and the tokenizer's
            files. It is complete or not written at all; other files in it are kept.
        tokenizer: The tokenizer, or its directory; by default that of the model's directory.
        precision: The dtype of weights and activations.
        target: The device that onnxruntime-genai runs the model on.
        last_logits: Compute the logits of the last token of each row only, which generation needs.
        adapters: Name to directory of LoRA adapters, as PEFT writes them. Each becomes a file ``<name>.onnx_adapter``
            for ``Adapters`` of onnxruntime-genai; without an active adapter the model is the base model.
        pooling: Export an embedding model with this pooling of the hidden states, "cls", "last", "max" or "mean"; by
            default the one in modules.json of sentence-transformers, if the directory has it.
        normalize: Normalize the embeddings; by default if modules.json specifies it.
        verify: Compare greedily generated tokens in onnxruntime-genai with those of transformers; embeddings and scores
            in ONNX Runtime with those of eager torch.
        on_stage: Called with the name of each stage as it begins.

    Returns:
        The path of the directory.

    Raises:
        ArgumentError: If an argument is invalid, or the model has inputs that onnxruntime-genai cannot provide.
        VerificationError: With ``verify``, if the tokens differ.
        SaveError: If ``out`` cannot be written.
        ExportError: If transformers or onnxruntime-genai is not installed, or the export fails.
    """
    for argument, value, known in (
        ("precision", precision, DTYPES),
        ("target", target, _TARGETS),
        ("pooling", pooling, POOLINGS),
    ):
        if value not in known and not (argument == "pooling" and value is None):
            expected = ", ".join(map(repr, known))
            raise ArgumentError(argument, f"expected {expected}, got {value!r}", hint=did_you_mean(value, known))
    announce = on_stage or _ignore
    with staged_directory(Path(out)) as staging:
        announce("load")
        is_embedding = pooling is not None or normalize is not None
        loaded = load_language_model(model, tokenizer, DTYPES[precision], is_embedding)
        if adapters and loaded.family != "decoder":
            raise ArgumentError("adapters", "they are supported for decoder-only models only")
        loaded.tokenizer.save_pretrained(staging)
        if loaded.family not in ("embedding", "reranker"):
            loaded.model.generation_config.save_pretrained(staging)
            if verify and loaded.family != "encoder-decoder":
                import_extra("onnxruntime_genai")
        options = {"target": _TARGETS[target]}
        _EXPORTS[loaded.family](
            loaded,
            Request(staging, target, options, last_logits, adapters, pooling, normalize, verify, announce),
        )
    return Path(out)


def _export_decoder(loaded: LanguageModel, request: Request) -> None:
    loaded, adapters = load_adapters(loaded, request.adapters)
    program = _program(loaded, adapters, request)
    save_adapters(program, adapters, request.directory)
    config = genai_config(loaded.model, loaded.tokenizer, program.model.graph, request.device, _MODEL_FILE)
    request.announce("save")
    program.save(request.directory / _MODEL_FILE)
    write_json(request.directory / LAST, config)
    if request.verify:
        request.announce("verify")
        compare_tokens(loaded, request.directory, adapters)


_EXPORTS: Mapping[Family, Callable[[LanguageModel, Request], None]] = MappingProxyType(
    {
        "decoder": _export_decoder,
        "embedding": export_embedding,
        "encoder-decoder": export_encoder_decoder,
        "reranker": export_reranker,
        "vision-language": export_vision_language,
        "whisper": export_whisper,
    }
)


def _program(loaded: LanguageModel, adapters: Adapters, request: Request) -> ONNXProgram:
    kwargs = example_inputs(loaded.model)
    names = {*kwargs, "past_key_values.*"}
    selection = last_logits_only(loaded.model) if request.last_logits else nullcontext()
    with ignoring_warnings("the model cannot be exported for all requested sizes"), selection:
        program = export_model(
            loaded.model,
            kwargs=kwargs,
            dynamic_shapes={name: dims for name, dims in DYNAMIC_SHAPES.items() if name in names},
            adapters=ADAPTER_PATTERN if adapters.directories else (),
            on_stage=request.announce,
            **request.options,
        )
    narrowing = narrowing_constraints(program.constraints, decoder_calls(context_length(loaded.config)))
    if narrowing:
        warn_user(f"the exported model is valid only for: {'; '.join(map(str, narrowing))}")
    return program


def _ignore(_stage: str) -> None:
    """Report nothing."""
