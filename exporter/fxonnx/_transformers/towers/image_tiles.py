"""Towers that compute images or audio by themselves, and those whose models compute their features as they are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..core import attend_within_segments, attention_function
from ..parts import Part
from ..samples import cast
from .vision_towers import TOWER_OPTIONS, EmbeddingDecoder, Qwen, VisionTower

__all__ = [
    "AudioClips",
    "Gemma3n",
    "Gemma4",
    "Grid",
    "ImageTiles",
    "Llama4",
    "MaskedTiles",
    "Ovis2",
    "PaddleOcr",
    "PaliGemma",
    "Qwen3Asr",
    "Qwen3_5",
]


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


class Llama4Features(ModelFeatures):
    """The features of Llama 4, whose forward projects the output of the tower."""

    def forward(self, **inputs: Tensor) -> Tensor:
        hidden = self.model.get_image_features(**cast(inputs, self.model.dtype)).last_hidden_state
        features: Tensor = self.model.multi_modal_projector(hidden.flatten(0, -2))
        return features


class PerLayerFeatures(ModelFeatures):
    """Features with zeros in place of the embeddings that tokens have for each layer."""

    def forward(self, **inputs: Tensor) -> Tensor:
        return nn.functional.pad(self._features(**inputs), (0, _per_layer_size(self.model)))

    def _features(self, **inputs: Tensor) -> Tensor:
        return super().forward(**inputs)


class Gemma4Features(PerLayerFeatures):
    """The features of the images together, which transformers separates afterwards."""

    def _features(self, **inputs: Tensor) -> Tensor:
        pixels, places = cast(inputs, self.model.dtype).values()
        hidden = self.model.vision_tower(pixel_values=pixels, pixel_position_ids=places).last_hidden_state
        features: Tensor = self.model.embed_vision(inputs_embeds=hidden)
        return features


def _per_layer_size(model: Any) -> int:
    config = model.config.get_text_config()
    return int(config.num_hidden_layers * config.hidden_size_per_layer_input)


class PerLayerEmbedding(nn.Module):
    """The embeddings of tokens for all layers of the decoder, [batch, tokens, layers * size]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model.language_model

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.model.get_per_layer_inputs(input_ids)
        return found.flatten(2)


class Gemma3nEmbedding(nn.Module):
    """The embedding of the tokens, of which the last ones are those of images and audio."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model

    def forward(self, input_ids: Tensor) -> Tensor:
        found: Tensor = self.model.get_input_embeddings()(input_ids)
        for part in (self.model.embed_vision, self.model.embed_audio):
            is_own = (input_ids >= part.vocab_offset) & (input_ids < part.vocab_offset + part.vocab_size)
            own = part(input_ids=torch.where(is_own, input_ids, part.vocab_offset))
            found = torch.where(is_own.unsqueeze(-1), own, found)
        return found


class PerLayerDecoder(EmbeddingDecoder):
    """The decoder of a model whose layers read an embedding of the tokens each: they follow that of the first layer."""

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Any) -> Any:
        config = self.model.config.get_text_config()
        embeddings, more = inputs_embeds.tensor_split([config.hidden_size], dim=-1)
        more = more.reshape(*more.shape[:-1], config.num_hidden_layers, config.hidden_size_per_layer_input)
        return self.step(embeddings, attention_mask, position_ids, past_key_values, per_layer_inputs=more)


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
            tuple({"tiles": count, **self._sizes()} for count in (1, 2, 3, 13)),
            output_names=("image_features",),
            options=TOWER_OPTIONS,
        )

    def inputs(self) -> dict[str, Tensor]:
        return self._tiles(1)

    def _tiles(self, count: int) -> dict[str, Tensor]:
        size = getattr(self.vision_config, "image_size", None)
        if size is None:  # of a tower of timm
            size = self.model.base_model.vision_tower.timm_model.default_cfg["input_size"][1:]
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {"pixel_values": self._normal(count, getattr(self.vision_config, "num_channels", 3), height, width)}

    def _dynamic_shapes(self) -> dict[str, Any]:
        return {"pixel_values": {0: "tiles"}}

    def _sizes(self) -> dict[str, int]:
        """Further sizes of each call."""
        return {}

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


class Llama4(ImageTiles):
    """Llama 4."""

    features = Llama4Features


class PerLayer(ImageTiles):
    """A model whose layers read an embedding of the tokens each."""

    features: ClassVar[type[nn.Module]] = PerLayerFeatures

    def feature_size(self) -> int:
        return super().feature_size() + _per_layer_size(self.model)

    def layer_embeddings(self) -> nn.Module | None:
        return PerLayerEmbedding(self.model) if _per_layer_size(self.model) else None

    def decoder(self) -> nn.Module:
        return PerLayerDecoder(self.model) if _per_layer_size(self.model) else super().decoder()


class Gemma3n(PerLayer):
    """Gemma 3n."""

    def embedding(self) -> nn.Module:
        return Gemma3nEmbedding(self.model)


class Gemma4(PerLayer):
    """Gemma 4: the patches of each image, padded, with their places."""

    features = Gemma4Features

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if self.config.get_text_config().use_bidirectional_attention == "vision":
            problem = "images of Gemma 4 are not supported if their tokens attend to each other in both directions"
            raise ArgumentError("model", problem, hint="for text alone, export the language model by itself")

    def feature_tokens(self) -> tuple[int, ...]:
        return self.config.image_token_id, self.config.video_token_id, self.config.audio_token_id

    def placeholder(self) -> int | None:
        pad: int = self.config.text_config.pad_token_id
        return pad

    def _tiles(self, count: int) -> dict[str, Tensor]:
        side = self.vision_config.pooling_kernel_size
        places = torch.cartesian_prod(torch.arange(2 * side), torch.arange(3 * side)).flip(1)
        places = places.expand(count, -1, -1).contiguous()
        pixels = self._normal(count, places.shape[1], 3 * self.vision_config.patch_size**2)
        return {"pixel_values": pixels, "image_position_ids": places.to(self.model.device)}

    def _sizes(self) -> dict[str, int]:
        return {"patches": 280 * self.vision_config.pooling_kernel_size**2}

    def _dynamic_shapes(self) -> dict[str, Any]:
        return {name: {0: "tiles", 1: "patches"} for name in ("pixel_values", "image_position_ids")}


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
        if hasattr(config, "input_dim"):
            return {"input_features": self._normal(count, length, config.input_dim)}
        found = {"input_features": self._normal(count, config.num_mel_bins, length)}
        if "input_features_mask" in inspect.signature(self.model.get_audio_features).parameters:
            found["input_features_mask"] = torch.ones(count, length, dtype=torch.int64, device=self.model.device)
        return found

    def _dynamic_shapes(self) -> dict[str, Any]:
        frames = {} if hasattr(self.vision_config, "max_source_positions") else {1: "frames"}
        features = {axis + (not hasattr(self.vision_config, "input_dim")): name for axis, name in frames.items()}
        shapes = {"input_features": features, "input_features_mask": frames}
        return {name: {0: "tiles", **shapes[name]} for name in self._tiles(1)}

    def config_entries(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"inputs": {"pixel_values": "input_features"}}


class Qwen3AsrFeatures(AudioFeatures):
    """The audio of Qwen3-ASR, whose layers attend within windows of some chunks of each clip."""

    def forward(self, **inputs: Tensor) -> Tensor:
        mask, config = inputs["input_features_mask"], self.model.config.audio_config
        chunk = 2 * config.n_window
        clips, chunks = mask.shape[0], mask.shape[1] // chunk
        window = torch.arange(chunks, device=mask.device) // (config.n_window_infer // chunk)
        segment = torch.arange(clips, device=window.device)[:, None] * chunks + window
        counts = self.model.audio_tower._post_cnn_length(mask.view(clips, chunks, chunk).sum(-1))
        # Only the last chunk of a clip is shorter, so that windows of chunks are those of transformers.
        segments = segment.flatten().repeat_interleave(counts.flatten())
        with attention_function(self.model.audio_tower, attend_within_segments):
            return super().forward(**inputs, cu_seqlens=segments, max_seqlen=torch.tensor(1))


class Qwen3Asr(AudioClips):
    """Qwen3-ASR: clips of a whole number of chunks, of which a mask says how much is audio."""

    features = Qwen3AsrFeatures

    def _sizes(self) -> dict[str, int]:
        return {"frames": 6 * self.vision_config.n_window}

    def _tiles(self, count: int) -> dict[str, Tensor]:
        length = 4 * self.vision_config.n_window
        mask = torch.ones(count, length, dtype=torch.int64, device=self.model.device)
        mask[-1, self.vision_config.n_window :] = 0
        return {
            "input_features": self._normal(count, self.vision_config.num_mel_bins, length),
            "input_features_mask": mask,
        }


class Grid(Qwen):
    """One image with any grid, whose loops the export captures.

    onnxruntime-genai makes prompts and images for the tokens of Qwen only.
    """

    features = ModelFeatures

    def preprocessing(self, _settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        return []


class PaddleOcrFeatures(ModelFeatures):
    """The features of PaddleOCR-VL, whose projector merges the patches of one image after another."""

    def forward(self, **inputs: Tensor) -> Tensor:
        pixel_values, image_grid_thw = inputs["pixel_values"], inputs["image_grid_thw"]
        config = self.model.config.vision_config
        shape = config.num_channels, config.patch_size, config.patch_size
        pixels = pixel_values.to(self.model.dtype).reshape(1, -1, *shape)
        hidden = self.model.visual(pixel_values=pixels, grid_thw=image_grid_thw).last_hidden_state
        projector, merge = self.model.projector, self.model.projector.merge_kernel_size[0]
        width = image_grid_thw[0, 2]
        token = torch.arange(hidden.shape[0] // merge**2, device=hidden.device)[:, None, None]
        row, column = (torch.arange(merge, device=hidden.device)[:, None], torch.arange(merge, device=hidden.device))
        merged = width // merge
        places = (token // merged * merge + row) * width + token % merged * merge + column
        joined = projector.pre_norm(hidden)[places.flatten(1)].flatten(1)
        features: Tensor = projector.linear_2(projector.act(projector.linear_1(joined)))
        return features


class PaddleOcr(Grid):
    """PaddleOCR-VL, with patches of one axis: onnxruntime-genai takes tensors of several for images."""

    features = PaddleOcrFeatures

    def _patch_length(self) -> int:
        return int(self.vision_config.num_channels * self.patch_size**2)

    def generation_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        pixels = self.inputs()["pixel_values"]
        pixels = pixels.reshape(len(pixels), -1, self.patch_size, self.patch_size)
        return {**super().generation_inputs(ids), "pixel_values": pixels}


class Qwen3_5(Grid):
    """Qwen3.5, which onnxruntime-genai prepares images for."""

    genai_type = "qwen3_5"
    image_mean = image_std = (0.5, 0.5, 0.5)

    def preprocessing(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        return Qwen.preprocessing(self, settings)
