"""Language models for onnxruntime-genai: attention over a cache in buffers of a fixed length."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import fxonnx

from ..models.torchvision_shim import import_torchvision

SIZES: dict[str, Any] = {
    **{"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
BUFFER = 24


@dataclass(frozen=True)
class Family:
    """An architecture of transformers, and the attributes of the operator that its first layer has."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


FAMILIES = (
    Family("llama"),
    Family("mistral", {"sliding_window": 4}, {"local_window_size": 4}),
    Family("qwen3"),
    Family("phi3", {"sliding_window": None}),
    Family(
        "gemma2",
        {"sliding_window": 4, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
        {"local_window_size": 4, "softcap": 2.0},
    ),
    Family("gemma3_text", {"sliding_window": 4, "query_pre_attn_scalar": 16}, {"local_window_size": 4}),
    Family(
        "gpt_oss", {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1}, {"local_window_size": 4}
    ),
)


def built(family: Family, dtype: torch.dtype = torch.float32) -> Any:
    import_torchvision()
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(family.name, **SIZES, **family.options)
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        # Larger scores and sinks than those of the initialization, so that masks and softcaps matter.
        if "q_proj" in name or "k_proj" in name or "qkv_proj" in name or "sinks" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    return model.to(dtype)


def exported(model: Any, **options: Any) -> fxonnx.ONNXProgram:
    from transformers import DynamicCache

    config, past = model.config, DynamicCache()
    for layer in range(config.num_hidden_layers):
        shape = (2, config.num_key_value_heads, 5, config.head_dim)
        past.update(*(torch.randn(shape, dtype=model.dtype) for _ in range(2)), layer)
    kwargs = {
        "input_ids": torch.randint(3, 50, (2, 3)),
        "attention_mask": torch.ones(2, 8, dtype=torch.int64),
        "past_key_values": past,
    }
    names: dict[str, Any] = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "total"},
        "past_key_values.*": {0: "batch", 2: "past"},
    }
    if options.pop("position_ids", False):
        kwargs["position_ids"] = torch.arange(5, 8).expand(2, 3).contiguous()
        names["position_ids"] = {0: "batch", 1: "sequence"}
    return fxonnx.export(model, kwargs=kwargs, dynamic_shapes=names, **{"target": "onnxruntime-genai", **options})


@cache
def case(family_name: str) -> tuple[Any, fxonnx.ONNXProgram, onnxruntime.InferenceSession]:
    family = next(one for one in FAMILIES if one.name == family_name)
    model = built(family)
    program = exported(model)
    return model, program, session(program)


def session(program: fxonnx.ONNXProgram) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)


class Cache:
    """The loop of a caller: past and present are one buffer, or grow by the new tokens."""

    def __init__(self, run: onnxruntime.InferenceSession, batch: int, buffer: int) -> None:
        self._run = run
        self._past = {
            value.name: np.full((batch, value.shape[1], buffer, value.shape[3]), 3, np.float32)
            for value in run.get_inputs()
            if value.name.startswith("past")
        }

    def __call__(self, ids: Any, mask: Any, **others: Any) -> np.ndarray:
        feeds = {"input_ids": np.asarray(ids), "attention_mask": np.asarray(mask), **others, **self._past}
        logits, *presents = self._run.run(None, feeds)
        self._past = dict(zip(self._past, presents, strict=True))
        return logits  # type: ignore[no-any-return]


def eager(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()  # type: ignore[no-any-return]


ROWS = ([5, 9, 11, 3, 7, 40, 22], [8, 4, 30], [17])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_padded_batches(family: Family, side: str) -> None:
    model, _, run = case(family.name)
    width = max(map(len, ROWS))
    pads = [[0] * (width - len(row)) for row in ROWS]
    ids = [pad + row if side == "left" else row + pad for row, pad in zip(ROWS, pads, strict=True)]
    mask = np.array([[0] * len(pad) + [1] * len(row) for row, pad in zip(ROWS, pads, strict=True)])
    mask = mask if side == "left" else mask[:, ::-1]
    cache, rows = Cache(run, len(ROWS), BUFFER), [list(row) for row in ROWS]
    found = cache(ids, mask)
    for row, logits, valid in zip(rows, found, mask, strict=True):
        np.testing.assert_allclose(logits[valid == 1], eager(model, row), atol=1e-4, rtol=1e-3)
    for token in (6, 12, 33, 21, 5, 19):
        mask = np.concatenate([mask, np.ones((len(rows), 1), mask.dtype)], 1)
        found = cache([[token]] * len(rows), mask)
        for row, logits in zip(rows, found, strict=True):
            row.append(token)
            np.testing.assert_allclose(logits[-1], eager(model, row)[-1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("buffer", [BUFFER, 0], ids=["shared", "growing"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_several_new_tokens(family: Family, buffer: int) -> None:
    model, program, run = case(family.name)
    cache, tokens = Cache(run, 1, buffer), [5, 9, 11, 3, 7, 40, 22, 8, 4, 30, 17, 25]
    expected = eager(model, tokens)
    for start, end in ((0, 2), (2, 6), (6, 7), (7, 12)):
        found = cache([tokens[start:end]], np.ones((1, end), np.int64))
        np.testing.assert_allclose(found[0], expected[start:end], atol=1e-4, rtol=1e-3)
    operators = Counter(node.op_type for node in program.model.graph)
    assert operators["GroupQueryAttention"] == model.config.num_hidden_layers
    assert not {"Attention", "Cos", "Sin", "RotaryEmbedding"} & set(operators)
    first = next(node for node in program.model.graph if node.op_type == "GroupQueryAttention")
    assert {name: first.attributes[name].value for name in family.attributes} == family.attributes
    assert first.attributes["do_rotary"].value == 1
    assert program.check("onnxruntime-genai") == []
