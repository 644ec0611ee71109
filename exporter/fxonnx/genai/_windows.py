"""Sliding windows and chunks of attention that count the tokens of a row without its padding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from ._extra import import_extra

__all__ = ["has_windows", "windows_without_padding"]

_Mask: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""From the indices of row, head, query and key to whether the query attends to the key."""


def has_windows(model: Any) -> bool:
    """Whether the masks of a model may have windows or chunks.

    Args:
        model: A decoder-only model of transformers.
    """
    known = vars(sys.modules[type(model).__module__])
    return "create_sliding_window_causal_mask" in known or "create_chunked_causal_mask" in known


@contextmanager
def windows_without_padding(model: Any) -> Iterator[None]:
    """In the body, windows and chunks are measured in positions, not in places of the cache, which may be padding.

    Args:
        model: A decoder-only model of transformers; its hook is removed and transformers restored afterwards.
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
    hook = model.base_model.register_forward_pre_hook(keep_mask, with_kwargs=True)
    utils.sliding_window_overlay, utils.chunked_overlay = sliding, chunked
    try:
        yield
    finally:
        hook.remove()
        utils.sliding_window_overlay, utils.chunked_overlay = originals


def _in_window(positions: Tensor, size: int, row: Any, _head: Any, query: Any, key: Any) -> Any:
    return positions[row, key] > positions[row, query] - size


def _in_chunk(positions: Tensor, size: int, row: Any, _head: Any, query: Any, key: Any) -> Any:
    return positions[row, key] // size == positions[row, query] // size
