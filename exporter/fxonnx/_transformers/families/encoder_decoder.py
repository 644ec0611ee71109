"""Encoder-decoder models like T5, Moonshine, TrOCR and Whisper: an encoder, and a decoder with caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ... import ONNXProgram
from ...errors import ArgumentError, VerificationError
from ..core import attention_function, warn_user
from ..directory import write_json
from ..extras import import_extra
from ..generation import compare_generation
from ..language_models import LanguageModel
from ..layouts.genai_config import context_length, search_settings, session_options, token_ids
from ..parts import Part, Request, decoder_calls, export_parts, input_dtype, rounded_parts, save_parts
from ..samples import EncoderInputs, encoder_inputs

__all__ = ["export_encoder_decoder", "export_whisper"]

_BATCH, _PAST, _TOKENS = 2, 5, 3
_SINGLE_TOKENS = frozenset({"fsmt", "led"})
"""Types whose decoder makes a mask for several tokens only, or with a cache none: one graph cannot do both."""
_STEPS = 6

Cache = Sequence[tuple[Tensor, Tensor]]


class Encoder(nn.Module):
    """The encoder, followed by the key and value projections of the decoder's cross attention.

    The projections are those in the cache after a step of the decoder. Without its attention, which fusion would
    combine with them, the rest of the step is dead code.
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
        with attention_function(self.model.get_decoder(), _skip_attention):
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
    """One step of the decoder, with the cache of its self attention and the keys and values of the cross attention."""

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
    """Write encoder.onnx and decoder.onnx, with the names that Whisper has in onnxruntime-genai."""
    warn_user(
        f"onnxruntime-genai cannot run {type(loaded.model).__name__}: it supports only Whisper and marian-ssru as "
        "encoder-decoder models. encoder.onnx and decoder.onnx are for ONNX Runtime, without a genai_config.json"
    )
    source = encoder_inputs(loaded.model)
    parts = _parts(loaded.model, source, request)
    programs = export_parts(parts, request)
    save_parts(programs, request)
    if request.verify:
        request.announce("verify")
        with rounded_parts(parts, programs):
            _verify(loaded.model, source, programs, request.tolerance)


def _parts(model: Any, source: EncoderInputs, request: Request) -> dict[str, Part]:
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


def _verify(model: Any, source: EncoderInputs, programs: Mapping[str, ONNXProgram], tolerance: float) -> None:
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


_FRAMES = 3000
"""Frames of 30 seconds of audio; onnxruntime-genai accepts no other number."""


def _skip_attention(
    _module: nn.Module, query: Tensor, _key: Tensor, value: Tensor, *_unused: Any, **_more: Any
) -> tuple[Tensor, None]:
    """Zeros in the shape of the result, for steps of which only the cache is used."""
    return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


class WhisperEncoder(nn.Module):
    """The encoder, followed by the key and value projections of the decoder's cross attention."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.model.encoder
        self.cross_attention: Any = nn.ModuleList(layer.encoder_attn for layer in model.model.decoder.layers)

    def forward(self, audio_features: Tensor) -> tuple[Tensor, ...]:
        hidden = self.encoder(audio_features.to(self.encoder.dtype)).last_hidden_state
        projections = (
            projection(hidden).unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)
            for attention in self.cross_attention
            for projection in (attention.k_proj, attention.v_proj)
        )
        return (hidden.to(audio_features.dtype), *projections)


class WhisperDecoder(nn.Module):
    """One step of the decoder, with the cache of its self attention and the keys and values of the cross attention."""

    def __init__(self, model: Any, last_logits: bool) -> None:
        super().__init__()
        self.decoder, self.proj_out = model.model.decoder, model.proj_out
        self.last_logits = last_logits

    def forward(
        self, input_ids: Tensor, past: Sequence[tuple[Tensor, Tensor]], cross: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, ...]:
        transformers = import_extra("transformers")
        cache = transformers.DynamicCache(past)
        hidden = self.decoder(
            input_ids=input_ids,
            # Required, but not read: the cross cache is not empty.
            encoder_hidden_states=input_ids,
            past_key_values=transformers.EncoderDecoderCache(cache, transformers.DynamicCache(cross)),
        ).last_hidden_state
        logits = self.proj_out(hidden[:, -1:] if self.last_logits else hidden)
        return (logits, *(state for layer in cache.layers for state in (layer.keys, layer.values)))


def export_whisper(loaded: LanguageModel, request: Request) -> None:
    """Write encoder.onnx, decoder.onnx, genai_config.json and audio_processor_config.json."""
    config = loaded.model.config
    frames = 2 * config.max_source_positions
    if frames != _FRAMES:
        raise ArgumentError(
            "model", f"onnxruntime-genai runs Whisper with {_FRAMES} frames of audio, but this model needs {frames}"
        )
    parts = _whisper_parts(loaded.model, request.last_logits)
    programs = export_parts(parts, request)
    save_parts(programs, request)
    write_json(request.directory / "genai_config.json", _genai_config(loaded, request.device))
    write_json(request.directory / "audio_processor_config.json", _audio_processor_config(config.num_mel_bins))
    if request.verify:
        request.announce("verify")
        features = torch.randn(2, config.num_mel_bins, _FRAMES, generator=torch.Generator().manual_seed(0))
        start = torch.tensor([[config.decoder_start_token_id]] * 2)
        inputs = {
            "input_features": features.to(loaded.model.device, loaded.model.dtype),
            "decoder_input_ids": start.to(loaded.model.device),
        }
        feeds = {"audio_features": features.to(input_dtype(loaded.model))}
        with rounded_parts(parts, programs):
            compare_generation(loaded.model, request.directory, start, feeds, inputs, request.tolerance)


def _whisper_parts(model: Any, last_logits: bool) -> dict[str, Part]:
    config = model.config
    layers, heads = config.decoder_layers, config.decoder_attention_heads
    size = config.d_model // heads
    features = torch.zeros(_BATCH, config.num_mel_bins, _FRAMES, dtype=input_dtype(model), device=model.device)
    past, cross = (
        [(features.new_zeros(_BATCH, heads, length, size, dtype=model.dtype),) * 2 for _ in range(layers)]
        for length in (_PAST, config.max_source_positions)
    )
    ids = torch.full((_BATCH, _TOKENS), config.decoder_start_token_id, device=model.device)
    calls = decoder_calls(config.max_target_positions)
    return {
        "encoder": Part(
            WhisperEncoder(model),
            {"audio_features": features},
            {"audio_features": {0: "batch"}},
            calls,
            output_names=("hidden_states", *_names("present", "cross", layers)),
        ),
        "decoder": Part(
            WhisperDecoder(model, last_logits),
            {"input_ids": ids, "past": past, "cross": cross},
            {
                "input_ids": {0: "batch", 1: "tokens"},
                "past_*_self_*": {0: "batch", 2: "past"},
                "past_*_cross_*": {0: "batch"},
            },
            calls,
            input_names=("input_ids", *_names("past", "self", layers), *_names("past", "cross", layers)),
            output_names=("logits", *_names("present", "self", layers)),
        ),
    }


def _genai_config(loaded: LanguageModel, target: str) -> dict[str, Any]:
    config = loaded.model.config
    common = {"session_options": session_options(target), "hidden_size": config.d_model}
    encoder = {
        **_attention_sizes(config.d_model, config.encoder_attention_heads, config.encoder_layers),
        "filename": "encoder.onnx",
        "inputs": {"audio_features": "audio_features"},
        "outputs": {
            "encoder_hidden_states": "hidden_states",
            "cross_present_key_names": "present_key_cross_%d",
            "cross_present_value_names": "present_value_cross_%d",
        },
    }
    decoder = {
        **_attention_sizes(config.d_model, config.decoder_attention_heads, config.decoder_layers),
        "filename": "decoder.onnx",
        "inputs": {
            "input_ids": "input_ids",
            "past_key_names": "past_key_self_%d",
            "past_value_names": "past_value_self_%d",
            "cross_past_key_names": "past_key_cross_%d",
            "cross_past_value_names": "past_value_cross_%d",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present_key_self_%d",
            "present_value_names": "present_value_self_%d",
        },
    }
    return {
        "model": {
            "type": "whisper",
            "vocab_size": config.vocab_size,
            "context_length": config.max_target_positions,
            **token_ids(loaded.model, loaded.tokenizer),
            "encoder": {**common, **encoder},
            "decoder": {**common, **decoder},
        },
        "search": search_settings(loaded.model, config.max_target_positions),
    }


def _attention_sizes(hidden_size: int, heads: int, layers: int) -> dict[str, int]:
    return {
        "head_size": hidden_size // heads,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
    }


def _audio_processor_config(mel_bins: int) -> dict[str, Any]:
    """Operators of onnxruntime-extensions for the log-mel spectrogram of 30 seconds of audio at 16 kHz."""
    window = {"n_fft": 400, "hop_length": 160}
    operations = [
        {"name": "audio_decoder", "type": "AudioDecoder"},
        {"name": "STFT", "type": "STFTNorm", "attrs": {**window, "frame_length": 400}},
        {
            "name": "log_mel_spectrogram",
            "type": "LogMelSpectrum",
            "attrs": {**window, "chunk_size": 30, "n_mel": mel_bins},
        },
    ]
    return {"feature_extraction": {"sequence": [{"operation": operation} for operation in operations]}}
