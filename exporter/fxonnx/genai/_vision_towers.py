"""Vision towers: the module that computes the image features, its example, and the preprocessing of the images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ._attention_functions import attend_within_segments, attention_function
from ._parts import Part
from ._sizes import Sizes

__all__ = ["VISION_TOWERS", "VisionTower"]

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_ROWS, _COLUMNS = 3, 2
"""Image tokens of the examples."""


class VisionTower(ABC):
    """The vision tower of one family of models.

    Args:
        model: The whole model of transformers.

    Attributes:
        genai_type: The type in genai_config.json.
        patch_size: Pixels of a patch in each direction.
        merge_size: Patches that become one image token, in each direction.
    """

    genai_type: ClassVar[str]

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config
        self.vision_config = model.config.vision_config
        self.patch_size: int = self.vision_config.patch_size
        self.merge_size: int = self._merge_size()

    @abstractmethod
    def _merge_size(self) -> int: ...

    @abstractmethod
    def part(self) -> Part:
        """The part that becomes vision.onnx."""

    @abstractmethod
    def inputs(self) -> dict[str, Tensor]:
        """Example inputs of the tower for one image, by the names of the processor's outputs."""

    @abstractmethod
    def image_tokens(self) -> list[int]:
        """The tokens in the prompt for the image of ``inputs``."""

    @abstractmethod
    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Entries of the sections ``model`` and ``vision`` in genai_config.json."""

    @abstractmethod
    def preprocessing(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Operators of onnxruntime-extensions after the image is decoded.

        Args:
            settings: Settings of the image processor of transformers.
        """

    def generation_inputs(self, _ids: Tensor) -> dict[str, Tensor]:
        """Further inputs of ``generate`` in transformers."""
        return {}

    def has_positions(self) -> bool:
        """Whether the positions of the tokens are an input of the decoder."""
        return False

    def _normal(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(*shape, generator=generator).to(self.model.dtype).to(self.model.device)

    def _resize(self, least: int, most: int) -> dict[str, Any]:
        side = isqrt(most)
        sizes = {"patch_size": self.patch_size, "merge_size": self.merge_size}
        limits = {"height": side, "width": side, "min_pixels": least, "max_pixels": most}
        return {"name": "resize", "type": "Resize", "attrs": {**limits, "smart_resize": 1, **sizes}}


def _rescale_and_normalize(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    mean, std = settings.get("image_mean", _CLIP_MEAN), settings.get("image_std", _CLIP_STD)
    factor = settings.get("rescale_factor", 1 / 255)
    return [
        {"name": "rescale", "type": "Rescale", "attrs": {"rescale_factor": factor}},
        {"name": "normalize", "type": "Normalize", "attrs": {"mean": [*mean], "std": [*std]}},
    ]


class Mistral3(VisionTower):
    """Pixtral with patch merger. onnxruntime-genai calls it once per image, in the image's own size."""

    genai_type = "mistral3"

    def _merge_size(self) -> int:
        return int(self.config.spatial_merge_size)

    def part(self) -> Part:
        step = self.patch_size * self.merge_size
        calls: tuple[Sizes, ...] = tuple(
            {"height": rows * step, "width": columns * step} for rows in (1, 2, 5) for columns in (1, 3, 4)
        )
        return Part(
            PixtralFeatures(self.model),
            {"pixel_values": self.inputs()["pixel_values"]},
            {"pixel_values": {2: "height", 3: "width"}},
            calls,
            output_names=("image_features",),
        )

    def inputs(self) -> dict[str, Tensor]:
        step = self.patch_size * self.merge_size
        height, width = _ROWS * step, _COLUMNS * step
        return {
            "pixel_values": self._normal(1, self.vision_config.num_channels, height, width),
            "image_sizes": torch.tensor([[height, width]], device=self.model.device),
        }

    def image_tokens(self) -> list[int]:
        return [self.config.image_token_id] * (_ROWS * _COLUMNS)

    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"inputs": {"pixel_values": "pixel_values"}}

    def preprocessing(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        size = settings.get("size", {})
        longest = size.get("longest_edge", self.vision_config.image_size) if isinstance(size, Mapping) else size
        return [
            self._resize((self.patch_size * self.merge_size) ** 2, longest**2),
            *_rescale_and_normalize(settings),
            {"name": "to_channel_first", "type": "Permute3D", "attrs": {"dims": [2, 0, 1]}},
            {"name": "image_sizes", "type": "PixtralImageSizes"},
        ]


class PixtralFeatures(nn.Module):
    """``get_image_features`` for one image, whose size is that of the tensor.

    Args:
        model: A ``Mistral3ForConditionalGeneration``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_tower = model.model.vision_tower
        self.projector = model.model.multi_modal_projector
        layer = model.config.vision_feature_layer
        self.layers = [layer] if isinstance(layer, int) else list(layer)

    def forward(self, pixel_values: Tensor) -> Tensor:
        sizes = [tuple(pixel_values.shape[-2:])]
        states = self.vision_tower(pixel_values, image_sizes=sizes, output_hidden_states=True).hidden_states
        features: Tensor = self.projector(torch.cat([states[layer] for layer in self.layers], dim=-1).squeeze(0), sizes)
        return features


class Qwen(VisionTower):
    """The tower of Qwen2-VL and Qwen2.5-VL, for one image with any grid."""

    genai_type = "qwen2_5_vl"

    def _merge_size(self) -> int:
        return int(self.vision_config.spatial_merge_size)

    def part(self) -> Part:
        unit = self.merge_size**2
        return Part(
            QwenFeatures(self.model),
            self.inputs(),
            {"pixel_values": {0: "patches"}},
            tuple({"patches": tokens * unit} for tokens in (1, 2, 6, 35)),
            output_names=("image_features",),
        )

    def inputs(self) -> dict[str, Tensor]:
        config = self.vision_config
        grid = [1, _ROWS * self.merge_size, _COLUMNS * self.merge_size]
        channels = getattr(config, "in_channels", None) or config.in_chans
        pixels = self._normal(grid[1] * grid[2], channels * config.temporal_patch_size * self.patch_size**2)
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([grid], device=self.model.device)}

    def image_tokens(self) -> list[int]:
        images = [self.config.image_token_id] * (_ROWS * _COLUMNS)
        return [self.config.vision_start_token_id, *images, self.config.vision_end_token_id]

    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        names = ("video_token_id", "vision_start_token_id")
        inputs = {"pixel_values": "pixel_values", "image_grid_thw": "image_grid_thw"}
        return {name: getattr(self.config, name) for name in names}, {"inputs": inputs}

    def preprocessing(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        size = settings.get("size") or {}
        step = self.patch_size * self.merge_size
        least = settings.get("min_pixels") or size.get("shortest_edge", 4 * step**2)
        most = settings.get("max_pixels") or size.get("longest_edge", 1280 * step**2)
        patches = {
            "patch_size": self.patch_size,
            "temporal_patch_size": self.vision_config.temporal_patch_size,
            "merge_size": self.merge_size,
        }
        return [
            self._resize(least, most),
            *_rescale_and_normalize(settings),
            {"name": "patch_image", "type": "PatchImage", "attrs": patches},
        ]

    def generation_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        return {"mm_token_type_ids": (ids == self.config.image_token_id).int()}

    def has_positions(self) -> bool:
        return True


class QwenFeatures(nn.Module):
    """The tower with positions and windows computed by tensor operations from the grid of one image.

    transformers computes them in Python, for one grid. The windows become an attention mask instead of a permutation.

    Args:
        model: A ``Qwen2VLForConditionalGeneration`` or ``Qwen2_5_VLForConditionalGeneration``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.visual = model.model.visual

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        config = self.visual.config
        merge = config.spatial_merge_size
        tokens = pixel_values.shape[0] // merge**2
        # Without the slice, the count of patches is not known to be a multiple of those of a token.
        pixel_values = pixel_values[: tokens * merge**2]
        patch = torch.arange(tokens * merge**2, device=pixel_values.device)
        token, inner = patch // merge**2, patch % merge**2
        width = image_grid_thw[0, 2] // merge
        row, column = token // width, token % width
        positions = torch.stack([row * merge + inner // merge, column * merge + inner % merge], dim=-1)
        arguments = {"position_ids": positions, "cu_seqlens": torch.zeros_like(row), "max_seqlen": 1}
        if hasattr(config, "window_size"):
            window = config.window_size // merge // config.patch_size
            windows = (width + window - 1) // window
            arguments["window_index"] = torch.arange(tokens, device=pixel_values.device)
            arguments["cu_window_seqlens"] = row // window * windows + column // window
            arguments["max_window_seqlen"] = 1
        with attention_function(self.visual, attend_within_segments):
            output = self.visual(pixel_values, grid_thw=image_grid_thw, **arguments)
        features: Tensor = output.pooler_output
        return features


VISION_TOWERS: Mapping[str, type[VisionTower]] = {"mistral3": Mistral3, "qwen2_vl": Qwen, "qwen2_5_vl": Qwen}
"""Type of a model of transformers to its vision tower."""
