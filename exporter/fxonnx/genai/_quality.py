"""How far the probabilities of an exported model are from the original's, for a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .._warnings import warn_user
from ..errors import VerificationError
from ._config import context_length
from ._extra import import_extra
from ._loading import LanguageModel
from ._texts import VERIFIED, tokens_of

__all__ = ["Quality", "Reference", "quality_of", "reference_of", "warn_of_quality"]

_TOKENS = 288
_STEPS = 32
"""Number of tokens that follow one at a time; those before are one prompt."""


@dataclass(frozen=True)
class Quality:
    """The probabilities of the next token of an exported model, over transformers'.

    Attributes:
        kl: The mean Kullback-Leibler divergence, in nats.
        top1: The share of positions at which both have the same most probable token.
        tokens: Number of tokens of the text.
    """

    kl: float
    top1: float
    tokens: int

    def __str__(self) -> str:
        return f"KL divergence {self.kl:.2g} nats, {self.top1:.0%} equal most probable tokens"


@dataclass(frozen=True)
class Reference:
    """The probabilities of the original model for a text.

    Attributes:
        tokens: The text, int64 of shape (1, length).
        log_probabilities: float64 of shape (steps, vocabulary), of the tokens after the last ones of the text.
    """

    tokens: torch.Tensor
    log_probabilities: torch.Tensor


def reference_of(loaded: LanguageModel) -> Reference | None:
    """Compute the probabilities of the original model; None if its context is too short for a text."""
    most = min(_TOKENS, context_length(loaded.config) - 1)
    tokens = tokens_of(VERIFIED, loaded.model, loaded.tokenizer, most)
    if tokens.shape[1] <= _STEPS:
        return None
    with torch.no_grad():
        logits = loaded.model(tokens, attention_mask=torch.ones_like(tokens)).logits[0, -_STEPS:]
    return Reference(tokens, logits.double().log_softmax(-1).cpu())


def quality_of(model: Any, reference: Reference) -> Quality:
    """Compare a model in onnxruntime-genai with the original.

    Args:
        model: The model of onnxruntime-genai.
        reference: The probabilities of the original.

    Raises:
        VerificationError: If the model cannot be run.
    """
    og = import_extra("onnxruntime_genai")
    ids = reference.tokens.to("cpu", torch.int32).numpy()
    length = ids.shape[1]
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(**{"do_sample": False, "num_beams": 1, "batch_size": 1, "max_length": length + 1})
    found = []
    try:
        generator = og.Generator(model, parameters)
        for start, end in zip(
            (0, *range(length - _STEPS + 1, length)), range(length - _STEPS + 1, length + 1), strict=True
        ):
            generator.append_tokens(ids[:, start:end])
            found.append(torch.from_numpy(generator.get_logits()[0, -1]).double().log_softmax(-1))
    except RuntimeError as error:
        raise VerificationError(f"onnxruntime-genai cannot run the exported model: {error}") from error
    ours, theirs = torch.stack(found), reference.log_probabilities
    ours = ours[:, : theirs.shape[1]]
    # A token of probability zero has no part in the sum.
    terms = torch.where(theirs > -700, theirs.exp() * (theirs - ours), 0.0)
    return Quality(float(terms.sum(-1).mean()), float((ours.argmax(-1) == theirs.argmax(-1)).double().mean()), length)


def warn_of_quality(quality: Quality, name: str, limit: float) -> None:
    """Warn if a model is further from the original than the documentation says.

    It is not an error: how much rounding changes depends on the model, and only its user can judge the result.

    Args:
        quality: The comparison.
        name: The precision or recipe.
        limit: The largest documented divergence.
    """
    if not quality.kl <= limit:
        warn_user(
            f"{name!r} changes this model more than most: for a text of {quality.tokens} tokens, {quality}, where the "
            f"divergence is usually at most {limit:g}; a recipe or precision with more bits changes it less"
        )
