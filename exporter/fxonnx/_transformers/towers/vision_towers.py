"""Vision towers: the module that computes the image features, its example, and the preprocessing of the images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isqrt
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..core import attend_within_segments, attention_function
from ..families.image_text import image_token
from ..parts import Call, Part, input_dtype

__all__ = [
    "TOWER_OPTIONS",
    "EmbeddingDecoder",
    "Gemma3",
    "LightOnOcr",
    "Mistral3",
    "Pixtral",
    "Qwen",
    "Qwen2_5",
    "Qwen3",
    "VisionTower",
]

TOWER_OPTIONS: Mapping[str, Any] = MappingProxyType({"quantize": None})
"""Towers are small beside the decoder, and lose more by quantization."""

_ROWS, _COLUMNS = 3, 2
"""Image tokens of the examples."""


class VisionTower(ABC):
    """The vision tower of one family of models.

    Attributes:
        genai_type: The type in genai_config.json.
        image_mean: Mean of the colors, unless the image processor has another one; by default CLIP's.
        image_std: Their standard deviation.
        patch_size: Pixels of a patch in each direction.
        merge_size: Patches that become one image token, in each direction.
    """

    genai_type: ClassVar[str]
    image_mean: ClassVar[tuple[float, ...]] = (0.48145466, 0.4578275, 0.40821073)
    image_std: ClassVar[tuple[float, ...]] = (0.26862954, 0.26130258, 0.27577711)

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config
        names = ("vision_config", "audio_config", "encoder_config")
        self.vision_config = next(filter(None, (getattr(model.config, name, None) for name in names)))
        self.patch_size = self._patch_size()
        self.merge_size = self._merge_size()

    def _patch_size(self) -> int:
        return int(self.vision_config.patch_size)

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
        """Operators of onnxruntime-extensions after the image is decoded; none if transformers makes the inputs."""

    def generation_inputs(self, _ids: Tensor) -> dict[str, Tensor]:
        """Further inputs of ``generate`` in transformers."""
        return {}

    def has_3d_positions(self) -> bool:
        """Whether tokens have a position in each of time, height and width."""
        return False

    def decoder(self) -> nn.Module:
        """The module that becomes decoder.onnx."""
        module: nn.Module = self.model
        return module

    def feature_size(self) -> int:
        """Size of the features of an image token, and of the inputs of the decoder."""
        return int(self.config.get_text_config().hidden_size)

    def feature_tokens(self) -> tuple[int, ...]:
        """The tokens that image features replace."""
        return (image_token(self.config),)

    def embedding(self) -> nn.Module:
        """The module that computes the embeddings of tokens."""
        module: nn.Module = self.model.get_input_embeddings()
        return module

    def placeholder(self) -> int | None:
        """The token whose embedding such tokens have without features; by default their own, if it exists."""
        return 0 if max(self.feature_tokens()) >= self.model.get_input_embeddings().num_embeddings else None

    def layer_embeddings(self) -> nn.Module | None:
        """The module that computes further embeddings of tokens: the ends of the rows that the decoder reads."""
        return None

    def marks(self) -> tuple[tuple[int, ...], Tensor | None]:
        """Tokens around images, and the rows of features that replace them in prompts with an image."""
        return (), None

    def _normal(self, *shape: int) -> Tensor:
        rounded = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(self.model.dtype)
        return rounded.to(self.model.device, input_dtype(self.model))

    def _rescale_and_normalize(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        mean = settings.get("image_mean", self.image_mean)
        std = settings.get("image_std", self.image_std)
        factor = settings.get("rescale_factor", 1 / 255)
        return [
            {"name": "rescale", "type": "Rescale", "attrs": {"rescale_factor": factor}},
            {"name": "normalize", "type": "Normalize", "attrs": {"mean": [*mean], "std": [*std]}},
        ]

    def _resize(self, least: int, most: int) -> dict[str, Any]:
        side = isqrt(most)
        sizes = {"patch_size": self.patch_size, "merge_size": self.merge_size}
        limits = {"height": side, "width": side, "min_pixels": least, "max_pixels": most}
        return {"name": "resize", "type": "Resize", "attrs": {**limits, "smart_resize": 1, **sizes}}


class Mistral3(VisionTower):
    """Pixtral with patch merger. onnxruntime-genai calls it once per image, in the image's own size."""

    genai_type = "mistral3"

    def _features(self) -> nn.Module:
        return PixtralFeatures(self.model)

    def _merge_size(self) -> int:
        return int(self.config.spatial_merge_size)

    def part(self) -> Part:
        step = self.patch_size * self.merge_size
        calls: tuple[Call, ...] = tuple(
            {"height": rows * step, "width": columns * step} for rows in (1, 2, 5) for columns in (1, 3, 4)
        )
        return Part(
            self._features(),
            {"pixel_values": self.inputs()["pixel_values"]},
            {"pixel_values": {2: "height", 3: "width"}},
            calls,
            output_names=("image_features",),
            options=TOWER_OPTIONS,
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
            *self._rescale_and_normalize(settings),
            {"name": "to_channel_first", "type": "Permute3D", "attrs": {"dims": [2, 0, 1]}},
            {"name": "image_sizes", "type": "PixtralImageSizes"},
        ]


class PixtralFeatures(nn.Module):
    """``get_image_features`` for one image, whose size is the tensor's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_tower = model.model.vision_tower
        self.projector = model.model.multi_modal_projector
        layer = model.config.vision_feature_layer
        self.layers = [layer] if isinstance(layer, int) else list(layer)

    def forward(self, pixel_values: Tensor) -> Tensor:
        sizes = [tuple(pixel_values.shape[-2:])]
        pixel_values = pixel_values.to(self.vision_tower.dtype)
        states = self.vision_tower(pixel_values, image_sizes=sizes, output_hidden_states=True).hidden_states
        return self._projected(torch.cat([states[layer] for layer in self.layers], dim=-1).squeeze(0), sizes)

    def _projected(self, hidden: Tensor, sizes: list[tuple[int, ...]]) -> Tensor:
        features: Tensor = self.projector(hidden, sizes)
        return features


class Pixtral(Mistral3):
    """LLaVA with the tower of Pixtral, whose patches become a token each."""

    def _features(self) -> nn.Module:
        return UnmergedPixtralFeatures(self.model)

    def _merge_size(self) -> int:
        return 1


class UnmergedPixtralFeatures(PixtralFeatures):
    """The same for a projector without merging of patches."""

    def _projected(self, hidden: Tensor, _sizes: list[tuple[int, ...]]) -> Tensor:
        features: Tensor = self.projector(hidden)
        return features


class LightOnOcr(Mistral3):
    """LightOnOCR, whose prompts onnxruntime-genai does not make: it would mark the rows of an image."""

    def _features(self) -> nn.Module:
        return LightOnOcrFeatures(self.model)

    def preprocessing(self, _settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        return []


class LightOnOcrFeatures(nn.Module):
    """``get_image_features`` for one image, whose size is the tensor's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder, self.projection = model.model.vision_encoder, model.model.vision_projection

    def forward(self, pixel_values: Tensor) -> Tensor:
        sizes = [tuple(pixel_values.shape[-2:])]
        hidden = self.encoder(pixel_values.to(self.encoder.dtype), image_sizes=sizes).last_hidden_state
        features: Tensor = self.projection(hidden.squeeze(0), sizes)
        return features


class QwenFeatures(nn.Module):
    """The tower with positions and windows computed by tensor operations from the grid of one image.

    transformers computes them in Python, for one grid. The windows become an attention mask instead of a permutation.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.visual = model.model.visual

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        merge = self.visual.config.spatial_merge_size
        tokens = pixel_values.shape[0] // merge**2
        # Without the slice, the count of patches is not known to be a multiple of a token's.
        pixel_values = pixel_values[: tokens * merge**2].to(self.visual.dtype)
        patch = torch.arange(tokens * merge**2, device=pixel_values.device)
        token, inner = patch // merge**2, patch % merge**2
        width = image_grid_thw[0, 2] // merge
        row, column = token // width, token % width
        positions = torch.stack([row * merge + inner // merge, column * merge + inner % merge], dim=-1)
        arguments = self._windows(tokens, row, column, width) | self._interpolation(positions, image_grid_thw[0, 1:])
        with attention_function(self.visual, attend_within_segments):
            output = self.visual(
                pixel_values,
                grid_thw=image_grid_thw,
                position_ids=positions,
                cu_seqlens=torch.zeros_like(row),
                max_seqlen=1,
                **arguments,
            )
        return self._features(output)

    def _windows(self, _tokens: int, _row: Tensor, _column: Tensor, _width: Tensor) -> dict[str, Any]:
        return {}

    def _interpolation(self, _positions: Tensor, _grid: Tensor) -> dict[str, Any]:
        return {}

    def _features(self, output: Any) -> Tensor:
        features: Tensor = output.pooler_output
        return features


class WindowFeatures(QwenFeatures):
    """The tower of Qwen2.5-VL, where most layers attend within windows."""

    def _windows(self, tokens: int, row: Tensor, column: Tensor, width: Tensor) -> dict[str, Any]:
        config = self.visual.config
        size = config.window_size // config.spatial_merge_size // config.patch_size
        windows = (width + size - 1) // size
        return {
            "window_index": torch.arange(tokens, device=row.device),
            "cu_window_seqlens": row // size * windows + column // size,
            "max_window_seqlen": 1,
        }


class DeepstackFeatures(QwenFeatures):
    """The tower of Qwen3-VL: interpolated positions, and features of several layers side by side."""

    def _interpolation(self, positions: Tensor, grid: Tensor) -> dict[str, Any]:
        side = self.visual.num_grid_per_side
        scaled = positions.float() * (side - 1) / (grid - 1).clamp(min=1)
        corners = scaled.floor().long().unsqueeze(-1) + torch.arange(2, device=positions.device)
        weights = (1 - (scaled.unsqueeze(-1) - corners).abs()).clamp(min=0)
        corners = corners.clamp(0, side - 1)
        return {
            "interp_indices": (corners[:, 0, :, None] * side + corners[:, 1, None, :]).flatten(1),
            "interp_weights": (weights[:, 0, :, None] * weights[:, 1, None, :]).flatten(1),
        }

    def _features(self, output: Any) -> Tensor:
        return torch.cat([output.pooler_output, *output.deepstack_features], dim=-1)


class Qwen(VisionTower):
    """The tower of Qwen2-VL, for one image with any grid.

    Attributes:
        features: The class of the module.
    """

    genai_type = "qwen2_5_vl"
    features: ClassVar[type[nn.Module]] = QwenFeatures

    def _merge_size(self) -> int:
        return int(self.vision_config.spatial_merge_size)

    def part(self) -> Part:
        unit = self.merge_size**2
        return Part(
            self.features(self.model),
            self.inputs(),
            {"pixel_values": {0: "patches"}},
            tuple({"patches": tokens * unit} for tokens in (1, 2, 6, 35)),
            output_names=("image_features",),
            options=TOWER_OPTIONS,
        )

    def _patch_length(self) -> int:
        config = self.vision_config
        channels = getattr(config, "in_channels", None) or config.in_chans
        return int(channels * config.temporal_patch_size * self.patch_size**2)

    def inputs(self) -> dict[str, Tensor]:
        grid = [1, _ROWS * self.merge_size, _COLUMNS * self.merge_size]
        pixels = self._normal(grid[1] * grid[2], self._patch_length())
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([grid], device=self.model.device)}

    def _mark(self, end: str) -> int:
        """The token at the start or the end of an image."""
        config = self.config
        return int(getattr(config, f"vision_{end}_token_id", None) or getattr(config, f"image_{end}_token_id"))

    def image_tokens(self) -> list[int]:
        images = [self.config.image_token_id] * (_ROWS * _COLUMNS)
        return [self._mark("start"), *images, self._mark("end")]

    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        tokens = {"video_token_id": self.config.video_token_id, "vision_start_token_id": self._mark("start")}
        inputs = {"pixel_values": "pixel_values", "image_grid_thw": "image_grid_thw"}
        # Of videos, whose frames have one position each unless the model specifies their time.
        rate = getattr(self.vision_config, "tokens_per_second", 1)
        return tokens, {"inputs": inputs, "tokens_per_second": rate}

    def feature_tokens(self) -> tuple[int, ...]:
        return self.config.image_token_id, self.config.video_token_id

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
            *self._rescale_and_normalize(settings),
            {"name": "patch_image", "type": "PatchImage", "attrs": patches},
        ]

    def generation_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        return {"mm_token_type_ids": (ids == self.config.image_token_id).int()}

    def has_3d_positions(self) -> bool:
        return True


class Qwen2_5(Qwen):
    """The tower of Qwen2.5-VL."""

    features = WindowFeatures


class Qwen3(Qwen):
    """The tower of Qwen3-VL, whose features of further layers the decoder adds after its first layers.

    onnxruntime-genai passes on one tensor of features: further layers follow in each row.
    """

    genai_type = "qwen3_vl"
    image_mean = image_std = (0.5, 0.5, 0.5)
    features = DeepstackFeatures

    def decoder(self) -> nn.Module:
        return DeepstackDecoder(self.model)

    def feature_size(self) -> int:
        layers: int = sum(layer < self.vision_config.depth for layer in self.vision_config.deepstack_visual_indexes)
        return super().feature_size() * (1 + layers)


class EmbeddingDecoder(nn.Module):
    """The decoder of a vision-language model, which takes embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def step(
        self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Any, **more: Tensor
    ) -> Any:
        """Call the model, with a cache."""
        return self.model(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=True,
            **more,
        )


class DeepstackDecoder(EmbeddingDecoder):
    """The decoder of Qwen3-VL, with the features for its first layers after the embedding of each token."""

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Any) -> Any:
        size = self.model.config.get_text_config().hidden_size
        embeddings, *features = torch.split(inputs_embeds, size, dim=-1)
        hooks = [
            layer.register_forward_hook(lambda _module, _args, output, added=added: output + added)
            for layer, added in zip(self.model.model.language_model.layers, features, strict=False)
        ]
        try:
            return self.step(embeddings, attention_mask, position_ids, past_key_values)
        finally:
            for hook in hooks:
                hook.remove()


class Gemma3(VisionTower):
    """SigLIP with pooling. The tokens of an image attend to each other in both directions.

    The decoder reads which tokens these are from an additional element of each row of features.
    """

    genai_type = "gemma3"
    image_mean = image_std = (0.5, 0.5, 0.5)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if self.config.mm_tokens_per_image != _GEMMA3_TOKENS:
            raise ArgumentError(
                "model",
                f"onnxruntime-genai runs Gemma 3 with {_GEMMA3_TOKENS} tokens per image, but this model has "
                f"{self.config.mm_tokens_per_image}",
            )
        patches = (self.vision_config.image_size // self.patch_size) ** 2
        if patches < _GEMMA3_TOKENS:
            raise ArgumentError("model", f"an image has {patches} patches, fewer than its {_GEMMA3_TOKENS} tokens")

    def _merge_size(self) -> int:
        return 1

    def part(self) -> Part:
        return Part(
            Gemma3Features(self.model),
            self.inputs(),
            {"pixel_values": {0: "images"}},
            ({"images": 1}, {"images": 3}),
            output_names=("image_features",),
            options=TOWER_OPTIONS,
        )

    def inputs(self) -> dict[str, Tensor]:
        size = self.vision_config.image_size
        return {"pixel_values": self._normal(1, self.vision_config.num_channels, size, size)}

    def image_tokens(self) -> list[int]:
        return [self.config.image_token_id] * _GEMMA3_TOKENS

    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"inputs": {"pixel_values": "pixel_values"}}

    def preprocessing(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        size = self.vision_config.image_size
        limits = {"height": size, "width": size, "keep_aspect_ratio": 0, "interpolation": "LINEAR"}
        return [
            {"name": "resize", "type": "Resize", "attrs": limits},
            *self._rescale_and_normalize(settings),
            {"name": "to_channel_first", "type": "Permute3D", "attrs": {"dims": [2, 0, 1]}},
        ]

    def generation_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        return {"token_type_ids": (ids == self.config.image_token_id).long()}

    def decoder(self) -> nn.Module:
        return Gemma3Decoder(self.model)

    def feature_size(self) -> int:
        return super().feature_size() + 1


_GEMMA3_TOKENS = 256
"""Tokens of an image of Gemma 3 in onnxruntime-genai."""


class Gemma3Features(nn.Module):
    """The features of the images, each followed by 1."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_tower = model.model.vision_tower
        self.projector = model.model.multi_modal_projector

    def forward(self, pixel_values: Tensor) -> Tensor:
        hidden = self.vision_tower(pixel_values=pixel_values.to(self.vision_tower.dtype)).last_hidden_state
        return nn.functional.pad(self.projector(hidden).flatten(0, 1), (0, 1), value=1)


class Gemma3Decoder(EmbeddingDecoder):
    """The decoder of Gemma 3, with the kind of each token after its embedding: 1 for an image, 0 for text."""

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Any) -> Any:
        kinds = (inputs_embeds[..., -1] > 0.5).long()
        # Images of the past are not extended: the tokens of an image are in one call.
        past = attention_mask.shape[1] - inputs_embeds.shape[1]
        kinds = nn.functional.pad(kinds, (past, 0))
        return self.step(inputs_embeds[..., :-1], attention_mask, position_ids, past_key_values, token_type_ids=kinds)
