"""Windows and positions that count the tokens of a row, not the places of the cache, which may be padding."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from ._extra import import_extra

__all__ = ["counting_tokens", "counts_places"]

_Mask: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""From the indices of row, head, query and key to whether the query attends to the key."""


def counts_places(model: Any) -> bool:
    """Whether windows or positions of a model may count places, in a way that ``counting_tokens`` changes.

    Args:
        model: A language model of transformers.
    """
    known = vars(sys.modules[type(model).__module__])
    has_windows = "create_sliding_window_causal_mask" in known or "create_chunked_causal_mask" in known
    return has_windows or _position_embedding(model) is not None


@contextmanager
def counting_tokens(model: Any) -> Iterator[None]:
    """In the body, windows, chunks and learned positions are those of a row without its padding.

    Args:
        model: A language model of transformers; its hooks are removed and transformers restored afterwards.
    """
    utils = import_extra("transformers").masking_utils
    masks: list[Tensor | None] = [None]

    def keep_mask(_module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        masks[:] = [kwargs.get("attention_mask")]

    def sliding(size: int) -> _Mask:
        mask = masks[0]
        return originals[0](size) if mask is None else partial(_in_window, mask.cumsum(1), size)

    def chunked(size: int, left_padding: Tensor) -> _Mask:
        mask = masks[0]
        return originals[1](size, left_padding) if mask is None else partial(_in_chunk, mask.cumsum(1) - 1, size)

    originals: tuple[Callable[..., _Mask], ...] = utils.sliding_window_overlay, utils.chunked_overlay
    hooks = [model.register_forward_pre_hook(keep_mask, with_kwargs=True)]
    embedding = _position_embedding(model)
    if embedding is not None:
        hooks.append(embedding.register_forward_pre_hook(partial(_give_positions, masks), with_kwargs=True))
        hooks.append(embedding.register_forward_hook(partial(_by_row, masks)))
    utils.sliding_window_overlay, utils.chunked_overlay = sliding, chunked
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        utils.sliding_window_overlay, utils.chunked_overlay = originals


def _in_window(positions: Tensor, size: int, row: Any, _head: Any, query: Any, key: Any) -> Any:
    return positions[row, key] > positions[row, query] - size


def _in_chunk(positions: Tensor, size: int, row: Any, _head: Any, query: Any, key: Any) -> Any:
    return positions[row, key] // size == positions[row, query] // size


def _position_embedding(model: Any) -> nn.Module | None:
    """The embedding that counts positions from the length of the past, as in the decoders of Bart."""
    module = getattr(model.get_decoder(), "embed_positions", None)
    known = inspect.signature(module.forward).parameters if isinstance(module, nn.Module) else {}
    return module if {"past_key_values_length", "position_ids"} <= known.keys() else None


def _give_positions(
    masks: list[Tensor | None], _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Pass the positions of all rows in one dim, which embeddings of one and of two dims take."""
    mask, past = masks[0], args[1] if len(args) > 1 else kwargs.get("past_key_values_length", 0)
    if mask is None:
        return None
    positions = (mask.cumsum(1)[:, past:] - 1).clamp(min=0)
    return args, {**kwargs, "position_ids": positions.flatten()}


def _by_row(masks: list[Tensor | None], _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
    mask = masks[0]
    return output if mask is None else output.reshape(mask.shape[0], -1, output.shape[-1])
