"""The models that are measured, at their real sizes, with random weights, and which of their sizes may be dynamic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.models.torchvision_shim import import_torchvision

__all__ = ["DYNAMIC_AXES", "SPEED_MODELS", "Example", "bert_base", "linear_layers"]

Example = tuple[nn.Module, tuple[Any, ...]]
"""A model in eval mode and its positional example inputs."""


def _image_model(name: str) -> Example:
    model = getattr(import_torchvision().models, name)(weights=None)
    return model.eval(), (torch.randn(1, 3, 224, 224),)


def bert_base() -> Example:
    """BERT-base over 64 tokens."""
    import_torchvision()  # transformers imports it, where it is installed
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()).eval(), (torch.randint(0, 1000, (1, 64)),)


def _llama() -> Example:
    """A Llama of 16 small layers: as many nodes as a real one, without its weights."""
    import_torchvision()
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=16,
        num_attention_heads=8,
        use_cache=False,
    )
    return LlamaModel(config).eval(), (torch.randint(0, 1000, (1, 64)),)


def linear_layers(count: int, size: int) -> Example:
    """``count`` bias-free square linear layers: nothing but weights, ``4 * count * size ** 2`` bytes of them."""
    layers = [nn.utils.skip_init(nn.Linear, size, size, bias=False) for _ in range(count)]
    for layer in layers:
        layer.weight.data.fill_(1e-3)
    return nn.Sequential(*layers).eval(), (torch.randn(1, size),)


SPEED_MODELS: Mapping[str, Callable[[], Example]] = {
    "resnet50": partial(_image_model, "resnet50"),
    "vit_b_16": partial(_image_model, "vit_b_16"),
    "swin_t": partial(_image_model, "swin_t"),
    "convnext_tiny": partial(_image_model, "convnext_tiny"),
    "efficientnet_b0": partial(_image_model, "efficientnet_b0"),
    "bert_base": bert_base,
    "llama_16_layers": _llama,
}

_IMAGE = {0: "batch", 2: "height", 3: "width"}
_TEXT = {0: "batch", 1: "sequence"}

DYNAMIC_AXES: Mapping[str, Mapping[int, str]] = {
    "resnet50": _IMAGE,
    # It asserts the size of the image.
    "vit_b_16": {0: "batch"},
    "swin_t": {0: "batch"},
    "convnext_tiny": _IMAGE,
    "efficientnet_b0": _IMAGE,
    "bert_base": _TEXT,
    "llama_16_layers": _TEXT,
}
"""Axes of the only input that a dynamic export leaves open."""
