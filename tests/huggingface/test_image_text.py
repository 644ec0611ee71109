"""Models of images and text: embeddings, features of images and a decoder, each a file; the directory generates."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import fxonnx.huggingface
from benchmarks._multimodal_configs import make_multimodal
from fxonnx import ArgumentError
from fxonnx._transformers.families import image_text
from fxonnx._transformers.samples import Sizes
from tests.models.torchvision_shim import import_torchvision

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "vocab_size": 64}
VISION = {**SIZES, "image_size": 32, "patch_size": 8}
SQUARE = {**VISION, "image_size": [32, 32], "patch_size": [8, 8]}
CLIP, SIGLIP = {**VISION, "model_type": "clip_vision_model"}, {**VISION, "model_type": "siglip_vision_model"}


def text(model_type: str, **options: Any) -> dict[str, Any]:
    return {**TEXT, "model_type": model_type, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **options}


NIGHTLY_GRIDS = (
    "glm4v",
    "glm_ocr",
    "hyperclovax_vision_v2",
    "minimax_m3_vl",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen2_5_omni_thinker",
)

MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llava": ("Llava", {"vision_config": CLIP, "text_config": text("llama")}),
    "llava of SigLIP and Qwen2": (
        "Llava",
        {"vision_config": SIGLIP, "text_config": text("qwen2"), "vision_feature_select_strategy": "full"},
    ),
    "vipllava": (
        "VipLlava",
        {"vision_config": CLIP, "text_config": text("llama"), "vision_feature_layers": [-1, -2]},
    ),
    "gemma3": (
        "Gemma3",
        {"vision_config": VISION, "text_config": text("gemma3_text", sliding_window=16), "mm_tokens_per_image": 4},
    ),
    "internvl": (
        "InternVL",
        {"vision_config": SQUARE, "text_config": text("qwen2"), "image_seq_length": 4, "downsample_ratio": 0.5},
    ),
    "aya_vision": (
        "AyaVision",
        {"vision_config": SIGLIP, "text_config": text("cohere2", sliding_window=32), "downsample_factor": 2},
    ),
    "idefics3": ("Idefics3", {"vision_config": VISION, "text_config": text("llama"), "scale_factor": 2}),
    "smolvlm": ("SmolVLM", {"vision_config": VISION, "text_config": text("llama"), "scale_factor": 2}),
}


def make(name: str) -> Any:
    import_torchvision()
    import transformers

    prefix, options = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(image_token_id=63, pad_token_id=0, **options)
    model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_generation(tmp_path: Path, name: str) -> None:
    model = make(name)
    exported = fxonnx.huggingface.export(model, tmp_path, layout="transformers.js")
    assert exported.task == "image-text-to-text"
    files = ["decoder_model_merged.onnx", "embed_tokens.onnx", "vision_encoder.onnx"]
    assert [file.name for file in exported.files] == files
    assert all(check.passed for check in exported.checks)
    loaded = fxonnx.huggingface.load(tmp_path)
    inputs = image_text.image_text_inputs(model, Sizes(batch=3, tokens=5, seed=7))
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    assert torch.equal(loaded.generate(**inputs, **options), model.generate(**inputs, **options))
    text_only = {"input_ids": torch.tensor([[3, 4, 5, 6]])}
    assert torch.equal(loaded.generate(**text_only, **options), model.generate(**text_only, **options))


def test_dtypes_and_calls(tmp_path: Path) -> None:
    """Embeddings have nothing to quantize; a call with pixels returns the logits of eager torch."""
    model = make("llava")
    exported = fxonnx.huggingface.export(model, tmp_path, layout="transformers.js", dtype="fp32,q8,q4")
    sizes = {file.name: file.stat().st_size for file in exported.files}
    assert len(sizes) == 9
    assert sizes["decoder_model_merged_q4.onnx"] < sizes["decoder_model_merged.onnx"]
    loaded = fxonnx.huggingface.load(tmp_path)
    inputs = image_text.image_text_inputs(model, Sizes())
    inputs["attention_mask"][:] = 1
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits, atol=1e-4, rtol=1e-3)
    inputs["input_ids"][0, 0] = 63
    message = r"\d+ tokens of images, but \d+ features of images\nhint: the processor of the model inserts the tokens"
    with pytest.raises(ArgumentError, match=message):
        loaded(**inputs)


def test_models_whose_images_need_more_inputs(tmp_path: Path) -> None:
    import_torchvision()
    from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration

    config = LlavaNextConfig(
        vision_config=CLIP, text_config=text("llama"), image_token_id=63, image_grid_pinpoints=[[32, 32]]
    )
    model = LlavaNextForConditionalGeneration(config)
    with pytest.raises(ArgumentError, match=r"does not compute features of pixels alone: .*image_sizes"):
        fxonnx.huggingface.export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


GRIDS = ("exaone4_5", *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY_GRIDS))
IMAGE = 299


def grid_prompts(model: Any) -> list[tuple[str, dict[str, torch.Tensor]]]:
    """Two images of different sizes in one prompt, in a padded batch, and a long prompt without images."""
    grids = torch.tensor([[1, 6, 4], [1, 4, 10]])
    patches = image_text.image_inputs(model, Sizes())["pixel_values"].shape[1]
    images = {"pixel_values": torch.randn(64, patches), "image_grid_thw": grids}
    first, second = [20, 296, *[IMAGE] * 6, 295, 23], [25, 26, 27, 296, *[IMAGE] * 10, 295, 24, 28, 29]
    together = torch.tensor([[*first, *second]])
    apart = torch.tensor([[0] * (len(second) - len(first)) + first, second])
    long = torch.randint(3, 290, (1, 120))
    cases = [("two images", together, images), ("batch", apart, images), ("long", long, {})]
    takes_kinds = "mm_token_type_ids" in inspect.signature(model.forward).parameters
    return [
        (
            name,
            {"input_ids": ids, "attention_mask": (ids != 0).long(), **given}
            | ({"mm_token_type_ids": ids.eq(IMAGE).int()} if takes_kinds and given else {}),
        )
        for name, ids, given in cases
    ]


@pytest.mark.parametrize("name", GRIDS)
def test_images_with_grids(tmp_path: Path, name: str) -> None:
    """One file computes images of any sizes, one after another; positions of three axes are transformers'."""
    model = make_multimodal("AutoModelForMultimodalLM", name)
    fxonnx.huggingface.export(model, tmp_path, layout="transformers.js", verify=name == "exaone4_5")
    loaded = fxonnx.huggingface.load(tmp_path)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    for case, inputs in grid_prompts(model):
        assert torch.equal(loaded.generate(**inputs, **options), model.generate(**inputs, **options)), case
        shown = inputs["attention_mask"].bool()
        with torch.no_grad():
            expected, found = model(**inputs).logits[shown], loaded(**inputs).logits[shown]
        torch.testing.assert_close(found, expected, atol=5e-4, rtol=1e-3)
    video = {"pixel_values_videos": torch.randn(4, 8), "video_grid_thw": torch.tensor([[1, 2, 2]])}
    for call in (loaded, loaded.generate):
        with pytest.raises(
            ArgumentError, match="pixel_values_videos: the exported files compute images only, no video"
        ):
            call(input_ids=torch.tensor([[3, 298, 4]]), **video)


def test_models_that_look_up_a_number_of_patches(tmp_path: Path) -> None:
    model = make_multimodal("AutoModelForMultimodalLM", "aria")
    with pytest.raises(
        ArgumentError, match="does not compute features of pixels alone: 'Number of patches 4 not found"
    ):
        fxonnx.huggingface.export(model, tmp_path / "out")


def test_further_features_for_layers(tmp_path: Path) -> None:
    model = make_multimodal("AutoModelForMultimodalLM", "qwen3_vl")
    with pytest.raises(ArgumentError, match="layers of Qwen3VLForConditionalGeneration read further features of image"):
        fxonnx.huggingface.export(model, tmp_path / "out")


def test_models_without_features_in_place_of_tokens(tmp_path: Path) -> None:
    model = make("llava")
    model.config.image_token_id = None
    with pytest.raises(ArgumentError, match="does not put features of images in place of tokens"):
        fxonnx.huggingface.export(model, tmp_path / "out")
