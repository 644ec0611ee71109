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
    Family("phi", {"head_dim": 32, "hidden_size": 128, "partial_rotary_factor": 0.5}),
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
    config = AutoConfig.for_model(family.name, **{**SIZES, **family.options})
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        # Larger scores and sinks than the initialization's, so that masks and softcaps matter.
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
    assert fxonnx.check(program.model, "onnxruntime-genai") == []


def test_past_and_present_are_one_buffer() -> None:
    model, _, run = case("llama")
    tokens = [5, 9, 11, 3, 7]
    expected = eager(model, tokens)
    pasts = {
        value.name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 2, BUFFER, 16), np.float32))
        for value in run.get_inputs()
        if value.name.startswith("past")
    }
    for start, end in ((0, 3), (3, 4), (4, 5)):
        binding = run.io_binding()
        binding.bind_cpu_input("input_ids", np.array([tokens[start:end]]))
        binding.bind_cpu_input("attention_mask", np.ones((1, end), np.int64))
        binding.bind_output("logits")
        for name, buffer in pasts.items():
            binding.bind_ortvalue_input(name, buffer)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), buffer)
        run.run_with_iobinding(binding)
        found = binding.copy_outputs_to_cpu()[0]
        np.testing.assert_allclose(found[0], expected[start:end], atol=1e-4, rtol=1e-3)


def test_residual_connections_and_projections() -> None:
    operators = Counter(node.op_type for node in case("llama")[1].model.graph)
    # The first norm follows no residual connection; one addition is of lengths.
    assert operators["SkipSimplifiedLayerNormalization"] == 4
    assert (operators["RMSNormalization"], operators["Add"]) == (1, 1)
    # In each layer: queries, keys and values, the attention's output, and three of the feedforward part.
    assert operators["MatMul"] == 2 * 5 + 1
    assert Counter(node.op_type for node in case("qwen3")[1].model.graph)["Split"] == 2


def test_position_ids_are_those_of_the_caller() -> None:
    model = built(FAMILIES[0])
    program = exported(model, position_ids=True)
    assert program.record.patterns["group_query_attention"] == 2
    tokens, places = [5, 9, 11, 3, 7], np.array([[3, 4, 6, 7, 12]])
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([tokens]), position_ids=torch.tensor(places)).logits[0].numpy()
    cache = Cache(session(program), 1, BUFFER)
    for start, end in ((0, 3), (3, 4), (4, 5)):
        mask = np.ones((1, end), np.int64)
        found = cache([tokens[start:end]], mask, position_ids=places[:, start:end])
        np.testing.assert_allclose(found[0], expected[start:end], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("target", ["onnxruntime-genai", "onnxruntime-genai-cuda"])
def test_half_precision(target: Any) -> None:
    model = built(FAMILIES[0], torch.float16)
    program = exported(model, target=target)
    attention = next(node for node in program.model.graph if node.op_type == "GroupQueryAttention")
    # CUDA's kernels are faster without a bias: prompts are padded at the end.
    assert (len(attention.inputs) > 9) == (target == "onnxruntime-genai")
    run, tokens = session(program), [5, 9, 11, 3, 7]
    pasts = {
        value.name: np.zeros((1, 2, BUFFER, 16), np.float16)
        for value in run.get_inputs()
        if value.name.startswith("past")
    }
    mask = np.ones((1, 5), np.int64)
    found = run.run(["logits"], {"input_ids": np.array([tokens]), "attention_mask": mask, **pasts})[0]
    np.testing.assert_allclose(found[0], eager(model, tokens), atol=5e-2, rtol=5e-2)


def test_bfloat16_on_the_cpu_is_plain() -> None:
    assert exported(built(FAMILIES[0], torch.bfloat16)).record.patterns["group_query_attention"] == 0


class Attention(torch.nn.Module):
    """Attention with a cache and a mask of one form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 48)
        self.form = form

    def forward(self, x: torch.Tensor, mask: torch.Tensor, past_key: torch.Tensor, past_value: torch.Tensor) -> Any:
        parts = self.project(x).unflatten(-1, (3, 1, 16)).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
        past = past_key.shape[2]
        keys = torch.arange(key.shape[2])[None, None, None, :]
        queries = (torch.arange(x.shape[1]) + past)[None, None, :, None]
        allowed = {
            "causal": keys <= queries,
            "late": keys <= queries + 1,
            "chunks": (keys <= queries) & (keys // 4 == queries // 4),
            "positions of the new tokens": keys <= queries - past,
        }[self.form]
        allowed = allowed & mask.bool()[:, None, None, :]
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return output.transpose(1, 2).flatten(2), key, value


@pytest.mark.parametrize(
    ("form", "fused"), [("causal", 1), ("late", 0), ("chunks", 0), ("positions of the new tokens", 0)]
)
def test_only_proved_masks_are_fused(form: str, fused: int) -> None:
    past, model = torch.randn(2, 1, 5, 16), Attention(form).eval()
    args = (torch.randn(2, 3, 16), torch.ones(2, 8, dtype=torch.int64), past, past)
    sizes = ({0: "batch", 1: "new"}, {0: "batch", 1: "total"}, {0: "batch", 2: "past"}, {0: "batch", 2: "past"})
    program = fxonnx.export(model, args, dynamic_shapes=sizes, target="onnxruntime-genai", output_names=["y", "k", "v"])
    assert program.record.patterns["group_query_attention"] == fused
    for batch, new in ((1, 3), (2, 1)):
        mask = torch.ones(batch, 5 + new, dtype=torch.int64)
        mask[0, :2] = 0
        given = torch.randn(batch, new, 16), mask, past[:batch], past[:batch]
        torch.testing.assert_close(program(*given), model(*given), atol=1e-5, rtol=1e-4)
