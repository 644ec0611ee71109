"""Comparison of the tokens that onnxruntime-genai and transformers generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..errors import VerificationError
from ._adapters import Adapters
from ._extra import import_extra
from ._loading import LanguageModel

__all__ = ["compare_tokens"]

_PROMPT, _NEW, _BATCHES = 6, 16, (1, 3)

_CLOSE = 0.02
"""Two tokens are equally good if their logits differ by at most this part of the range of the logits."""


def compare_tokens(loaded: LanguageModel, directory: Path, adapters: Adapters) -> None:
    """Generate greedily with both, for one prompt and for a batch, and with each adapter.

    Rows may part where the best two tokens of transformers are equally good.

    Args:
        loaded: The model of transformers.
        directory: The exported directory.
        adapters: The adapters, with a file each in the directory.

    Raises:
        VerificationError: If the tokens differ.
    """
    og = import_extra("onnxruntime_genai")
    config = og.Config(str(directory))
    config.clear_providers()
    try:
        model = og.Model(config)
    except RuntimeError as error:
        raise VerificationError(f"onnxruntime-genai cannot load the exported model: {error}") from error
    files = og.Adapters(model) if adapters.directories else None
    for name in (None, *adapters.directories):
        if files is not None and name is not None:
            files.load(str(directory / f"{name}.onnx_adapter"), name)
        with adapters.active(name):
            for batch in _BATCHES:
                prompt = _prompt(loaded, batch)
                found = _generated(og, model, prompt, (files, name))
                expected = _expected(loaded, prompt)
                where = f"batch {batch}" if name is None else f"batch {batch} with the adapter {name!r}"
                for row, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                    _compare_row(loaded, prompt[row].tolist(), ours, theirs, f"row {row} of {where}")


def _prompt(loaded: LanguageModel, batch: int) -> torch.Tensor:
    """Random tokens that are not special."""
    count = loaded.config.vocab_size
    special = {loaded.config.pad_token_id, *getattr(loaded.tokenizer, "all_special_ids", ())}
    usable = torch.tensor([token for token in range(count) if token not in special])
    generator = torch.Generator().manual_seed(batch)
    return usable[torch.randint(len(usable), (batch, _PROMPT), generator=generator)]


def _generated(og: Any, model: Any, prompt: torch.Tensor, adapter: tuple[Any, str | None]) -> list[list[int]]:
    parameters = og.GeneratorParams(model)
    length = prompt.shape[1] + _NEW
    parameters.set_search_options(
        **{"do_sample": False, "num_beams": 1, "batch_size": len(prompt), "min_length": length, "max_length": length}
    )
    try:
        generator = og.Generator(model, parameters)
        if adapter[1] is not None:
            generator.set_active_adapter(*adapter)
        generator.append_tokens(prompt.to(torch.int32).numpy())
        while not generator.is_done():
            generator.generate_next_token()
    except RuntimeError as error:
        raise VerificationError(f"onnxruntime-genai cannot run the exported model: {error}") from error
    return [[int(token) for token in generator.get_sequence(row)[prompt.shape[1] :]] for row in range(len(prompt))]


def _expected(loaded: LanguageModel, prompt: torch.Tensor) -> list[list[int]]:
    with torch.no_grad():
        tokens = loaded.model.generate(
            prompt.to(loaded.model.device),
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=_NEW,
            min_new_tokens=_NEW,
            do_sample=False,
            num_beams=1,
        )
    return [row.tolist() for row in tokens[:, prompt.shape[1] :]]


def _compare_row(loaded: LanguageModel, prompt: list[int], ours: list[int], theirs: list[int], where: str) -> None:
    different = [index for index, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    if not different:
        return
    first = different[0]
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *theirs[:first]]], device=loaded.model.device)
        logits = loaded.model(ids).logits[0, -1].float()
    gap = float(logits[theirs[first]] - logits[ours[first]])
    if gap > _CLOSE * float(logits.max() - logits.min()):
        raise VerificationError(
            f"onnxruntime-genai generates other tokens than transformers in {where}: token {first} is {ours[first]} "
            f"instead of {theirs[first]}, whose logit is larger by {gap:.3g}"
        )
