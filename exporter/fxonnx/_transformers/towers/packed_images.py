"""Towers of images of different sizes in one tensor: their positions and tokens are computed for all images at once."""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..core import attend_within_lengths, attention_function
from .image_tiles import ImageTiles

__all__ = ["Lfm2Vl", "MiniCpm", "Phi4"]


class Lfm2VlFeatures(nn.Module):
    """The images of LFM2-VL of their own sizes, whose positions and tokens transformers makes one after another."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model

    def forward(self, pixel_values: Tensor, pixel_attention_mask: Tensor, spatial_shapes: Tensor) -> Tensor:
        tower, projector = self.model.vision_tower, self.model.multi_modal_projector
        embeddings = tower.embeddings
        embeddings.resize_positional_embeddings = resized_positions
        try:
            hidden = tower(
                pixel_values=pixel_values, spatial_shapes=spatial_shapes, pixel_attention_mask=pixel_attention_mask
            ).last_hidden_state
        finally:
            del embeddings.resize_positional_embeddings
        packed = hidden[pixel_attention_mask.bool()]
        places = block_places(spatial_shapes, projector.factor, packed.shape[0])
        blocks = packed[places.reshape(-1, projector.factor, projector.factor).transpose(0, 1).flatten(1)]
        features: Tensor = projector(blocks.unsqueeze(0))
        return features.flatten(0, -2)


def image_places(sizes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The image of each of the patches of images in a row, and the first patch of that image.

    Args:
        sizes: INT (images, 2), the height and the width of each image in patches.
        count: Number of all patches.
    """
    ends = sizes.prod(1).cumsum(0)
    image = (torch.arange(count, device=sizes.device).unsqueeze(1) >= ends).sum(1)
    return image, (ends - sizes.prod(1))[image]


def block_places(sizes: Tensor, side: int, count: int) -> Tensor:
    """The patches of each square block of images in a row, INT64 (blocks, side * side); arguments as above."""
    image, start = image_places(sizes // side, count // side**2)
    block = torch.arange(image.shape[0], device=sizes.device) - start
    width = sizes[image, 1]
    first = start * side**2 + block // (width // side) * side * width + block % (width // side) * side
    inner = torch.arange(side, device=sizes.device)
    rows = inner[:, None] * width[:, None, None]
    return (first[:, None, None] + rows + inner).flatten(1)


def resized_positions(positional_embeddings: Tensor, spatial_shapes: Tensor, max_length: int) -> Tensor:
    """``Siglip2VisionEmbeddings.resize_positional_embeddings`` for all images at once, in operators of tensors."""
    patch = torch.arange(max_length, device=spatial_shapes.device)
    height, width = spatial_shapes.unsqueeze(-1).unbind(1)
    places = torch.minimum(patch // width, height - 1), patch % width  # padding has the positions of the last row
    rows, columns = map(_linear_weights, places, (height, width), positional_embeddings.shape)
    table = positional_embeddings.float()
    resized = torch.einsum("npr,rce->npce", rows, table)
    return (resized * columns.unsqueeze(-1)).sum(2).to(positional_embeddings.dtype)


def _linear_weights(place: Tensor, size: Tensor, known: int) -> Tensor:
    """Weights of known points for places among others, as of a bilinear interpolation with antialiasing."""
    scale = known / size.float()
    center = (place + 0.5) * scale
    distance = torch.arange(known, device=place.device) + 0.5 - center.unsqueeze(-1)
    weights = (1 - distance.abs() / scale.clamp(min=1).unsqueeze(-1)).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True)


class Lfm2Vl(ImageTiles):
    """LFM2-VL: patches of images of any sizes, padded to one length."""

    features = Lfm2VlFeatures

    def _tiles(self, count: int) -> dict[str, Tensor]:
        config, unit = self.vision_config, self.config.downsample_factor
        shapes = torch.tensor([[2 * unit, 3 * unit], [3 * unit, unit]][:count], device=self.model.device)
        length = 7 * unit**2
        mask = (torch.arange(length, device=shapes.device) < shapes.prod(1, keepdim=True)).int()
        pixels = self._normal(count, length, config.num_channels * config.patch_size**2)
        return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shapes}

    def _sizes(self) -> dict[str, int]:
        return {"patches": 256 * self.config.downsample_factor**2}

    def _dynamic_shapes(self) -> dict[str, Any]:
        axes = {0: "tiles", 1: "patches"}
        return {"pixel_values": axes, "pixel_attention_mask": axes, "spatial_shapes": {0: "tiles"}}


class MiniCpmFeatures(nn.Module):
    """The images of MiniCPM-V in a row, whose positions and blocks transformers computes one after another."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model

    def forward(self, pixel_values: Tensor, target_sizes: Tensor) -> Tensor:
        config, tower, merger = self.model.config, self.model.vision_tower, self.model.merger
        side, known = config.vision_config.window_kernel_size[0], tower.embeddings.num_patches_per_side
        sizes, count = target_sizes.long(), pixel_values.shape[3] // config.vision_config.patch_size
        image, start = image_places(sizes, count)
        patch, (height, width) = torch.arange(count, device=image.device) - start, sizes[image].unbind(1)
        bounds = torch.arange(1 / known, 1.0, 1 / known, device=image.device)
        row, column = (
            (place.unsqueeze(1) >= bounds).sum(1) for place in (patch // width / height, patch % width / width)
        )
        windows = block_places(sizes, side, count)
        has_windows = config.downsample_mode != "4x"
        with attention_function(tower, attend_within_lengths):
            hidden = tower(
                pixel_values.to(tower.dtype),
                target_sizes=sizes,
                use_vit_merger=has_windows,
                position_ids=row * known + column,
                window_index=windows.flatten(),
                cu_window_seqlens=torch.arange(windows.shape[0] + 1, device=image.device) * side**2,
                max_seqlen=1,
            ).last_hidden_state[0]
        sizes = sizes // side if has_windows else sizes
        for merge in merger.mlp:
            places = block_places(sizes, merger.merge_kernel_size[0], hidden.shape[0])
            hidden, sizes = merge(hidden[places].flatten(1)), sizes // merger.merge_kernel_size[0]
        features: Tensor = hidden
        return features


class MiniCpm(ImageTiles):
    """MiniCPM-V: the patches of images of any sizes in a row."""

    features = MiniCpmFeatures

    def _tiles(self, count: int) -> dict[str, Tensor]:
        unit = 4 * 2**self.config.merger_times
        sizes = torch.tensor([[unit, 2 * unit], [2 * unit, unit]][:count], dtype=torch.int32, device=self.model.device)
        side = self.vision_config.patch_size
        pixels = self._normal(1, self.vision_config.num_channels, side, int(sizes.prod(1).sum()) * side)
        return {"pixel_values": pixels, "target_sizes": sizes}

    def _sizes(self) -> dict[str, int]:
        return {"pixels": 1024 * self.vision_config.patch_size}

    def _dynamic_shapes(self) -> dict[str, Any]:
        return {"pixel_values": {3: "pixels"}, "target_sizes": {0: "tiles"}}


class Phi4Features(nn.Module):
    """The images of Phi-4: rows of the crops of each with a mark at their ends, a separator, and the whole image."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed = model.base_model.embed_tokens_extend.image_embed

    def forward(self, image_pixel_values: Tensor, image_sizes: Tensor, image_attention_mask: Tensor) -> Tensor:
        embed, mask = self.embed, image_attention_mask.bool()
        (images, count), device = image_pixel_values.shape[:2], image_sizes.device
        pixels = image_pixel_values.flatten(0, 1).to(embed.img_projection_up.weight.dtype)
        crops = embed.get_img_features(pixels, attention_mask=mask.flatten(0, 1))
        side = isqrt(crops.shape[1])
        mark, separator = images * count * side**2, images * count * side**2 + 1
        table = [crops.flatten(0, 1), embed.sub_img_feature_extensor[0, 0], embed.global_img_feature_extensor[0]]
        height, width = (image_sizes.reshape(-1, 2) // embed.crop_size).unsqueeze(-1).unbind(1)
        # The last rows and columns of the crops may be padding.
        kept, crop = mask[:, 1:, ::2, ::2].long(), torch.arange(count - 1, device=device)
        is_left, is_top = ((crop % width == 0) & (crop < height * width)).unsqueeze(-1), (crop < width).unsqueeze(-1)
        rows = (kept[..., 0] * is_left).sum((1, 2)).unsqueeze(1)
        columns = (kept[:, :, 0] * is_top).sum((1, 2)).unsqueeze(1)
        token = torch.arange(count * (side**2 + side) + 1, device=device)
        row, column = token // (columns + 1), token % (columns + 1)
        detail = (1 + row // side * width + column // side) * side**2 + row % side * side + column % side
        end = rows * (columns + 1)
        last_row, last_column = (token - end - 1) // (side + 1), (token - end - 1) % (side + 1)
        first = torch.arange(images, device=device).unsqueeze(1) * count * side**2
        of_crops = torch.where(column == columns, mark, first + detail)
        of_image = torch.where(last_column == side, mark, first + last_row * side + last_column)
        places = torch.where(token < end, of_crops, torch.where(token == end, separator, of_image))
        chosen = torch.cat(table)[places[token <= end + side**2 + side]]
        features: Tensor = embed.img_projection_down(nn.functional.gelu(embed.img_projection_up(chosen)))
        return features


class Phi4(ImageTiles):
    """Phi-4-multimodal: the whole image and its crops, padded to one number."""

    features = Phi4Features

    def feature_tokens(self) -> tuple[int, ...]:
        return (self.vision_config.image_token_id,)

    def _tiles(self, count: int) -> dict[str, Tensor]:
        size, side = self.vision_config.crop_size, self.vision_config.image_size // self.vision_config.patch_size
        sizes = torch.tensor([[size, 2 * size], [2 * size, size]][:count], device=self.model.device)
        mask = torch.ones(count, 3, side, side, device=self.model.device)
        mask[0, 2, :, side // 2 :] = 0
        pixels = self._normal(count, 3, self.vision_config.num_channels, size, size)
        return {"image_pixel_values": pixels, "image_sizes": sizes, "image_attention_mask": mask}

    def _sizes(self) -> dict[str, int]:
        return {"crops": 17}

    def _dynamic_shapes(self) -> dict[str, Any]:
        axes = {0: "tiles", 1: "crops"}
        return {"image_pixel_values": axes, "image_sizes": {0: "tiles"}, "image_attention_mask": axes}

    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"inputs": {"pixel_values": "image_pixel_values"}}
