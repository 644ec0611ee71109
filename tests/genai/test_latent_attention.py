"""Latent attention: a new token multiplies queries, not the cache, by the weight that expands latent vectors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn

from fxonnx._transformers.decoders.attention import attention_over_latents

from .small_models import export_small, generated, generated_by_transformers, make_model, padded
from .test_decoders import LATENT

pytest.importorskip("onnxruntime_genai")

X = torch.tensor([[5, 7, 11, 13, 17, 19]])


def _cached(model: Any) -> torch.Tensor:
    """Logits of three tokens after three others, with a mask as in a padded batch."""
    past = model(X[:, :3]).past_key_values
    mask = torch.ones(1, 6, dtype=torch.long)
    mask[0, 0] = 0
    logits: torch.Tensor = model(X[:, 3:], attention_mask=mask, past_key_values=past).logits
    return logits


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "minicpm3", "youtu", "glm4_moe_lite"])
def test_logits_are_those_of_expanded_keys_and_values(name: str) -> None:
    model = make_model(name, **LATENT)
    layers = [module for module in model.modules() if hasattr(module, "expand_kv")]
    before = [dict(vars(layer)) for layer in layers]
    with torch.no_grad():
        expected = _cached(model)
        with attention_over_latents(model):
            assert all("expand_kv" in vars(layer) for layer in layers)
            found = _cached(model)
        restored = _cached(model)
    torch.testing.assert_close(found, expected)
    assert not torch.equal(found, expected)
    assert torch.equal(restored, expected)
    assert [dict(vars(layer)) for layer in layers] == before


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_no_product_of_the_cache_with_the_weight(precision: str, tmp_path: Path) -> None:
    model = export_small(tmp_path, "deepseek_v3", sizes=LATENT, precision=precision)
    graph = ir.load(tmp_path / "model.onnx").graph
    names = [name for name in graph.initializers if "kv_b_proj" in name]
    # Both parts of each layer's weight, by heads.
    assert len(names) == 4
    assert all(len(graph.initializers[name].shape or ()) == 3 for name in names)
    assert all(not name.endswith("int4") for name in names)
    if precision == "fp32":
        found = generated(tmp_path, padded(left=False))
        assert found == generated_by_transformers(model, padded(left=True))


def _with_bias(model: Any) -> None:
    layer = model.model.layers[0].self_attn
    layer.kv_b_proj = nn.Linear(layer.kv_b_proj.in_features, layer.kv_b_proj.out_features)


def _subclassed(model: Any) -> None:
    class Adapted(nn.Linear):
        """A weight that is not all of the layer, as with an adapter."""

    layer = model.model.layers[0].self_attn
    layer.kv_b_proj.__class__ = Adapted


def _hooked(model: Any) -> None:
    model.model.layers[0].self_attn.kv_b_proj.register_forward_hook(lambda _layer, _args, result: 2 * result)


def _replaced(model: Any) -> None:
    layer = model.model.layers[0].self_attn
    expand = layer.expand_kv
    layer.expand_kv = lambda latents, rotated: tuple(2 * part for part in expand(latents, rotated))


def _other_form(model: Any) -> None:
    kind = type(model.model.layers[0].self_attn)

    class Swapped(kind):  # type: ignore[misc, valid-type]
        def expand_kv(self, latents: torch.Tensor, rotated: torch.Tensor) -> Any:
            keys, values = super().expand_kv(latents, rotated)
            return keys, 2 * values

    model.model.layers[0].self_attn.__class__ = Swapped


@pytest.mark.parametrize(
    "change", [_with_bias, _subclassed, _hooked, _replaced, _other_form], ids=lambda change: change.__name__
)
def test_other_layers_are_left(change: Callable[[Any], None]) -> None:
    model = copy.deepcopy(make_model("deepseek_v3", **LATENT))
    change(model)
    own = vars(model.model.layers[0].self_attn).get("expand_kv")
    with torch.no_grad():
        expected = _cached(model)
        with attention_over_latents(model):
            first, second = (layer.self_attn for layer in model.model.layers)
            assert vars(first).get("expand_kv") is own
            assert "expand_kv" in vars(second)
            torch.testing.assert_close(_cached(model), expected)


def test_the_registry_of_attention_functions_is_restored() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    model, original = make_model("deepseek_v3", **LATENT), functions["sdpa"]

    def own(*args: Any, **options: Any) -> Any:
        return original(*args, **options)

    with attention_over_latents(model):
        assert functions["sdpa"] is not original
    assert "sdpa" not in functions._local_mapping
    functions["sdpa"] = own
    try:
        with attention_over_latents(model):
            assert functions["sdpa"] is not own
        assert functions["sdpa"] is own
    finally:
        del functions["sdpa"]
    assert functions["sdpa"] is original


def test_other_implementations_of_attention_are_left() -> None:
    model = copy.deepcopy(make_model("deepseek_v3", **LATENT))
    model.set_attn_implementation("eager")
    with attention_over_latents(model):
        assert not any("expand_kv" in vars(module) for module in model.modules())
