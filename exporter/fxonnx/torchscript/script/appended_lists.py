"""Lists that a loop of TorchScript appends to, for loops whose number of iterations is dynamic.

The appended tensors become one tensor, stacked along its first axis. This requires that the script uses the list only
in ways that such a tensor can express.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from ..._capture.rewriting.operators.sequences import StackedList, join
from .effects import has_side_effect

__all__ = ["appended_lists", "stacked_operation"]

_OPERATIONS = frozenset({"aten::__getitem__", "aten::cat", "aten::len", "aten::stack"})


def appended_lists(block: Any, outer_block: Any) -> dict[str, str] | None:
    """Names of the lists of the enclosing block that a loop body appends to, each once.

    Args:
        block: The body of the loop.
        outer_block: The block that contains the loop.

    Returns:
        Name of each list to name of the value that is appended; None if the loop has other side effects or exits, or if
        a list is used in other ways.
    """
    if not _always_continues(block):
        return None
    own = {value.debugName() for node in block.nodes() for value in node.outputs()}
    found: dict[str, str] = {}
    for node in block.nodes():
        if any(_mutates(inner, own) for inner in node.blocks()):
            return None
        if not has_side_effect(node):
            continue
        target, *values = node.inputs()
        name = target.debugName()
        if name in own:
            continue
        if node.kind() != "aten::append" or name in found or not _is_stackable(target, node, outer_block):
            return None
        found[name] = values[0].debugName()
    return found


def _always_continues(block: Any) -> bool:
    """Whether the condition that a loop body returns is the constant True."""
    condition = next(iter(block.outputs())).node()
    return condition.kind() == "prim::Constant" and condition.output().toIValue() is True


def _mutates(block: Any, own: Collection[str]) -> bool:
    """Whether a block, or a block inside of it, mutates a value from outside."""
    inside = {*own, *(value.debugName() for node in block.nodes() for value in node.outputs())}
    return any(
        (has_side_effect(node) and next(node.inputs()).debugName() not in inside)
        or any(_mutates(inner, inside) for inner in node.blocks())
        for node in block.nodes()
    )


def _is_stackable(items: Any, append: Any, outer_block: Any) -> bool:
    """Whether a list is empty before the loop, and used after it as a stacked tensor can be."""
    created = items.node()
    if created.kind() != "prim::ListConstruct" or list(created.inputs()):
        return False
    beside = {value.debugName() for node in outer_block.nodes() for value in node.outputs()}
    if items.debugName() not in beside:
        return False
    appended = append.output().debugName()
    for use in items.uses():
        result = next(iter(use.user.outputs()), None)
        if result is None:
            return False
        if result.debugName() == appended:
            continue
        is_first = next(use.user.inputs()).debugName() == items.debugName()
        if use.user.kind() not in _OPERATIONS or not is_first:
            return False
    return not list(append.output().uses())


def stacked_operation(kind: str, items: StackedList, *args: Any) -> Any:
    """Run an operation of a list on a list of dynamic length.

    Args:
        kind: The node kind, one of those that ``appended_lists`` accepts.
        items: The list.
        args: The other arguments of the operation.
    """
    if kind == "aten::len":
        return items.symbolic_length
    if kind != "aten::__getitem__":
        return join(torch.stack if kind == "aten::stack" else torch.cat, items, *args)
    (index,) = args
    if isinstance(index, torch.Tensor):
        return items.stacked.index_select(0, index.reshape(1)).squeeze(0)
    return items[index]
