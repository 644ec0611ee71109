"""Embedding models and rerankers: one ONNX file that ONNX Runtime runs on the output of the tokenizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..language_models import LanguageModel
from ..parts import Call, Part, Request, export_parts
from .sentences import POOLINGS, Normalize, load_sentence_modules

__all__ = ["export_embedding", "export_reranker"]

_FILE = "model.onnx"
_BATCH, _TOKENS = 2, 6

_VERIFIED = ((1, 3), (3, 7), (2, 1))
"""Batch and length of the inputs of the comparison."""


class SentenceEmbedding(nn.Module):
    """A model, a pooling of its hidden states, and further modules."""

    def __init__(self, model: nn.Module, pooling: str, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling
        self.after = nn.Sequential(*modules)

    def forward(self, **inputs: Tensor) -> Tensor:
        hidden = self.model(**inputs).last_hidden_state
        embedding: Tensor = self.after(POOLINGS[self.pooling](hidden, inputs["attention_mask"]))
        return embedding


class Reranker(nn.Module):
    """A sequence classifier; with one label, the score is its probability."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.has_scores = model.config.num_labels == 1

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        logits: Tensor = self.model(**inputs).logits
        return (logits, logits.sigmoid().squeeze(-1)) if self.has_scores else (logits,)


def export_embedding(loaded: LanguageModel, request: Request) -> None:
    """Write model.onnx, with the output ``sentence_embedding``."""
    pooling, modules = request.pooling, list[nn.Module]()
    if loaded.directory is not None:
        pooling, modules = load_sentence_modules(loaded.directory, loaded.model.dtype, pooling)
    if pooling is None:
        raise ArgumentError(
            "pooling", f"{type(loaded.model).__name__} has no modules.json with a pooling", hint="pass pooling='mean'"
        )
    if request.normalize is not None:
        modules = [module for module in modules if not isinstance(module, Normalize)]
        modules += [Normalize()] if request.normalize else []
    model = loaded.model
    _export(SentenceEmbedding(model, pooling, modules).to(model.device), loaded, ("sentence_embedding",), request)


def export_reranker(loaded: LanguageModel, request: Request) -> None:
    """Write model.onnx, with the output ``logits`` and, for one label, ``scores``."""
    reranker = Reranker(loaded.model)
    _export(reranker, loaded, ("logits", "scores") if reranker.has_scores else ("logits",), request)


def _export(module: nn.Module, loaded: LanguageModel, outputs: tuple[str, ...], request: Request) -> None:
    inputs = _inputs(loaded, _BATCH, _TOKENS)
    part = Part(
        module,
        inputs,
        {name: {0: "batch", 1: "tokens"} for name in inputs},
        _calls(loaded),
        output_names=outputs,
    )
    (program,) = export_parts({"model": part}, request).values()
    request.announce("save")
    program.save(request.directory / _FILE)
    if request.verify:
        request.announce("verify")
        for batch, tokens in _VERIFIED:
            program.verify((), _inputs(loaded, batch, tokens))


def _inputs(loaded: LanguageModel, batch: int, tokens: int) -> dict[str, Tensor]:
    """Inputs with padding in every row but the first, on the side of the tokenizer."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(loaded.config.vocab_size, (batch, tokens), generator=generator)
    lengths = torch.tensor([max(1, tokens - 2 * row) for row in range(batch)])
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    if loaded.tokenizer.padding_side == "left":
        mask = mask.flip(1)
    pad = loaded.tokenizer.pad_token_id
    available = {
        "input_ids": ids.where(mask == 1, 0 if pad is None else pad),
        "attention_mask": mask,
        "token_type_ids": torch.zeros_like(mask),
    }
    parameters = inspect.signature(loaded.model.forward).parameters
    names = {*loaded.tokenizer.model_input_names, "attention_mask"} & set(parameters)
    return {name: value.to(loaded.model.device) for name, value in available.items() if name in names}


def _calls(loaded: LanguageModel) -> tuple[Call, ...]:
    longest = getattr(loaded.config, "max_position_embeddings", None) or 512
    return tuple({"batch": batch, "tokens": tokens} for batch in (1, 2, 7) for tokens in (1, 2, 3, 64, longest - 2))
