"""Caches of 8-bit integers: the logits and tokens of those of floating-point numbers, up to their rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import fxonnx.genai
from fxonnx import ArgumentError

from .small_models import VOCABULARY, make_model, make_tokenizer

pytest.importorskip("onnxruntime_genai")


def logits(directory: Path, ids: np.ndarray, first: int) -> np.ndarray:
    """The logits of the last tokens, computed after the caches of the first ones."""
    session = onnxruntime.InferenceSession(directory / "model.onnx")
    inputs = [value.name for value in session.get_inputs()]
    types = {"tensor(int8)": np.int8, "tensor(float)": np.float32}
    past = {
        value.name: np.zeros((len(ids), value.shape[1], 0, value.shape[3]), types[value.type])
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    names = [value.name for value in session.get_outputs()]
    for start, end in ((0, first), (first, ids.shape[1])):
        mask = np.ones((len(ids), end), np.int64)
        feeds = {"input_ids": ids[:, start:end], "attention_mask": mask, **past}
        if "position_ids" in inputs:
            feeds["position_ids"] = np.arange(start, end)[None]
        results = dict(zip(names, session.run(None, feeds), strict=True))
        past = {name: results[name.replace("past_key_values", "present")] for name in past}
    return results["logits"]


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "opt"])
def test_logits_after_a_past(model_type: str, tmp_path: Path) -> None:
    model = make_model(model_type)
    # Verified: the tokens are generated in onnxruntime-genai.
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), cache="int8", last_logits=False)
    exported = onnx.load(tmp_path / "model.onnx")
    caches = [value for value in (*exported.graph.input, *exported.graph.output) if "key" in value.name]
    assert {value.type.tensor_type.elem_type for value in caches} == {onnx.TensorProto.INT8}
    ids = torch.randint(3, VOCABULARY, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids=ids).logits[:, 29:].numpy()
    found = logits(tmp_path, ids.numpy(), 29)
    assert np.abs(found - expected).max() < 0.05 * np.ptp(expected)
    assert np.abs(found - expected).max() > 1e-5


def test_quantized_weights_and_other_tools(tmp_path: Path) -> None:
    fxonnx.genai.export(make_model("llama"), tmp_path, tokenizer=make_tokenizer(), cache="int8", precision="int4")
    exported = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(exported, full_check=False)
    assert sum(node.op_type == "MatMulNBits" for node in exported.graph.node) > 0


@pytest.mark.parametrize(
    ("model_type", "options", "message"),
    [
        ("llama", {"cache": "int4"}, "expected 'float', 'int8', got 'int4'"),
        ("llama", {"cache": "int8", "target": "cuda"}, "supported for the CPU only"),
        ("bloom", {"cache": "int8"}, "require GroupQueryAttention in all layers, and BloomForCausalLM has another"),
        ("t5", {"cache": "int8"}, "supported for decoder-only models only"),
    ],
)
def test_errors(model_type: str, options: Any, message: str, tmp_path: Path) -> None:
    if model_type == "t5":
        from transformers import T5Config, T5ForConditionalGeneration

        sizes = {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8}
        model: Any = T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes))
    else:
        model = make_model(model_type)
    with pytest.raises(ArgumentError, match=message):
        fxonnx.genai.export(model, tmp_path / "out", tokenizer=make_tokenizer(), verify=False, **options)
