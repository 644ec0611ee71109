"""Decoders of text: one file with caches, compared in onnxruntime-genai with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from ... import ONNXProgram, check
from ...errors import ArgumentError, VerificationError
from ..core import warn_user
from ..decoders.adapters import ADAPTER_PATTERN, Adapters, load_adapters, save_adapters
from ..decoders.attention import warn_about_long_sequences
from ..decoders.caches import use_integer_caches
from ..decoders.padding import counting_tokens, counts_places, ignores_padding
from ..decoders.step import (
    EMBEDDING,
    HIDDEN_STATES,
    compare_logits,
    decoding,
    dynamic_shapes,
    embedding_part,
    example_inputs,
    has_image_tokens,
    has_rotary_positions,
    input_names,
    state_names,
    with_embeddings,
)
from ..directory import LAST, save_beside_weights, write_json
from ..generation import compare_tokens, open_exported, quality_of, reference_of, warn_of_quality
from ..language_models import LanguageModel
from ..layouts.genai_config import context_length, genai_config
from ..meta import has_weights
from ..parts import (
    Part,
    Request,
    decoder_calls,
    export_once,
    export_parts,
    narrowing_constraints,
    rounded_parts,
    rounded_weights,
    save_parts,
)
from ..precision import KL_LIMITS
from .draft_heads import compare_drafts, draft_parts

__all__ = ["export_decoder"]

_MODEL_FILE = "model.onnx"
_ROUTERS = frozenset({"MoE", "QMoE", "TopK"})
_HINT = (
    "activations rounded to 8 bits can make a router choose another expert where two are almost equally good; if the "
    "export with precision='fp32' succeeds, compare the quality of this one and pass verify=False (--no-verify)"
)


def export_decoder(loaded: LanguageModel, request: Request) -> None:
    """Write model.onnx and genai_config.json; padding counts as tokens, unless the model can leave it out."""
    warn_about_long_sequences(loaded.config)
    loaded, adapters = load_adapters(loaded, request.adapters)
    is_right = _write_decoder(loaded, adapters, request)
    if not is_right and counts_places(loaded.model):
        with counting_tokens(loaded.model):
            is_right = _write_decoder(loaded, adapters, request)
    if not is_right:
        warn_user(
            "the model takes one prompt at a time: in a batch, prompts of unequal lengths would have other tokens, "
            "because padding counts as a part of its windows or positions"
        )
        _write_decoder(loaded, adapters, request, has_batches=False)


def _write_decoder(loaded: LanguageModel, adapters: Adapters, request: Request, *, has_batches: bool = True) -> bool:
    """Export and save a decoder, and compare it on request."""
    heads = draft_parts(loaded, request) if request.mtp else {}
    program = _program(loaded, adapters, request, has_batches=has_batches)
    _check_kernels(program, request)
    if has_batches and not ignores_padding(program, loaded.config):
        return False
    if request.cache != "float":
        use_integer_caches(program, loaded)
    save_adapters(program, adapters, request.directory)
    config = genai_config(loaded.model, loaded.tokenizer, program.model.graph, request.device, _MODEL_FILE)
    request.announce("save")
    path = request.directory / _MODEL_FILE
    parts = {EMBEDDING: embedding_part(loaded.model)} if request.inputs_embeds else {}
    others = export_parts({**parts, **heads}, request)
    if others:
        save_parts({"model": program, **others}, request)
    elif loaded.is_packed or not has_weights(loaded.model):
        program.save(path, weights=loaded.stored_weights)
    else:
        save_beside_weights(program, path, request.checkpoint)
    write_json(request.directory / LAST, config)
    if not request.verify:
        return True
    request.announce("verify")
    with rounded_weights(loaded.model, program), rounded_parts(heads, others):
        compare_drafts(loaded, heads, request.directory, request.tolerance)
    if request.inputs_embeds:
        with rounded_weights(loaded.model, program):
            compare_logits(loaded, request.directory, request.tolerance)
        return True
    model = open_exported(request.directory, request.device)
    with adapters.active(None):
        reference = reference_of(loaded)
    # The weights of a quantized checkpoint are not rounded again.
    try:
        with nullcontext() if loaded.is_packed else rounded_weights(loaded.model, program):
            is_right = compare_tokens(
                loaded, model, request.directory, adapters, request.tolerance, has_batches=has_batches
            )
    except VerificationError as error:
        if request.options["quantize"] is None or not _ROUTERS & {node.op_type for node in program.model.graph}:
            raise
        raise VerificationError(error.message, hint=_HINT) from error
    if reference is not None and is_right:
        quality = quality_of(model, reference)
        if request.name in KL_LIMITS:
            warn_of_quality(quality, request.name, KL_LIMITS[request.name])
        if request.on_quality is not None:
            request.on_quality(quality)
    return is_right


def _check_kernels(program: ONNXProgram, request: Request) -> None:
    """Check that a device on which the file is not compared, since no machine has them all, runs every node."""
    if request.device in ("cpu", "cuda"):
        return
    failing = [each for each in check(program.model, request.options["target"]) if each.severity == "fails"]
    if failing:
        hint = failing[0].remedy
        raise ArgumentError("target", f"{failing[0].op_type} {failing[0].node}: {failing[0].problem}", hint=hint)


def _program(loaded: LanguageModel, adapters: Adapters, request: Request, *, has_batches: bool) -> ONNXProgram:
    """Export a decoder, with guards if onnxruntime-genai calls it with sizes for which it is not valid."""
    program = _decoder(loaded, adapters, request.without_guards(), has_batches=has_batches)
    narrowing = narrowing_constraints(program.record.constraints, decoder_calls(context_length(loaded.config)))
    if has_image_tokens(loaded.model):
        # Without such tokens, the branch for later steps is the one for the first.
        narrowing = [one for one in narrowing if one.dims != ("past",)]
    if narrowing:
        warn_user(f"the exported model is valid only for: {'; '.join(map(str, narrowing))}")
        program = _decoder(loaded, adapters, request, has_batches=has_batches)
    return program


def _decoder(loaded: LanguageModel, adapters: Adapters, request: Request, *, has_batches: bool) -> ONNXProgram:
    """Export a decoder, with positions as an input unless they follow from the attention mask in the graph.

    With GroupQueryAttention they do. In a plain graph they are counted from the length of the past, which includes the
    padding of a shorter prompt.
    """
    inputs = example_inputs(loaded.model) if has_batches else example_inputs(loaded.model, batch=1)
    if request.inputs_embeds:
        inputs = with_embeddings(inputs, loaded.model)
    if has_rotary_positions(loaded.model):
        positions = {"position_ids": inputs.pop("position_ids")} if "position_ids" in inputs else {}
        program = _exported(loaded, inputs, adapters, request)
        if positions and not program.record.patterns.get("group_query_attention"):
            program = _exported(loaded, {**inputs, **positions}, adapters, request)
    else:
        program = _exported(loaded, inputs, adapters, request)
    return program


def _exported(loaded: LanguageModel, inputs: Mapping[str, Any], adapters: Adapters, request: Request) -> ONNXProgram:
    states = state_names(inputs)
    outputs = ("logits", *(f"present.{name}" for name in states)) if states else ()
    if states and request.hidden_states:
        outputs = (*outputs, HIDDEN_STATES)
    part = Part(
        loaded.model,
        inputs,
        dynamic_shapes(inputs),
        (),
        input_names=tuple(input_names(inputs) or ()),
        output_names=outputs,
        options={"adapters": ADAPTER_PATTERN if adapters.directories else ()},
        context=partial(decoding, loaded.model, request, states),
    )
    return export_once(part, request)
