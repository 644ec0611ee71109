"""Rebase ``as_strided`` on the tensor that owns the storage: ONNX tensors have neither strides nor a storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .functionalize.alias_analysis import storage_id
from .functionalize.emit import refuse

__all__ = ["rebase_storage_views"]

aten = torch.ops.aten

_RESHAPES = frozenset({aten.reshape.default, aten.reshape_as.default, aten.flatten.using_ints})


def rebase_storage_views(graph: torch.fx.Graph, is_translated: Callable[[torch.fx.Node], bool]) -> None:
    """Replace the inputs of ``as_strided`` nodes by the contiguous tensors that own their storage, where necessary.

    ``as_strided`` addresses the storage of its input, whatever the layout of the input is: a transposed tensor, a slice
    or an expanded tensor. The owner of the storage, if it is contiguous, has the elements in the order of their
    addresses.

    Args:
        graph: A graph as captured by torch.export; changed in place.
        is_translated: Whether a node has a translation, which ``as_strided`` of a contiguous tensor has.

    Raises:
        PrepareError: If the memory that a node addresses is laid out otherwise at other sizes.
    """
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        source = node.args[0]
        _check_layout(node)
        if is_translated(node) and _has_all_elements(node, source.meta["val"]):
            continue
        owner = _owner(source)
        if owner is source or not _is_in_address_order(owner.meta["val"], source.meta["val"].dtype):
            continue
        size, stride, *offset = node.args[1:]
        first = offset[0] if offset else node.kwargs.get("storage_offset")
        if first is None:
            first = source.meta["val"].storage_offset()
            if not isinstance(first, int):
                continue
        node.args, node.kwargs = (owner, size, stride, first), {}


def _check_layout(node: torch.fx.Node) -> None:
    """Check that the memory layout of the input does not depend on sizes.

    A reshape copies a tensor that is not contiguous, but not where dims of size 1 permit a view; pointwise operators
    keep the layout. Strides that the model derives from those of the tensor are right in either layout, for example
    Longformer's; numbers are not.

    Raises:
        PrepareError: If the strides are numbers and a reshape of a dynamic tensor may or may not copy.
    """
    if not any(_may_copy(each) for each in _producers(node)):
        return
    strides: Any = node.args[0].meta["val"].stride()  # type: ignore[union-attr]
    steps: Any = torch.fx.map_arg(node.args[2], lambda argument: argument.meta["val"])
    # Models that derive their strides split or merge the inner ones.
    if strides and not any(statically_known_true(step == strides[0]) for step in steps):
        refuse(
            node,
            "it addresses the memory of a reshaped tensor, which is a copy at some sizes and a view at others",
            hint="call clone(memory_format=torch.contiguous_format) before as_strided, or export with static sizes",
        )


def _producers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes that a node is computed from, up to copies in contiguous memory."""
    seen: set[torch.fx.Node] = set()
    pending = list(node.all_input_nodes)
    while pending:
        source = pending.pop()
        if source not in seen and source.kwargs.get("memory_format") is not torch.contiguous_format:
            seen.add(source)
            pending += source.all_input_nodes
            yield source


def _may_copy(node: torch.fx.Node) -> bool:
    """Whether a node is a reshape that is a copy at some sizes and a view at others."""
    if node.target not in _RESHAPES:
        return False
    val = node.args[0].meta["val"]  # type: ignore[union-attr]
    return not all(isinstance(size, int) for size in val.shape) and not _is_in_address_order(val, val.dtype)


def _has_all_elements(node: torch.fx.Node, val: torch.Tensor) -> bool:
    """Whether a contiguous tensor has all elements that ``as_strided`` addresses, at every size."""

    def size_of(argument: torch.fx.Node) -> Any:
        return argument.meta["val"]

    size, stride, *offset = torch.fx.map_arg(node.args[1:], size_of)
    first: Any = offset[0] if offset else torch.fx.map_arg(node.kwargs.get("storage_offset"), size_of)
    start: Any = 0 if first is None else first - val.storage_offset()
    last: Any = sum((each - 1) * step for each, step in zip(size, stride, strict=True))  # type: ignore[arg-type]
    return statically_known_true(start >= 0) and statically_known_true(start + last < val.numel())


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The node that created the storage of a node's tensor."""
    key = storage_id(node.meta["val"])
    while True:
        sources = (source for source in node.all_input_nodes if storage_id(source.meta.get("val")) == key)
        source = next(sources, None)
        if key is None or source is None:
            return node
        node = source


def _is_in_address_order(val: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor's elements are a storage's elements of a dtype, in order; decided without adding guards."""
    if val.dtype != dtype or val.is_conj() or val.is_neg():
        return False
    expected: int | torch.SymInt = 1
    for size, stride in reversed(list(zip(val.shape, val.stride(), strict=True))):
        if not statically_known_true(size == 1) and not statically_known_true(stride == expected):
            return False
        expected = expected * size
    return statically_known_true(val.storage_offset() == 0)
