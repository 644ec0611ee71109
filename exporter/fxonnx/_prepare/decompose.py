"""Operators without a translation, each decomposed alone and only as far as needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from fxonnx_translations._torch_compat import OpOverload

from .graph_utils import find_attribute
from .tracing import TraceError, call_key, decompositions, splice_trace, trace_call

__all__ = ["REASON_KEY", "decompose"]

REASON_KEY = "not_decomposed_because"
"""Key of ``node.meta`` under which a node that can not be decomposed says why."""


def decompose(gm: torch.fx.GraphModule, keep: Callable[[torch.fx.Node], bool]) -> list[torch.fx.Node]:
    """Decomposes, in place, every operator that is not to be kept.

    The bodies of ``cond``, ``while_loop``, ``scan`` and the like are decomposed, too; these operators themselves, and
    Python functions such as ``operator.add`` on sizes, never are.

    Args:
        gm: A functional graph module of the caller's own, with values in ``node.meta["val"]``.
        keep: Whether an operator call, of the graph or of a decomposition, can stay as it is. Not asked about calls
            whose result nothing reads, or is a size.

    Returns:
        The operator calls that should not stay but have no decomposition into operators that may. They are left as they
        were and say why under ``node.meta[REASON_KEY]``.
    """
    return _Decomposer(keep).run(gm, ())


class _Decomposer:
    """The templates of one run, complete ones only, so that a second call of the same kind is only spliced."""

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
        """The complete decomposition of a call, or why there is none."""
        key = call_key(node)
        if key in ancestors:
            return f"{node.target} decomposes into itself"
        found = self._templates.get(key)
        if found is None:
            found = self._expand(node, (*ancestors, key))
            # Inside a cycle "decomposes into itself" holds only on this path.
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
        return "; ".join(dict.fromkeys(reasons)) or "torch has no decomposition for it"


def _is_operator(node: torch.fx.Node) -> bool:
    """Whether a call computes tensors that something reads; sizes are followed as expressions, not as calls."""
    return (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))
        and bool(node.users)
    )
