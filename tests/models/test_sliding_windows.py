"""Caches with sliding windows whose past is dynamic by torch.export's dim hints."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.export import Dim

import fxonnx

from .torchvision_shim import import_torchvision

MODELS = ("Mistral", "Gemma2", "Gemma3", "GptOss")


def built(name: str) -> Any:
    import_torchvision()
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    options: dict[str, Any] = {"head_dim": 8, "vocab_size": 20, "num_hidden_layers": 2, "sliding_window": 8}
    if name == "GptOss":
        options |= {"num_local_experts": 2, "num_experts_per_tok": 1}
    config = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")
    return getattr(transformers, f"{name}ForCausalLM")(config(**sizes, **options)).eval()


def call(model: Any, past: int, tokens: int) -> dict[str, Any]:
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.randint(0, 20, (2, past)), past_key_values=cache, use_cache=True)
    return {"input_ids": torch.randint(0, 20, (2, tokens)), "past_key_values": cache}


@pytest.fixture(params=[False, True], ids=["object", "registered"])
def is_registered(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether transformers has registered the cache as a pytree node of keys and values, without its token counters."""
    if not request.param:
        yield False
        return
    import_torchvision()
    from torch.utils import _pytree
    from transformers import DynamicCache
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()
    yield True
    _pytree._deregister_pytree_node(DynamicCache)


HINT = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:the model cannot be exported for all requested sizes")
def test_dim_hints(name: str, is_registered: bool) -> None:
    model = built(name)
    shapes: dict[str, Any] = {"input_ids": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, "past_key_values.*": HINT}
    if is_registered:
        shapes["past_key_values"] = [[HINT] * 2, [HINT] * 2]
        del shapes["past_key_values.*"]
    # The window of 8 tokens keeps 7 of the 12.
    program = fxonnx.export(model, kwargs=call(model, 12 if is_registered else 5, 2), dynamic_shapes=shapes)
    for past, tokens in ((5, 2), (3, 1), (7, 3), (12, 2)):
        given = call(model, past, tokens)
        with torch.no_grad():
            expected = model(**copy.deepcopy(given)).logits
        torch.testing.assert_close(program(**given)[0], expected, atol=1e-5, rtol=1e-4)
