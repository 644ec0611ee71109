"""Replacements for the vision towers of transformers, which split their patches by the values of ``grid_thw``.

With the grids as an input of the model, attention within an image or a window becomes attention with a mask. The towers
are captured as they are if the grids are known, or if the export follows the example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxonnx_translations._torch_compat import arange

from ...data_dependence.concrete_values import is_open
from ..patch import Patch
from .attention_functions import attention_function

__all__ = ["TRANSFORMERS_VISION_PATCHES"]


def encode(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``forward`` of a vision tower; its other parameters differ between models."""
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    tower = given["self"]
    # Other implementations take the lengths of the segments, for example from the caller of a part of a model.
    if tower.config._attn_implementation not in ("eager", "sdpa") or not is_open(given["grid_thw"]):
        return original(*args, **kwargs)
    with attention_function(tower, attend_within_lengths):
        return original(*args, **kwargs)


def attend_within_lengths(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Attention within segments, given by their cumulative lengths."""
    segment = (arange(query.shape[2], device=query.device)[:, None] >= cu_seq_lens_q).sum(1)
    mask = segment[:, None] == segment
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.transpose(1, 2), None


def get_vision_window_index(
    original: Callable[..., Any],
    grid_thw: Tensor,
    spatial_merge_size: int,
    window_size: int,
    patch_size: int,
    kwargs: Any = None,
) -> Any:
    """The order of merged patches by windows, and the cumulative lengths of windows that are not empty.

    transformers pads the grids to whole windows; sorting by the number of the window gives the same order.
    """
    if not is_open(grid_thw) or (kwargs and {"window_index", "cu_window_seqlens"} & kwargs.keys()):
        return original(grid_thw, spatial_merge_size, window_size, patch_size, kwargs)
    side = window_size // spatial_merge_size // patch_size
    numbers, first = [], 0
    values: Any = grid_thw.tolist()
    for frames, height, width in values:
        rows, columns = arange(height // spatial_merge_size), arange(width // spatial_merge_size)
        down, across = height // spatial_merge_size // side + 1, width // spatial_merge_size // side + 1
        number = (arange(frames)[:, None, None] * down + (rows // side)[:, None]) * across + columns // side
        numbers.append(number.flatten() + first)
        first = first + frames * down * across
    ordered, window_index = torch.cat(numbers).sort(stable=True)
    (ends,) = (ordered[1:] != ordered[:-1]).nonzero(as_tuple=True)
    lengths = torch.cat([torch.zeros(1, dtype=torch.int64), ends + 1, torch.tensor([ordered.shape[0]])])
    return window_index, (lengths * spatial_merge_size**2).to(torch.int32)


_TOWERS = (
    *("cohere_compass:CohereCompassVisionModel", "exaone4_5:Exaone4_5_VisionModel", "glm4v:Glm4vVisionModel"),
    *("glm4v_moe:Glm4vMoeVisionModel", "glm5_next:Glm5NextVisionModel", "glm_ocr:GlmOcrVisionModel"),
    *("qwen2_vl:Qwen2VisionTransformerPretrainedModel", "qwen2_5_omni:Qwen2_5OmniVisionEncoder"),
    *("qwen2_5_vl:Qwen2_5_VisionTransformerPretrainedModel", "qwen3_vl:Qwen3VLVisionModel"),
    *("qwen3_vl_moe:Qwen3VLMoeVisionModel", "qwen3_omni_moe:Qwen3OmniMoeVisionEncoder"),
    *("qwen3_5:Qwen3_5VisionModel", "qwen3_5_moe:Qwen3_5MoeVisionModel", "qwen4_exp:Qwen4ExpVisionModel"),
)

TRANSFORMERS_VISION_PATCHES: tuple[Patch, ...] = (
    *(
        Patch(
            f"transformers.models.{package}.modeling_{package}:{tower}.forward",
            encode,
            "it splits patches by the values of a tensor",
            strict=False,
            optional=True,
        )
        for package, _, tower in (name.partition(":") for name in _TOWERS)
    ),
    *(
        Patch(
            f"transformers.models.{package}.modeling_{package}:get_vision_window_index",
            get_vision_window_index,
            "it makes Python lists of the values of a tensor",
            strict=False,
            optional=True,
        )
        for package in ("exaone4_5", "qwen2_5_omni", "qwen2_5_vl")
    ),
)
"""Applied if the modules are imported."""
