"""Caches that transformers has registered as pytree nodes, which its exporters do, and Dim.AUTO for all their axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

import fxonnx
from tests.models.torchvision_shim import import_torchvision


def _nothing(_model: Any) -> None:
    """Leave caches unregistered."""


def _for_exporters(model: Any) -> None:
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

    register_cache_pytrees_for_model(model)


def _for_executorch(_model: Any) -> None:
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()


@pytest.fixture(scope="module")
def model() -> Any:
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(params=[_nothing, _for_exporters, _for_executorch], ids=lambda register: register.__name__.strip("_"))
def registered(request: pytest.FixtureRequest, model: Any) -> Iterator[str]:
    known = set(pytree.SUPPORTED_NODES)
    request.param(model)
    yield request.param.__name__
    for kind in set(pytree.SUPPORTED_NODES) - known:
        pytree._deregister_pytree_node(kind)


def call(model: Any, past: int, tokens: int, batch: int = 2) -> dict[str, Any]:
    from transformers import DynamicCache

    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.randint(0, 60, (batch, past)), past_key_values=cache, use_cache=True)
    mask = torch.ones(batch, past + tokens, dtype=torch.int64)
    return {"input_ids": torch.randint(0, 60, (batch, tokens)), "attention_mask": mask, "past_key_values": cache}


AUTO = dict.fromkeys(range(4), Dim.AUTO)
STEP = {0: Dim.AUTO, 1: Dim.AUTO}
SPECS = {
    "for all tensors": AUTO,
    "by layer": [[AUTO] * 2] * 2,
    "of every tensor": [AUTO] * 4,
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_names_and_values_do_not_depend_on_registrations(registered: str, model: Any, spec: Any) -> None:
    shapes = {"input_ids": STEP, "attention_mask": STEP, "past_key_values": spec}
    program = fxonnx.export(model, kwargs=call(model, 5, 3), dynamic_shapes=shapes)
    parts = [f"{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    inputs = ["input_ids", "attention_mask", *(f"past_key_values.{part}" for part in parts)]
    assert [value.name for value in program.model.graph.inputs] == inputs
    assert [value.name for value in program.model.graph.outputs] == ["logits", *(f"present.{part}" for part in parts)]
    given = call(model, 7, 2, batch=3)
    found = program(**given)
    with torch.no_grad():
        expected = model(**given)
    torch.testing.assert_close(found[0], expected.logits, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_attention_is_fused_where_every_axis_is_dynamic(model: Any) -> None:
    """Keys and values of one layer have one length, although each axis has a symbol of its own."""

    def count(**specs: Any) -> int:
        plain = fxonnx.ExportOptions(guards=False)
        program = fxonnx.export(
            model, kwargs=call(model, 5, 3), dynamic_shapes=specs, target="onnxruntime", options=plain
        )
        assert "Softmax" not in {node.op_type for node in program.model.graph}
        return len(list(program.model.graph))

    batch = {0: "batch", 1: "length"}
    named = count(input_ids=batch, attention_mask={0: "batch", 1: "total"}, past_key_values={0: "batch", 2: "past"})
    assert count(input_ids=STEP, attention_mask=STEP, past_key_values=AUTO) <= named + 6


def test_list_of_specs_for_an_output_of_transformers() -> None:
    import_torchvision()
    from transformers import T5Config, T5ForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    config = T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=32, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).eval()

    def inputs(batch: int, tokens: int, source: int) -> dict[str, Any]:
        states = BaseModelOutput(torch.randn(batch, source, 16))
        return {
            "decoder_input_ids": torch.randint(0, 30, (batch, tokens)),
            "encoder_outputs": states,
            "use_cache": False,
        }

    shapes = {"decoder_input_ids": STEP, "encoder_outputs": [STEP], "use_cache": None}
    program = fxonnx.export(model, kwargs=inputs(2, 3, 5), dynamic_shapes=shapes)
    given = inputs(3, 4, 6)
    torch.testing.assert_close(program(**given)[0], model(**given).logits, atol=1e-5, rtol=1e-4)
