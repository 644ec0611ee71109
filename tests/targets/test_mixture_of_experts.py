"""Mixtures of experts for onnxruntime-genai: one operator for each layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fxonnx

from ..models.torchvision_shim import import_torchvision

SIZES: dict[str, Any] = {
    **{"vocab_size": 50, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}
MLA: dict[str, Any] = {
    **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 16},
    **{"num_key_value_heads": 4, "first_k_dense_replace": 0, "n_shared_experts": 1},
}
IDS = torch.randint(3, 50, (2, 5), generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Case:
    """An architecture of transformers, and the number of its layers that are fused."""

    name: str
    options: dict[str, Any]
    fused: int = 1

    def __str__(self) -> str:
        return f"{self.name}-{'-'.join(self.options)}"


CASES = (
    Case("qwen3_moe", {"num_experts": 8, "norm_topk_prob": True}),
    Case("qwen3_moe", {"num_experts": 6, "norm_topk_prob": False}),
    Case("mixtral", {"num_local_experts": 8}),
    Case("gpt_oss", {"num_local_experts": 4, "num_hidden_layers": 2}, fused=2),
    # Routers that add a bias to sigmoids, and choose groups of experts first.
    Case("glm4_moe", {"n_routed_experts": 4, "first_k_dense_replace": 0}),
    Case("deepseek_v3", {**MLA, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}),
    Case(
        "deepseek_v2",
        {**MLA, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"},
    ),
    Case("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2}),
    # Routers that select one expert after the other, or scale the inputs of the experts.
    Case("phimoe", {"num_local_experts": 4}),
    Case("llama4_text", {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 24}),
    # Experts without a gated SiLU.
    Case("qwen3_moe", {"num_experts": 4, "norm_topk_prob": True, "hidden_act": "gelu"}, fused=0),
)


def exported(case: Case, **options: Any) -> fxonnx.ONNXProgram:
    import_torchvision()
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(case.name, **{**SIZES, **case.options})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return fxonnx.export(
        model,
        kwargs={"input_ids": IDS, "use_cache": False},
        dynamic_shapes={"input_ids": {0: "batch", 1: "tokens"}},
        **options,
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_experts_become_one_operator(case: Case) -> None:
    program = exported(case, target="onnxruntime-genai", verify="auto")
    operators = Counter(node.op_type for node in program.model.graph)
    assert program.record.patterns["mixture_of_experts"] == operators["MoE"] == case.fused
    assert bool(case.fused) == (not operators["Loop"])


@pytest.mark.parametrize(
    ("name", "options", "quantize"),
    [
        ("qwen3_moe", {"num_experts": 8, "norm_topk_prob": False}, fxonnx.QuantizeConfig("int4", symmetric=False)),
        ("gpt_oss", {"num_local_experts": 4}, fxonnx.QuantizeConfig("int4", include=["*.experts"])),
        ("mixtral", {"num_local_experts": 4}, fxonnx.QuantizeConfig("int8")),
        ("glm4_moe", {"n_routed_experts": 4, "first_k_dense_replace": 0}, fxonnx.QuantizeConfig("int4")),
        ("phimoe", {"num_local_experts": 4}, fxonnx.QuantizeConfig("int4", accuracy_level=1)),
        (
            "llama4_text",
            {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 32},
            fxonnx.QuantizeConfig("int4"),
        ),
    ],
)
def test_quantized_experts(name: str, options: dict[str, Any], quantize: fxonnx.QuantizeConfig) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "moe_intermediate_size": 32}
    program = exported(Case(name, {**options, **sizes}), target="onnxruntime-genai", quantize=quantize)
    program.verify()
    operators = Counter(node.op_type for node in program.model.graph)
    assert operators["QMoE"] == 1
    assert not operators["MoE"]
    # Rounding a router would select other experts.
    floats = operators["MatMul"] + operators["Gemm"]
    assert floats == 1 if quantize.include == ("*",) else not operators["MatMulNBits"]
    stored = program.model.graph.initializers
    assert all("::" in key for key in stored if "experts" in key and "bias" not in key)


class Experts(torch.nn.Module):
    """A router, and the experts of transformers.

    Args:
        route: Returns the numbers of the chosen experts and their weights, for logits.
        limit: The bound of gates and linear parts.
    """

    def __init__(self, route: Callable[[Tensor], tuple[Tensor, Tensor]], limit: float | None = None) -> None:
        super().__init__()
        self.route, self.limit = route, limit
        self.num_experts, self.has_gate, self.has_bias, self.is_transposed = 6, True, False, False
        self.has_post_expert_norm = self._is_expert_parallel = False
        self.router = torch.nn.Linear(16, self.num_experts)
        self.gate_up_proj = torch.nn.Parameter(torch.randn(self.num_experts, 48, 16))
        self.down_proj = torch.nn.Parameter(torch.randn(self.num_experts, 16, 24))

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, linear = both.chunk(2, dim=-1)
        if self.limit is None:
            return torch.nn.functional.silu(gate) * linear
        gate, linear = gate.clamp(max=self.limit), linear.clamp(min=-self.limit, max=self.limit)
        return (linear + 1.0) * (gate * torch.sigmoid(gate * 1.5))

    def forward(self, x: Tensor) -> Tensor:
        from transformers.integrations.moe import grouped_mm_experts_forward

        return grouped_mm_experts_forward(self, x, *self.route(self.router(x)))


def _by(scores: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def route(logits: Tensor) -> tuple[Tensor, Tensor]:
        weights = scores(logits)
        chosen = logits.topk(2, dim=-1).indices
        return chosen, weights.gather(1, chosen)

    return route


def _by_position(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The same expert twice, which one operator does not compute."""
    return torch.zeros_like(logits[:, :2], dtype=torch.int64), logits[:, :2].sigmoid()


def _scaled(logits: Tensor) -> tuple[Tensor, Tensor]:
    weights, chosen = logits.sigmoid().topk(2, dim=-1)
    return chosen, weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * 2.5


ROUTERS: dict[str, tuple[Experts, bool]] = {
    "sigmoids": (Experts(_scaled), True),
    "weights of zero": (Experts(_by(lambda logits: torch.relu(logits - 0.5))), True),
    "roots": (Experts(_by(lambda logits: torch.nn.functional.softplus(logits).sqrt())), True),
    "masked": (Experts(_by(lambda logits: logits.exp().masked_fill(logits < 0, 0.0).clamp(min=0.0))), True),
    "bounded halves": (Experts(_scaled, limit=0.5), True),
    "negative weights": (Experts(_by(lambda logits: logits)), False),
    "a negative factor": (Experts(_by(lambda logits: logits.sigmoid() * -0.5)), False),
    "repeated experts": (Experts(_by_position), False),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_routers(name: str) -> None:
    model, is_fused = ROUTERS[name]
    import_torchvision()
    program = fxonnx.export(
        model.eval(), (torch.randn(5, 16),), dynamic_shapes=({0: "tokens"},), target="onnxruntime-genai"
    )
    assert program.record.patterns["mixture_of_experts"] == is_fused
    for tokens in (1, 9):
        x = torch.randn(tokens, 16)
        torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-4)


def test_scaled_inputs_of_several_experts() -> None:
    """One operator computes the inputs of all its experts alike."""
    program = exported(
        Case("llama4_text", {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size_mlp": 24}),
        target="onnxruntime-genai",
        verify=True,
    )
    assert not program.record.patterns["mixture_of_experts"]


def test_loops_over_different_experts() -> None:
    """Products of two routers in one graph, which have tokens for different numbers of experts."""
    import_torchvision()
    from transformers.integrations import moe  # noqa: F401 - registers the operator

    class Products(torch.nn.Module):
        def forward(self, x: Tensor, weights: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            product = torch.ops.transformers.grouped_mm_fallback
            hidden = product(x, weights, first)
            # The second router runs after the first experts, so that its memory may be theirs.
            after = second + (hidden.sum() * 0).to(torch.int32)
            return hidden, product(hidden + 1, weights, after)

    def inputs(*ends: tuple[int, int, int, int]) -> tuple[Tensor, ...]:
        return torch.randn(6, 8), torch.randn(4, 8, 8), *(torch.tensor(end, dtype=torch.int32) for end in ends)

    program = fxonnx.export(Products(), inputs((1, 2, 4, 6), (6, 6, 6, 6)))
    for ends in (((6, 6, 6, 6), (1, 2, 4, 6)), ((0, 0, 3, 6), (2, 6, 6, 6)), ((1, 2, 3, 4), (0, 0, 0, 0))):
        given = inputs(*ends)
        for found, wanted in zip(program(*given), Products()(*given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_experts_that_have_no_blocks() -> None:
    program = exported(CASES[0], target="onnxruntime-genai", quantize="int4", verify=True)
    assert Counter(node.op_type for node in program.model.graph)["MoE"] == 1


def test_new_weights_of_experts() -> None:
    program = exported(CASES[0], target="onnxruntime-genai")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert program.weights.initializers[name] == (f"{name}::reshape",)
    program.apply_weights({name: torch.randn(8, 48, 32)})
    program.verify()


def test_graphs_for_other_targets_are_plain() -> None:
    program = exported(CASES[0])
    assert {node.domain for node in program.model.graph} == {""}
