"""Identity elimination: remove operators that return their input, so that fusion patterns match through them."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["eliminate_identities"]

aten = torch.ops.aten

_COPIES = frozenset({aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default})
_CASTS = frozenset({aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten._to_copy.default})
_RESHAPES = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default})
_DROPOUTS = frozenset({aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default})


def eliminate_identities(graph: torch.fx.Graph) -> None:
    """Replace identity operators by their inputs.

    Args:
        graph: A functional graph; changed in place.
    """
    for node in graph.nodes:
        if node.op == "call_function" and _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_identity(node: torch.fx.Node) -> bool:
    kind = node.target
    # A view of the storage depends on the layout of the copy.
    if any(user.target is aten.as_strided.default for user in node.users):
        return False
    if kind not in _COPIES and kind not in _CASTS and kind not in _RESHAPES and kind not in _DROPOUTS:
        return kind is aten.slice.Tensor and _is_full_slice(node)
    source = node.args[0]
    given = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    result = node.meta.get("val")
    # A complex tensor may be lazily conjugated, which copies resolve.
    if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor) or given.is_complex():
        return False
    if kind in _DROPOUTS:
        return bool(node.args[2] is False or node.args[1] == 0)
    return given.dtype == result.dtype and _same_shape(given, result)


def _same_shape(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dim() == second.dim() and all(map(_same, first.shape, second.shape))


def _same(first: Any, second: Any) -> bool:
    """Whether two sizes are known to be equal, without adding a guard."""
    if isinstance(first, int) or isinstance(second, int):
        return isinstance(first, int) and isinstance(second, int) and first == second
    return bool(first.node.expr == second.node.expr)


def _is_full_slice(node: torch.fx.Node) -> bool:
    given: list[Any] = [*node.args, *(0, None, None, 1)[len(node.args) - 1 :]]
    source, axis, first, last, step = given
    if node.kwargs or first not in (0, None) or step != 1 or not isinstance(axis, int):
        return False
    size = source.meta["val"].shape[axis]
    return last is None or (isinstance(last, int) and (last == 2**63 - 1 or (isinstance(size, int) and last >= size)))
