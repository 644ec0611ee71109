"""Vision-language models whose images transformers preprocesses: tokens in onnxruntime-genai equal transformers'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fxonnx.genai

from .test_vision_language import TEXT, TOKENS, VOCABULARY, generated, make_tokenizer, with_random_weights

# Older versions, for Python 3.10, do not have all of these models.
og = pytest.importorskip("onnxruntime_genai", minversion="0.18")

IMAGE = TOKENS["[IMG]"]
TOWER: Mapping[str, Any] = {
    **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 16, "patch_size": 4},
}
SAM: Mapping[str, Any] = {
    **{"hidden_size": 16, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 32},
    **{"image_size": 64, "patch_size": 4, "window_size": 2, "global_attn_indexes": [1]},
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
PROJECTED = {"projection_dim": 32}
MODELS: Mapping[str, tuple[str, Mapping[str, Any], str, Mapping[str, Any]]] = {
    "aya_vision": ("AyaVision", {"model_type": "siglip_vision_model", **TOWER}, "cohere2", {}),
    "cohere2_vision": (
        "Cohere2Vision",
        {"model_type": "siglip_vision_model", **TOWER},
        "cohere2",
        {"alignment_intermediate_size": 32},
    ),
    "deepseek_vl": ("DeepseekVL", {"model_type": "siglip_vision_model", **TOWER}, "llama", {}),
    "got_ocr2": ("GotOcr2", SAM, "qwen2", {}),
    "idefics3": ("Idefics3", TOWER, "llama", {"scale_factor": 2}),
    "internvl": (
        "InternVL",
        {"model_type": "internvl_vision", **TOWER, "image_size": [16, 16], "patch_size": [4, 4]},
        "qwen2",
        {},
    ),
    "lighton_ocr": (
        "LightOnOcr",
        {"model_type": "pixtral", **TOWER, "head_dim": 8, "num_channels": 3, "rope_parameters": ROPE},
        "qwen3",
        {"spatial_merge_size": 2},
    ),
    "llama4": (
        "Llama4",
        {
            **TOWER,
            "intermediate_size": 64,
            "projector_input_dim": 16,
            "projector_output_dim": 16,
            "vision_output_dim": 16,
        },
        "llama4_text",
        {},
    ),
    "llava": ("Llava", {"model_type": "clip_vision_model", **TOWER}, "llama", {"vision_feature_layer": -1}),
    # The tokens beside the images have embeddings of the vision tower.
    "ovis2": (
        "Ovis2",
        {**TOWER, "vocab_size": 37},
        "qwen2",
        {"hidden_size": 32, "vocab_size": VOCABULARY, "visual_indicator_token_ids": [21, 22, 26, 27, 28]},
    ),
    "paligemma": ("PaliGemma", {"model_type": "siglip_vision_model", **TOWER, **PROJECTED}, "gemma", PROJECTED),
    "paligemma2": ("PaliGemma", {"model_type": "siglip_vision_model", **TOWER, **PROJECTED}, "gemma2", PROJECTED),
    "smolvlm": ("SmolVLM", TOWER, "llama", {"scale_factor": 2}),
    "vipllava": ("VipLlava", {"model_type": "clip_vision_model", **TOWER}, "llama", {"vision_feature_layers": [-1]}),
}
SIZES: Mapping[str, int] = {"got_ocr2": 64}


def make_model(name: str) -> Any:
    import transformers

    class_name, vision, text, sizes = MODELS[name]
    # In a prompt with images the window is shorter than the image.
    windows: dict[str, dict[str, Any]] = {
        "gemma2": {"num_hidden_layers": 2, "sliding_window": 12, "query_pre_attn_scalar": 8},
        "cohere2": {"sliding_window": 64},
    }
    config = getattr(transformers, f"{class_name}Config")(
        vision_config={**vision},
        text_config={"model_type": text, **TEXT, "head_dim": 8, "num_hidden_layers": 1, **windows.get(text, {})},
        image_token_id=IMAGE,
        **sizes,
    )
    return with_random_weights(getattr(transformers, f"{class_name}ForConditionalGeneration")(config))


@pytest.fixture(scope="module", params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path]:
    model = make_model(request.param)
    out = tmp_path_factory.mktemp(request.param) / "out"
    fxonnx.genai.export(model, out, tokenizer=make_tokenizer(), verify=request.param in ("llava", "ovis2", "paligemma"))
    return request.param, model, out


def image_inputs(name: str, count: int) -> dict[str, torch.Tensor]:
    """The tensors that a processor of transformers returns for some images."""
    size = SIZES.get(name, 16)
    pixels = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(count))
    if name == "lighton_ocr":
        # The images are padded to the size of the largest.
        sizes = torch.tensor([[size, size], [8, 16], [16, 8]][:count])
        return {"pixel_values": pixels, "image_sizes": sizes}
    if name not in ("idefics3", "smolvlm"):
        return {"pixel_values": pixels}
    mask = torch.ones(1, count, size, size, dtype=torch.int64)
    mask[:, -1:, 12:] = 0
    return {"pixel_values": pixels.unsqueeze(0), "pixel_attention_mask": mask}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_tokens_are_equal(exported: tuple[str, Any, Path], count: int) -> None:
    name, model, directory = exported
    images = image_inputs(name, count) if count else {}
    features = 16 if name in ("deepseek_vl", "got_ocr2", "llava", "ovis2", "paligemma", "paligemma2", "vipllava") else 4
    counts = [features] * count if name != "lighton_ocr" else [4, 2, 2][:count]
    pictures = [token for number in counts for token in [*[IMAGE] * number, 22]]
    ids = torch.tensor([[20, 21, *pictures, 23, 24, 25]])
    tensors = og.NamedTensors()
    tensors["input_ids"] = ids.int().numpy()
    tensors["num_image_tokens"] = np.array([sum(counts)])
    for key, value in images.items():
        tensors[key] = value.numpy()
    found = generated(directory, tensors, ids.shape[1])
    types = {"token_type_ids": torch.zeros_like(ids)} if name.startswith("paligemma") else {}
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, **images, **types, max_new_tokens=16, do_sample=False)
    # onnxruntime-genai leaves out the end of the sequence.
    assert [*found, 2][: expected.shape[1]] == expected[0].tolist()


def test_there_is_no_preprocessing(exported: tuple[str, Any, Path]) -> None:
    _, _, directory = exported
    assert not (directory / "genai_processor_config.json").exists()
    with pytest.raises(RuntimeError):
        og.Model(str(directory)).create_multimodal_processor()
