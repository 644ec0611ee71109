"""Decompose operators without a translation, each only as far as needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from fxonnx_translations._torch_compat import OpOverload

from ..errors import NO_DECOMPOSITION
from .graph_utils import find_attribute
from .tracing import TraceError, call_key, decompositions, splice_trace, trace_call

__all__ = ["REASON_KEY", "decompose"]

REASON_KEY = "not_decomposed_because"
"""Key of ``node.meta`` for the reason why a node cannot be decomposed."""


def decompose(gm: torch.fx.GraphModule, keep: Callable[[torch.fx.Node], bool]) -> list[torch.fx.Node]:
    """Decompose, in place, every operator call for which ``keep`` is False.

    The subgraphs of ``cond``, ``while_loop``, ``scan`` and other higher-order operators are also decomposed. The
    higher-order operators themselves and Python functions such as ``operator.add`` on sizes are kept.

    Args:
        gm: A functional graph module with fake values in ``node.meta["val"]``; changed in place.
        keep: Whether a call, of the graph or of a decomposition, needs no decomposition. Not called for nodes without
            users, nor for nodes whose value is a size.

    Returns:
        The calls that have no decomposition into operators to keep. They are unchanged, with the reason under
        ``node.meta[REASON_KEY]``.
    """
    return _Decomposer(keep).run(gm, ())


class _Decomposer:
    """One run, with a cache of complete decompositions, so that further calls of the same kind are only spliced."""

    def __init__(self, keep: Callable[[torch.fx.Node], bool]) -> None:
        self._keep = keep
        self._templates: dict[Hashable, torch.fx.GraphModule | str] = {}

    def run(self, owner: torch.fx.GraphModule, ancestors: tuple[Hashable, ...]) -> list[torch.fx.Node]:
        failed: list[torch.fx.Node] = []
        bodies: dict[str, torch.fx.GraphModule] = {}
        for node in list(owner.graph.nodes):
            if node.op == "get_attr":
                body = find_attribute(owner, str(node.target))
                if isinstance(body, torch.fx.GraphModule):
                    bodies[str(node.target)] = body
            elif _is_operator(node) and not self._keep(node):
                template = self._template(node, ancestors)
                if isinstance(template, torch.fx.GraphModule):
                    splice_trace(owner, node, template)
                else:
                    node.meta[REASON_KEY] = template
                    failed.append(node)
        for body in bodies.values():
            failed.extend(self.run(body, ancestors))
        return failed

    def _template(self, node: torch.fx.Node, ancestors: tuple[Hashable, ...]) -> torch.fx.GraphModule | str:
        """The complete decomposition of a call, or the reason why there is none."""
        key = call_key(node)
        if key in ancestors:
            return f"{node.target} decomposes into itself"
        found = self._templates.get(key)
        if found is None:
            found = self._expand(node, (*ancestors, key))
            # A failure inside a cycle may be due to the ancestors of this path only, so it is not cached.
            if isinstance(found, torch.fx.GraphModule) or not ancestors:
                self._templates[key] = found
        return found

    def _expand(self, node: torch.fx.Node, ancestors: tuple[Hashable, ...]) -> torch.fx.GraphModule | str:
        reasons = []
        for function in decompositions(node.target):
            try:
                trace = trace_call(node, function)
            except TraceError as error:
                reasons.append(str(error))
                continue
            failed = self.run(trace, ancestors)
            if not failed:
                return trace
            reasons.extend(f"it needs {left.target}: {left.meta[REASON_KEY]}" for left in failed[:1])
        return "; ".join(dict.fromkeys(reasons)) or NO_DECOMPOSITION


def _is_operator(node: torch.fx.Node) -> bool:
    """Whether a node is an operator call with tensor results and users; sizes are symbolic expressions, not calls."""
    return (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))
        and bool(node.users)
    )
