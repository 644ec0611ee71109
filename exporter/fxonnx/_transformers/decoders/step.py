"""A step of a decoder: its example inputs, embeddings in place of tokens, and further or fewer outputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.onnx.ops  # defines the operators
from torch import Tensor, nn

from ...errors import ArgumentError, VerificationError
from ..extras import import_extra
from ..language_models import LanguageModel
from ..meta import input_device, runnable
from ..parts import Part, Request
from ..sessions import session_for
from .attention import (
    attention_over_latents,
    equal_head_sizes,
    indexed_cache,
    traceable_rotary_embeddings,
    with_indexer_keys,
)
from .recurrent import cache_parameter, has_recurrent_states, state_inputs, states_as_tensors

__all__ = [
    "DYNAMIC_SHAPES",
    "EMBEDDING",
    "HIDDEN_STATES",
    "cached_states",
    "compare_logits",
    "decoding",
    "dynamic_shapes",
    "embedding_part",
    "example_inputs",
    "has_image_tokens",
    "has_rotary_positions",
    "input_names",
    "state_names",
    "with_embeddings",
]

_BATCH, _PAST, _TOKENS = 2, 5, 3

DYNAMIC_SHAPES: dict[str, Any] = {
    "input_ids": {0: "batch", 1: "tokens"},
    "attention_mask": {0: "batch", 1: "total"},
    "position_ids": {0: "batch", 1: "tokens"},
    "past_key_values.*": {0: "batch", 2: "past"},
}

_STEP_BY_STEP = "export a step of one token, with the states as inputs, with fxonnx.export"

_STATES: dict[str, Any] = {
    **{kind: {0: "batch"} for kind in ("conv", "conv_state", "recurrent_state")},
    **{kind: {0: "batch", 2: "past"} for kind in ("key", "value")},
}


def dynamic_shapes(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the dynamic dims of given inputs; a batch of 1 is static."""
    parameter, states = _states(inputs)
    names = {*inputs, *(() if states else ("past_key_values.*",))}
    kinds = dict.fromkeys(name.partition(".")[2] for name in states)
    tokens = {"inputs_embeds": DYNAMIC_SHAPES["input_ids"]} if "inputs_embeds" in names else {}
    dynamic = {
        **tokens,
        **{name: dims for name, dims in DYNAMIC_SHAPES.items() if name in names},
        **{f"{parameter}.*.{kind}": _STATES[kind] for kind in kinds},
    }
    if len(inputs["attention_mask"]) > 1:
        return dynamic
    return {name: {axis: dim for axis, dim in dims.items() if axis > 0} for name, dims in dynamic.items()}


def input_names(inputs: Mapping[str, Any]) -> list[str] | None:
    """Names of graph inputs; None for those that the export chooses."""
    parameter, states = _states(inputs)
    if not states:
        return None
    parts = ([f"past_key_values.{part}" for part in states] if name == parameter else [name] for name in inputs)
    return [name for names in parts for name in names]


def state_names(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the tensors of a cache that is a dict; empty for others."""
    return tuple(_states(inputs)[1])


def _states(inputs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The parameter of a cache that is a dict, and the dict; empty without one."""
    return next(((name, value) for name, value in inputs.items() if isinstance(value, dict)), ("", {}))


def example_inputs(model: Any, batch: int = _BATCH) -> dict[str, Any]:
    """Make the keyword inputs of one step.

    The cache is a ``DynamicCache`` without the model's configuration: a sliding cache would add inputs that
    onnxruntime-genai cannot provide, while the mask of the window suffices.
    """
    transformers = import_extra("transformers")
    if has_recurrent_states(model):
        return _step(model, state_inputs(model, batch, _PAST), batch)
    _check_cache(transformers, model)
    pairs = cached_states(model, "export it without a cache, with fxonnx.export", indexed_cache(model))
    device = input_device(model)
    past = [
        tuple(
            each.new_zeros(batch, each.shape[1], _PAST, max(other.shape[3] for other in pair), device=device)
            for each in pair
        )
        for pair in pairs
    ]
    return _step(model, transformers.DynamicCache(past), batch)


def cached_states(model: Any, hint: str, cache: Any = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer after one token, [1, heads, 1, size]; the hint is for models with other states."""
    transformers = import_extra("transformers")
    called = runnable(model)
    ids = torch.ones(1, 1, dtype=torch.int64, device=called.device)
    cache = transformers.DynamicCache() if cache is None else cache
    try:
        with torch.no_grad():
            output = called(input_ids=ids, past_key_values=cache, use_cache=True)
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise _without_cache(model, error) from error
    returned = getattr(output, "past_key_values", None)
    if not isinstance(returned, (transformers.DynamicCache, type(None))):
        raise ArgumentError(
            "model",
            f"{_name(model)} keeps its states in a cache of its own, {type(returned).__name__}",
            hint=_STEP_BY_STEP,
        )
    if not cache.layers or not all(isinstance(layer.keys, torch.Tensor) for layer in cache.layers):
        raise ArgumentError(
            "model",
            f"{_name(model)} does not store keys and values in a cache",
            hint=hint,
        )
    return [(layer.keys, with_indexer_keys(layer)) for layer in cache.layers]


def _step(model: Any, cache: Any, batch: int) -> dict[str, Any]:
    """The inputs of one step with a given cache."""
    ids = torch.ones(1, 1, dtype=torch.int64, device=input_device(model))
    inputs = {
        "input_ids": ids.expand(batch, _TOKENS).contiguous(),
        "attention_mask": ids.expand(batch, _PAST + _TOKENS).contiguous(),
        cache_parameter(model): cache,
    }
    if "position_ids" in inspect.signature(model.forward).parameters:
        positions = torch.arange(_PAST, _PAST + _TOKENS, device=ids.device)
        inputs["position_ids"] = positions.expand(batch, _TOKENS).contiguous()
    return inputs


def _name(model: Any) -> str:
    return f"{type(model).__name__} (model type {model.config.model_type!r})"


def _without_cache(model: Any, error: Exception) -> ArgumentError:
    return ArgumentError("model", f"{_name(model)} does not run with a DynamicCache: {error}", hint=_STEP_BY_STEP)


def _check_cache(transformers: Any, model: Any) -> None:
    """Reject models with states other than keys and values.

    transformers computes such states of a prompt and of a single token with different operators, so that one graph
    cannot do both. A layer may have no state, or use the one of another layer.
    """
    attention = transformers.cache_utils.DynamicLayer
    stateless = getattr(transformers.cache_utils, "DummyLayer", attention)
    try:
        layers = transformers.DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    except AttributeError as error:  # BLT: its parts have layers, and its configuration no number of them
        raise _without_cache(model, error) from error
    others = sorted({type(layer).__name__ for layer in layers if not isinstance(layer, (attention, stateless))})
    if others:
        raise ArgumentError(
            "model",
            f"{_name(model)} has states other than keys and values ({', '.join(others)}), which are computed "
            "differently for prompts and for single tokens",
            hint=_STEP_BY_STEP,
        )


def has_rotary_positions(model: Any) -> bool:
    """Whether positions are used by rotary embeddings only."""
    return bool(getattr(model.config.get_text_config(decoder=True), "rope_parameters", None))


EMBEDDING = "embedding"
_LENGTHS = (6, 1, 1)
"""Numbers of tokens of calls in a row; ONNX Runtime continues several rows by one token each only."""


class _TokenEmbedding(nn.Module):
    """The embedding of the tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed_tokens = model.get_input_embeddings()

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.embed_tokens(input_ids)
        return found


def embedding_part(model: Any) -> Part:
    """The file that makes embeddings of tokens."""
    ids = torch.ones(2, 3, dtype=torch.int64, device=model.device)
    dims = {"input_ids": {0: "batch", 1: "tokens"}}
    return Part(_TokenEmbedding(model), {"input_ids": ids}, dims, (), output_names=("inputs_embeds",))


def with_embeddings(inputs: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The inputs of a step with embeddings in place of the tokens."""
    with torch.no_grad():
        embeddings = model.get_input_embeddings()(inputs["input_ids"])
    return {"inputs_embeds": embeddings, **{name: value for name, value in inputs.items() if name != "input_ids"}}


def compare_logits(loaded: LanguageModel, directory: Path, tolerance: float) -> None:
    """Run both files in ONNX Runtime for a prompt and steps after it, and compare the logits with transformers'."""
    embedding, decoder = (session_for("inputs_embeds", directory / f"{name}.onnx") for name in (EMBEDDING, "model"))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, loaded.config.vocab_size, (2, sum(_LENGTHS)), generator=generator)
    states = {name: decoder.empty(name, len(ids)) for name in decoder.caches}
    past = 0
    for length in _LENGTHS:
        total = past + length
        given = {
            **embedding({"input_ids": ids[:, past:total]}),
            "attention_mask": torch.ones(len(ids), total, dtype=torch.int64),
            "position_ids": torch.arange(past, total).expand(len(ids), -1),
        }
        found = decoder(given | states)
        states = {name: found[name.replace("past_key_values", "present")] for name in states}
        _compare(loaded, ids[:, :total], found["logits"][:, -1], tolerance)
        past = total


def _compare(loaded: LanguageModel, ids: Tensor, found: Tensor, tolerance: float) -> None:
    with torch.no_grad():
        expected = loaded.model(ids.to(loaded.model.device)).logits[:, -1].float().cpu()
    difference = float((expected - found.float()).abs().max() / (expected.max() - expected.min()))
    if not difference <= tolerance:
        raise VerificationError(
            f"the logits of the embeddings of {ids.shape[1]} tokens differ from transformers' by {difference:.2g} of "
            f"their range, more than {tolerance}"
        )


@contextmanager
def _last_logits_only(model: Any) -> Iterator[None]:
    """In the body, the model returns one logit vector per row, for the last token that is not padding.

    onnxruntime-genai pads shorter prompts of a batch on the right, so that the last position may be padding. Models
    without an output embedding are left alone; onnxruntime-genai then selects from all logits.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        yield
        return
    masks: list[torch.Tensor] = []

    def keep_mask(_module: torch.nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        masks[:] = [kwargs["attention_mask"]]

    def select(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        return (_last_positions(args[0], masks[0]),)

    hooks = [
        model.register_forward_pre_hook(keep_mask, with_kwargs=True),
        head.register_forward_pre_hook(select),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _last_positions(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Select ``[batch, 1, size]`` from ``[batch, tokens, size]``."""
    # A prompt is padded on the right; later calls have one token per row, or one row without padding.
    last = mask.sum(1).clamp(max=hidden.shape[1]) - 1
    selected: torch.Tensor = torch.onnx.ops.symbolic(
        "GatherND",
        [hidden, last[:, None, None]],
        {"batch_dims": 1},
        dtype=hidden.dtype,
        shape=(hidden.shape[0], 1, hidden.shape[2]),
        version=13,  # the first one with batch_dims for all dtypes
    )
    return selected


HIDDEN_STATES = "hidden_states"
"""Name of the output."""


@contextmanager
def _returning_hidden_states(model: Any) -> Iterator[None]:
    """In the body, the model also returns ``hidden_states``, after the last layer and its norm, of all positions."""
    inner = model.base_model
    if inner is model:
        raise ArgumentError(HIDDEN_STATES, f"{type(model).__name__} has no model without an output embedding")
    found: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _args: Any, output: Any) -> None:
        found[:] = [output[0]]

    def add(_module: torch.nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple):  # with recurrent states, which are tensors
            return (*output, found.pop())
        output[HIDDEN_STATES] = found.pop()
        return output

    hooks = [inner.register_forward_hook(keep), model.register_forward_hook(add)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def has_image_tokens(model: Any) -> bool:
    """Whether a model keeps the tokens of images in its cache, as GIT, which widens masks by them."""
    return any("image_patch_tokens" in vars(module) for module in model.modules())


@contextmanager
def _without_image_tokens(model: Any) -> Iterator[None]:
    """A model of text has no tokens of images in its cache: masks are the text's."""
    modules = [module for module in model.modules() if "image_patch_tokens" in vars(module)]
    before = [module.image_patch_tokens for module in modules]
    try:
        for module in modules:
            module.image_patch_tokens = 0
        yield
    finally:
        for module, tokens in zip(modules, before, strict=True):
            module.image_patch_tokens = tokens


@contextmanager
def decoding(model: Any, request: Request, states: Sequence[str] = ()) -> Iterator[None]:
    """In the body, a decoder has the logits, states and caches that onnxruntime-genai expects."""
    with ExitStack() as stack:
        if request.last_logits:
            stack.enter_context(_last_logits_only(model))
        for change in (traceable_rotary_embeddings, equal_head_sizes, _without_image_tokens, attention_over_latents):
            stack.enter_context(change(model))
        if states:
            stack.enter_context(states_as_tensors(model, states))
        if request.hidden_states:
            stack.enter_context(_returning_hidden_states(model))
        yield
