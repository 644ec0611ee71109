"""Operators of our own, which stand in captured graphs for a function that is translated as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["define_operator"]


def define_operator(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any] | None = None) -> object:
    """Define an operator, which exists as long as the returned object.

    Args:
        schema: Namespace, name and signature: ``fxonnx::name(Tensor x) -> Tensor``.
        kernel: Computes the results.
        fake: Computes the results for fake tensors; without it, ``kernel`` is called.
    """
    namespace, _, own_schema = schema.partition("::")
    name = own_schema.partition("(")[0]
    make: Any = torch.library.Library
    library = make(namespace, "FRAGMENT")
    library.define(own_schema)
    library.impl(name, kernel, "CompositeExplicitAutograd")
    if fake is not None:
        torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
    return library
