"""Comparison of the tokens that onnxruntime-genai and transformers generate from audio or images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import VerificationError
from ._extra import import_extra

__all__ = ["compare_generation"]

_NEW = 12


def compare_generation(
    model: Any, directory: Path, prompt: Tensor, feeds: Mapping[str, Any], inputs: Any, tolerance: float
) -> None:
    """Generate greedily with both.

    Rows may part where the best two tokens of transformers are equally good.

    Args:
        model: The model of transformers.
        directory: The exported directory.
        prompt: The tokens before the generated ones, one row per sequence.
        feeds: Inputs of onnxruntime-genai besides the prompt, by name.
        inputs: Keyword inputs of ``generate`` in transformers, with the prompt.
        tolerance: Two tokens are equally good if their logits differ by at most this part of the range of all logits.

    Raises:
        VerificationError: If the tokens differ.
    """
    found = _generated(directory, prompt, feeds)
    # generate() of Whisper would choose the prompt, and suppress tokens.
    generate = import_extra("transformers").GenerationMixin.generate
    with torch.no_grad():
        expected = generate(
            model,
            **inputs,
            max_new_tokens=_NEW,
            min_new_tokens=_NEW,
            do_sample=False,
            num_beams=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
    for row, ours in enumerate(found):
        theirs = expected.sequences[row, prompt.shape[1] :].tolist()
        _compare_row(row, ours, theirs, [logits[row].float() for logits in expected.logits], tolerance)


def _generated(directory: Path, prompt: Tensor, feeds: Mapping[str, Any]) -> list[list[int]]:
    og = import_extra("onnxruntime_genai")
    tensors = og.NamedTensors()
    tensors["input_ids"] = prompt.to(torch.int32).cpu().numpy()
    for name, value in feeds.items():
        tensors[name] = value.cpu().numpy()
    try:
        config = og.Config(str(directory))
        config.clear_providers()
        model = og.Model(config)
        parameters = og.GeneratorParams(model)
        length = prompt.shape[1] + _NEW
        options = {"do_sample": False, "num_beams": 1, "min_length": length, "max_length": length}
        parameters.set_search_options(**options, batch_size=len(prompt))
        generator = og.Generator(model, parameters)
        generator.set_inputs(tensors)
        while not generator.is_done():
            generator.generate_next_token()
    except RuntimeError as error:
        raise VerificationError(f"onnxruntime-genai cannot run the exported model: {error}") from error
    return [[int(token) for token in generator.get_sequence(row)[prompt.shape[1] :]] for row in range(len(prompt))]


def _compare_row(row: int, ours: list[int], theirs: list[int], logits: list[Tensor], tolerance: float) -> None:
    first = next((index for index, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), None)
    if first is None:
        return
    step = logits[first]
    gap = float(step[theirs[first]] - step[ours[first]])
    if gap > tolerance * float(step.max() - step.min()):
        raise VerificationError(
            f"onnxruntime-genai generates other tokens than transformers in row {row}: token {first} is {ours[first]} "
            f"instead of {theirs[first]}, whose logit is larger by {gap:.3g}"
        )
