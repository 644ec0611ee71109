"""Directories for devices that the tests do not have: the operators, the configuration, and the tokens on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime_genai as og
import pytest
import torch
from torch import nn

import fxonnx
import fxonnx.genai
from fxonnx.errors import ArgumentError
from tests.genai.small_models import generated, generated_by_transformers, make_model, make_tokenizer, prompt

PROVIDERS = {"webgpu": "webgpu", "directml": "dml", "tensorrt-rtx": "NvTensorRtRtx"}
WINDOWS = {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16}


def operators(directory: Path) -> list[str]:
    return [node.op_type for node in onnx.load(directory / "model.onnx", load_external_data=False).graph.node]


def element_type_of_embeddings(directory: Path) -> int:
    graph = onnx.load(directory / "model.onnx", load_external_data=False).graph
    types = {each.name: each.data_type for each in graph.initializer}
    return next(types[node.input[0]] for node in graph.node if node.op_type == "Gather" and node.input[0] in types)


@pytest.mark.parametrize("device", PROVIDERS)
@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_a_directory_for_a_device(device: Any, precision: Any, tmp_path: Path) -> None:
    """The comparison of the export runs the file on the CPU."""
    model = make_model("llama", num_hidden_layers=1)
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), target=device, precision=precision)
    config = json.loads((tmp_path / "genai_config.json").read_text())
    assert config["model"]["decoder"]["session_options"]["provider_options"] == [{PROVIDERS[device]: {}}]
    found = fxonnx.check(tmp_path / "model.onnx", f"onnxruntime-genai-{device}")  # type: ignore[arg-type]
    assert {each.severity for each in found} <= {"slow"}
    is_fused = "GroupQueryAttention" in operators(tmp_path)
    assert is_fused == (device == "webgpu") == config["search"]["past_present_share_buffer"]
    has_blocks = device != "tensorrt-rtx" and precision == "int4"
    assert ("MatMulNBits" in operators(tmp_path)) == has_blocks
    if device != "webgpu":
        assert not found
    if device == "tensorrt-rtx":
        assert element_type_of_embeddings(tmp_path) == onnx.TensorProto.FLOAT16  # it reads no rows of integers
    parsed = og.Config(str(tmp_path))
    if device == "directml" and not og.is_dml_available():
        with pytest.raises(RuntimeError, match="DML provider requested"):
            og.Model(parsed)


@pytest.mark.parametrize(("model_type", "is_fused"), [("mistral", True), ("gemma3_text", True), ("gemma2", False)])
def test_attention_that_webgpu_computes(model_type: str, is_fused: bool, tmp_path: Path) -> None:
    """Its kernel has windows, and ignores softcaps."""
    model = make_model(model_type, **WINDOWS)
    fxonnx.genai.export(model, tmp_path, tokenizer=make_tokenizer(), target="webgpu", precision="fp32", verify=False)
    assert ("GroupQueryAttention" in operators(tmp_path)) == is_fused
    file = tmp_path / "genai_config.json"
    config = json.loads(file.read_text())
    config["model"]["decoder"]["session_options"]["provider_options"] = []
    file.write_text(json.dumps(config))
    assert generated(tmp_path, prompt(1)) == generated_by_transformers(model, prompt(1))


def with_bias(layer: nn.Module, x: torch.Tensor) -> Any:
    return fxonnx.export(layer, (x,), target="onnxruntime-genai", quantize="int4").model


def test_a_bias_is_not_a_part_of_the_product_for_directml() -> None:
    layer = nn.Linear(64, 32).eval()
    x = torch.randn(2, 64)
    assert fxonnx.check(with_bias(layer, x), "onnxruntime-genai-directml")[0].severity == "fails"
    program = fxonnx.export(layer, (x,), target="onnxruntime-genai-directml", quantize="int4")
    assert fxonnx.check(program.model, "onnxruntime-genai-directml") == []
    assert [node.op_type for node in program.model.graph] == ["MatMulNBits", "Add"]
    program.verify((x,))


def test_what_a_device_cannot_run(tmp_path: Path) -> None:
    out, tokenizer = tmp_path / "out", make_tokenizer()
    model = make_model("llama", num_hidden_layers=1)
    table = fxonnx.QuantizeConfig("int4", embeddings="int8")
    with pytest.raises(ArgumentError, match="reads no rows of a table of integers: embeddings='int8'") as caught:
        fxonnx.genai.export(model, out, tokenizer=tokenizer, target="tensorrt-rtx", quantize=table)
    assert caught.value.hint == 'pass embeddings="float" (--embeddings float)'
    with pytest.raises(ArgumentError, match=r"target: DequantizeLinear .* no kernel for DequantizeLinear of uint4"):
        fxonnx.genai.export(model, out, tokenizer=tokenizer, target="tensorrt-rtx", recipe="fast", verify=False)
    with pytest.raises(ArgumentError, match="DirectML does not compute in bfloat16") as caught:
        fxonnx.genai.export(model, out, tokenizer=tokenizer, target="directml", precision="bf16")
    assert caught.value.hint == 'pass precision="fp16"'
    with pytest.raises(ArgumentError, match=r"target: supported for decoder-only models only"):
        fxonnx.genai.export(model, out, tokenizer=tokenizer, target="webgpu", pooling="mean")
    states = make_model("mamba", num_hidden_layers=1, state_size=16)
    with pytest.raises(ArgumentError, match=r"target: com.microsoft::.*TensorRT for RTX does not know the domain"):
        fxonnx.genai.export(states, out, tokenizer=tokenizer, target="tensorrt-rtx", precision="fp16", verify=False)
    assert not out.exists()
