"""Decoders that take embeddings in place of tokens, and the embedding of the tokens in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, VerificationError
from ._extra import import_extra
from ._loading import LanguageModel
from ._parts import Part

__all__ = ["EMBEDDING", "compare_logits", "embedding_part", "with_embeddings"]

EMBEDDING = "embedding"
_LENGTHS = (6, 1, 1)
"""Numbers of tokens of calls in a row; ONNX Runtime continues several rows by one token each only."""

_DTYPES: Mapping[str, torch.dtype] = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}


class _TokenEmbedding(nn.Module):
    """The embedding of the tokens.

    Args:
        model: A causal language model of transformers.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed_tokens = model.get_input_embeddings()

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.embed_tokens(input_ids)
        return found


def embedding_part(model: Any) -> Part:
    """The file that makes embeddings of tokens.

    Args:
        model: A causal language model of transformers.
    """
    ids = torch.ones(2, 3, dtype=torch.int64, device=model.device)
    dims = {"input_ids": {0: "batch", 1: "tokens"}}
    return Part(_TokenEmbedding(model), {"input_ids": ids}, dims, (), output_names=("inputs_embeds",))


def with_embeddings(inputs: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The inputs of a step with embeddings in place of the tokens.

    Args:
        inputs: The inputs that ``example_inputs`` has made.
        model: The model, with its weights.
    """
    with torch.no_grad():
        embeddings = model.get_input_embeddings()(inputs["input_ids"])
    return {"inputs_embeds": embeddings, **{name: value for name, value in inputs.items() if name != "input_ids"}}


def compare_logits(loaded: LanguageModel, directory: Path, tolerance: float) -> None:
    """Run both files in ONNX Runtime for a prompt and steps after it, and compare the logits with transformers'.

    Args:
        loaded: The model of transformers.
        directory: The exported directory.
        tolerance: The logits may differ by this part of their range.

    Raises:
        ArgumentError: If ONNX Runtime on the CPU has no such inputs.
        VerificationError: If they differ by more.
    """
    onnxruntime = import_extra("onnxruntime")
    embedding, decoder = (
        onnxruntime.InferenceSession(str(directory / f"{name}.onnx"), providers=["CPUExecutionProvider"])
        for name in (EMBEDDING, "model")
    )
    outputs = [value.name for value in decoder.get_outputs()]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, loaded.config.vocab_size, (2, sum(_LENGTHS)), generator=generator)
    states = {
        value.name: _empty(value, len(ids))
        for value in decoder.get_inputs()
        if value.name.startswith("past_key_values.")
    }
    past = 0
    for length in _LENGTHS:
        total = past + length
        positions = torch.arange(past, total).expand(len(ids), -1).numpy()
        feeds = {
            "inputs_embeds": embedding.run(None, {"input_ids": ids[:, past:total].numpy()})[0],
            "attention_mask": torch.ones(len(ids), total, dtype=torch.int64).numpy(),
            "position_ids": positions,
            **states,
        }
        given = {value.name: feeds[value.name] for value in decoder.get_inputs()}
        found = dict(zip(outputs, decoder.run(outputs, given), strict=True))
        states = {
            f"past_key_values.{name.removeprefix('present.')}": found[name] for name in outputs if "present." in name
        }
        _compare(loaded, ids[:, :total], torch.from_numpy(found["logits"])[:, -1], tolerance)
        past = total


def _empty(value: Any, batch: int) -> Any:
    """A state before the first token."""
    if value.type not in _DTYPES:
        raise ArgumentError("inputs_embeds", f"{value.name} is a {value.type}", hint="pass verify=False (--no-verify)")
    sizes = [size if isinstance(size, int) else {"batch": batch}.get(str(size), 0) for size in value.shape]
    return torch.zeros(sizes, dtype=_DTYPES[value.type]).numpy()


def _compare(loaded: LanguageModel, ids: Tensor, found: Tensor, tolerance: float) -> None:
    with torch.no_grad():
        expected = loaded.model(ids.to(loaded.model.device)).logits[:, -1].float().cpu()
    difference = float((expected - found.float()).abs().max() / (expected.max() - expected.min()))
    if not difference <= tolerance:
        raise VerificationError(
            f"the logits of the embeddings of {ids.shape[1]} tokens differ from transformers' by {difference:.2g} of "
            f"their range, more than {tolerance}"
        )
