"""Vision-language models in three parts: vision tower, embedding of the tokens, and decoder."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..core import warn_user
from ..decoders.padding import ignores_padding
from ..decoders.step import DYNAMIC_SHAPES, decoding, example_inputs
from ..directory import write_json
from ..generation import compare_generation
from ..language_models import LanguageModel
from ..layouts.genai_config import context_length, genai_config
from ..parts import Part, Request, decoder_calls, export_parts, rounded_parts, save_parts
from ..untrusted import read_settings
from .vision_towers import (
    TOWER_OPTIONS,
    EmbeddingDecoder,
    Gemma3,
    LightOnOcr,
    Mistral3,
    Pixtral,
    Qwen,
    Qwen2_5,
    Qwen3,
    VisionTower,
)

__all__ = ["ImageTiles", "MaskedTiles", "Ovis2", "PaliGemma", "export_vision_language"]


class TileFeatures(nn.Module):
    """``get_image_features`` for any number of tiles."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.model

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
    features: ClassVar[type[TileFeatures]] = TileFeatures

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
        return [self.config.image_token_id] * len(features)

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


_BATCH, _PAST, _TOKENS = 2, 5, 3

_PROCESSOR = "genai_processor_config.json"
"""Operators of the preprocessing; processor_config.json is the name of settings of transformers."""

VISION_TOWERS: Mapping[str, type[VisionTower]] = MappingProxyType(
    {
        "aya_vision": ImageTiles,
        "cohere2_vision": ImageTiles,
        "gemma3": Gemma3,
        "got_ocr2": ImageTiles,
        "idefics3": MaskedTiles,
        "internvl": ImageTiles,
        "lighton_ocr": LightOnOcr,
        "llava": ImageTiles,
        "mistral3": Mistral3,
        "ovis2": Ovis2,
        "paligemma": PaliGemma,
        "pp_chart2table": ImageTiles,
        "qwen2_vl": Qwen,
        "qwen2_5_vl": Qwen2_5,
        "qwen3_vl": Qwen3,
        "qwen3_vl_moe": Qwen3,
        "shieldgemma2": Gemma3,
        "smolvlm": MaskedTiles,
        "vipllava": ImageTiles,
    }
)
"""Type of a model of transformers to its vision tower."""

_REASONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("gemma3n", "gemma4"), "the decoder reads an embedding of the tokens in every layer"),
        "lfm2_vl": "the vision tower resizes its positions to the size of each image",
        **dict.fromkeys(
            ("llava_next", "llava_next_video", "llava_onevision"),
            "transformers joins the tiles of an image by the size of the image",
        ),
        "mllama": "onnxruntime-genai passes image features to the embedding only, not to layers of the decoder",
    }
)
"""Type of a model of transformers to the reason why it is not supported."""


class TokenEmbedding(nn.Module):
    """The embedding of the tokens, in which image features replace images and videos in order.

    Such tokens beyond the features keep their embedding: the model may generate them.
    """

    mark_rows: Tensor

    def __init__(self, model: Any, tower: VisionTower) -> None:
        super().__init__()
        self.size = tower.feature_size()
        self.embed_tokens = model.get_input_embeddings()
        self.image_tokens = tower.feature_tokens()
        self.marks, rows = tower.marks()
        self.register_buffer("mark_rows", rows)

    def forward(self, input_ids: Tensor, image_features: Tensor) -> Tensor:
        is_image = reduce(operator.or_, (input_ids == token for token in self.image_tokens))
        if max(self.image_tokens) >= self.embed_tokens.num_embeddings:
            input_ids = input_ids.masked_fill(is_image, 0)
        embeddings: Tensor = self.embed_tokens(input_ids)
        index = is_image.flatten().cumsum(0).reshape(is_image.shape) - 1
        count = image_features.shape[0]
        # The additional row makes the lookup valid without features.
        rows = torch.cat([image_features.to(embeddings.dtype), embeddings.new_zeros(1, self.size)])
        embeddings = nn.functional.pad(embeddings, (0, self.size - embeddings.shape[-1]))
        is_feature = is_image & (index < count)
        for position, token in enumerate(self.marks):
            is_mark = (input_ids == token) & is_feature.any()
            embeddings = torch.where(is_mark.unsqueeze(-1), self.mark_rows[position], embeddings)
        return torch.where(is_feature.unsqueeze(-1), rows[index.clamp(0, count)], embeddings)


def export_vision_language(loaded: LanguageModel, request: Request) -> None:
    """Write vision.onnx, embedding.onnx, decoder.onnx, genai_config.json and the description of the preprocessing."""
    model_type = loaded.model.config.model_type
    if model_type not in VISION_TOWERS:
        reason = f": {_REASONS[model_type]}" if model_type in _REASONS else f", only {', '.join(VISION_TOWERS)}"
        raise ArgumentError(
            "model",
            f"vision-language models of type {model_type!r} are not supported{reason}",
            hint="for text alone, export the language model by itself",
        )
    has_pixtral = model_type == "llava" and loaded.model.config.vision_config.model_type == "pixtral"
    tower = (Pixtral if has_pixtral else VISION_TOWERS[model_type])(loaded.model)
    parts = _parts(loaded.model, tower, request)
    programs = export_parts(parts, request)
    if not ignores_padding(programs["decoder"], loaded.model.config.get_text_config(decoder=True)):
        warn_user(
            "in a batch, prompts of unequal lengths may have other tokens than in transformers, as padding counts as "
            "a part of windows or positions; generate from prompts of one length"
        )
    decoder = programs["decoder"].model.graph
    save_parts(programs, request)
    config = genai_config(loaded.model, loaded.tokenizer, decoder, request.device, "decoder.onnx")
    write_json(request.directory / "genai_config.json", _with_parts(config, tower))
    if preprocessing := tower.preprocessing(_image_settings(loaded)):
        # Decoded with a color space, images must not pass through ConvertRGB: it reverses the channels.
        decode = {"name": "decode_image", "type": "DecodeImage", "attrs": {"color_space": "RGB"}}
        transforms = [{"operation": operation} for operation in (decode, *preprocessing)]
        processor = {"name": "image_processor", "transforms": transforms}
        write_json(request.directory / _PROCESSOR, {"processor": processor})
    if request.verify:
        request.announce("verify")
        with rounded_parts(parts, programs):
            _verify(loaded, tower, request)


def _parts(model: Any, tower: VisionTower, request: Request) -> dict[str, Part]:
    tokens = torch.tensor([[3, model.config.image_token_id, 4], [model.config.image_token_id, 5, 6]])
    embeds = torch.zeros(_BATCH, _TOKENS, tower.feature_size(), dtype=model.dtype, device=model.device)
    inputs = example_inputs(model)
    del inputs["input_ids"]
    inputs["inputs_embeds"] = embeds
    shapes: dict[str, Any] = {**DYNAMIC_SHAPES, "inputs_embeds": {0: "batch", 1: "tokens"}}
    del shapes["input_ids"]
    if tower.has_3d_positions():
        positions = torch.arange(_PAST, _PAST + _TOKENS, device=model.device)
        inputs["position_ids"] = positions.expand(3, _BATCH, _TOKENS).contiguous()
        shapes["position_ids"] = {1: "batch", 2: "tokens"}
    calls = decoder_calls(context_length(model.config.get_text_config()))
    return {
        "vision": tower.part(),
        "embedding": Part(
            TokenEmbedding(model, tower),
            {"input_ids": tokens.to(model.device), "image_features": embeds[0, :2]},
            {"input_ids": {0: "batch", 1: "tokens"}, "image_features": {0: "image_tokens"}},
            tuple(
                {"batch": batch, "tokens": tokens, "image_tokens": images}
                for batch in (1, 3)
                for tokens in (1, 2, 100)
                for images in (0, 1, 2, 50)
            ),
            output_names=("inputs_embeds",),
        ),
        "decoder": Part(tower.decoder(), inputs, shapes, calls, context=partial(decoding, model, request)),
    }


def _with_parts(config: dict[str, Any], tower: VisionTower) -> dict[str, Any]:
    entries, vision = tower.config_entries()
    model = {
        **config["model"],
        "type": tower.genai_type,
        "decoder": {**config["model"]["decoder"], "hidden_size": tower.feature_size()},
        "image_token_id": tower.config.image_token_id,
        **entries,
        "vision": {
            "filename": "vision.onnx",
            "config_filename": _PROCESSOR,
            "patch_size": tower.patch_size,
            "spatial_merge_size": tower.merge_size,
            "outputs": {"image_features": "image_features"},
            **vision,
        },
        "embedding": {
            "filename": "embedding.onnx",
            "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        },
    }
    return {**config, "model": model}


def _image_settings(loaded: LanguageModel) -> Mapping[str, Any]:
    """Settings of the image processor, given as a part of a processor or in the model's directory; else empty."""
    processor = getattr(loaded.tokenizer, "image_processor", None)
    if processor is not None:
        given: dict[str, Any] = processor.to_dict()
        return given
    if loaded.directory is None:
        return {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = loaded.directory / name
        if path.is_file():
            settings = read_settings(path)
            found: dict[str, Any] = settings.get("image_processor", settings)
            return found
    return {}


def _verify(loaded: LanguageModel, tower: VisionTower, request: Request) -> None:
    image = tower.image_tokens()
    words = torch.randint(3, loaded.config.vocab_size, (5,), generator=torch.Generator().manual_seed(0)).tolist()
    special = {*image, loaded.config.pad_token_id, *getattr(loaded.tokenizer, "all_special_ids", ())}
    words = [word for word in words if word not in special]
    ids = torch.tensor([[*words, *image, *words]], device=loaded.model.device)
    feeds = tower.inputs()
    count = torch.tensor([image.count(loaded.model.config.image_token_id)])
    inputs = {**feeds, **tower.generation_inputs(ids), "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # generate() of Qwen2-VL keeps the offset of the positions.
    offset = getattr(loaded.model.model, "rope_deltas", None)
    compare_generation(
        loaded.model, request.directory, ids, {**feeds, "num_image_tokens": count}, inputs, request.tolerance
    )
    loaded.model.model.rope_deltas = offset
