"""MusicGen: the files that make sound of tokens, beside the encoder of text and the decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ._component import Component, Inputs, with_forward
from ._samples import Sizes

__all__ = ["codebooks_of", "music_components"]


def codebooks_of(model: Any) -> int:
    """How many rows of tokens the decoder of a model has for each text: several for sound, one for each codebook."""
    return int(getattr(getattr(model.config, "decoder", None), "num_codebooks", 1))


def music_components(model: Any) -> list[Component]:
    """The decoder of sound, and the pattern by which the tokens of a codebook are delayed.

    Args:
        model: A MusicGen.

    Raises:
        ArgumentError: If its decoder of sound is not EnCodec, or decodes in chunks.
    """
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
