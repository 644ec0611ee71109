"""Encoder-decoder models as three programs, encoder, first step and later steps: together they are ``generate``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from fxonnx._capture.inputs.pytree_objects import object_parts

from .steps import run, session
from .torchvision_shim import import_torchvision

import_torchvision()
transformers = pytest.importorskip("transformers")

TOKENS: Mapping[str, Any] = {"vocab_size": 50, "pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 1}
T5: Mapping[str, Any] = {"d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4}
BART: Mapping[str, Any] = {
    **{f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in (("layers", 2), ("ffn_dim", 64))},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64},
    **{"forced_eos_token_id": None, "forced_bos_token_id": None},
}
WHISPER: Mapping[str, Any] = {
    **{"num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": 64, "begin_suppress_tokens": None},
    **{"suppress_tokens": None, "bos_token_id": 1},
}
CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Bart": BART,
        "Blenderbot": BART,
        "M2M100": BART,
        "MBart": BART,
        "MT5": T5,
        "Marian": BART,
        "Pegasus": BART,
        "T5": T5,
        "UMT5": T5,
        "Whisper": {**BART, **WHISPER},
    }
)
CLASSES = {"Marian": "MarianMTModel"}


def _model(name: str) -> Any:
    config = getattr(transformers, f"{name}Config")(**{"d_model": 32, **TOKENS, **CONFIGS[name]})
    torch.manual_seed(0)
    model = getattr(transformers, CLASSES.get(name, f"{name}ForConditionalGeneration"))(config).eval()
    # With random weights the same token would be repeated otherwise.
    with torch.no_grad():
        for weight in model.get_decoder().parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


def _source(model: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of the encoder: spectra of Whisper's fixed length, or tokens, with padding in the first sequence."""
    if model.main_input_name == "input_features":
        return {"input_features": torch.randn(batch, 8, 12)}
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, -2:] = 0
    return {"input_ids": torch.randint(3, 50, (batch, length)), "attention_mask": mask}


def _sessions(model: Any) -> tuple[onnxruntime.InferenceSession, ...]:
    """Encoder, the step that fills the cross-attention's cache, and the step that reads it."""
    given = _source(model, 2, 7)
    source = {name: {0: "batch"} | ({} if name == "input_features" else {1: "source"}) for name in given}
    encoder = session(model.get_encoder(), given, source)
    with torch.no_grad():
        encoded = model.get_encoder()(**given)
    tokens = torch.randint(3, 50, (2, 6))
    inputs = {"encoder_outputs": encoded, "decoder_input_ids": tokens[:, :4]}
    length = {0: "batch", 1: "source"}
    shapes: dict[str, Any] = {
        "encoder_outputs": {"last_hidden_state": length},
        "decoder_input_ids": {0: "batch", 1: "tokens"},
    }
    if "attention_mask" in given:
        inputs["attention_mask"] = given["attention_mask"]
        shapes["attention_mask"] = length
    with torch.no_grad():
        cache = model(**inputs, use_cache=True).past_key_values
    first = session(model, {**inputs, "use_cache": True}, {**shapes, "use_cache": None})
    past = {name: {0: "batch", 2: "source" if "cross" in name else "past"} for name in object_parts(cache)}
    inputs |= {"decoder_input_ids": tokens[:, 4:], "past_key_values": cache}
    return encoder, first, session(model, inputs, {**shapes, "past_key_values": past})


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_agree_with_generate(name: str) -> None:
    model = _model(name)
    encoder, first, step = _sessions(model)
    caches = {given.name for given in step.get_inputs() if given.name.startswith("past_key_values.")}
    assert caches == {
        f"past_key_values.{kind}_attention_cache.{layer}.{part}"
        for kind in ("self", "cross")
        for layer in range(2)
        for part in ("key", "value")
    }
    given = _source(model, 3, 9)
    expected = model.generate(**given, max_new_tokens=8, do_sample=False, num_beams=1)
    source = {key: value.numpy() for key, value in given.items()}
    encoded = run(encoder, source)["last_hidden_state"]
    fixed = {**source, "encoder_outputs_last_hidden_state": encoded}
    new = np.full((3, 1), 1)
    made = run(first, {**fixed, "decoder_input_ids": new})
    # Without a cache among the inputs, the outputs have the name of the result's field, which transformers 5.24 renamed.
    field = "cache" if any(key.startswith("cache.") for key in made) else "past_key_values"
    state = {key: made[key.replace("past_key_values", field, 1)] for key in caches}
    # The first step: an empty past, but with the encoder's output.
    empty = {key: value[:, :, :0] if "self" in key else value for key, value in state.items()}
    again = run(step, {**fixed, **empty, "decoder_input_ids": new})
    np.testing.assert_allclose(again["logits"], made["logits"], rtol=1e-4, atol=1e-4)
    found = new
    for _ in range(8):
        new = made["logits"][:, -1].argmax(-1)[:, None]
        found = np.concatenate([found, new], 1)
        made = run(step, {**fixed, **state, "decoder_input_ids": new})
        state = {key: made[key.replace("past_key_values", "present", 1)] for key in caches}
    assert found[:, -expected.shape[1] :].tolist() == expected.tolist()
