"""From an FX node to the translation that takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fxonnx_translations._complex.parts import on_parts
from fxonnx_translations._registry import Call, Registry, Translation
from fxonnx_translations._torch_compat import OpOverload

__all__ = ["bind", "find", "is_translated"]


def bind(node: torch.fx.Node) -> dict[str, Any]:
    """The node's arguments by schema name, as FX holds them; absent ones keep the translation's own defaults."""
    target = node.target
    if not isinstance(target, OpOverload):
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
    if _has_complex(node):
        return _find_complex(node, registry, opset)
    simple = registry.unconditional(target)
    if simple is not None:
        return simple, ()
    if target not in registry:
        return None, ()
    return registry.find(_call(node, opset))


def _call(node: torch.fx.Node, opset: int) -> Call:
    target, arguments = node.target, {}
    if isinstance(target, OpOverload):
        arguments = {
            parameter.name: parameter.default_value
            for parameter in target._schema.arguments
            if parameter.has_default_value()
        }
    arguments.update((name, _facts(argument)) for name, argument in bind(node).items())
    return Call(target, arguments, opset)  # type: ignore[arg-type]


def _has_complex(node: torch.fx.Node) -> bool:
    """Whether a tensor argument or result is complex."""
    if _is_complex(node.meta.get("val")):
        return True
    return any(_is_complex(argument.meta.get("val")) for argument in node.all_input_nodes)


def _is_complex(val: Any) -> bool:
    if isinstance(val, torch.Tensor):
        return val.dtype.is_complex
    return isinstance(val, (list, tuple)) and any(map(_is_complex, val))


def _find_complex(node: torch.fx.Node, registry: Registry, opset: int) -> tuple[Translation | None, tuple[str, ...]]:
    call = _call(node, opset)
    found, reasons = registry.find(call, complex=True)
    if found is None or found.data is None:
        return found, reasons
    arguments = {name: _real_facts(argument) for name, argument in call.arguments.items()}
    real, reasons = registry.find(replace(call, arguments=arguments))
    if real is None:
        return None, reasons
    return replace(found, function=on_parts(real.function, found.data)), ()


def _real_facts(argument: Any) -> Any:
    """An argument as the translation for real numbers knows it."""
    if isinstance(argument, torch.Tensor) and argument.dtype.is_complex:
        return torch.empty_like(argument, dtype=argument.dtype.to_real())
    if isinstance(argument, torch.dtype) and argument.is_complex:
        return argument.to_real()
    if isinstance(argument, complex):
        return argument.real
    return [_real_facts(item) for item in argument] if isinstance(argument, list) else argument


def is_translated(node: torch.fx.Node, registry: Registry, opset: int) -> bool:
    """Whether the node needs no decomposition."""
    return find(node, registry, opset)[0] is not None
