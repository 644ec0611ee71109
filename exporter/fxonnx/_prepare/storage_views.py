"""Rebase ``as_strided`` on the tensor that owns the storage: ONNX tensors have neither strides nor a storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .functionalize.aliases import returns_input, storage_id
from .sizes import is_known

__all__ = ["rebase_storage_views"]

aten = torch.ops.aten


def rebase_storage_views(graph: torch.fx.Graph, is_translated: Callable[[torch.fx.Node], bool]) -> None:
    """Replace the inputs of ``as_strided`` nodes by the contiguous tensors that own their storage, where necessary.

    ``as_strided`` addresses the storage of its input, whatever the layout of the input is: a transposed tensor, a slice
    or an expanded tensor. The owner of the storage, if it is contiguous, has the elements in the order of their
    addresses.

    Args:
        graph: A graph as captured by torch.export; changed in place.
        is_translated: Whether a node has a translation, which ``as_strided`` of a contiguous tensor has.
    """
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        source = node.args[0]
        while source.target is aten.dropout.default and returns_input(source):
            # torch records a copy.
            source = source.args[0]
        node.replace_input_with(node.args[0], source)
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


def _has_all_elements(node: torch.fx.Node, val: torch.Tensor) -> bool:
    """Whether a contiguous tensor has all elements that ``as_strided`` addresses, at every size."""

    def size_of(argument: torch.fx.Node) -> Any:
        return argument.meta["val"]

    given: Any = torch.fx.map_arg(node.args[1:], size_of)
    size, stride, *offset = given
    first: Any = offset[0] if offset else torch.fx.map_arg(node.kwargs.get("storage_offset"), size_of)
    start: Any = 0 if first is None else first - val.storage_offset()
    last: Any = sum((each - 1) * step for each, step in zip(size, stride, strict=True))
    return is_known(start >= 0) and is_known(start + last < val.numel())


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The node that created the storage of a node's tensor."""
    key = storage_id(node.meta["val"])
    owner = node
    while key is not None:
        source = next((source for source in node.all_input_nodes if key in _storage_ids(source)), None)
        if source is None:
            break
        node = source
        # The pieces of a split are items of a list.
        owner = node if isinstance(node.meta["val"], torch.Tensor) else owner
    return owner


def _storage_ids(node: torch.fx.Node) -> list[Any]:
    val = node.meta.get("val")
    return [storage_id(each) for each in (val if isinstance(val, list | tuple) else [val])]


def _is_in_address_order(val: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor's elements are a storage's elements of a dtype, in order; decided without adding guards."""
    if val.dtype != dtype or val.is_conj() or val.is_neg():
        return False
    expected: int | torch.SymInt = 1
    for size, stride in reversed(list(zip(val.shape, val.stride(), strict=True))):
        if not is_known(size == 1) and not is_known(stride == expected):
            return False
        expected = expected * size
    return is_known(val.storage_offset() == 0)
