"""Mixtures of experts for onnxruntime-genai: one operator for each layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fxonnx

from ..models.torchvision_shim import import_torchvision

SIZES: dict[str, Any] = {
    **{"vocab_size": 50, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
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
    # Experts without a gated SiLU, and a router that adds a bias to sigmoids.
    Case("qwen3_moe", {"num_experts": 4, "norm_topk_prob": True, "hidden_act": "gelu"}, fused=0),
    Case("glm4_moe", {"n_routed_experts": 4, "first_k_dense_replace": 0}, fused=0),
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
    assert not case.fused or not operators["Loop"]


@pytest.mark.parametrize(
    ("name", "options", "quantize"),
    [
        ("qwen3_moe", {"num_experts": 8, "norm_topk_prob": False}, fxonnx.QuantizeConfig("int4", symmetric=False)),
        ("gpt_oss", {"num_local_experts": 4}, fxonnx.QuantizeConfig("int4", include=["*.experts"])),
        ("mixtral", {"num_local_experts": 4}, fxonnx.QuantizeConfig("int8")),
    ],
)
def test_quantized_experts(name: str, options: dict[str, Any], quantize: fxonnx.QuantizeConfig) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "moe_intermediate_size": 32}
    program = exported(Case(name, {**options, **sizes}), target="onnxruntime-genai", quantize=quantize)
    program.verify()
    operators = Counter(node.op_type for node in program.model.graph)
    assert operators["QMoE"] == 1
    assert not operators["MoE"]
    assert not operators["MatMul" if quantize.include == ("*",) else "MatMulNBits"]
    stored = program.model.graph.initializers
    assert all("::" in key for key in stored if "experts" in key and "bias" not in key)


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
