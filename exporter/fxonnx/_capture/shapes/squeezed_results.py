"""Results whose rank depends on sizes: those of ``squeeze`` of dynamic axes, without the axes that have one element.

A captured program keeps such an axis at every size. Operators between the squeeze and a result may do so as well if
they compute each element by itself: the axis is removed at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, TensorArgument
from torch.fx import Node

from fxonnx_translations._torch_compat import OpOverload

from ..._own_operators import define_operator

__all__ = ["DynamicSqueeze", "keep_results", "squeeze_results"]

_aten = torch.ops.aten


@dataclass(frozen=True)
class DynamicSqueeze:
    """A squeeze of dynamic axes in a captured program.

    Attributes:
        node: The node, which removes the other axes only.
        axes: The dynamic axes of its result.
    """

    node: Node
    axes: frozenset[int]


def _squeezed(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    # An operator of our own must not return a view.
    return x.squeeze(list(axes)).clone()


def _fake_squeezed(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    return x.new_empty(x.shape)


_OPERATOR = define_operator("fxonnx::squeeze_result(Tensor x, int[] axes) -> Tensor", _squeezed, _fake_squeezed)

_COPIES = (_aten.clone, _aten.to, _aten._to_copy, _aten.detach, _aten.contiguous, _aten.alias)


def squeeze_results(program: ExportedProgram, squeezes: Iterable[DynamicSqueeze]) -> list[Node]:
    """Remove the dynamic axes of one element from the results of a program that are made of squeezed tensors.

    Args:
        program: The captured program.
        squeezes: Its squeezes of dynamic axes.

    Returns:
        The new nodes, which the proof confirms.
    """
    axes = _remaining_axes(program, {one.node: one.axes for one in squeezes})
    output = program.graph.output_node()
    results, added = list(output.args[0]), []
    for position, spec in enumerate(program.graph_signature.output_specs):
        result = results[position]
        if spec.kind != OutputKind.USER_OUTPUT or not isinstance(result, Node) or not axes.get(result):
            continue
        if result.meta["val"].is_complex():
            continue
        with program.graph.inserting_before(output):
            node = program.graph.create_node(
                "call_function",
                torch.ops.fxonnx.squeeze_result.default,
                (result, sorted(axes[result])),
                name=f"{result.name}_squeezed",
            )
        # With memory of its own, unlike views.
        node.meta.update(result.meta, val=result.meta["val"].clone())
        results[position] = node
        spec.arg = TensorArgument(name=node.name)
        added.append(node)
    output.args = (tuple(results),)
    program.graph_module.recompile()
    return added


def keep_results(program: ExportedProgram, added: Iterable[Node]) -> None:
    """Undo ``squeeze_results``."""
    for node in added:
        (source,) = node.all_input_nodes
        for spec in program.graph_signature.output_specs:
            if spec.arg.name == node.name:
                spec.arg = TensorArgument(name=source.name)
        node.replace_all_uses_with(source)
        program.graph.erase_node(node)
    program.graph_module.recompile()


def _remaining_axes(program: ExportedProgram, squeezes: dict[Node, frozenset[int]]) -> dict[Node, frozenset[int]]:
    """The axes of tensors that the model has removed where they have one element."""
    found: dict[Node, frozenset[int]] = {}
    for node in program.graph.nodes:
        before = {axis for source in node.all_input_nodes for axis in found.get(source, ())}
        if node in squeezes:
            found[node] = squeezes[node] | _renumbered(node, before)
        elif before and _is_elementwise(node):
            found[node] = frozenset(before)
    return found


def _renumbered(squeeze: Node, axes: Iterable[int]) -> frozenset[int]:
    """The numbers of axes after a squeeze that removes others."""
    removed: Any = squeeze.args[1]
    return frozenset(axis - sum(other < axis for other in removed) for axis in axes)


def _is_elementwise(node: Node) -> bool:
    """Whether an operator computes each element by itself, with axes as those of one tensor."""
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, OpOverload) or not isinstance(value, torch.Tensor):
        return False
    ranks = [one.meta["val"].dim() for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    return (target.overloadpacket in _COPIES or torch.Tag.pointwise in target.tags) and max(
        ranks, default=0
    ) == value.dim()
