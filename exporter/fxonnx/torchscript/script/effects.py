"""Side effects of TorchScript nodes: mutation of tensors, lists, dicts and module attributes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from fxonnx_translations._torch_compat import parse_schema

from ..._capture.rewriting.operators.sequences import StackedList, join
from ...errors import CaptureError

__all__ = [
    "appended_lists",
    "has_side_effect",
    "reject_outer_effects",
    "schema_of",
    "script_location",
    "stacked_operation",
    "writes_container",
    "written_names",
]


def reject_outer_effects(blocks: Sequence[Any], around: frozenset[str] = frozenset()) -> None:
    """Reject side effects of data-dependent branches and loops on containers and attributes of outer scopes.

    Both branches are traced, and a loop body once, so that the mutation would happen the wrong number of times.

    Args:
        blocks: The branches, or the body of the loop.
        around: Names of the values of enclosing blocks to which side effects are allowed.

    Raises:
        CaptureError: If a block mutates a list, a dict or an attribute that it did not create.
    """
    for block in blocks:
        own = around.union(output.debugName() for node in block.nodes() for output in node.outputs())
        for node in block.nodes():
            if has_side_effect(node) and next(node.inputs()).debugName() not in own:
                raise CaptureError(
                    f"{node.kind()} mutates a value from outside of a data-dependent branch or loop"
                    f"\n  in: {script_location(node)}",
                    hint="return the new value from the branch or loop instead",
                )
            reject_outer_effects(list(node.blocks()), own)


def has_side_effect(node: Any) -> bool:
    """Whether a node mutates its first operand: a module (by setting an attribute), a list or a dict."""
    if node.kind() == "prim::SetAttr":
        return True
    schema = schema_of(node)
    return schema is not None and writes_container(schema)


def schema_of(node: Any) -> Any:
    """The parsed schema of a node, or None if it has none."""
    return parse_schema(node.schema()) if node.schema() != "(no schema)" else None


def writes_container(schema: Any) -> bool:
    """Whether an operator mutates a list or dict; called through ``torch.ops`` it would mutate a copy."""
    first = schema.arguments[0] if schema.arguments else None
    if first is None or first.alias_info is None or not first.alias_info.is_write:
        return False
    return first.type.kind() in ("ListType", "DictType")


def script_location(node: Any) -> str:
    """The line of the script that a node was compiled from."""
    lines = str(node.sourceRange()).strip().splitlines()
    return lines[0] if lines else "?"


def written_names(blocks: Sequence[Any], names: Iterable[str]) -> frozenset[str]:
    """Names of the outer tensors that a branch writes to in place, directly or through a view.

    Args:
        blocks: The branches.
        names: Names of the outer tensors.
    """
    roots = {name: frozenset((name,)) for name in names}
    written: set[str] = set()
    for block in blocks:
        _track_aliases(block, dict(roots), written)
    return frozenset(written)


def _track_aliases(block: Any, roots: dict[str, frozenset[str]], written: set[str]) -> None:
    """Track, in the order of the nodes, the outer tensors that each value may alias, and those that are written."""

    def of(values: Iterable[Any]) -> frozenset[str]:
        return frozenset().union(*(roots.get(value.debugName(), frozenset()) for value in values))

    for node in block.nodes():
        # Without a schema (lists, tuples, branches) an output may be any of the inputs.
        inputs, schema = list(node.inputs()), schema_of(node)
        for inner in node.blocks():
            roots.update((value.debugName(), of(inputs)) for value in inner.inputs())
            _track_aliases(inner, roots, written)
            inputs.extend(inner.outputs())
        shared = of(inputs)
        if schema is not None:
            aliased = [argument.alias_info is not None for argument in schema.arguments]
            shared = of(value for value, is_aliased in zip(inputs, aliased, strict=False) if is_aliased)
            for value, argument in zip(inputs, schema.arguments, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written |= of([value])
            if all(returned.alias_info is None for returned in schema.returns):
                shared = frozenset()
        roots.update((output.debugName(), shared) for output in node.outputs())


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
