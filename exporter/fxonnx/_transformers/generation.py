"""Comparison of the tokens and the probabilities of onnxruntime-genai with transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import ArgumentError, VerificationError
from .core import UNROUNDED, warn_user
from .decoders.adapters import Adapters
from .extras import import_extra
from .language_models import LanguageModel
from .layouts.genai_config import context_length, token_ids
from .precision import VERIFIED, tokens_of

__all__ = [
    "Quality",
    "Reference",
    "check_can_verify",
    "compare_generation",
    "compare_tokens",
    "generated_by_transformers",
    "open_exported",
    "quality_of",
    "reference_of",
    "warn_of_quality",
]

_TEXT = "The quick brown fox, 12 dogs."
_Run: TypeAlias = Callable[[list[list[int]]], list[list[int]]]
"""From prompts to the tokens that follow them."""

_NEW, _NEW_AFTER_INPUTS = 16, 12
"""Numbers of generated tokens, after a text and after audio or images."""
_LENGTHS = ((6,), (6, 4, 5))
"""Lengths of the prompts in each batch."""


def check_can_verify(target: str, dtype: torch.dtype) -> None:
    """Check that this machine can run a model."""
    og = import_extra("onnxruntime_genai")
    if target == "cuda" and dtype == torch.bfloat16 and not og.is_cuda_available():
        raise ArgumentError(
            "verify",
            "without a GPU, models in bf16 for cuda cannot be run",
            hint="pass verify=False (--no-verify), or precision='fp16'",
        )


def open_exported(directory: Path, device: str = "cpu") -> Any:
    """Load an exported directory in onnxruntime-genai, on its device if that is there, or else on the CPU."""
    og = import_extra("onnxruntime_genai")
    config = og.Config(str(directory))
    if device != "cuda" or not og.is_cuda_available():
        config.clear_providers()
    # The model itself may have weights of torchao, by which transformers multiplies without rounding the activations.
    config.overlay(json.dumps({"model": {"decoder": {"session_options": dict([UNROUNDED])}}}))
    try:
        return og.Model(config)
    except RuntimeError as error:
        raise VerificationError(f"onnxruntime-genai cannot load the exported model: {error}") from error


def compare_tokens(
    loaded: LanguageModel,
    model: Any,
    directory: Path,
    adapters: Adapters,
    tolerance: float,
    *,
    has_batches: bool = True,
) -> bool:
    """Generate greedily with both, for one prompt and for a batch of unequal lengths, and with each adapter.

    Rows may part where the best two tokens of transformers are equally good. Returns whether a batch of unequal lengths
    has the right tokens as well.
    """
    og = import_extra("onnxruntime_genai")
    _compare_tokenizers(og.Tokenizer, model, loaded.tokenizer)
    files = og.Adapters(model) if adapters.directories else None
    is_right = True
    for name in (None, *adapters.directories):
        if files is not None and name is not None:
            files.load(str(directory / f"{name}.onnx_adapter"), name)
        run = partial(_continued, loaded, model, (files, name))
        with adapters.active(name):
            _compare_batch(loaded, run, _LENGTHS[0], tolerance, name)
            if has_batches:
                is_right &= _is_right_if_padded(loaded, run, tolerance, name)
    return is_right


def _compare_tokenizers(tokenizer_class: Any, model: Any, tokenizer: Any) -> None:
    """Warn if onnxruntime-genai cannot read the tokenizer, or encodes a text differently."""
    expected = list(tokenizer(_TEXT).input_ids)
    try:
        found = [int(token) for token in tokenizer_class(model).encode(_TEXT)]
    except RuntimeError as error:
        warn_user(f"onnxruntime-genai cannot use the tokenizer: {error}")
        return
    if found != expected:
        warn_user(
            f"the tokenizer of onnxruntime-genai encodes {_TEXT!r} as {found}, the one of transformers as {expected}; "
            "encode prompts with transformers"
        )


def _is_right_if_padded(loaded: LanguageModel, run: _Run, tolerance: float, adapter: str | None) -> bool:
    """Whether rows of unequal lengths have the right tokens; rows of one length must have them."""
    lengths = _LENGTHS[1]
    try:
        _compare_batch(loaded, run, lengths, tolerance, adapter)
    except VerificationError:
        _compare_batch(loaded, run, (max(lengths),) * len(lengths), tolerance, adapter)
        return False
    return True


def _compare_batch(
    loaded: LanguageModel, run: _Run, lengths: tuple[int, ...], tolerance: float, adapter: str | None
) -> None:
    """Compare the tokens of a batch with each prompt's alone: padded, some models of transformers generate others."""
    prompts = _prompts(loaded, lengths)
    where = f"batch {len(prompts)}" if adapter is None else f"batch {len(prompts)} with the adapter {adapter!r}"
    for row, (prompt, ours) in enumerate(zip(prompts, run(prompts), strict=True)):
        ids = torch.tensor([prompt], device=loaded.model.device)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pad_token_id": _pad(loaded)}
        theirs = generated_by_transformers(loaded.model.generate, given, _NEW)[0, len(prompt) :]
        _compare_row(ours, theirs, partial(_next_logits, loaded, ids, theirs), tolerance, f"row {row} of {where}")


def _prompts(loaded: LanguageModel, lengths: tuple[int, ...]) -> list[list[int]]:
    """Random tokens that are not special."""
    special = {getattr(loaded.config, "pad_token_id", None), *getattr(loaded.tokenizer, "all_special_ids", ())}
    usable = torch.tensor([token for token in range(loaded.config.vocab_size) if token not in special])
    generator = torch.Generator().manual_seed(len(lengths))
    return [usable[torch.randint(len(usable), (length,), generator=generator)].tolist() for length in lengths]


def _pad(loaded: LanguageModel) -> int:
    return int(token_ids(loaded.model, loaded.tokenizer).get("pad_token_id", 0))


def _next_logits(loaded: LanguageModel, prompt: Tensor, tokens: Tensor, count: int) -> Tensor:
    with torch.no_grad():
        logits: Tensor = loaded.model(torch.cat([prompt, tokens[None, :count]], 1)).logits[0, -1].float()
    return logits


def _continued(
    loaded: LanguageModel, model: Any, adapter: tuple[Any, str | None], prompts: list[list[int]]
) -> list[list[int]]:
    """The tokens after prompts, of which the shorter ones are padded on the right."""
    longest, pad = max(map(len, prompts)), _pad(loaded)
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in prompts], dtype=torch.int32)

    def begin(generator: Any) -> None:
        if adapter[1] is not None:
            generator.set_active_adapter(*adapter)
        generator.append_tokens(ids.numpy())

    return _generated(model, ids, _NEW, begin)


def _generated(model: Any, prompt: Tensor, new: int, begin: Callable[[Any], None]) -> list[list[int]]:
    """The tokens that onnxruntime-genai generates greedily, of which ``begin`` gives a generator the first ones."""
    rows, start = prompt.shape
    length = start + new
    options = {"do_sample": False, "num_beams": 1, "batch_size": rows, "min_length": length, "max_length": length}
    with _generator(model, options) as generator:
        begin(generator)
        while not generator.is_done():
            generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)[start:]] for row in range(rows)]


@contextmanager
def _generator(model: Any, options: Mapping[str, Any]) -> Iterator[Any]:
    """A generator of onnxruntime-genai, whose errors say that the model cannot be run."""
    og = import_extra("onnxruntime_genai")
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(**options)
    try:
        yield og.Generator(model, parameters)
    except RuntimeError as error:
        raise VerificationError(f"onnxruntime-genai cannot run the exported model: {error}") from error


def generated_by_transformers(generate: Callable[..., Any], inputs: Mapping[str, Any], new: int) -> Any:
    """Greedily, so many tokens."""
    with torch.no_grad():
        return generate(**inputs, max_new_tokens=new, min_new_tokens=new, do_sample=False, num_beams=1)


def _compare_row(
    ours: list[int], theirs: Tensor, logits_after: Callable[[int], Tensor], tolerance: float, where: str
) -> None:
    """Raise if the first token that differs is worse in transformers, whose logits follow a number of tokens."""
    pairs = enumerate(zip(ours, theirs.tolist(), strict=True))
    for first, (our, their) in pairs:
        if our != their:
            logits = logits_after(first)
            gap = abs(float(logits[their] - logits[our]))
            if gap > tolerance * float(logits.max() - logits.min()):
                raise VerificationError(
                    f"onnxruntime-genai generates other tokens than transformers in {where}: token {first} is {our} "
                    f"instead of {their}, whose logit is larger by {gap:.3g}"
                )
            return


def compare_generation(
    model: Any, directory: Path, prompt: Tensor, feeds: Mapping[str, Any], inputs: Any, tolerance: float
) -> None:
    """Generate greedily from audio or images with both; ``inputs`` are transformers', with the prompt."""
    tensors = import_extra("onnxruntime_genai").NamedTensors()
    tensors["input_ids"] = prompt.to(torch.int32).cpu().numpy()
    for name, value in feeds.items():
        tensors[name] = value.cpu().numpy()
    exported = open_exported(directory)
    found = _generated(exported, prompt, _NEW_AFTER_INPUTS, lambda generator: generator.set_inputs(tensors))
    # generate() of Whisper would choose the prompt, and suppress tokens.
    generate = partial(import_extra("transformers").GenerationMixin.generate, model)
    given = {**inputs, "suppress_tokens": None, "begin_suppress_tokens": None}
    given |= {"return_dict_in_generate": True, "output_logits": True}
    expected = generated_by_transformers(generate, given, _NEW_AFTER_INPUTS)
    for row, ours in enumerate(found):
        steps = [logits[row].float() for logits in expected.logits]
        _compare_row(ours, expected.sequences[row, prompt.shape[1] :], steps.__getitem__, tolerance, f"row {row}")


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
    """Compare a model in onnxruntime-genai with the original."""
    ids = reference.tokens.to("cpu", torch.int32).numpy()
    length = ids.shape[1]
    found = []
    ends = range(length - _STEPS + 1, length + 1)
    options = {"do_sample": False, "num_beams": 1, "batch_size": 1, "max_length": length + 1}
    with _generator(model, options) as generator:
        for start, end in zip((0, *ends[:-1]), ends, strict=True):
            generator.append_tokens(ids[:, start:end])
            found.append(torch.from_numpy(generator.get_logits()[0, -1]).double().log_softmax(-1))
    ours, theirs = torch.stack(found), reference.log_probabilities
    ours = ours[:, : theirs.shape[1]]
    # A token of probability zero has no part in the sum.
    terms = torch.where(theirs > -700, theirs.exp() * (theirs - ours), 0.0)
    return Quality(float(terms.sum(-1).mean()), float((ours.argmax(-1) == theirs.argmax(-1)).double().mean()), length)


def warn_of_quality(quality: Quality, name: str, limit: float) -> None:
    """Warn if a model is further from the original than the documentation says.

    It is not an error: how much rounding changes depends on the model, and only its user can judge the result.
    """
    if not quality.kl <= limit:
        warn_user(
            f"{name!r} changes this model more than most: for a text of {quality.tokens} tokens, {quality}, where the "
            f"divergence is usually at most {limit:g}; a recipe or precision with more bits changes it less"
        )
