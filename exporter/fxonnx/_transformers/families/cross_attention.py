"""Decoders whose one file computes the keys and values of the encoder in the first step, and then receives them.

``use_cache_branch`` chooses. During the export, an operator of our own stands for the choice; in the exported graph, it
becomes one If, into whose else-branch the projections of the encoder's states are moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from ...errors import StateError
from ..extras import import_extra

__all__ = ["TRANSLATIONS", "merge_branches", "present_of_both", "reusing_cache"]

_DOMAIN, _NAME = "fxonnx.huggingface", "Reuse"


@torch.library.custom_op("fxonnx_huggingface::reuse", mutates_args=())
def _reuse(past: Tensor, computed: Tensor, use_cache_branch: Tensor) -> Tensor:
    """Return ``past`` if ``use_cache_branch`` is true, otherwise ``computed``.

    Args:
        past: The keys or values of earlier steps, (batch, heads, source, size).
        computed: Those of this step, of the same shape unless ``past`` is empty.
        use_cache_branch: A bool, (1,).
    """
    return (past if bool(use_cache_branch) else computed).clone()


@_reuse.register_fake
def _(past: Tensor, computed: Tensor, use_cache_branch: Tensor) -> Tensor:
    return torch.empty_like(computed, memory_format=torch.contiguous_format)


def _translate(g: Any, past: Any, computed: Any, use_cache_branch: Any) -> Any:
    return g.op(f"{_DOMAIN}::{_NAME}", past, computed, use_cache_branch)


TRANSLATIONS: Mapping[Any, Any] = MappingProxyType({torch.ops.fxonnx_huggingface.reuse.default: _translate})


def reusing_cache(past: Sequence[tuple[Tensor, Tensor]], use_cache_branch: Tensor) -> Any:
    """Make a cache of cross attention that chooses between the keys and values of earlier steps and of this one."""
    cache = import_extra("transformers").DynamicCache(past)

    def update(keys: Tensor, values: Tensor, layer: int, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        old_keys, old_values = past[layer]
        chosen = _choose(old_keys, keys, use_cache_branch), _choose(old_values, values, use_cache_branch)
        cache.layers[layer].keys, cache.layers[layer].values = chosen
        return chosen

    cache.update = update
    return cache


def _choose(past: Tensor, computed: Tensor, use_cache_branch: Tensor) -> Tensor:
    chosen: Tensor = torch.ops.fxonnx_huggingface.reuse(past, computed, use_cache_branch)
    return chosen


def present_of_both(cache: Any) -> dict[str, Tensor]:
    """The keys and values of a decoder with cross attention by the names of the file's outputs."""
    layers = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
    return {
        f"present.{index}.{part}.{name}": state
        for index, both in enumerate(layers)
        for part, layer in zip(("decoder", "encoder"), both, strict=True)
        for name, state in (("key", layer.keys), ("value", layer.values))
    }


def merge_branches(model: ir.Model) -> None:
    """Replace the choices of a model by one If whose else-branch computes what only the first step needs."""
    graph = model.graph
    choices = [node for node in graph if (node.domain, node.op_type) == (_DOMAIN, _NAME)]
    if not choices:
        return
    outputs = [choice.outputs[0] for choice in choices]
    past, computed = ([_input(choice, index) for choice in choices] for index in (0, 1))
    condition = _input(choices[0], 2)
    moved = _computed_only_for(choices)
    for node in moved:
        graph.remove(node)
    branches = {
        "then_branch": _branch("reuse", [], past, outputs),
        "else_branch": _branch("compute", moved, computed, outputs),
    }
    scalar = ir.node("Squeeze", [condition])
    scalar.outputs[0].name, scalar.outputs[0].type = f"{condition.name}_scalar", condition.type
    scalar.outputs[0].shape = ir.Shape([])
    chosen = ir.node("If", scalar.outputs, attributes=branches, num_outputs=len(choices), name="node_use_cache_branch")
    for old, new in zip(outputs, chosen.outputs, strict=True):
        new.type, new.shape, new.name = old.type, old.shape, old.name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.insert_before(next(iter(graph)), [scalar, chosen])
    graph.remove(choices, safe=True)
    graph.sort()
    model.opset_imports.pop(_DOMAIN, None)


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise StateError(f"{node.name} has no input {index}")
    return value


def _branch(name: str, nodes: Sequence[ir.Node], values: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Graph:
    """A branch that consists of nodes and returns values; those that it does not compute are copied."""
    body, returned = [*nodes], []
    for value, output in zip(values, outputs, strict=True):
        if value.producer() not in nodes or value in returned:
            copied = ir.node("Identity", [value])
            body.append(copied)
            value = copied.outputs[0]
            value.type, value.shape, value.name = output.type, output.shape, f"{output.name}_{name}"
        returned.append(value)
    return ir.Graph([], returned, nodes=body, name=name)


def _computed_only_for(choices: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes whose results only the second inputs of the choices use, in the order of the graph."""
    kept: set[ir.Node] = set()
    pending = [_input(choice, 1).producer() for choice in choices]
    while pending:
        node = pending.pop()
        if node is None or node in kept or any(output.is_graph_output() for output in node.outputs):
            continue
        if node.op_type == "DequantizeLinear":
            continue  # of a weight in 4 bits, which ONNX Runtime does not find from inside of a branch
        uses = [use for output in node.outputs for use in output.uses()]
        if all(use.node in kept or (use.node in choices and use.idx == 1) for use in uses):
            kept.add(node)
            pending += [value.producer() for value in node.inputs if value is not None]
    graph = choices[0].graph
    return [node for node in graph or () if node in kept]
