"""Encoder-decoder models of text, like T5, BART and Marian: an encoder and a decoder with caches, for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import ONNXProgram
from .._capture.patches.libraries.attention_functions import attention_function
from .._warnings import warn_user
from ..errors import ArgumentError, VerificationError
from ._attention_functions import skip_attention
from ._config import context_length
from ._extra import import_extra
from ._loading import LanguageModel
from ._parts import Part, Request, export_parts, rounded_parts, save_parts
from ._sizes import decoder_calls

__all__ = ["export_encoder_decoder"]

_BATCH, _PAST, _TOKENS, _SOURCE = 2, 5, 3, 7
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
        transformers = import_extra("transformers")
        output = self.model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask)
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
        with attention_function(self.model.get_decoder(), skip_attention):
            self.model(
                decoder_input_ids=input_ids[:, :1],
                attention_mask=attention_mask,
                encoder_outputs=output,
                past_key_values=cache,
                use_cache=True,
            )
        return (output.last_hidden_state, *_states(cache.cross_attention_cache))


class Decoder(nn.Module):
    """One step of the decoder, with the cache of its self attention and the keys and values of the cross attention.

    Args:
        model: An encoder-decoder model of transformers.
        last_logits: Return the logits of the last position only.
    """

    def __init__(self, model: Any, last_logits: bool) -> None:
        super().__init__()
        self.model, self.last_logits = model, last_logits

    def forward(self, input_ids: Tensor, encoder_attention_mask: Tensor, past: Cache, cross: Cache) -> Sequence[Tensor]:
        transformers = import_extra("transformers")
        cache = transformers.DynamicCache(past)
        keys = cross[0][0]
        # Only its shape is read: the cross cache is not empty.
        hidden = keys.new_zeros(keys.shape[0], keys.shape[2], self.model.config.d_model)
        logits: Tensor = self.model(
            decoder_input_ids=input_ids,
            attention_mask=encoder_attention_mask,
            encoder_outputs=transformers.modeling_outputs.BaseModelOutput(hidden),
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
    parts = _parts(loaded.model, request)
    programs = export_parts(parts, request)
    save_parts(programs, request)
    if request.verify:
        request.announce("verify")
        with rounded_parts(parts, programs):
            _verify(loaded.model, programs, request.tolerance)


def _parts(model: Any, request: Request) -> dict[str, Part]:
    ids = torch.ones(_BATCH, _SOURCE, dtype=torch.int64, device=model.device)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    try:
        with torch.no_grad():
            _, *states = Encoder(model)(ids, mask)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        name = type(model).__name__
        raise ArgumentError("model", f"{name} does not run with an EncoderDecoderCache: {error}") from error
    cross = list(zip(states[::2], states[1::2], strict=True))
    past = [tuple(each.new_zeros(_BATCH, each.shape[1], _PAST, each.shape[3]) for each in pair) for pair in cross]
    calls = tuple({**sizes, "source": source} for sizes in decoder_calls(_longest(model)) for source in (1, 2, 40))
    source = {0: "batch", 1: "source"}
    return {
        "encoder": Part(
            Encoder(model),
            {"input_ids": ids, "attention_mask": mask},
            {"input_ids": source, "attention_mask": source},
            calls,
            output_names=("hidden_states", *_names("present", "cross", len(cross))),
        ),
        "decoder": Part(
            Decoder(model, request.last_logits),
            {
                "input_ids": ids[:, :_TOKENS].contiguous(),
                "encoder_attention_mask": mask,
                "past": past,
                "cross": [tuple(each.contiguous() for each in pair) for pair in cross],
            },
            {
                "input_ids": {0: "batch", 1: "tokens"},
                "encoder_attention_mask": source,
                "past_*_self_*": {0: "batch", 2: "past"},
                "past_*_cross_*": {0: "batch", 2: "source"},
            },
            calls,
            input_names=(
                "input_ids",
                "encoder_attention_mask",
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


def _verify(model: Any, programs: Mapping[str, ONNXProgram], tolerance: float) -> None:
    """Compare the logits of a greedy loop, for two rows of which one is padded."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, model.config.vocab_size, (_BATCH, _SOURCE), generator=generator).to(model.device)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    _, *cross = programs["encoder"](ids, mask)
    pairs = list(zip(cross[::2], cross[1::2], strict=True))
    past = [tuple(each.new_zeros(_BATCH, each.shape[1], 0, each.shape[3]) for each in pair) for pair in pairs]
    tokens = torch.full((_BATCH, 1), model.config.decoder_start_token_id, device=model.device)
    for step in range(_STEPS):
        logits, *states = programs["decoder"](tokens[:, -1:], mask, past, pairs)
        past = list(zip(states[::2], states[1::2], strict=True))
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens).logits[:, -1].float()
        difference = float((logits[:, -1].float() - expected).abs().max())
        if difference > tolerance * float(expected.max() - expected.min()):
            raise VerificationError(f"the logits of step {step} differ by {difference:.3g} from those of transformers")
        tokens = torch.cat([tokens, expected.argmax(-1, keepdim=True)], dim=1)
