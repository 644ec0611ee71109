"""SpeechT5 and MusicGen: the files that make sound, beside an encoder of text and a decoder."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError, kind_of
from ..extras import import_extra
from ..hub import download, is_hub_id
from ..parts import Component, Inputs, with_forward
from ..samples import Sizes, sample_inputs
from ..sessions import Session, replace_forward
from ..source import without_progress
from ..untrusted import check_checkpoint, loading
from .cross_attention import TRANSLATIONS, present_of_both, reusing_cache

__all__ = ["codebooks_of", "is_speech", "load_vocoder", "music_components", "replace_speech", "speech_components"]

_PAST = 5


def is_speech(config: Any) -> bool:
    """Whether a configuration is of SpeechT5."""
    return bool(config.model_type == "speecht5")


def load_vocoder(vocoder: Any) -> Any:
    """The model that makes sound of spectrograms."""
    transformers = import_extra("transformers")
    hint = "pass a SpeechT5HifiGan, or its directory: vocoder=, --vocoder"
    if isinstance(vocoder, (str, os.PathLike)):
        if is_hub_id(vocoder):
            vocoder = download(vocoder, None, None, argument="vocoder")
        if os.path.isdir(vocoder):
            check_checkpoint(Path(vocoder), "vocoder")
        with loading(vocoder, "vocoder", hint=hint), without_progress():
            vocoder = transformers.SpeechT5HifiGan.from_pretrained(vocoder)
    if not isinstance(vocoder, transformers.SpeechT5HifiGan):
        problem = "SpeechT5 requires one, which makes sound of its spectrogram"
        raise ArgumentError("vocoder", problem if vocoder is None else f"got {kind_of(vocoder)}", hint=hint)
    return copy.deepcopy(vocoder).eval() if vocoder.training else vocoder


def speech_components(model: Any, vocoder: Any) -> list[Component]:
    """The encoder, a step of the decoder, and the vocoder; one text at a time, as in transformers.js."""

    def encode(input_ids: Tensor) -> dict[str, Tensor]:
        mask = torch.ones_like(input_ids)
        states = model.speecht5.encoder(input_values=input_ids, attention_mask=mask).last_hidden_state
        return {"encoder_outputs": states.float(), "encoder_attention_mask": mask}

    def text(sizes: Sizes) -> Inputs:
        return {"input_ids": sample_inputs(model, ["input_ids"], sizes)["input_ids"][:1]}

    def sound(spectrogram: Tensor) -> dict[str, Tensor]:
        smooth = model.speech_decoder_postnet.postnet(spectrogram[None].to(model.dtype))[0]
        return {"waveform": vocoder(smooth.float())}

    def spectrogram(sizes: Sizes) -> Inputs:
        generator = torch.Generator().manual_seed(sizes.seed)
        return {"spectrogram": torch.randn(2 * sizes.tokens, model.config.num_mel_bins, generator=generator)}

    both = torch.nn.Module().eval()
    both.model, both.vocoder = model, vocoder
    length: Mapping[str, Mapping[int, str]] = {"input_ids": {1: "encoder_sequence_length"}}
    frames = {"spectrogram": {0: "n_spectrums_x_reduction_factor"}}
    return [
        Component("encoder_model", with_forward(model, encode), text, length),
        _step(model),
        Component("decoder_postnet_and_vocoder", with_forward(both, sound), spectrogram, frames, has_products=False),
    ]


def _step(model: Any) -> Component:
    """A step of the decoder, which takes all spectra so far, as the layers before it draw random numbers for each."""
    config = model.config
    transformers = import_extra("transformers")

    def forward(
        output_sequence: Tensor,
        speaker_embeddings: Tensor,
        encoder_hidden_states: Tensor,
        encoder_attention_mask: Tensor,
        past_key_values: list[dict[str, dict[str, Tensor]]],
        use_cache_branch: Tensor,
    ) -> dict[str, Tensor]:
        decoder, postnet = model.speecht5.decoder, model.speech_decoder_postnet
        past, cross = ([(layer[part]["key"], layer[part]["value"]) for layer in past_key_values] for part in _PARTS)
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(past), transformers.DynamicCache())
        cache.cross_attention_cache = reusing_cache(cross, use_cache_branch)
        hidden = decoder.prenet(output_sequence.to(model.dtype), speaker_embeddings.to(model.dtype))
        last = decoder.wrapped_decoder(
            hidden_states=hidden[:, -1:],
            encoder_hidden_states=encoder_hidden_states.to(model.dtype),
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[0, -1]
        spectrum = postnet.feat_out(last).view(config.reduction_factor, config.num_mel_bins).float()
        return {
            "output_sequence_out": torch.cat([output_sequence, spectrum[None, -1:]], dim=1),
            "spectrum": spectrum,
            "prob": torch.sigmoid(postnet.prob_out(last)).float(),
            **present_of_both(cache),
        }

    def inputs(sizes: Sizes, past: int = _PAST, use_cache: bool = False) -> Inputs:
        generator = torch.Generator().manual_seed(sizes.seed)
        heads = config.decoder_attention_heads
        length = sizes.tokens

        def random(*shape: int) -> Tensor:
            return torch.randn(1, *shape, generator=generator)

        def states(length: int) -> dict[str, Tensor]:
            shape = (heads, length, config.hidden_size // heads)
            return {name: random(*shape).to(model.dtype) for name in ("key", "value")}

        return {
            "output_sequence": random(past + 1, config.num_mel_bins),
            "speaker_embeddings": random(config.speaker_embedding_dim),
            "encoder_hidden_states": random(length, config.hidden_size),
            "encoder_attention_mask": torch.ones(1, length, dtype=torch.int64),
            "past_key_values": [
                {part: states(known) for part, known in zip(_PARTS, (past, length), strict=True)}
                for _ in range(config.decoder_layers)
            ],
            "use_cache_branch": torch.tensor([use_cache]),
        }

    axes = {
        "output_sequence": {1: "decoder_sequence_length"},
        "encoder_hidden_states": {1: "encoder_sequence_length"},
        "encoder_attention_mask": {1: "encoder_sequence_length"},
        "past_key_values*decoder*": {2: "past_decoder_sequence_length"},
        "past_key_values*encoder*": {2: "encoder_sequence_length_out"},
    }
    return Component("decoder_model_merged", with_forward(model, forward), inputs, axes, TRANSLATIONS, has_branch=True)


_PARTS = ("decoder", "encoder")


def replace_speech(model: Any, encoder: Session, decoder: Session, vocoder: Session) -> None:
    """Let the files compute the parts that ``generate`` and ``generate_speech`` call; both return sound."""
    output = import_extra("transformers").utils.ModelOutput
    known: dict[str, Tensor] = {}
    postnet = model.speech_decoder_postnet

    def encode(input_values: Tensor, **_: Any) -> Any:
        return output(last_hidden_state=encoder({"input_ids": input_values})["encoder_outputs"])

    def remember(input_values: Tensor, speaker_embeddings: Tensor) -> Tensor:
        known.update(output_sequence=input_values, speaker_embeddings=speaker_embeddings)
        return input_values

    def step(past_key_values: Any = None, **given: Any) -> Any:
        names = ("encoder_hidden_states", "encoder_attention_mask")
        feeds = {**known, **{name: given[name] for name in names}}
        feeds["use_cache_branch"] = torch.tensor([past_key_values is not None])
        for name in decoder.caches:
            present = name.replace("past_key_values", "present")
            feeds[name] = past_key_values[present] if past_key_values else decoder.empty(name, 1)
        found = decoder(feeds)
        known.update(found)
        return output(last_hidden_state=found["spectrum"][None], past_key_values=found)

    replace_forward(model.speecht5.encoder, encode)
    replace_forward(model.speecht5.decoder.prenet, remember)
    replace_forward(model.speecht5.decoder.wrapped_decoder, step)
    replace_forward(postnet.feat_out, lambda **_: known["spectrum"])
    replace_forward(postnet.prob_out, lambda **_: torch.logit(known["prob"])[None])
    postnet.postnet = lambda hidden_states: hidden_states  # the vocoder's file has it
    for name in ("generate", "generate_speech"):
        original = getattr(model, name)
        sound = {"vocoder": lambda spectrogram: vocoder({"spectrogram": spectrogram})["waveform"]}
        setattr(model, name, _with(original, sound))


def _with(function: Any, options: Mapping[str, Any]) -> Any:
    return lambda *args, **kwargs: function(*args, **{**kwargs, **options})


def codebooks_of(model: Any) -> int:
    """How many rows of tokens the decoder of a model has for each text: several for sound, one for each codebook."""
    return int(getattr(getattr(model.config, "decoder", None), "num_codebooks", 1))


def music_components(model: Any) -> list[Component]:
    """The decoder of sound, and the pattern by which the tokens of a codebook are delayed."""
    audio = model.config.audio_encoder
    if audio.model_type != "encodec" or audio.chunk_length_s is not None:
        chunks = f" in chunks of {audio.chunk_length_s} seconds" if audio.model_type == "encodec" else ""
        problem = f"{type(model).__name__} decodes sound with {audio.model_type!r}{chunks}"
        raise ArgumentError("model", problem, hint="only EnCodec in one chunk is exported: chunk_length_s=None")

    def decode(audio_codes: Tensor) -> dict[str, Tensor]:
        return {"audio_values": model.audio_encoder.decode(audio_codes, [None]).audio_values.float()}

    codebooks = model.config.decoder.num_codebooks
    channels = model.config.decoder.audio_channels

    def codes(sizes: Sizes) -> Inputs:
        shape = (1, sizes.batch, codebooks // channels, sizes.tokens)
        generator = torch.Generator().manual_seed(sizes.seed)
        return {"audio_codes": torch.randint(audio.codebook_size, shape, generator=generator)}

    def prompt(sizes: Sizes) -> Inputs:
        generator = torch.Generator().manual_seed(sizes.seed)
        ids = torch.randint(audio.codebook_size, (sizes.batch * codebooks, 3), generator=generator)
        pad = torch.tensor(model.config.decoder.pad_token_id)
        return {"input_ids": ids, "pad_token_id": pad, "max_length": torch.tensor(sizes.tokens + 2 * codebooks)}

    code_axes: Mapping[str, Mapping[int, str]] = {"audio_codes": {1: "batch_size", 3: "chunk_length"}}
    prompt_axes = {"input_ids": {0: "batch_size_x_num_codebooks", 1: "sequence_length"}}
    pattern = with_forward(torch.nn.Module().eval(), _delay_pattern(codebooks, channels))
    return [
        Component("encodec_decode", with_forward(model, decode), codes, code_axes, has_products=False),
        Component("build_delay_pattern_mask", pattern, prompt, prompt_axes, has_products=False),
    ]


def _delay_pattern(codebooks: int, channels: int) -> Callable[..., dict[str, Tensor]]:
    """``MusicgenForCausalLM.build_delay_pattern_mask`` in operators whose sizes follow from tensors.

    The tokens of each codebook begin one step after those before it; channels begin together.
    """

    def forward(input_ids: Tensor, pad_token_id: Tensor, max_length: Tensor) -> dict[str, Tensor]:
        length = input_ids.shape[1]
        ids = input_ids.reshape(-1, codebooks, length)
        delays = torch.arange(codebooks)[:, None] // channels
        steps = codebooks // channels
        is_short = max_length < 2 * steps - 1  # too short for a pattern

        def delayed(positions: Tensor) -> Tensor:
            source = positions - delays
            taken = ids.gather(2, source.clamp(0, length - 1).expand(ids.shape[0], -1, -1))
            shifted = torch.where((source >= 0) & (source < length), taken, -1)
            is_padding = (positions <= delays) | (positions > delays + max_length - steps)
            return torch.where(is_padding, pad_token_id, shifted).flatten(0, 1)

        pattern = delayed(torch.arange(max_length.item()))
        return {
            "input_ids_edited": torch.where(is_short, input_ids, delayed(torch.arange(length))),
            "delay_pattern_mask": torch.where(is_short, -1, pattern),
        }

    return forward
