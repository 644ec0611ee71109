"""Decoding of state-space models and hybrids: single-token steps from a zero state agree with ``generate``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

from .steps import dynamic_parts, run, session, zero_state
from .torchvision_shim import import_torchvision

import_torchvision()
transformers = pytest.importorskip("transformers")

SMALL: Mapping[str, Any] = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "pad_token_id": 0, "eos_token_id": None},
    **{"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
SCALAR: Mapping[str, Any] = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1}
LINEAR: Mapping[str, Any] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "layer_types": ["linear_attention", "full_attention"],
}
MODELS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Bamba": {**SCALAR, "attn_layer_indices": [1]},
        "FalconMamba": {"state_size": 8},
        "Jamba": {
            **{"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
            **{"num_experts": 4, "mamba_d_state": 8},
        },
        "Lfm2": {"layer_types": ["conv", "full_attention"], "block_ff_dim": 64},
        "Mamba": {"state_size": 8},
        "Mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1},
    }
)


@pytest.mark.filterwarnings("error:the model cannot be exported for all requested sizes")
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_agree_with_generate(name: str) -> None:
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **MODELS[name]})
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    key = "cache_params" if "Mamba" in name else "past_key_values"
    tokens = torch.randint(3, 50, (2, 6))
    with torch.no_grad():
        cache, larger = (
            model(input_ids=tokens[:batch, -length:], use_cache=True)[key] for batch, length in ((2, 5), (1, 6))
        )
    batch = Dim("batch")
    inputs = {"input_ids": tokens[:, 5:], key: cache, "use_cache": True}
    shapes = {"input_ids": {0: batch}, key: dynamic_parts(cache, larger, batch), "use_cache": None}
    step = session(model, inputs, shapes)
    prompt = torch.randint(3, 50, (3, 2))
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False)
    found, state = prompt.numpy(), zero_state(step, key, 3)
    for index in range(9):
        made = run(step, {"input_ids": found[:, index : index + 1], **state})
        state = {place: made[place.replace(key, "present", 1)] for place in state}
        if index:
            found = np.concatenate([found, made["logits"][:, -1].argmax(-1)[:, None]], 1)
    assert found.tolist() == expected.tolist()
