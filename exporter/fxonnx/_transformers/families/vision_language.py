"""Vision-language models in three parts: vision tower, embedding of the tokens, and decoder."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial, reduce
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..core import warn_user
from ..decoders.padding import ignores_padding
from ..decoders.step import cached_states, decoding, dynamic_shapes, example_inputs, input_names, state_names
from ..directory import write_json
from ..generation import compare_generation
from ..language_models import LanguageModel
from ..layouts.genai_config import context_length, genai_config
from ..parts import Part, Request, decoder_calls, export_parts, rounded_parts, save_parts
from ..towers.image_tiles import (
    AudioClips,
    Gemma3n,
    Gemma4,
    Grid,
    ImageTiles,
    Llama4,
    MaskedTiles,
    Ovis2,
    PaddleOcr,
    PaliGemma,
    Qwen3_5,
    Qwen3Asr,
)
from ..towers.packed_images import Lfm2Vl, MiniCpm, Phi4
from ..towers.vision_towers import (
    Gemma3,
    LightOnOcr,
    Mistral3,
    Pixtral,
    Qwen,
    Qwen2_5,
    Qwen3,
    VisionTower,
)
from ..untrusted import read_settings
from .image_text import check_image_text

__all__ = ["export_vision_language"]


_BATCH, _PAST, _TOKENS = 2, 5, 3

_PROCESSOR = "genai_processor_config.json"
"""Operators of the preprocessing; processor_config.json is the name of settings of transformers."""

VISION_TOWERS: Mapping[str, type[VisionTower]] = MappingProxyType(
    {
        **dict.fromkeys(("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "voxtral"), AudioClips),
        "aya_vision": ImageTiles,
        "cohere2_vision": ImageTiles,
        "deepseek_vl": ImageTiles,
        "fast_vlm": ImageTiles,
        "gemma3": Gemma3,
        "gemma3n": Gemma3n,
        "gemma4": Gemma4,
        "lfm2_vl": Lfm2Vl,
        "llama4": Llama4,
        **dict.fromkeys(("glm46v", "glm4v", "glm4v_moe", "glm_ocr", "glmga"), Grid),
        "got_ocr2": ImageTiles,
        "idefics3": MaskedTiles,
        "internvl": ImageTiles,
        "lighton_ocr": LightOnOcr,
        "llava": ImageTiles,
        "minicpmv4_6": MiniCpm,
        "mistral3": Mistral3,
        "ovis2": Ovis2,
        "paddleocr_vl": PaddleOcr,
        "paligemma": PaliGemma,
        "phi4_multimodal": Phi4,
        "pp_chart2table": ImageTiles,
        "qianfan_ocr": ImageTiles,
        "qwen2_vl": Qwen,
        "qwen2_5_vl": Qwen2_5,
        "qwen3_asr": Qwen3Asr,
        "qwen3_5": Qwen3_5,
        "qwen3_5_moe": Qwen3_5,
        "qwen3_vl": Qwen3,
        "qwen3_vl_moe": Qwen3,
        "shieldgemma2": Gemma3,
        "smolvlm": MaskedTiles,
        "video_llava": ImageTiles,
        "vipllava": ImageTiles,
    }
)
"""Type of a model of transformers to its vision tower."""

_REASONS: Mapping[str, str] = MappingProxyType(
    {
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
        self.embed_tokens = tower.embedding()
        self.image_tokens, self.placeholder = tower.feature_tokens(), tower.placeholder()
        self.marks, rows = tower.marks()
        self.register_buffer("mark_rows", rows)
        self.layers = tower.layer_embeddings()

    def forward(self, input_ids: Tensor, image_features: Tensor) -> Tensor:
        is_image = reduce(operator.or_, (input_ids == token for token in self.image_tokens))
        if self.placeholder is not None:
            input_ids = input_ids.masked_fill(is_image, self.placeholder)
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
        found = torch.where(is_feature.unsqueeze(-1), rows[index.clamp(0, count)], embeddings)
        if self.layers is not None:
            further = self.layers(input_ids)
            found = torch.cat([found[..., : -further.shape[-1]], further], -1)
        return found


def export_vision_language(loaded: LanguageModel, request: Request) -> None:
    """Write vision.onnx, embedding.onnx, decoder.onnx, genai_config.json and the description of the preprocessing."""
    model_type = loaded.model.config.model_type
    if model_type not in VISION_TOWERS:
        reason = f": {_REASONS[model_type]}" if model_type in _REASONS else ""
        hint = "for text alone, export the language model by itself"
        if _runs_in_parts(loaded.model):
            hint = "fxonnx.huggingface.export writes its parts, which fxonnx.huggingface.load runs"
        problem = f"vision-language models of type {model_type!r} are not supported{reason}"
        raise ArgumentError("model", problem, hint=hint)
    has_pixtral = model_type == "llava" and loaded.model.config.vision_config.model_type == "pixtral"
    tower = (Pixtral if has_pixtral else VISION_TOWERS[model_type])(loaded.model)
    if "input_features" not in tower.inputs() and getattr(loaded.model.config, "audio_config", None) is not None:
        warn_user("the model also takes audio, which the files do not have: only its images are exported")
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


def _runs_in_parts(model: Any) -> bool:
    """Whether ``fxonnx.huggingface`` exports a model."""
    try:
        check_image_text(model)
        cached_states(model, "")
    except ArgumentError:
        return False
    return True


def _parts(model: Any, tower: VisionTower, request: Request) -> dict[str, Part]:
    token = tower.feature_tokens()[0]
    tokens = torch.tensor([[3, token, 4], [token, 5, 6]])
    embeds = torch.zeros(_BATCH, _TOKENS, tower.feature_size(), dtype=model.dtype, device=model.device)
    inputs = example_inputs(model)
    del inputs["input_ids"]
    inputs["inputs_embeds"] = embeds
    shapes, states = dynamic_shapes(inputs), state_names(inputs)
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
        "decoder": Part(
            tower.decoder(),
            inputs,
            shapes,
            calls,
            input_names=tuple(input_names(inputs) or ()),
            output_names=("logits", *(f"present.{name}" for name in states)) if states else (),
            context=partial(decoding, model, request, states),
        ),
    }


def _with_parts(config: dict[str, Any], tower: VisionTower) -> dict[str, Any]:
    entries, vision = tower.config_entries()
    model = {
        **config["model"],
        "type": tower.genai_type,
        "decoder": {**config["model"]["decoder"], "hidden_size": tower.feature_size()},
        "image_token_id": tower.feature_tokens()[0],
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
    count = torch.tensor([image.count(tower.feature_tokens()[0])])
    inputs = {**feeds, **tower.generation_inputs(ids), "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # generate() of Qwen2-VL keeps the offset of the positions.
    offset = getattr(loaded.model.base_model, "rope_deltas", None)
    compare_generation(
        loaded.model, request.directory, ids, {**feeds, "num_image_tokens": count}, inputs, request.tolerance
    )
    loaded.model.base_model.rope_deltas = offset
