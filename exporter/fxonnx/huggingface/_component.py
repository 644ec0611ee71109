"""A component of a model: a module that becomes one file, with its example inputs and dynamic axes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["Component", "Inputs", "with_forward"]

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Component:
    """A module that becomes one file.

    Attributes:
        name: Name of the file, without suffix.
        model: The module; its parameters have the names that they have in the whole model.
        inputs: Makes keyword inputs of given ``Sizes``; for a step of generation, also of a given ``past`` length, and
            with or without ``use_cache``.
        dynamic_shapes: Dynamic dims by graph input name or glob pattern.
        translations: Translations of operators that only this component has.
        generates: Whether it is a step of generation, with a cache.
        has_branch: Whether ``use_cache_branch`` decides if the file computes the keys and values of the encoder.
        has_products: Whether it has layers that can be quantized.
    """

    name: str
    model: Any
    inputs: Callable[..., Inputs]
    dynamic_shapes: Mapping[str, Mapping[int, str]]
    translations: Mapping[Any, Any] = field(default_factory=lambda: MappingProxyType({}))
    generates: bool = False
    has_branch: bool = False
    has_products: bool = True


def with_forward(model: Any, forward: Callable[..., Any]) -> Any:
    """A module with the same parameters and another forward; the model is left unchanged.

    Args:
        model: The model.
        forward: Receives the keyword inputs of the component.
    """
    replaced = copy.copy(model)
    replaced.forward = forward
    return replaced
