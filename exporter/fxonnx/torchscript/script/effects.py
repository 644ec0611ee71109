"""Side effects of TorchScript nodes: mutation of tensors, lists, dicts and module attributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fxonnx_translations._torch_compat import parse_schema

from ...errors import CaptureError

__all__ = [
    "has_side_effect",
    "reject_outer_effects",
    "schema_of",
    "script_location",
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
    """Track, in the order of the nodes, the outer tensors that each value may alias, and those that are written.

    Args:
        block: The block.
        roots: Value name to names of the outer tensors that it may alias; extended.
        written: Names of the written outer tensors; extended.
    """

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
