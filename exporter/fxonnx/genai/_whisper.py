"""Whisper: an encoder that also returns the keys and values of the cross attention, and a decoder that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from ._config import search_settings, session_options, token_ids
from ._directory import write_json
from ._extra import import_extra
from ._input_verification import compare_generation
from ._loading import LanguageModel
from ._parts import Part, Request, export_parts, input_dtype, rounded_parts, save_parts
from ._sizes import decoder_calls

__all__ = ["export_whisper"]

_FRAMES = 3000
"""Frames of 30 seconds of audio; onnxruntime-genai accepts no other number."""

_BATCH, _PAST, _TOKENS = 2, 5, 3


class WhisperEncoder(nn.Module):
    """The encoder, followed by the key and value projections of the decoder's cross attention.

    Args:
        model: A ``WhisperForConditionalGeneration``.
    """

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
    """One step of the decoder, with the cache of its self attention and the keys and values of the cross attention.

    Args:
        model: A ``WhisperForConditionalGeneration``.
        last_logits: Compute the logits of the last position only.
    """

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
    """Write encoder.onnx, decoder.onnx, genai_config.json and audio_processor_config.json.

    Args:
        loaded: The model and its tokenizer.
        request: The arguments of the export.

    Raises:
        ArgumentError: If the model is not for 30 seconds of audio.
        VerificationError: If the tokens differ from transformers'.
    """
    config = loaded.model.config
    frames = 2 * config.max_source_positions
    if frames != _FRAMES:
        raise ArgumentError(
            "model", f"onnxruntime-genai runs Whisper with {_FRAMES} frames of audio, but this model needs {frames}"
        )
    parts = _parts(loaded.model, request.last_logits)
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


def _parts(model: Any, last_logits: bool) -> dict[str, Part]:
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


def _names(time: str, attention: str, layers: int) -> list[str]:
    return [f"{time}_{kind}_{attention}_{layer}" for layer in range(layers) for kind in ("key", "value")]


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
