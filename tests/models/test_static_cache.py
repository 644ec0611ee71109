"""A static cache, mutated in place: each step returns the updated cache."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import fxonnx
from fxonnx._capture.inputs.pytree_objects import object_parts

from .torchvision_shim import import_torchvision

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize(("opset", "write"), [(20, "ScatterElements"), (24, "TensorScatter")])
def test_steps_with_a_static_cache(opset: int, write: str) -> None:
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=2, **SMALL)).eval()

    def prompted(batch: int, length: int) -> Any:
        cache = StaticCache(config=model.config, max_cache_len=12)
        prompt = torch.randint(0, 32, (batch, length))
        with torch.no_grad():
            return model(prompt, past_key_values=cache, cache_position=torch.arange(length)).past_key_values

    example = {
        "input_ids": torch.randint(0, 32, (2, 1)),
        "past_key_values": prompted(2, 5),
        "cache_position": torch.tensor([5]),
    }
    shapes = {"input_ids": {0: "batch"}, "past_key_values.*": {0: "batch"}}
    before = {name: part.clone() for name, part in object_parts(example["past_key_values"]).items()}
    program = fxonnx.export(model, kwargs=example, dynamic_shapes=shapes, opset_version=opset)
    assert sum(node.op_type == write for node in program.model.graph) == 4
    for name, part in object_parts(example["past_key_values"]).items():
        assert torch.equal(part, before[name]), name
    names = [str(value.name) for value in program.model.graph.outputs]
    assert names[1:4] == ["present.0.key", "present.0.value", "present.0.cumulative_length"]

    batch, length = 3, 4
    cache = prompted(batch, length)
    ours = deepcopy(cache)
    for position in range(length, length + 4):
        step = {"input_ids": torch.randint(0, 32, (batch, 1)), "cache_position": torch.tensor([position])}
        with torch.no_grad():
            expected = model(**step, past_key_values=cache)
        logits, *present = program(**step, past_key_values=ours)
        torch.testing.assert_close(logits, expected.logits, rtol=1e-4, atol=1e-5)
        state = dict(zip((name.removeprefix("present.") for name in names[1:]), present, strict=True))
        for name, part in object_parts(cache).items():
            torch.testing.assert_close(state[name], part)
            object_parts(ours)[name].copy_(state[name])
