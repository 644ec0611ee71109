"""Dispatch: select the translation of an FX node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fxonnx_translations._builder.sub_byte import FLOAT4_PAIRS
from fxonnx_translations._complex.parts import on_parts
from fxonnx_translations._registry import OpCall, Registry, Translation
from fxonnx_translations._torch_compat import OpOverload

__all__ = ["arguments_by_name", "find_translation", "is_translated"]


def arguments_by_name(node: torch.fx.Node) -> dict[str, Any]:
    """Bind the node's FX arguments to schema names; absent ones are left to the translation's own defaults."""
    target = node.target
    if not isinstance(target, OpOverload):
        return {f"arg_{position}": argument for position, argument in enumerate(node.args)} | dict(node.kwargs)
    # torch has run this graph, so that there are no more positional arguments than the schema has.
    bound = {parameter.name: argument for parameter, argument in zip(target._schema.arguments, node.args, strict=False)}
    bound.update(node.kwargs)
    return bound


def _fake_value(argument: Any) -> Any:
    """An argument with fake tensors and symbolic numbers instead of FX nodes."""
    if isinstance(argument, torch.fx.Node):
        return argument.meta.get("val")
    if isinstance(argument, (list, tuple)):
        return [_fake_value(item) for item in argument]
    return argument


def find_translation(node: torch.fx.Node, registry: Registry, opset: int) -> tuple[Translation | None, tuple[str, ...]]:
    """The translation of a node, or None and the reasons of the candidates that declined it."""
    target = node.target
    if not callable(target):
        return None, ()
    if _has(node, _is_complex):
        return _find_complex(node, registry, opset)
    if _has(node, _is_float4):
        return None, (f"an element of {FLOAT4_PAIRS} is a pair of numbers, which only a view as uint8 can split",)
    simple = registry.unconditional(target)
    if simple is not None:
        return simple, ()
    if target not in registry:
        return None, ()
    return registry.find(_registry_call(node, opset))


def _registry_call(node: torch.fx.Node, opset: int) -> OpCall:
    """The call as ``accepts`` conditions of translations see it, with the schema's defaults."""
    target: Any = node.target
    arguments = {}
    if isinstance(target, OpOverload):
        arguments = {
            parameter.name: parameter.default_value
            for parameter in target._schema.arguments
            if parameter.has_default_value()
        }
    arguments.update((name, _fake_value(argument)) for name, argument in arguments_by_name(node).items())
    return OpCall(target, arguments, opset)


def _has(node: torch.fx.Node, condition: Callable[[Any], bool]) -> bool:
    """Whether any argument or result has a dtype of a kind."""
    if condition(node.meta.get("val")):
        return True
    return any(condition(argument.meta.get("val")) for argument in node.all_input_nodes)


def _is_float4(val: Any) -> bool:
    return isinstance(val, torch.Tensor) and val.dtype == FLOAT4_PAIRS


def _is_complex(val: Any) -> bool:
    if isinstance(val, torch.Tensor):
        return val.dtype.is_complex
    return isinstance(val, (list, tuple)) and any(map(_is_complex, val))


def _find_complex(node: torch.fx.Node, registry: Registry, opset: int) -> tuple[Translation | None, tuple[str, ...]]:
    call = _registry_call(node, opset)
    found, reasons = registry.find(call, complex=True)
    if found is None or found.data is None:
        return found, reasons
    arguments = {name: _as_real(argument) for name, argument in call.arguments.items()}
    real, reasons = registry.find(replace(call, arguments=arguments))
    if real is None:
        return None, reasons
    return replace(found, function=on_parts(real.function, found.data, has_parts_axis=found.has_parts_axis)), ()


def _as_real(argument: Any) -> Any:
    """The real counterpart of a complex argument, for the translation of the real operator."""
    if isinstance(argument, torch.Tensor) and argument.dtype.is_complex:
        return torch.empty_like(argument, dtype=argument.dtype.to_real())
    if isinstance(argument, torch.dtype) and argument.is_complex:
        return argument.to_real()
    if isinstance(argument, complex):
        return argument.real
    return [_as_real(item) for item in argument] if isinstance(argument, list) else argument


def is_translated(node: torch.fx.Node, registry: Registry, opset: int) -> bool:
    """Whether the node has a translation, so that it needs no decomposition."""
    return find_translation(node, registry, opset)[0] is not None
