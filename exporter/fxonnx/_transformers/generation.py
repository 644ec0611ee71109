"""Comparison of the tokens and the probabilities of onnxruntime-genai with transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .._program.accuracy_level import UNROUNDED
from .._warnings import warn_user
from ..errors import ArgumentError, VerificationError
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
    "open_exported",
    "quality_of",
    "reference_of",
    "warn_of_quality",
]

_TEXT = "The quick brown fox, 12 dogs."
_Run: TypeAlias = Callable[[list[list[int]]], list[list[int]]]
"""From prompts to the tokens that follow them."""

_NEW = 16
_LENGTHS = ((6,), (6, 4, 5))
"""Lengths of the prompts in each batch."""


def check_can_verify(target: str, dtype: torch.dtype) -> None:
    """Check that this machine can run a model.

    Args:
        target: "cpu" or "cuda".
        dtype: Element type of the activations.

    Raises:
        ArgumentError: If it cannot.
        ExportError: If onnxruntime-genai is not installed.
    """
    og = import_extra("onnxruntime_genai")
    if target == "cuda" and dtype == torch.bfloat16 and not og.is_cuda_available():
        raise ArgumentError(
            "verify",
            "without a GPU, models in bf16 for cuda cannot be run",
            hint="pass verify=False (--no-verify), or precision='fp16'",
        )


def open_exported(directory: Path) -> Any:
    """Load an exported directory in onnxruntime-genai.

    Raises:
        VerificationError: If it cannot be loaded.
    """
    og = import_extra("onnxruntime_genai")
    config = og.Config(str(directory))
    if not og.is_cuda_available():
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

    Rows may part where the best two tokens of transformers are equally good.

    Args:
        loaded: The model of transformers.
        model: The exported model in onnxruntime-genai.
        directory: Its directory.
        adapters: The adapters, with a file each in the directory.
        tolerance: Two tokens are equally good if their logits differ by at most this part of the range of all logits.
        has_batches: Whether the exported model takes several prompts at a time.

    Returns:
        Whether a batch of unequal lengths has the right tokens as well.

    Raises:
        VerificationError: If other tokens differ.
    """
    og = import_extra("onnxruntime_genai")
    _compare_tokenizers(og.Tokenizer, model, loaded.tokenizer)
    files = og.Adapters(model) if adapters.directories else None
    is_right = True
    for name in (None, *adapters.directories):
        if files is not None and name is not None:
            files.load(str(directory / f"{name}.onnx_adapter"), name)
        run = partial(_generated, og, model, (files, name), pad=_pad(loaded))
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
    """Whether rows of unequal lengths have the right tokens; those of one length must have them."""
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
    """Compare the tokens of a batch with each prompt's alone."""
    prompts = _prompts(loaded, lengths)
    where = f"batch {len(prompts)}" if adapter is None else f"batch {len(prompts)} with the adapter {adapter!r}"
    for row, (ours, theirs) in enumerate(zip(run(prompts), _expected(loaded, prompts), strict=True)):
        _compare_row(loaded, prompts[row], ours, theirs, tolerance, f"row {row} of {where}")


def _prompts(loaded: LanguageModel, lengths: tuple[int, ...]) -> list[list[int]]:
    """Random tokens that are not special."""
    special = {getattr(loaded.config, "pad_token_id", None), *getattr(loaded.tokenizer, "all_special_ids", ())}
    usable = torch.tensor([token for token in range(loaded.config.vocab_size) if token not in special])
    generator = torch.Generator().manual_seed(len(lengths))
    return [usable[torch.randint(len(usable), (length,), generator=generator)].tolist() for length in lengths]


def _pad(loaded: LanguageModel) -> int:
    return int(token_ids(loaded.model, loaded.tokenizer).get("pad_token_id", 0))


def _generated(
    og: Any, model: Any, adapter: tuple[Any, str | None], prompts: list[list[int]], *, pad: int
) -> list[list[int]]:
    parameters = og.GeneratorParams(model)
    longest = max(map(len, prompts))
    length = longest + _NEW
    parameters.set_search_options(
        **{"do_sample": False, "num_beams": 1, "batch_size": len(prompts), "min_length": length, "max_length": length}
    )
    # Padding is on the right.
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in prompts], dtype=torch.int32)
    try:
        generator = og.Generator(model, parameters)
        if adapter[1] is not None:
            generator.set_active_adapter(*adapter)
        generator.append_tokens(ids.numpy())
        while not generator.is_done():
            generator.generate_next_token()
    except RuntimeError as error:
        raise VerificationError(f"onnxruntime-genai cannot run the exported model: {error}") from error
    return [[int(token) for token in generator.get_sequence(row)[longest:]] for row in range(len(prompts))]


def _expected(loaded: LanguageModel, prompts: list[list[int]]) -> list[list[int]]:
    """The tokens of each prompt alone: in a padded batch, some models of transformers generate others."""
    return [_continued(loaded, prompt) for prompt in prompts]


def _continued(loaded: LanguageModel, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt], device=loaded.model.device)
    with torch.no_grad():
        tokens = loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=_NEW,
            min_new_tokens=_NEW,
            do_sample=False,
            num_beams=1,
            pad_token_id=_pad(loaded),
        )
    return [int(token) for token in tokens[0, len(prompt) :]]


def _compare_row(
    loaded: LanguageModel, prompt: list[int], ours: list[int], theirs: list[int], tolerance: float, where: str
) -> None:
    different = [index for index, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    if not different:
        return
    first = different[0]
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *theirs[:first]]], device=loaded.model.device)
        logits = loaded.model(ids).logits[0, -1].float()
    gap = abs(float(logits[theirs[first]] - logits[ours[first]]))
    if gap > tolerance * float(logits.max() - logits.min()):
        raise VerificationError(
            f"onnxruntime-genai generates other tokens than transformers in {where}: token {first} is {ours[first]} "
            f"instead of {theirs[first]}, whose logit is larger by {gap:.3g}"
        )


_NEW_WITH = 12


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
    found = _generated_with(directory, prompt, feeds)
    # generate() of Whisper would choose the prompt, and suppress tokens.
    generate = import_extra("transformers").GenerationMixin.generate
    with torch.no_grad():
        expected = generate(
            model,
            **inputs,
            max_new_tokens=_NEW_WITH,
            min_new_tokens=_NEW_WITH,
            do_sample=False,
            num_beams=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
    for row, ours in enumerate(found):
        theirs = expected.sequences[row, prompt.shape[1] :].tolist()
        _compare_tokens_of_row(row, ours, theirs, [logits[row].float() for logits in expected.logits], tolerance)


def _generated_with(directory: Path, prompt: Tensor, feeds: Mapping[str, Any]) -> list[list[int]]:
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
        length = prompt.shape[1] + _NEW_WITH
        options = {"do_sample": False, "num_beams": 1, "min_length": length, "max_length": length}
        parameters.set_search_options(**options, batch_size=len(prompt))
        generator = og.Generator(model, parameters)
        generator.set_inputs(tensors)
        while not generator.is_done():
            generator.generate_next_token()
    except RuntimeError as error:
        raise VerificationError(f"onnxruntime-genai cannot run the exported model: {error}") from error
    return [[int(token) for token in generator.get_sequence(row)[prompt.shape[1] :]] for row in range(len(prompt))]


def _compare_tokens_of_row(
    row: int, ours: list[int], theirs: list[int], logits: list[Tensor], tolerance: float
) -> None:
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
