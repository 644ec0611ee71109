"""Rotary embeddings whose frequencies depend on the length of the sequence, without branches on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._warnings import warn_user
from ._extra import import_extra

__all__ = ["dynamic_factor", "traceable_rotary_embeddings", "warn_about_long_sequences"]

_COMPUTED_AGAIN = 4096
"""Number of tokens after which onnxruntime-genai computes the cache of Phi-3 again, for one sequence."""


def dynamic_factor(config: Any) -> float:
    """How many times longer sequences may become by dynamic scaling; 1.0 without.

    Args:
        config: The configuration of the language model.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    # With ``alpha``, the frequencies are constants.
    is_dynamic = parameters.get("rope_type") == "dynamic" and not parameters.get("alpha")
    return float(parameters.get("factor", 1.0)) if is_dynamic else 1.0


def warn_about_long_sequences(config: Any) -> None:
    """Warn if tokens differ from transformers' where a sequence exceeds the original length.

    Args:
        config: The configuration of the language model.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    original = parameters.get("original_max_position_embeddings")
    is_phi = config.model_type in ("phi3", "phimoe") and parameters.get("rope_type") == "longrope"
    if is_phi and original != _COMPUTED_AGAIN:
        warn_user(
            f"sequences that exceed {original} tokens while they are generated continue with other tokens than in "
            f"transformers, which then computes their cache again; onnxruntime-genai does so after {_COMPUTED_AGAIN} "
            "tokens only"
        )


@contextmanager
def traceable_rotary_embeddings(model: Any) -> Iterator[None]:
    """In the body, rotary embeddings compute their frequencies from the positions of the call only.

    transformers replaces buffers of the module where a sequence becomes longer than all before.

    Args:
        model: A model of transformers; its modules are restored afterwards.
    """
    replaced = []
    for module in model.modules():
        forward = _forward(module)
        if forward is not None:
            module.forward = forward
            replaced.append(module)
    try:
        yield
    finally:
        for module in replaced:
            del module.forward


def _forward(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The replacement of a module's forward; None for modules that can be captured as they are."""
    rope_type = getattr(module, "rope_type", None)
    if rope_type == "dynamic":
        return partial(_scaled_forward, module, _dynamic_frequencies)
    if rope_type != "longrope":
        return None
    if type(module).__name__ == "PhimoeRotaryEmbedding":
        return partial(_phimoe_forward, module)
    return partial(_scaled_forward, module, _long_frequencies)


def _scaled_forward(module: Any, frequencies: Callable[[Any, Tensor], Tensor], x: Tensor, position_ids: Tensor) -> Any:
    """``forward`` of any rotary embedding, with the frequencies for the longest sequence of the call."""
    before = module._buffers["inv_freq"]
    module._buffers["inv_freq"] = frequencies(module, position_ids.max() + 1)
    try:
        return inspect.unwrap(type(module).forward)(module, x, position_ids)
    finally:
        module._buffers["inv_freq"] = before


def _dynamic_frequencies(module: Any, length: Tensor) -> Tensor:
    return _initial_frequencies("dynamic", module, length)


def _long_frequencies(module: Any, length: Tensor) -> Tensor:
    original = module.config.rope_parameters["original_max_position_embeddings"]
    long = _initial_frequencies("longrope", module, original + 1)
    return torch.where(length > original, long, module.original_inv_freq)


def _initial_frequencies(rope_type: str, module: Any, length: Any) -> Tensor:
    functions = import_extra("transformers").modeling_rope_utils.ROPE_INIT_FUNCTIONS
    frequencies: Tensor = functions[rope_type](module.config, module.inv_freq.device, seq_len=length)[0]
    return frequencies


def _phimoe_forward(module: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """``forward`` with a factor for long and for short sequences, which transformers chooses by a branch."""
    parameters = module.config.rope_parameters
    is_long = position_ids.max() + 1 > parameters["original_max_position_embeddings"]
    factor = torch.where(is_long, parameters["long_mscale"], parameters["short_mscale"])
    frequencies, _ = module.rope_init_fn(module.config)
    angles = position_ids[..., None].float() * frequencies.to(device=x.device, dtype=torch.float32)
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * factor).to(x.dtype), (angles.sin() * factor).to(x.dtype)
