"""Experts found at run time (``for expert in mask.nonzero()``) become a Loop over the hit experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxonnx

from ...models.torchvision_shim import import_torchvision

CONFIGS = {
    "dbrx": (
        "Dbrx",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 1,
            "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    "openai privacy filter": (
        "OpenAIPrivacyFilter",
        {
            "hidden_size": 32,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "pad_token_id": 0,
        },
    ),
    "longcat flash": (
        "LongcatFlash",
        {
            "hidden_size": 32,
            "num_layers": 1,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_hidden_size": 32,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "head_dim": 8,
            "v_head_dim": 8,
            "moe_topk": 2,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "expert_ffn_hidden_size": 16,
        },
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_models_of_transformers(name: str) -> None:
    import_torchvision()
    transformers: Any = pytest.importorskip("transformers")
    prefix, options = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(vocab_size=99, **options)
    model = getattr(transformers, f"{prefix}Model")(config).eval()
    ids = torch.randint(0, 99, (2, 6))
    program = fxonnx.export(
        model,
        kwargs={"input_ids": ids, "use_cache": False},
        dynamic_shapes={"input_ids": {0: "batch", 1: "sequence"}, "use_cache": None},
    )
    assert "for over a tensor or a dynamic range" in {rewrite.construct for rewrite in program.record.rewrites}
    for shape in ((2, 6), (1, 3), (3, 5)):
        ids = torch.randint(0, 99, shape)
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False)[0]
        torch.testing.assert_close(program(input_ids=ids, use_cache=False)[0], expected, atol=1e-5, rtol=1e-4)


class Experts(nn.Module):
    """Experts whose mask is made without gradients, and of which the last one is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hit = (x > 0).any(0).nonzero()
        result = torch.zeros_like(x)
        for index in hit:
            expert = index[0]
            if expert == 2:
                continue
            (tokens,) = torch.where(x[:, expert] > 0)
            result.index_add_(0, tokens, x[tokens] @ self.weight[expert])
        return result


@pytest.mark.parametrize("opset", [16, 18, 20])
def test_no_one_some_and_all_experts(opset: int) -> None:
    torch.manual_seed(0)
    model = Experts().eval()
    x = torch.tensor([[1.0, -2, -3], [2, -1, 1], [3, -3, -3], [-1, -1, -1]])
    program = fxonnx.export(model, (x,), dynamic_shapes={"x": {0: "tokens"}}, opset_version=opset)
    for given in (x, -x.abs(), x.abs(), -x[:2], x[:1]):
        torch.testing.assert_close(program(given)[0], model(given))


class NamedExperts(nn.ModuleDict):
    """Experts found by name, as in Switch Transformers: the index of an expert becomes a text."""

    def __init__(self) -> None:
        super().__init__({f"expert_{index}": nn.Linear(3, 3) for index in range(3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        for index in (x > 0).any(0).nonzero():
            (tokens,) = torch.where(x[:, index].squeeze(1) > 0)
            result.index_add_(0, tokens, self[f"expert_{index[0]}"](x[tokens]))
        return result


@pytest.mark.parametrize("opset", [16, 20])
def test_experts_with_names_become_conditions(opset: int) -> None:
    torch.manual_seed(0)
    model = NamedExperts().eval()
    x = torch.tensor([[1.0, -2, -3], [2, -1, 1], [3, -3, -3], [-1, -1, -1]])
    program = fxonnx.export(model, (x,), dynamic_shapes={"x": {0: "tokens"}}, opset_version=opset)
    assert sum(node.op_type == "If" for node in program.model.graph) == 3
    for given in (x, -x.abs(), x.abs(), -x[:2], x[:1]):
        torch.testing.assert_close(program(given)[0], model(given))


def test_switch_transformers() -> None:
    import_torchvision()
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 2}
    experts = {"num_experts": 3, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    config = transformers.SwitchTransformersConfig(vocab_size=50, decoder_start_token_id=0, **sizes, **experts)
    model = transformers.SwitchTransformersModel(config).eval()

    def inputs() -> dict[str, Any]:
        ids = {"input_ids": torch.randint(0, 50, (2, 6)), "decoder_input_ids": torch.randint(0, 50, (2, 4))}
        masks = {"attention_mask": torch.ones(2, 6), "decoder_attention_mask": torch.ones(2, 4)}
        return {**ids, **masks, "use_cache": False}

    program = fxonnx.export(model, kwargs=inputs())
    for _ in range(3):
        given = inputs()
        with torch.no_grad():
            expected = model(**given)[0]
        torch.testing.assert_close(program(**given)[0], expected, atol=1e-5, rtol=1e-4)
