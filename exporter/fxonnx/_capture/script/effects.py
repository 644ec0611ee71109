"""In-place effects of TorchScript nodes: on tensors, on lists and dicts, and on attributes of modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fxonnx_translations._torch_compat import parse_schema

from ...errors import CaptureError

__all__ = ["place_of", "refuse_effects", "schema_of", "writes_container", "written_names"]


def refuse_effects(blocks: Sequence[Any], around: frozenset[str] = frozenset()) -> None:
    """Both branches are traced, and a loop's body once: what they did to lists from around would be done wrongly.

    Raises:
        CaptureError: If a block changes a list, a dict or an attribute that is not its own.
    """
    for block in blocks:
        own = around.union(output.debugName() for node in block.nodes() for output in node.outputs())
        for node in block.nodes():
            if _has_effect(node) and next(node.inputs()).debugName() not in own:
                raise CaptureError(
                    f"{node.kind()} changes something from outside of a branch or loop that depends on data"
                    f"\n  in: {place_of(node)}",
                    hint="let the branch or loop return it",
                )
            refuse_effects(list(node.blocks()), own)


def _has_effect(node: Any) -> bool:
    """Whether a node changes its first operand in place: an attribute of a module, or a list or dict."""
    if node.kind() == "prim::SetAttr":
        return True
    schema = schema_of(node)
    return schema is not None and writes_container(schema)


def schema_of(node: Any) -> Any:
    """The parsed schema of a node, or None where it has none."""
    return parse_schema(node.schema()) if node.schema() != "(no schema)" else None


def writes_container(schema: Any) -> bool:
    """Whether an operator changes a list or dict in place; operators of torch would change a copy of it."""
    first = schema.arguments[0] if schema.arguments else None
    if first is None or first.alias_info is None or not first.alias_info.is_write:
        return False
    return first.type.kind() in ("ListType", "DictType")


def place_of(node: Any) -> str:
    """The line of the script that a node comes from."""
    lines = str(node.sourceRange()).strip().splitlines()
    return lines[0] if lines else "?"


def written_names(blocks: Sequence[Any], names: Iterable[str]) -> frozenset[str]:
    """Those of the tensors around branches that one of the branches changes in place, directly or through a view.

    Args:
        blocks: The branches.
        names: The names of the tensors.
    """
    roots = {name: frozenset((name,)) for name in names}
    written: set[str] = set()
    for block in blocks:
        _follow(block, dict(roots), written)
    return frozenset(written)


def _follow(block: Any, roots: dict[str, frozenset[str]], written: set[str]) -> None:
    """Follows, in the order of the nodes, which tensors from around each value may share memory with."""

    def of(values: Iterable[Any]) -> frozenset[str]:
        return frozenset().union(*(roots.get(value.debugName(), frozenset()) for value in values))

    for node in block.nodes():
        # Without a schema (lists, tuples, branches) an output may be any of the inputs.
        inputs, schema = list(node.inputs()), schema_of(node)
        for inner in node.blocks():
            roots.update((value.debugName(), of(inputs)) for value in inner.inputs())
            _follow(inner, roots, written)
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
