"""Dims whose sizes depend on data: the number of detected objects, and results of ``squeeze`` of dynamic axes.

A captured program keeps a squeezed axis at every size. Operators between the squeeze and a result may do so as well if
they compute each element by itself: the axis is removed at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from fxonnx_translations._torch_compat import OpOverload

from ..._own_operators import define_operator
from ..._provenance import source_line
from ..._warnings import warn_user
from .spec_keys import AxisNames

__all__ = [
    "DynamicSqueeze",
    "data_dependent_lines",
    "keep_results",
    "name_detections",
    "squeeze_results",
    "warn_about_squeezed_dims",
]

_DETECTION = frozenset({"boxes", "scores"})
"""The outputs that a detector has for each image, as in torchvision and transformers."""
_PER_OBJECT = frozenset({*_DETECTION, "labels", "masks", "keypoints", "keypoints_scores"})


def name_detections(
    program: ExportedProgram, paths: Mapping[int, str], dim_names: Mapping[sympy.Symbol, str]
) -> dict[int, AxisNames]:
    """Name the first dims of the outputs of a detector ``num_detections``, and ``num_detections_1`` for the next image.

    Args:
        program: The captured program.
        paths: Index of the user output to its path, ``0.boxes``.
        dim_names: The names of other dims, and of those that have the user's names.

    Returns:
        Index of the user output to axis to name.
    """
    groups: dict[str, dict[str, int]] = {}
    for position, path in paths.items():
        group, _, name = path.rpartition(".")
        groups.setdefault(group, {})[name] = position
    values = _outputs(program)
    unused = (name for name in _numbered() if name not in dim_names.values())
    names: dict[sympy.Expr, str] = {}
    found: dict[int, AxisNames] = {}
    for members in groups.values():
        if not members.keys() >= _DETECTION:
            continue
        for name, position in members.items():
            value = values[position]
            size = value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else None
            if name in _PER_OBJECT and isinstance(size, torch.SymInt) and free_unbacked_symbols(size):
                expression = size.node.expr
                if expression not in dim_names:
                    names[expression] = names.get(expression) or next(unused)
                    found[position] = {0: names[expression]}
    return found


def _numbered() -> Iterator[str]:
    yield "num_detections"
    yield from (f"num_detections_{number}" for number in itertools.count(1))


def _outputs(program: ExportedProgram) -> list[object]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return [
        None if isinstance(spec.arg, ConstantArgument) else values[spec.arg.name]
        for spec in program.graph_signature.output_specs
        if spec.kind == OutputKind.USER_OUTPUT
    ]


def data_dependent_lines(program: ExportedProgram) -> dict[str, str]:
    """Name of each data-dependent dim to the operator and line that determine it: ``aten.nonzero at model.py:12``."""
    found = {}
    for node in program.graph.nodes:
        for symbol in node.meta.get("unbacked_bindings") or ():
            found[str(symbol)] = f"{str(node.target).removesuffix('.default')} at {source_line(node)}"
    return found


def warn_about_squeezed_dims(program: ExportedProgram) -> None:
    """Warn about squeezes of data-dependent dims: torch.export assumes that their size is not 1, and keeps them."""
    lines = {
        f"  {size.node.expr} at {source_line(node)}": None
        for node in program.graph.nodes
        if getattr(node.target, "overloadpacket", None) is torch.ops.aten.squeeze
        for size in _squeezed(node)
        if isinstance(size, torch.SymInt) and free_unbacked_symbols(size) and not statically_known_true(size != 1)
    }
    if lines:
        warn_user(
            "the model squeezes dims whose sizes depend on values, and is exported for sizes other than 1:\n"
            + "\n".join(lines)
            + "\nhint: name the axis to remove, such as nonzero().squeeze(1)"
        )


def _squeezed(node: torch.fx.Node) -> list[int | torch.SymInt]:
    """The sizes of the axes that a squeeze removes if they are 1."""
    shape = list(node.args[0].meta["val"].shape)  # type: ignore[union-attr]
    axes: Any = node.args[1] if len(node.args) > 1 else range(len(shape))
    return [shape[axis] for axis in ([axes] if isinstance(axes, int) else axes)] if shape else []


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


def _squeezed_result(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    # An operator of our own must not return a view.
    return x.squeeze(list(axes)).clone()


def _fake_squeezed(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    return x.new_empty(x.shape)


_OPERATOR = define_operator("fxonnx::squeeze_result(Tensor x, int[] axes) -> Tensor", _squeezed_result, _fake_squeezed)

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
                name=f"{result.name}_squeezed_result",
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
