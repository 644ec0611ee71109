"""Attention functions in place of transformers' while a model or a part of it is captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import get_ident
from typing import Any

from torch import Tensor, nn

__all__ = ["attention_function"]

_NAME = "flash_attention_in_fxonnx"
"""Beginning of the function's name; modules pass ``cu_seqlens`` to implementations of flash attention only."""


@contextmanager
def attention_function(module: nn.Module, function: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    """In the body, the attention layers of a module call a function.

    Args:
        module: A module of transformers; its configuration is restored afterwards.
        function: Called with the layer, query, key and value, and keyword arguments.
    """
    functions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    found: list[Any] = [each.config for each in module.modules() if hasattr(each, "config")]
    configs = {id(config): config for config in found}.values()
    before = [config._attn_implementation_internal for config in configs]
    name = f"{_NAME}_{get_ident()}"
    functions[name] = function
    for config in configs:
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
        del functions[name]
