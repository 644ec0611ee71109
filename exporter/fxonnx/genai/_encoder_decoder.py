"""Encoder-decoder models like T5, Moonshine and TrOCR: an encoder and a decoder with caches, for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import ONNXProgram
from .._capture.patches.libraries import attention_function
from .._warnings import warn_user
from ..errors import ArgumentError, VerificationError
from ._attention_functions import skip_attention
from ._config import context_length
from ._extra import import_extra
from ._loading import LanguageModel
from ._parts import Part, Request, export_parts, rounded_parts, save_parts
from ._sizes import decoder_calls
from ._sources import Source, make_source

__all__ = ["export_encoder_decoder"]

_PAST, _TOKENS = 5, 3
_SINGLE_TOKENS = frozenset({"fsmt", "led"})
"""Types whose decoder makes a mask for several tokens only, or with a cache none: one graph cannot do both."""
_STEPS = 6

Cache = Sequence[tuple[Tensor, Tensor]]


class Encoder(nn.Module):
    """The encoder, followed by the key and value projections of the decoder's cross attention.

    The projections are those in the cache after a step of the decoder. Without its attention, which fusion would
    combine with them, the rest of the step is dead code.

    Args:
        model: An encoder-decoder model of transformers.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        return self._encoded(attention_mask=attention_mask, input_ids=input_ids)

    def _encoded(self, **source: Tensor) -> tuple[Tensor, ...]:
        transformers = import_extra("transformers")
        output = self.model.get_encoder()(**source)
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
        hidden = output.last_hidden_state
        with attention_function(self.model.get_decoder(), skip_attention):
            self.model(
                decoder_input_ids=hidden.new_zeros(hidden.shape[0], 1, dtype=torch.int64),
                attention_mask=source.get("attention_mask"),
                encoder_outputs=output,
                past_key_values=cache,
                use_cache=True,
            )
        return (hidden, *_states(cache.cross_attention_cache))


class SourceEncoder(Encoder):
    """The same for audio or images, of one size in a batch."""

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self._encoded(**{self.model.main_input_name: source})


class Decoder(nn.Module):
    """One step of the decoder, with the cache of its self attention and the keys and values of the cross attention.

    Args:
        model: An encoder-decoder model of transformers.
        size: The size of the states of the encoder.
        last_logits: Return the logits of the last position only.
    """

    def __init__(self, model: Any, size: int, last_logits: bool) -> None:
        super().__init__()
        self.model, self.size, self.last_logits = model, size, last_logits

    def forward(
        self, input_ids: Tensor, encoder_attention_mask: Tensor | None, past: Cache, cross: Cache
    ) -> Sequence[Tensor]:
        transformers = import_extra("transformers")
        cache = transformers.DynamicCache(past)
        keys = cross[0][0]
        # Only its shape is read: the cross cache is not empty.
        encoded = transformers.modeling_outputs.BaseModelOutput(keys.new_zeros(keys.shape[0], keys.shape[2], self.size))
        # Some models read these; a mask is given for texts only, by its own name.
        encoded.attention_mask = encoded.router_logits = None
        logits: Tensor = self.model(
            decoder_input_ids=input_ids,
            attention_mask=encoder_attention_mask,
            encoder_outputs=encoded,
            past_key_values=transformers.EncoderDecoderCache(cache, transformers.DynamicCache(cross)),
            use_cache=True,
        ).logits
        return (logits[:, -1:] if self.last_logits else logits, *_states(cache))


def _states(cache: Any) -> list[Tensor]:
    return [state for layer in cache.layers for state in (layer.keys, layer.values)]


def export_encoder_decoder(loaded: LanguageModel, request: Request) -> None:
    """Write encoder.onnx and decoder.onnx, with the names that Whisper has in onnxruntime-genai.

    Args:
        loaded: The model and its tokenizer.
        request: The arguments of the export.

    Raises:
        ArgumentError: If the model does not run with a cache.
        VerificationError: If the logits differ from transformers'.
    """
    warn_user(
        f"onnxruntime-genai cannot run {type(loaded.model).__name__}: it supports only Whisper and marian-ssru as "
        "encoder-decoder models. encoder.onnx and decoder.onnx are for ONNX Runtime, without a genai_config.json"
    )
    source = make_source(loaded.model)
    parts = _parts(loaded.model, source, request)
    programs = export_parts(parts, request)
    save_parts(programs, request)
    if request.verify:
        request.announce("verify")
        with rounded_parts(parts, programs):
            _verify(loaded.model, source, programs, request.tolerance)


def _parts(model: Any, source: Source, request: Request) -> dict[str, Part]:
    encoder = Encoder(model) if source.mask is not None else SourceEncoder(model)
    inputs = tuple(source.inputs.values())
    name = type(model).__name__
    try:
        with torch.no_grad():
            hidden, *states = encoder(*inputs)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise ArgumentError("model", f"{name} does not run with an EncoderDecoderCache: {error}") from error
    if not states:
        raise ArgumentError("model", f"the decoder of {name} has no cross attention in its cache")
    cross = list(zip(states[::2], states[1::2], strict=True))
    batch = len(hidden)
    past = [tuple(each.new_zeros(batch, each.shape[1], _PAST, each.shape[3]) for each in pair) for pair in cross]
    is_single = model.config.model_type in _SINGLE_TOKENS
    steps = [each for each in decoder_calls(_longest(model)) if not is_single or each["tokens"] == 1]
    masks = ("encoder_attention_mask",) if source.mask is not None else ()
    return {
        "encoder": Part(
            encoder,
            dict(zip(("input_ids", "attention_mask") if masks else ("source",), inputs, strict=True)),
            source.dynamic_shapes,
            tuple({"batch": batch, "source": size, "time": size} for batch in (1, 3) for size in source.lengths),
            input_names=tuple(source.inputs),
            output_names=("hidden_states", *_names("present", "cross", len(cross))),
        ),
        "decoder": Part(
            Decoder(model, hidden.shape[2], request.last_logits),
            {
                "input_ids": torch.ones(batch, 1 if is_single else _TOKENS, dtype=torch.int64, device=model.device),
                "encoder_attention_mask": source.mask,
                "past": past,
                "cross": [tuple(each.contiguous() for each in pair) for pair in cross],
            },
            {
                "input_ids": {0: "batch"} if is_single else {0: "batch", 1: "tokens"},
                **{key: {0: "batch", 1: "source"} for key in masks},
                "past_*_self_*": {0: "batch", 2: "past"},
                "past_*_cross_*": {0: "batch", 2: "source"},
            },
            tuple({**sizes, "source": size} for sizes in steps for size in (1, 2, 40)),
            input_names=(
                "input_ids",
                *masks,
                *_names("past", "self", len(cross)),
                *_names("past", "cross", len(cross)),
            ),
            output_names=("logits", *_names("present", "self", len(cross))),
        ),
    }


def _longest(model: Any) -> int:
    return min(context_length(model.config), 1024)


def _names(time: str, attention: str, layers: int) -> list[str]:
    return [f"{time}_{kind}_{attention}_{layer}" for layer in range(layers) for kind in ("key", "value")]


def _verify(model: Any, source: Source, programs: Mapping[str, ONNXProgram], tolerance: float) -> None:
    """Compare the logits of a greedy loop, for two rows."""
    _, *cross = programs["encoder"](*source.inputs.values())
    pairs = list(zip(cross[::2], cross[1::2], strict=True))
    past = [tuple(each.new_zeros(len(each), each.shape[1], 0, each.shape[3]) for each in pair) for pair in pairs]
    # Any first token would do: configurations of T5 may have none.
    start = getattr(model.config, "decoder_start_token_id", None) or 0
    tokens = torch.full((len(cross[0]), 1), start, device=model.device)
    for step in range(_STEPS):
        logits, *states = programs["decoder"](tokens[:, -1:], source.mask, past, pairs)
        past = list(zip(states[::2], states[1::2], strict=True))
        with torch.no_grad():
            # With a cache, even an empty one, FSMT makes no causal mask.
            expected = model(**source.inputs, decoder_input_ids=tokens, use_cache=False).logits[:, -1].float()
        difference = float((logits[:, -1].float() - expected).abs().max())
        if difference > tolerance * float(expected.max() - expected.min()):
            raise VerificationError(f"the logits of step {step} differ by {difference:.3g} from those of transformers")
        tokens = torch.cat([tokens, expected.argmax(-1, keepdim=True)], dim=1)
