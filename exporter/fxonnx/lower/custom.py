"""Calling the translations of a ``custom_translation_table``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxscript

from fxonnx_translations.op import Op

__all__ = ["call_custom"]


def call_custom(function: Callable[..., Any], op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Runs a user's translation.

    Args:
        function: An ``@onnxscript.script`` function, whose body is inlined, or a function that takes ``op`` first.
        op: The op object of the node.
        args: The node's positional arguments.
        kwargs: The node's keyword arguments.

    Returns:
        The value or values it returns.
    """
    if isinstance(function, onnxscript.OnnxFunction):
        return op.call_inline(function, *args, **kwargs)
    return function(op, *args, **kwargs)
