"""Decoder-only models: tokens in onnxruntime-genai equal those of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fxonnx.genai

from .small_models import generated, generated_by_transformers, make_model, make_tokenizer, prompt

pytest.importorskip("onnxruntime_genai")

MOE: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
# Shorter than the generated sequences.
WINDOW: Mapping[str, Any] = {"sliding_window": 4}
HEAD: Mapping[str, Any] = {"head_dim": 8}
GPT: Mapping[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {**HEAD, **WINDOW},
    "gpt2": GPT,
    "gpt_oss": {**HEAD, **WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama": {},
    "mistral": WINDOW,
    "phi3": {},
    "qwen3_moe": {**HEAD, **MOE, "num_experts": 4},
}


@pytest.mark.parametrize("model_type", MODELS)
def test_tokens_are_equal(model_type: str, tmp_path: Path) -> None:
    model = make_model(model_type, **MODELS[model_type])
    fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), verify=False)
    for batch in (1, 3):
        ids = prompt(batch)
        assert generated(tmp_path / "out", ids) == generated_by_transformers(model, ids)
