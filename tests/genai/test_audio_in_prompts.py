"""Models that read audio in place of tokens: the export compares tokens in onnxruntime-genai with transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fxonnx.genai

from .test_image_tiles import make_model
from .test_vision_language import TEXT, TOKENS, make_tokenizer, with_random_weights

# Older versions, for Python 3.10, do not have all of these models.
pytest.importorskip("onnxruntime_genai", minversion="0.18")


def make_voxtral() -> Any:
    from transformers import VoxtralConfig, VoxtralForConditionalGeneration

    audio = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = VoxtralConfig(
        audio_config={**audio, "num_mel_bins": 8, "max_source_positions": 40},
        text_config={"model_type": "llama", **TEXT, "head_dim": 8},
        audio_token_id=TOKENS["[IMG]"],
    )
    return with_random_weights(VoxtralForConditionalGeneration(config))


def test_audio_and_text_alone(tmp_path: Path) -> None:
    """Both exports run their comparisons, the first one with audio."""
    make_voxtral().save_pretrained(tmp_path / "voxtral")
    make_tokenizer().save_pretrained(tmp_path / "voxtral")
    out = fxonnx.genai.export(tmp_path / "voxtral", tmp_path / "audio")
    config = json.loads((out / "genai_config.json").read_text())["model"]
    assert config["image_token_id"] == TOKENS["[IMG]"]
    assert config["vision"]["inputs"] == {"pixel_values": "input_features"}
    fxonnx.genai.export(tmp_path / "voxtral", tmp_path / "text", text_only=True, chat_template=False)
    assert (tmp_path / "text" / "model.onnx").exists()


def test_audio_beside_images_is_left_out(tmp_path: Path) -> None:
    model = make_model("llava")
    model.config.audio_config = model.config.vision_config
    with pytest.warns(UserWarning, match="the model also takes audio, which the files do not have"):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), verify=False)
