"""Paddings of transformers that depend on sizes: computed for every size, also by nothing, instead of in a branch.

Swin and its relatives pad images to multiples of a patch or window and feature maps to even sizes, and Longformer pads
texts to multiples of its window, if that is necessary. A captured branch is valid either for the sizes that need a
padding, or for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._turns import one_at_a_time

__all__ = ["padding_any_size"]

_FAMILIES = ("Swin", "ClapAudio", "FocalNet")


@contextmanager
def padding_any_size(model: torch.nn.Module) -> Iterator[None]:
    """Replace the paddings of the classes of a model's modules within the context, in which other exports wait."""
    with one_at_a_time(), ExitStack() as until_exported:
        for each in {type(module) for module in model.modules()}:
            for name, function in _functions_of(each):
                until_exported.callback(setattr, each, name, each.__dict__[name])
                setattr(each, name, function)
        yield


def _functions_of(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The methods of a class that are replaced, and their replacements."""
    methods = vars(kind)
    if "maybe_pad" in methods and any(family in kind.__name__ for family in _FAMILIES):
        for end, function in _IMAGE_FUNCTIONS.items():
            if kind.__name__.endswith(end):
                yield "maybe_pad", function
    if "_pad_to_window_size" in methods and kind.__name__ == "LongformerModel":
        yield "_pad_to_window_size", _pad_texts


def _pad_images(module: Any, pixel_values: Tensor, height: int, width: int) -> Tensor:
    rows, columns = module.patch_size
    return pad(pixel_values, (0, -width % columns, 0, -height % rows))


def _pad_windows(module: Any, hidden_states: Tensor, height: int, width: int) -> tuple[Tensor, tuple[int, ...]]:
    window = module.window_size
    padded = pad(hidden_states, (0, 0, 0, -width % window, 0, -height % window))
    return padded, (0, 0, 0, 1, 0, 1)  # after which the layer crops


def _pad_features(_module: Any, input_feature: Tensor, height: int, width: int) -> Tensor:
    return pad(input_feature, (0, 0, 0, width % 2, 0, height % 2))


_IMAGE_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"PatchEmbeddings": _pad_images, "PatchMerging": _pad_features, "Layer": _pad_windows}
)
"""By the end of the name of the class."""


def _pad_texts(
    module: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    pad_token_id: int,
) -> tuple[Any, ...]:
    window = module.config.attention_window
    length = -input_ids.shape[1] % (window if isinstance(window, int) else max(window))
    input_ids = pad(input_ids, (0, length), value=pad_token_id)
    if position_ids is not None:
        position_ids = pad(position_ids, (0, length), value=pad_token_id)
    masks = (pad(each, (0, length)) for each in (attention_mask, token_type_ids))
    return length, input_ids, *masks, position_ids, inputs_embeds
