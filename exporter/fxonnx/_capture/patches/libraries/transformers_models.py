"""Replacements of functions of transformers that ask tensors for their values.

Each computes the same for all values, without a branch or a loop over the batch. The functions of transformers are
captured as they are if the values are known, or if the export follows the example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fxonnx_translations._torch_compat import arange, check, sym_max

from ...data_dependence.concrete_values import is_open
from ..patch import Patch

__all__ = ["TRANSFORMERS_PATCHES"]


def make_padding_mask(original: Callable[..., Any], input_ids: Tensor, padding_idx: int = 1) -> Any:
    """``make_padding_mask`` of FSMT, which returns None in place of a mask that hides nothing."""
    return input_ids.eq(padding_idx) if is_open(input_ids) else original(input_ids, padding_idx)


def attend(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Longformer's attention with global tokens, of which there may be none.

    Without global tokens transformers skips their attention, which has no effect on the result. The other parameters
    differ between versions of transformers.
    """
    call = inspect.signature(original).bind(*args, **kwargs)
    if is_open(call.arguments.get("is_global_attn")) and not call.arguments.get("output_attentions"):
        call.arguments["is_global_attn"] = True
    return original(*call.args, **call.kwargs)


def global_indices(original: Callable[..., Any], is_index_global_attn: Tensor) -> Any:
    """``_get_global_attn_indices`` with the largest number of global tokens as a number, not a tensor."""
    if not is_open(is_index_global_attn):
        return original(is_index_global_attn)
    counts = is_index_global_attn.long().sum(dim=1)
    # At least 1, since ONNX Runtime crashes on empty scores; a place without a token is masked.
    largest: Any = counts.max().clamp(min=1).item()
    check(largest >= 1)
    check(largest <= is_index_global_attn.shape[1])
    is_local = arange(largest, device=counts.device) < counts[:, None]
    chosen, local = is_index_global_attn.nonzero(as_tuple=True), is_local.nonzero(as_tuple=True)
    check(chosen[0].shape[0] == local[0].shape[0])
    return largest, chosen, local, is_local.logical_not().nonzero(as_tuple=True)


def combine_image_text_embeddings(
    original: Callable[..., tuple[Tensor, Tensor, Tensor | None]],
    image_embeddings: Tensor,
    inputs_embeds: Tensor,
    bbox: Tensor,
    visual_bbox: Tensor | None,
    attention_mask: Tensor | None = None,
    num_patches: int = 14,
    max_len: int = 0,
    image_size: Any = 224,
    patch_size: Any = 16,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """UDOP's sequence of text and image: the patches without text follow, in their order, and then padding.

    Args:
        original: The function of transformers, which loops over the batch.
        image_embeddings: Patches [batch, patches, width].
        inputs_embeds: Tokens [batch, tokens, width], to which the patches below them are added.
        bbox: Their boxes [batch, tokens, 4], from 0 to 1.
        visual_bbox: The boxes of the patches [batch, patches, 4].
        attention_mask: The mask of the tokens [batch, tokens].
        num_patches: The number of patches in a row.
        max_len: The length of the result; 0 for all patches after the tokens.
        image_size: The size of the image, for the boxes of patches.
        patch_size: The size of a patch.
    """
    if not is_open(bbox):
        return original(
            *(image_embeddings, inputs_embeds, bbox, visual_bbox, attention_mask),
            *(num_patches, max_len, image_size, patch_size),
        )
    batch, patches, width = image_embeddings.shape
    column, row = (
        torch.clip(
            torch.floor((bbox[:, :, axis] + bbox[:, :, axis + 2]) / 2.0 * num_patches).long(), 0, num_patches - 1
        )
        for axis in (0, 1)
    )
    below = column + row * num_patches
    bbox = bbox.to(torch.float64)
    center = bbox.mean(-1)
    is_special = (center == 0.0) | (center == 1.0)
    added = image_embeddings.gather(1, below[..., None].expand(-1, -1, width))
    inputs_embeds += added.masked_fill(is_special[..., None], 0.0)

    is_free = torch.ones_like(image_embeddings[:, :, 0], dtype=torch.bool).scatter(1, below, False)
    order = is_free.to(torch.int64).argsort(dim=1, descending=True, stable=True)
    is_kept = arange(patches, device=is_free.device) < is_free.sum(1)[:, None]
    if visual_bbox is None:
        boxes_of_patches = import_module(original.__module__).get_visual_bbox
        visual_bbox = boxes_of_patches(image_size=image_size, patch_size=patch_size)[None].expand(batch, -1, -1)

    length = patches if max_len == 0 else max_len - inputs_embeds.shape[1]

    def selected(values: Tensor) -> Tensor:
        found = values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))
        found = found.masked_fill(~is_kept[..., None], 0)
        return found if max_len == 0 else F.pad(found, (0, 0, 0, sym_max(length - patches, 0)))[:, :length]

    inputs_embeds = torch.cat([inputs_embeds, selected(image_embeddings)], 1)
    bbox = torch.cat([bbox, selected(visual_bbox)], 1)
    if attention_mask is not None:
        visible = selected(torch.ones_like(is_free, dtype=attention_mask.dtype)[..., None])[..., 0]
        attention_mask = torch.cat([attention_mask, visible], 1)
    return inputs_embeds, bbox, attention_mask


def visual_embed(
    original: Callable[..., Any], self: Any, pixel_values: Tensor, pixel_mask: Tensor, max_image_length: Any = 200
) -> Any:
    """ViLT's embedding of the patches of images of different sizes: first the image's, and then padding.

    transformers takes both in a random order, which has no effect on the other tokens. With ``max_image_length``, it
    takes a random part of the patches: this is left to transformers.
    """
    if not is_open(pixel_mask) or (isinstance(max_image_length, int) and max_image_length >= 0):
        return original(self, pixel_values, pixel_mask, max_image_length)
    x = self.patch_embeddings(pixel_values)
    batch, channels, height, width = x.shape
    mask = F.interpolate(pixel_mask[:, None].float(), size=(height, width)).long()[:, 0]
    heights, widths = mask.sum(1)[:, 0], mask.sum(2)[:, 0]
    side = self.config.image_size // self.config.patch_size
    table = self.position_embeddings[:, 1:].transpose(1, 2).view(1, channels, side, side)
    positions = _stretched(heights, height, side)[:, None] @ table @ _stretched(widths, width, side).mT[:, None]

    mask = mask.flatten(1)
    longest: Any = (heights * widths).max().item()
    check(longest >= 1)
    check(longest <= mask.shape[1])
    order = mask.argsort(dim=1, descending=True, stable=True)[:, :longest]

    def selected(values: Tensor) -> Tensor:
        values = values.flatten(2).transpose(1, 2)
        return values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))

    rows, columns = (arange(size, device=x.device) for size in (height, width))
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))[None].expand(batch, -1, -1, -1)
    first = self.position_embeddings[:, :1].expand(batch, -1, -1)
    x = torch.cat((self.cls_token.expand(batch, -1, -1), selected(x)), 1)
    x = self.dropout(x + torch.cat((first, selected(positions)), 1))
    mask = torch.cat([mask.new_ones(batch, 1), mask.gather(1, order)], 1)
    return x, mask, (selected(grid), (height, width))


def _stretched(lengths: Tensor, size: Any, source: int) -> Tensor:
    """Weights [batch, size, source] of linear interpolation with aligned corners to a length per image, and zeros."""
    steps = arange(size, device=lengths.device)
    places = steps * ((source - 1) / (lengths - 1).clamp(min=1))[:, None]
    weights = (1 - (places[:, :, None] - arange(source, device=lengths.device)).abs()).clamp(min=0)
    return torch.where((steps < lengths[:, None])[..., None], weights, 0.0)


_MODELS = "transformers.models"

TRANSFORMERS_PATCHES: tuple[Patch, ...] = (
    Patch(
        f"{_MODELS}.fsmt.modeling_fsmt:make_padding_mask",
        make_padding_mask,
        "it branches on whether there is padding",
        strict=False,
        optional=True,
    ),
    *(
        Patch(f"{_MODELS}.{name}", replacement, why, strict=False, optional=True)
        for owner in (
            "longformer.modeling_longformer:LongformerSelfAttention",
            "led.modeling_led:LEDEncoderSelfAttention",
        )
        for name, replacement, why in (
            (f"{owner}.forward", attend, "it branches on whether there are global tokens"),
            (f"{owner}._get_global_attn_indices", global_indices, "it takes a tensor as a size, each time anew"),
        )
    ),
    Patch(
        f"{_MODELS}.udop.modeling_udop:combine_image_text_embeddings",
        combine_image_text_embeddings,
        "it pads a list of selected patches",
        strict=False,
        optional=True,
    ),
    Patch(
        f"{_MODELS}.vilt.modeling_vilt:ViltEmbeddings.visual_embed",
        visual_embed,
        "it loops over the sizes of images and over selected patches",
        strict=False,
        optional=True,
    ),
)
"""Applied if the modules are imported."""
