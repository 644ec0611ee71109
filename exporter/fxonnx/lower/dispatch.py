"""From an FX node to the translation that takes it."""

from __future__ import annotations

from typing import Any

import torch

from fxonnx_translations.registry import Call, Registry, Translation

__all__ = ["bind", "find", "is_translated"]


def bind(node: torch.fx.Node) -> dict[str, Any]:
    """The node's arguments by schema name, as FX holds them; absent ones keep the translation's own defaults."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return {f"arg_{position}": argument for position, argument in enumerate(node.args)} | dict(node.kwargs)
    # More positional arguments than the schema has can not occur in a graph that torch ran.
    bound = {parameter.name: argument for parameter, argument in zip(target._schema.arguments, node.args, strict=False)}
    bound.update(node.kwargs)
    return bound


def _facts(argument: Any) -> Any:
    if isinstance(argument, torch.fx.Node):
        return argument.meta.get("val")
    if isinstance(argument, (list, tuple)):
        return [_facts(item) for item in argument]
    return argument


def find(node: torch.fx.Node, registry: Registry, opset: int) -> tuple[Translation | None, tuple[str, ...]]:
    """The translation for a node, or None and why every candidate declined."""
    target = node.target
    if not callable(target):
        return None, ()
    simple = registry.unconditional(target)
    if simple is not None:
        return simple, ()
    if target not in registry:
        return None, ()
    arguments = {}
    if isinstance(target, torch._ops.OpOverload):
        arguments = {
            parameter.name: parameter.default_value
            for parameter in target._schema.arguments
            if parameter.has_default_value()
        }
    arguments.update((name, _facts(argument)) for name, argument in bind(node).items())
    return registry.find(Call(target, arguments, opset))


def is_translated(node: torch.fx.Node, registry: Registry, opset: int) -> bool:
    """Whether the node needs no decomposition."""
    return find(node, registry, opset)[0] is not None
