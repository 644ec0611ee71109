"""Components of a model: the modules that become one file each, with their example inputs and dynamic axes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from ..decoders.step import cached_states
from ..extras import import_extra
from ..meta import has_weights, runnable
from ..parts import Component, Inputs, with_forward
from ..samples import Sizes, axes_of, cast, input_names, sample_inputs, text_config
from ..source import Source
from .cross_attention import TRANSLATIONS, present_of_both, reusing_cache
from .image_text import (
    example_inputs,
    has_3d_positions,
    has_grids,
    image_axes,
    image_features,
    image_inputs,
    module_of_features,
)
from .sound import codebooks_of, is_speech, load_vocoder, music_components, speech_components

__all__ = ["components_of", "computing_attentions"]

_PAST = 5


def components_of(source: Source) -> list[Component]:
    """The components of a model for its task."""
    form = source.task.form
    if is_speech(source.model.config) and source.task.name == "text-to-audio":
        return speech_components(source.model, load_vocoder(source.vocoder))
    if source.vocoder is not None:
        raise ArgumentError("vocoder", f"{type(source.model).__name__} takes none", hint="only SpeechT5 does")
    if form == "single" and source.model.config.is_encoder_decoder and source.model.can_generate():
        form = "encoder-decoder"  # speech recognition has both forms
    if source.has_attentions and form != "encoder-decoder":
        problem = f"{type(source.model).__name__} has no decoder with cross attention for {source.task.name}"
        raise ArgumentError("attentions", problem, hint="leave it out")
    if form == "decoder":
        return [_decoder(source)]
    if form == "image-text":
        return [_embedded_tokens(source), _encoded_images(source), _decoder(source, "decoder_model_merged")]
    return _encoder_and_decoder(source) if form == "encoder-decoder" else [_single(source)]


@contextmanager
def computing_attentions(model: Any) -> Iterator[None]:
    """Use the attention of transformers that returns its weights, which others do not compute."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _single(source: Source) -> Component:
    model = source.model
    names = input_names(model, source.processors)
    inputs = functools.partial(example_inputs, model, names)
    axes = {name: axes_of(name, value, model) for name, value in inputs(Sizes()).items()}
    outputs = source.task.outputs
    # Processors of PaliGemma return token types of 0, whose tokens see each other in both directions.
    has_zero_types = model.base_model.config.model_type == "paligemma"

    def forward(**inputs: Tensor) -> dict[str, Tensor]:
        if has_zero_types:
            inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        found = model(**cast(inputs, model.dtype), return_dict=True)
        tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        chosen = {name: tensors[name] for name in outputs if name in tensors}
        parts = {
            f"{name}.{index}": part
            for name, value in found.items()
            if isinstance(value, tuple)
            for index, part in enumerate(value)
            if isinstance(part, Tensor)
        }
        return _float32(chosen or tensors or parts)

    return Component("model", with_forward(model, forward), inputs, axes)


def _float32(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float() if value.is_floating_point() else value for name, value in outputs.items()}


def _embedded_tokens(source: Source) -> Component:
    embed = source.model.get_input_embeddings()

    def forward(input_ids: Tensor) -> dict[str, Tensor]:
        return {"inputs_embeds": embed(input_ids).float()}

    axes = {"input_ids": {0: "batch_size", 1: "sequence_length"}}
    inputs = functools.partial(sample_inputs, source.model, ["input_ids"])
    return Component("embed_tokens", with_forward(source.model, forward), inputs, axes, has_products=False)


def _encoded_images(source: Source) -> Component:
    model = source.model
    module = module_of_features(model)

    def forward(**images: Tensor) -> dict[str, Tensor]:
        return {"image_features": image_features(model, module, **images).float()}

    def inputs(sizes: Sizes) -> Inputs:
        # A file of grids computes one image, whose grid Python reads.
        return {**image_inputs(model, replace(sizes, batch=1) if has_grids(model) else sizes)}

    return Component("vision_encoder", with_forward(model, forward), inputs, image_axes(model))


def _decoder(source: Source, name: str = "model") -> Component:
    """The decoder of tokens, or under another name of their embeddings."""
    model = source.model
    transformers = import_extra("transformers")
    shapes = _shapes(cached_states(model, "models with other states are exported by fxonnx.genai.export"))
    has_positions = "position_ids" in inspect.signature(model.forward).parameters
    takes_embeddings = name != "model"
    has_axes = takes_embeddings and has_3d_positions(model)

    def forward(past_key_values: list[dict[str, Tensor]], **inputs: Tensor) -> dict[str, Tensor]:
        cache = transformers.DynamicCache([(layer["key"], layer["value"]) for layer in past_key_values])
        inputs = cast(inputs, model.dtype)
        logits = model(**inputs, past_key_values=cache, use_cache=True, return_dict=True).logits
        return {"logits": logits.float(), **_present(cache.layers)}

    def inputs(sizes: Sizes, past: int = _PAST) -> Inputs:
        names = ["input_ids", "position_ids"] if has_positions else ["input_ids"]
        found: Inputs = sample_inputs(model, names[:1], sizes)
        ids = found["input_ids"]
        if takes_embeddings:
            found = {"inputs_embeds": _embed(model, ids)}
        found["attention_mask"] = torch.ones(ids.shape[0], past + ids.shape[1], dtype=torch.int64)
        if has_positions:
            shape = (3, *ids.shape) if has_axes else ids.shape
            found["position_ids"] = torch.arange(past, past + ids.shape[1]).expand(shape).contiguous()
        generator = torch.Generator().manual_seed(sizes.seed)
        found["past_key_values"] = [
            {
                name: torch.randn(ids.shape[0], heads, past, size, generator=generator).to(model.dtype)
                for name, (heads, size) in zip(("key", "value"), layer, strict=True)
            }
            for layer in shapes
        ]
        return found

    step = {0: "batch_size", 1: "sequence_length"}
    axes = {
        "inputs_embeds" if takes_embeddings else "input_ids": step,
        "attention_mask": {0: "batch_size", 1: "total_sequence_length"},
        "past_key_values*": {0: "batch_size", 2: "past_sequence_length"},
    }
    if has_positions:
        axes["position_ids"] = {1: "batch_size", 2: "sequence_length"} if has_axes else step
    return Component(name, with_forward(model, forward), inputs, axes, generates=True)


def _embed(model: Any, ids: Tensor) -> Tensor:
    """The embeddings of tokens, FLOAT (batch, length, hidden size); without weights, of this shape only."""
    if not has_weights(model):
        return torch.randn(*ids.shape, text_config(model).hidden_size)
    with torch.no_grad():
        found: Tensor = model.get_input_embeddings()(ids).float()
    return found


def _present(layers: Any) -> dict[str, Tensor]:
    return {
        f"present.{index}.{name}": state
        for index, layer in enumerate(layers)
        for name, state in (("key", layer.keys), ("value", layer.values))
    }


def _encoder_and_decoder(source: Source) -> list[Component]:
    model = source.model
    encoder = model.get_encoder()
    names = input_names(model, source.processors)
    parameters = inspect.signature(encoder.forward).parameters
    names = [name for name in names if name in parameters or "kwargs" in parameters]
    example = sample_inputs(model, names, Sizes())
    axes = {name: axes_of(name, value, model) for name, value in example.items()}

    def encode(**inputs: Tensor) -> dict[str, Tensor]:
        hidden = encoder(**cast(inputs, model.dtype), return_dict=True).last_hidden_state
        return {"last_hidden_state": hidden.float()}

    more = music_components(model) if codebooks_of(model) > 1 else []
    first = Component(
        "text_encoder" if more else "encoder_model",
        with_forward(model, encode),
        functools.partial(sample_inputs, model, names),
        axes,
    )
    return [first, _merged_decoder(source, first, has_mask="attention_mask" in names), *more]


def _merged_decoder(source: Source, encoder: Component, has_mask: bool) -> Component:
    model = source.model
    transformers = import_extra("transformers")
    encoded = _encode(model, encoder.inputs(Sizes()))
    output_class = type(encoded)
    shapes = _cross_shapes(model, encoded, has_mask)
    rows = codebooks_of(model)
    has_decoder_mask = model.main_input_name == "flattened_patches"  # Pix2Struct continues padded texts

    def forward(
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        past_key_values: list[dict[str, dict[str, Tensor]]],
        use_cache_branch: Tensor,
        encoder_attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        past = [(layer["decoder"]["key"], layer["decoder"]["value"]) for layer in past_key_values]
        cross = [(layer["encoder"]["key"], layer["encoder"]["value"]) for layer in past_key_values]
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(past), transformers.DynamicCache())
        cache.cross_attention_cache = reusing_cache(cross, use_cache_branch)
        hidden = output_class(encoder_hidden_states.to(model.dtype))
        masks = {"attention_mask": encoder_attention_mask, "decoder_attention_mask": decoder_attention_mask}
        given: dict[str, Any] = {name: mask for name, mask in masks.items() if mask is not None}
        if source.has_attentions:
            given["output_attentions"] = True
        found = model(
            decoder_input_ids=input_ids, encoder_outputs=hidden, past_key_values=cache, use_cache=True, **given
        )
        attentions = (found.cross_attentions or ()) if source.has_attentions else ()
        more = {f"cross_attentions.{layer}": each.float() for layer, each in enumerate(attentions)}
        return {"logits": found.logits.float(), **more, **present_of_both(cache)}

    @functools.cache
    def encoded_states(sizes: Sizes) -> Tensor:
        states: Tensor = _encode(model, encoder.inputs(sizes))[0].float()
        return states

    def inputs(sizes: Sizes, past: int = _PAST, use_cache: bool = False) -> Inputs:
        generator = torch.Generator().manual_seed(sizes.seed)
        states = encoded_states(sizes)
        if states.is_meta:
            states = torch.randn(states.shape, generator=generator)
        batch, source_length = states.shape[:2]
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        found: Inputs = {"input_ids": torch.randint(vocabulary, (batch * rows, 3), generator=generator)}
        found["encoder_hidden_states"] = states

        def state(shape: tuple[int, int], length: int) -> Tensor:
            return torch.randn(batch, shape[0], length, shape[1], generator=generator).to(model.dtype)

        found["past_key_values"] = [
            {
                part: {"key": state(layer[0], length), "value": state(layer[1], length)}
                for part, length in (("decoder", past), ("encoder", source_length))
            }
            for layer in shapes
        ]
        found["use_cache_branch"] = torch.tensor([use_cache])
        if has_mask:
            found["encoder_attention_mask"] = encoder.inputs(sizes)["attention_mask"]
        if has_decoder_mask:
            found["decoder_attention_mask"] = torch.ones(batch, past + found["input_ids"].shape[1], dtype=torch.int64)
        return found

    source_axes = {0: "batch_size", 1: "encoder_sequence_length"}
    axes: dict[str, Mapping[int, str]] = {
        "input_ids": {
            0: "batch_size" if rows == 1 else "total_batch_size_x_num_codebooks",
            1: "decoder_sequence_length",
        },
        "encoder_hidden_states": source_axes,
        "past_key_values*decoder*": {0: "batch_size", 2: "past_decoder_sequence_length"},
        "past_key_values*encoder*": {0: "batch_size", 2: "encoder_sequence_length_out"},
    }
    if has_mask:
        axes["encoder_attention_mask"] = source_axes
    if has_decoder_mask:
        axes["decoder_attention_mask"] = {0: "batch_size", 1: "total_decoder_sequence_length"}
    return Component("decoder_model_merged", with_forward(model, forward), inputs, axes, TRANSLATIONS, True, True)


def _encode(model: Any, inputs: Inputs) -> Any:
    """The output of the encoder; without weights, of its shape only."""
    called = runnable(model)
    given = {name: value.to(called.device) for name, value in cast(inputs, model.dtype).items()}
    if called is not model:
        given.pop("attention_mask", None)  # whose values transformers asks for
    with torch.no_grad():
        return called.get_encoder()(**given, return_dict=True)


def _cross_shapes(model: Any, output: Any, has_mask: bool) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Heads and head size of the keys and of the values of each layer of the decoder."""
    transformers = import_extra("transformers")
    cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
    called, hidden = runnable(model), output[0]
    ids = torch.ones(len(hidden) * codebooks_of(model), 1, dtype=torch.int64, device=hidden.device)
    mask = (
        {"attention_mask": torch.ones(hidden.shape[:2], dtype=torch.int64)} if has_mask and has_weights(model) else {}
    )
    try:
        with torch.no_grad():
            called(decoder_input_ids=ids, encoder_outputs=output, past_key_values=cache, use_cache=True, **mask)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        name = type(model).__name__
        raise ArgumentError("model", f"{name} does not run with an EncoderDecoderCache: {error}") from error
    return _shapes((layer.keys, layer.values) for layer in cache.self_attention_cache.layers)


def _shapes(states: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Heads and head size of the keys and of the values of each layer."""
    return [((keys.shape[1], keys.shape[3]), (values.shape[1], values.shape[3])) for keys, values in states]
