"""Models whose layers keep recurrent states beside or in place of keys and values: one graph for any number of tokens.

transformers computes the states of a prompt and of a single token with different operators. Here the mixers of these
layers run their code for prompts, with other functions in place of the ones that transformers takes from kernel
libraries: a convolution that continues a state, and LinearAttention of ONNX Runtime for the recurrences.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

import torch
import torch.onnx.ops
from torch import Tensor
from torch.nn import functional

from ...errors import ArgumentError
from ..extras import import_extra
from ..meta import input_device, runnable

__all__ = ["cache_parameter", "has_recurrent_states", "state_inputs", "states_as_tensors"]

_SHORT_CONVOLUTIONS = frozenset({"lfm2", "lfm2_moe"})
_MODEL_TYPES = _SHORT_CONVOLUTIONS | {
    *("bamba", "falcon_h1", "granitemoehybrid", "jamba", "nemotron_h", "olmo_hybrid"),
    *("falcon_mamba", "mamba", "mamba2", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba2"),
}


_CONVOLUTION, _RECURRENT = "conv", "recurrent"


@dataclass
class _Step:
    """The cache and the padding mask of one call.

    Attributes:
        names: Kind of a state to the name of such inputs.
        states: Name of an input, as "0.conv", to the state.
        cache: The cache of transformers, for keys and values.
        valid: The padding mask of the new tokens, [batch, tokens].
        layer: Index of the layer that is running.
    """

    names: Mapping[str, str]
    states: dict[str, Tensor] = field(default_factory=dict)
    cache: Any = None
    valid: Any = None
    layer: int = 0

    def state_name(self, kind: str) -> str:
        """The name of a state of the running layer."""
        return f"{self.layer}.{self.names[kind]}"

    def masked(self, x: Tensor) -> Tensor:
        """Set values of padding, in [batch, tokens, size], to 0."""
        valid: Tensor = self.valid[..., None]
        return x * valid.to(x.dtype)


def has_recurrent_states(model: Any) -> bool:
    """Whether layers of a model keep states that onnxruntime-genai has."""
    config = model.config.get_text_config(decoder=True)
    return config.model_type in _MODEL_TYPES and any(map(_has_states, _cache(config).layers))


def state_inputs(model: Any, batch: int, past: int) -> dict[str, Tensor]:
    """Make the example of the cache: name to state, keys or values."""
    cache = _cache(model.config.get_text_config(decoder=True))
    called = runnable(model)
    ids = torch.ones(1, 1, dtype=torch.int64, device=called.device)
    try:
        with torch.no_grad():
            called(input_ids=ids, use_cache=True, **{cache_parameter(model): cache})
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        # transformers counts the tokens of a cache in a layer of attention.
        raise ArgumentError("model", f"{type(model).__name__} does not run with its cache: {error}") from error
    zeros = partial(torch.zeros, device=input_device(model))
    names, shape_of_state = _state_names(model), _recurrence(model)[1]
    found: dict[str, Tensor] = {}
    for index, layer in enumerate(cache.layers):
        if _has_states(layer):
            _, size, kernel = layer.conv_states[0].shape
            found[f"{index}.{names[_CONVOLUTION]}"] = zeros(batch, size, kernel - 1, dtype=model.dtype)
            if layer.recurrent_states[0] is not None:
                shape = batch, *shape_of_state(layer.recurrent_states[0].shape)
                found[f"{index}.{names[_RECURRENT]}"] = zeros(shape, dtype=torch.float32)
        if getattr(layer, "keys", None) is not None:
            _, heads, _, size = layer.keys.shape
            for part in ("key", "value"):
                found[f"{index}.{part}"] = zeros(batch, heads, past, size, dtype=model.dtype)
    return found


def cache_parameter(model: Any) -> str:
    """The parameter of a model's cache."""
    known = inspect.signature(model.forward).parameters
    if "cache" in known and has_recurrent_states(model):
        # transformers 5.24 renamed it. Models without recurrent states take the cache under its old name as well.
        return "cache"
    return "cache_params" if "cache_params" in known else "past_key_values"


@contextmanager
def states_as_tensors(model: Any, names: Sequence[str]) -> Iterator[None]:
    """In the body, the cache of a model is a dict of tensors, and its outputs are logits and tensors."""
    step, decoder = _Step(_state_names(model)), model.base_model
    hooks = [
        decoder.register_forward_pre_hook(partial(_read_cache, step, cache_parameter(model)), with_kwargs=True),
        model.register_forward_hook(partial(_return_cache, step, names)),
    ]
    functions = {name: partial(function, step) for name, (function, _) in _FUNCTIONS.items()}
    mixers = _mixers(model)
    for module in mixers:
        module.forward = _with_globals(module.forward, functions)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in mixers:
            del module.forward


def _cache(config: Any) -> Any:
    return import_extra("transformers").DynamicCache(config=config)


def _has_states(layer: Any) -> bool:
    return isinstance(layer, import_extra("transformers").cache_utils.LinearAttentionCacheLayerMixin)


def _state_names(model: Any) -> Mapping[str, str]:
    """Kind of a state to the name that onnxruntime-genai expects: it knows LFM2 as a type of its own."""
    if model.config.get_text_config(decoder=True).model_type in _SHORT_CONVOLUTIONS:
        return {_CONVOLUTION: "conv"}
    return {_CONVOLUTION: "conv_state", _RECURRENT: "recurrent_state"}


def _recurrence(model: Any) -> tuple[Callable[..., Any], Callable[[torch.Size], Sequence[int]]]:
    """The function of a model's recurrence, and that from the shape of its state in transformers to ours."""
    known = {name for module in _mixers(model) for name in vars(sys.modules[type(module).__module__])}
    return next(found for name, found in [*_FUNCTIONS.items()][::-1] if name in known)


def _mixers(model: Any) -> list[Any]:
    """The modules of the layers that keep states."""
    return [module for module in model.base_model.modules() if hasattr(module, "conv_kernel_size")]


def _with_globals(method: Any, replacements: Mapping[str, Any]) -> Any:
    """A method with other functions in place of some of its module's."""
    function = inspect.unwrap(method.__func__)
    changed = FunctionType(
        function.__code__,
        {**function.__globals__, **replacements},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    changed.__kwdefaults__ = function.__kwdefaults__
    return changed.__get__(method.__self__)


def _read_cache(
    step: _Step, parameter: str, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make the cache of transformers of the dict, and masks for any number of tokens."""
    kwargs = {**dict(zip(inspect.signature(decoder.forward).parameters, args, strict=False)), **kwargs}
    given: Mapping[str, Tensor] = kwargs[parameter]
    config = decoder.config.get_text_config(decoder=True)
    cache = _cache(config)
    step.states, step.cache = {}, cache
    for name, value in given.items():
        index, _, kind = name.partition(".")
        layer = cache.layers[int(index)]
        if kind in ("key", "value"):
            setattr(layer, f"{kind}s", value)
            layer.dtype, layer.device, layer.is_initialized = value.dtype, value.device, True
        else:
            step.states[name] = value
            # The mixers then run their code for prompts.
            layer.update_conv_state = partial(_update_convolution, step, int(index))
            layer.update_recurrent_state = partial(_keep_state, step)
    embeds = kwargs.get("inputs_embeds")
    if embeds is None:
        embeds = decoder.get_input_embeddings()(kwargs["input_ids"])
    tokens = embeds.shape[1]
    mask = kwargs["attention_mask"]
    step.valid = mask[:, mask.shape[1] - tokens :]
    changed = {"input_ids": None, "inputs_embeds": embeds, parameter: cache, "attention_mask": None}
    if any(hasattr(layer, "keys") for layer in cache.layers):
        if kwargs.get("position_ids") is None:
            changed["position_ids"] = (torch.arange(tokens, device=embeds.device) + cache.get_seq_length())[None]
        positions = changed.get("position_ids", kwargs.get("position_ids"))
        causal = import_extra("transformers").masking_utils.create_causal_mask(
            config=config,
            inputs_embeds=embeds,
            attention_mask=mask,
            past_key_values=cache,
            position_ids=None if positions is None or positions.ndim > 2 else positions,  # of images
        )
        # Padding is masked in the functions of the mixers: transformers would not mask it for single tokens.
        changed["attention_mask"] = {"full_attention": causal, "linear_attention": None, "conv": None}
    return (), {**kwargs, **changed}


def _return_cache(
    step: _Step, names: Sequence[str], _model: Any, _args: tuple[Any, ...], output: Any
) -> tuple[Tensor, ...]:
    """Return the logits and the tensors of the cache in the order of the inputs."""
    found = []
    for name in names:
        index, _, kind = name.partition(".")
        layer = step.cache.layers[int(index)]
        found.append(getattr(layer, f"{kind}s") if kind in ("key", "value") else step.states[name])
    return (output.logits, *found)


def _update_convolution(step: _Step, index: int, x: Tensor, _state: int = 0, **_: Any) -> Tensor:
    """Join the last inputs [batch, size, kernel - 1] and the new ones, and keep the last ones of each row."""
    step.layer = index
    name = step.state_name(_CONVOLUTION)
    state = step.states[name]
    joined = torch.cat([state, step.masked(x.mT).mT], dim=2)
    # onnxruntime-genai pads on the right.
    numbers = torch.arange(1, x.shape[2] + 1, device=x.device)
    first = (step.valid * numbers).amax(1)
    places = first[:, None] + torch.arange(state.shape[2], device=x.device)
    step.states[name] = joined.gather(2, places[:, None].expand(-1, joined.shape[1], -1))
    return joined


def _keep_state(_step: _Step, state: Tensor, _state: int = 0, **_: Any) -> Tensor:
    """The state, which the function of the recurrence has stored."""
    return state


def _convolve(
    _step: _Step, joined: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    """``causal_conv1d_fn`` of inputs that begin with the state."""
    convolved = functional.conv1d(joined, weight.unsqueeze(1), bias, groups=joined.shape[1])
    return convolved if activation is None else import_extra("transformers").activations.ACT2FN[activation](convolved)


def _gated_delta_rule(
    step: _Step, query: Tensor, key: Tensor, value: Tensor, *, g: Tensor, beta: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    """``torch_chunk_gated_delta_rule`` with normalization, of tensors [batch, tokens, heads, size]."""
    dtype = query.dtype
    query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query.float(), key.float()))
    output, state = _linear_attention(
        step, "gated_delta", query, key, value, step.masked(g), step.masked(beta), query.shape[-1] ** -0.5
    )
    return output.to(dtype), state


def _chunk_scan(
    step: _Step,
    x: Tensor,
    dt: Tensor,
    rate: Tensor,
    key: Tensor,
    query: Tensor,
    *,
    D: Tensor,
    dt_bias: Tensor,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """``mamba2_chunk_scan`` of tensors [batch, tokens, heads or groups, size]."""
    steps = functional.softplus(dt + dt_bias)
    if dt_limit != (0.0, float("inf")):
        # transformers limits the steps of prompts, but not of single tokens.
        is_prompt = torch.ones_like(step.valid[0]).sum() > 1
        steps = torch.where(is_prompt, steps.clamp(*dt_limit), steps)
    steps = step.masked(steps.float())
    x = x.float()
    output, state = _linear_attention(step, "gated", query, key, x * steps[..., None], rate.float() * steps)
    return output + D.float()[:, None] * x, state


def _selective_scan(
    step: _Step,
    x: Tensor,
    dt: Tensor,
    rate: Tensor,
    key: Tensor,
    query: Tensor,
    *,
    D: Tensor,
    z: Tensor,
    delta_bias: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """``mamba_selective_scan`` of tensors [batch, size, tokens]: each channel is a head with values of size 1."""
    steps = step.masked(functional.softplus(dt + delta_bias[:, None]).mT.float())
    values = x.mT.float()
    query, key = query.mT.unsqueeze(2), key.mT.unsqueeze(2)
    decay = steps[..., None] * rate.float()
    output, state = _linear_attention(step, "gated", query, key, (values * steps)[..., None], decay)
    return (output[..., 0] + values * D).mT * functional.silu(z), state


def _linear_attention(
    step: _Step,
    rule: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Insert LinearAttention, in float32 as transformers computes it.

    Args:
        step: The step, whose state is replaced.
        rule: The update rule.
        query: The queries, [batch, tokens, heads, size].
        key: The keys.
        value: The values.
        decay: Logarithm of the decay for each head, or for each element of its keys.
        beta: The rate of the update.
        scale: Factor of the output.
    """
    name = step.state_name(_RECURRENT)
    given = (query, key, value, decay, *(() if beta is None else (beta,)))
    inputs = [x.float().flatten(2) for x in given]
    inputs.insert(3, step.states[name])
    heads, width = value.shape[2:]
    attributes: dict[str, Any] = {
        "q_num_heads": query.shape[2],
        "kv_num_heads": heads,
        "update_rule": rule,
        "scale": scale,
    }
    output, state = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::LinearAttention",
        inputs,
        attributes,
        dtypes=(torch.float32, torch.float32),
        shapes=((*inputs[2].shape,), (*step.states[name].shape,)),
        version=1,
    )
    step.states[name] = state
    return output.reshape(*output.shape[:2], heads, width), state


_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Callable[[torch.Size], Sequence[int]]]] = MappingProxyType(
    {
        "causal_conv1d_fn": (_convolve, lambda shape: shape[1:]),
        "mamba2_chunk_scan": (_chunk_scan, lambda shape: (shape[1], shape[3], shape[2])),
        "mamba_selective_scan": (_selective_scan, lambda shape: (*shape[1:], 1)),
        "torch_chunk_gated_delta_rule": (_gated_delta_rule, lambda shape: shape[1:]),
    }
)
"""Name of a function of transformers to its replacement, and from the shape of a state to the shape here."""
