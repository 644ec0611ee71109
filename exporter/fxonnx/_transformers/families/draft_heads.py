"""Heads for multi-token prediction (MTP): layers of a checkpoint that draft the tokens after the next one.

Each takes the hidden states of the decoder, or of the head before it, and the token after each of them. A program that
generates with ONNX Runtime lets the decoder check the drafted tokens, several in one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ArgumentError, VerificationError
from ..decoders.step import HIDDEN_STATES
from ..extras import import_extra
from ..language_models import LanguageModel
from ..layouts.genai_config import context_length
from ..parts import Part, Request, decoder_calls
from ..sessions import Session, session_for

__all__ = ["compare_drafts", "draft_parts"]

_BATCH, _PAST, _TOKENS = 2, 5, 3
_LENGTHS = (6, 1, 2)
"""Numbers of tokens of calls in a row."""
_KEY, _VALUE = "past_key_values.0.key", "past_key_values.0.value"
_NAMES = ("input_ids", "last_hidden_states", "position_ids", _KEY, _VALUE)
_OUTPUTS = ("logits", HIDDEN_STATES, "present.0.key", "present.0.value")
_DIMS: Mapping[str, Any] = {
    **{name: {0: "batch", 1: "tokens"} for name in _NAMES[:3]},
    **{name: {0: "batch", 2: "past"} for name in _NAMES[3:]},
}


class _DraftHead(nn.Module):
    """One head, with the cache of its own layer; its parameters are those of transformers' ``MtpModel``."""

    heads: Any

    def __init__(self, heads: Any, index: int, *, last_logits: bool) -> None:
        super().__init__()
        self.heads = heads
        self._index = index
        self._last_logits = last_logits

    def forward(
        self, input_ids: Tensor, last_hidden_states: Tensor, position_ids: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, ...]:
        """Logits of the drafts, hidden states for the next head, and the cache."""
        cache = _cache()
        cache.update(key, value, self._index)
        states = self.heads.forward_layer(self._index, last_hidden_states, position_ids, cache, input_ids=input_ids)
        # The output layer of the decoder, with its scales.
        logits = self.heads._project_to_logits(states[:, -1:] if self._last_logits else states)
        layer = cache.layers[self._index]
        return logits, states, layer.keys, layer.values


def _cache() -> Any:
    """A cache without windows: masks limit the attention of layers that have one."""
    return import_extra("transformers").cache_utils.MtpCache()


def draft_parts(loaded: LanguageModel, request: Request) -> dict[str, Part]:
    """The heads of a checkpoint as files ``mtp_0.onnx`` and so on.

    Raises:
        ArgumentError: If the model has none, or they have no keys and values.
    """
    heads = _heads(loaded.model)
    parts = (_part(loaded, heads, index, last_logits=request.last_logits) for index in range(len(heads.layers)))
    return {f"mtp_{index}": part for index, part in enumerate(parts)}


def _heads(model: Any) -> Any:
    """The heads, with the weights in the files of the checkpoint."""
    transformers = import_extra("transformers")
    name = f"{type(model).__name__} (model type {model.config.model_type!r})"
    kind = getattr(transformers.modeling_layers, "MtpModel", None)
    if kind is None:
        raise ArgumentError("mtp", "transformers has no layers for it", hint="update transformers to 5.23 or later")
    if not getattr(model.config.get_text_config(), "num_mtp_layers", None):
        raise ArgumentError("mtp", f"{name} has no layers for it in transformers", hint="leave it out")
    hint = "pass the directory of a checkpoint with them"
    if not model.config.name_or_path:
        raise ArgumentError("mtp", f"{name} was not loaded from a checkpoint", hint=hint)
    try:
        heads = kind.from_pretrained(model)
    except (OSError, RuntimeError, ValueError) as error:
        raise ArgumentError("mtp", f"the layers of {name} cannot be loaded: {error}", hint=hint) from error
    return heads.to(model.dtype).eval()


def _part(loaded: LanguageModel, heads: Any, index: int, *, last_logits: bool) -> Part:
    model, width = loaded.model, heads.config.hidden_size
    module = _DraftHead(heads, index, last_logits=last_logits)
    states = torch.zeros(1, 1, width, dtype=model.dtype, device=model.device)
    one = torch.ones(1, 1, dtype=torch.int64, device=model.device)
    cache = _cache()
    with torch.no_grad():
        heads.forward_layer(index, states, one, cache, input_ids=one)
    kept = [getattr(layer, name, None) for layer in cache.layers[index:] for name in ("keys", "values")]
    found = [each for each in kept if isinstance(each, Tensor)]
    if len(found) < 2:
        raise ArgumentError("mtp", f"layer {index} of the heads keeps no keys and values", hint="leave it out")
    positions = torch.arange(_PAST, _PAST + _TOKENS, device=model.device)
    inputs = (
        one.expand(_BATCH, _TOKENS).contiguous(),
        states.expand(_BATCH, _TOKENS, width).contiguous(),
        positions.expand(_BATCH, _TOKENS).contiguous(),
        *(each.new_zeros(_BATCH, each.shape[1], _PAST, each.shape[3]) for each in found),
    )
    parameters = ("input_ids", "last_hidden_states", "position_ids", "key", "value")
    return Part(
        module,
        dict(zip(parameters, inputs, strict=True)),
        _DIMS,
        decoder_calls(context_length(loaded.config)),
        input_names=_NAMES,
        output_names=_OUTPUTS,
    )


def compare_drafts(loaded: LanguageModel, parts: Mapping[str, Part], directory: Path, tolerance: float) -> None:
    """Run each head in ONNX Runtime after the one before it, in several calls, and compare it with transformers'.

    Raises:
        VerificationError: If logits or hidden states differ by more than a part of the range of the expected ones.
    """
    total = sum(_LENGTHS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, loaded.config.vocab_size, (1, total + len(parts)), generator=generator)
    ids = ids.to(loaded.model.device)
    with torch.no_grad():
        expected = loaded.model.base_model(ids[:, :total])[0]
    found = expected
    for depth, (name, part) in enumerate(parts.items(), start=1):
        path = directory / f"{name}.onnx"
        session = session_for("mtp", path)
        tokens, positions = ids[:, depth : depth + total], torch.arange(depth, depth + total)[None]
        heads: Any = part.module.heads
        with torch.no_grad():
            cache = import_extra("transformers").cache_utils.MtpCache(config=heads.config)
            expected = heads.forward_layer(depth - 1, expected, positions.to(ids.device), cache, input_ids=tokens)
            logits = heads._project_to_logits(expected[:, -1:])
        found, last = _run(session, tokens, found, positions)
        for what, one, other in (("logits", last, logits), (HIDDEN_STATES, found, expected)):
            _check(f"the {what} of {path.name}", one, other, tolerance)


def _run(session: Session, tokens: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden states of all tokens and the logits of the last one."""
    caches = {name: session.empty(name, len(tokens)) for name in session.caches}
    found, past = [], 0
    for length in _LENGTHS:
        part = slice(past, past + length)
        given = {
            "input_ids": tokens[:, part],
            "last_hidden_states": states[:, part],
            "position_ids": positions[:, part],
        }
        outputs = session({name: value.cpu() for name, value in given.items()} | caches)
        caches = {name: outputs[name.replace("past_key_values", "present")] for name in caches}
        found.append(outputs[HIDDEN_STATES])
        past += length
    return torch.cat(found, 1), outputs["logits"][:, -1:]


def _check(what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    expected = expected.float().cpu()
    difference = float((expected - found.float()).abs().max() / (expected.max() - expected.min()))
    if not difference <= tolerance:
        raise VerificationError(
            f"{what} differ from transformers' by {difference:.2g} of their range, more than {tolerance}"
        )
