"""Dims whose sizes depend on the values of inputs: names for the number of detected objects, and lines of source."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from ..._provenance import source_line
from ..._warnings import warn_user
from .dynamic_axes import AxisNames

__all__ = ["data_dependent_lines", "name_detections", "warn_about_squeezed_dims"]

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
