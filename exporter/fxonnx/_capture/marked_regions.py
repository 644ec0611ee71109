"""Capture of ``torch.compiler.nested_compile_region``: the nodes of a region get its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxonnx_translations._torch_compat import recording_mode

from .._provenance import REGIONS_KEY

__all__ = ["call_region"]


def call_region(original: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``invoke_subgraph_placeholder``: call the function, and mark the nodes that it records."""
    mode = recording_mode()
    if mode is None:
        return original(function, *args, **kwargs)
    graph = mode.tracer.graph
    # The number of nodes recorded before identifies the call.
    call = (str(len(graph.nodes)), _name(function))
    before = next(iter(reversed(graph.nodes)))
    result = function(*args, **kwargs)
    node = before.next
    while node.op != "root":
        node.meta[REGIONS_KEY] = (call, *node.meta.get(REGIONS_KEY, ()))
        node = node.next
    return result


def _name(function: Callable[..., Any]) -> str:
    """The name of the function; of its class for ``forward``."""
    qualified = str(getattr(function, "__qualname__", type(function).__name__)).rpartition("<locals>.")[2]
    owner, _, name = qualified.rpartition(".")
    return owner or name if name == "forward" else name
