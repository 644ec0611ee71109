"""Towers that compute images or audio by themselves, and those whose models compute their features as they are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..parts import Part
from ..samples import cast
from .vision_towers import TOWER_OPTIONS, EmbeddingDecoder, Qwen, VisionTower

__all__ = ["AudioClips", "Grid", "ImageTiles", "MaskedTiles", "Ovis2", "PaliGemma", "Qwen3_5"]


class ModelFeatures(nn.Module):
    """The features that a model computes of images or audio itself; the export captures its loops over grids."""

    kind = "image"

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model

    def forward(self, **inputs: Tensor) -> Tensor:
        function = getattr(self.model, f"get_{self.kind}_features")
        found = function(**cast(inputs, self.model.dtype), return_dict=True).pooler_output
        features: Tensor = found if isinstance(found, Tensor) else torch.cat(list(found))
        return features.flatten(0, -2)


class AudioFeatures(ModelFeatures):
    """The features of audio."""

    kind = "audio"


class TileFeatures(nn.Module):
    """``get_image_features`` for any number of tiles."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model

    def forward(self, pixel_values: Tensor) -> Tensor:
        pixel_values = pixel_values.to(self.model.dtype)
        with ExitStack() as stack:
            if self.model.config.model_type == "llava":
                # Its list(features) would fix the number of tiles: make it a list of one tensor.
                hook = self.model.multi_modal_projector.register_forward_hook(_with_leading_axis)
                stack.callback(hook.remove)
            features = self.model.get_image_features(pixel_values=pixel_values, return_dict=True).pooler_output
        tokens: Tensor = (features[0] if isinstance(features, list) else features).flatten(0, 1)
        return tokens


def _with_leading_axis(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
    return output.unsqueeze(0)


class MaskedTileFeatures(TileFeatures):
    """The tower of Idefics3 and SmolVLM, without the removal of tiles that pad a batch of prompts."""

    def forward(self, pixel_values: Tensor, pixel_attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        pixel_values = pixel_values.flatten(0, 1).to(self.model.dtype)
        patch = self.model.config.vision_config.patch_size
        patches = pixel_attention_mask.flatten(0, 1).unfold(1, patch, patch).unfold(2, patch, patch)
        mask = patches.sum((-1, -2)) > 0
        hidden = self.model.vision_model(pixel_values=pixel_values, patch_attention_mask=mask).last_hidden_state
        tokens: Tensor = self.model.connector(hidden).flatten(0, 1)
        return tokens


class ImageTiles(VisionTower):
    """A tower that computes each tile by itself; every tile becomes the same number of tokens.

    onnxruntime-genai has no preprocessing for such models: it takes the tensors that the processor of transformers
    makes.

    Attributes:
        features: The class of the module.
    """

    # onnxruntime-genai runs the vision tower of this type once, with all of the given tensors.
    genai_type = "phi3v"
    features: ClassVar[type[nn.Module]] = TileFeatures

    def _patch_size(self) -> int:
        return 1

    def _merge_size(self) -> int:
        return 1

    def part(self) -> Part:
        return Part(
            self.features(self.model),
            self._tiles(2),
            self._dynamic_shapes(),
            tuple({"tiles": count} for count in (1, 2, 3, 13)),
            output_names=("image_features",),
            options=TOWER_OPTIONS,
        )

    def inputs(self) -> dict[str, Tensor]:
        return self._tiles(1)

    def _tiles(self, count: int) -> dict[str, Tensor]:
        size = self.vision_config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {"pixel_values": self._normal(count, self.vision_config.num_channels, height, width)}

    def _dynamic_shapes(self) -> dict[str, Any]:
        return {"pixel_values": {0: "tiles"}}

    def image_tokens(self) -> list[int]:
        with torch.no_grad():
            features = self.features(self.model)(**self.inputs())
        return [self.feature_tokens()[0]] * len(features)

    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        # Further inputs are found by their names.
        return {}, {"inputs": {"pixel_values": "pixel_values"}}

    def preprocessing(self, _settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        return []


class MaskedTiles(ImageTiles):
    """The tower of Idefics3 and SmolVLM: the tiles of one prompt, with a mask of their pixels."""

    features = MaskedTileFeatures

    def _tiles(self, count: int) -> dict[str, Tensor]:
        pixels = super()._tiles(count)["pixel_values"].unsqueeze(0)
        mask = torch.ones(1, count, *pixels.shape[3:], dtype=torch.int64, device=pixels.device)
        return {"pixel_values": pixels, "pixel_attention_mask": mask}

    def _dynamic_shapes(self) -> dict[str, Any]:
        return {name: {1: "tiles"} for name in ("pixel_values", "pixel_attention_mask")}


class Ovis2(ImageTiles):
    """Ovis2, where tokens around the images have embeddings of the vision tower."""

    def marks(self) -> tuple[tuple[int, ...], Tensor | None]:
        tokens = tuple(self.config.visual_indicator_token_ids)
        count = self.model.model.vision_tower.num_visual_indicator_tokens
        return tokens, self.model.model.visual_embeddings_table.weight[-count:].detach()


class PaliGemma(ImageTiles):
    """PaliGemma: all tokens of the prompt attend to each other in both directions."""

    def generation_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        return {"token_type_ids": torch.zeros_like(ids)}

    def decoder(self) -> nn.Module:
        return PaliGemmaDecoder(self.model)


class PaliGemmaDecoder(EmbeddingDecoder):
    """The decoder of PaliGemma, with a bidirectional mask for prompts without a past."""

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Any) -> Any:
        config = self.model.config.get_text_config()
        masks = _prefix_masks(attention_mask, inputs_embeds.shape[1], getattr(config, "sliding_window", None))

        def replace_mask(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            mask = masks if isinstance(kwargs["attention_mask"], dict) else masks["full_attention"]
            return args, {**kwargs, "attention_mask": mask}

        hook = self.model.model.language_model.register_forward_pre_hook(replace_mask, with_kwargs=True)
        try:
            return self.step(inputs_embeds, attention_mask, position_ids, past_key_values)
        finally:
            hook.remove()


def _prefix_masks(attention_mask: Tensor, tokens: int, window: int | None) -> dict[str, Tensor]:
    """Masks by type of layer: causal, except that the tokens of a prompt without a past see all of it."""
    total, device = attention_mask.shape[1], attention_mask.device
    keys = torch.arange(total, device=device)
    queries = torch.arange(total - tokens, total, device=device).unsqueeze(-1)
    is_prompt = queries[:1] == 0
    present = attention_mask[:, None, None].bool()
    masks = {"full_attention": ((queries >= keys) | is_prompt) & present}
    if window is not None:
        in_window = (queries >= keys) & (queries - keys < window)
        masks["sliding_attention"] = (in_window | is_prompt) & present
    return masks


class AudioClips(ImageTiles):
    """Audio in place of images: the spectra of clips, of one length or, with a mask, of any.

    onnxruntime-genai calls them images; it takes the tensors that the processor of transformers makes.
    """

    features = AudioFeatures

    def feature_tokens(self) -> tuple[int, ...]:
        names = ("audio_token_id", "audio_token_index")
        return (next(getattr(self.config, name) for name in names if hasattr(self.config, name)),)

    def _tiles(self, count: int) -> dict[str, Tensor]:
        config = self.vision_config
        fixed = getattr(config, "max_source_positions", None)
        length = 100 if fixed is None else 2 * fixed
        if not hasattr(config, "num_mel_bins"):
            return {"input_features": self._normal(count, length, config.input_dim)}
        found = {"input_features": self._normal(count, config.num_mel_bins, length)}
        if "input_features_mask" in inspect.signature(self.model.get_audio_features).parameters:
            found["input_features_mask"] = torch.ones(count, length, dtype=torch.int64, device=self.model.device)
        return found

    def _dynamic_shapes(self) -> dict[str, Any]:
        frames = {} if hasattr(self.vision_config, "max_source_positions") else {1: "frames"}
        features = {axis + hasattr(self.vision_config, "num_mel_bins"): name for axis, name in frames.items()}
        shapes = {"input_features": features, "input_features_mask": frames}
        return {name: {0: "tiles", **shapes[name]} for name in self._tiles(1)}

    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"inputs": {"pixel_values": "input_features"}}


class Grid(Qwen):
    """One image with any grid, whose loops the export captures.

    onnxruntime-genai makes prompts and images for the tokens of Qwen only.
    """

    features = ModelFeatures

    def preprocessing(self, _settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        return []


class Qwen3_5(Grid):
    """Qwen3.5, which onnxruntime-genai prepares images for."""

    genai_type = "qwen3_5"
    image_mean = image_std = (0.5, 0.5, 0.5)

    def preprocessing(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        return Qwen.preprocessing(self, settings)
