"""Conditions on sizes by which torch's own code chooses memory layouts, in programs that do not record who asked.

Both of their branches compute the same values. They hold whenever the sizes of the tensors are neither 0 nor 1, and are
written in these sizes as they are in the graph: ``(h - 1) // 2 + 1 != 1`` for the result of a convolution. Conditions
of the model have other forms, such as ``h % 2 != 1``; one on whether the size of a result is 1 is taken for torch's.
"""

from __future__ import annotations

import itertools
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fxonnx_translations._builder.size_values import SizeValues, UndefinedSizeError
from fxonnx_translations._torch_compat import Max

from .constraints.guard_recorder import distinguishes_zero_or_one

__all__ = ["LayoutConditions"]

_SIZES = (2, 3, 64)
_PARTS = (sympy.Rel, sympy.Mul, sympy.Pow, Max, sympy.Symbol, sympy.Integer)
"""Strides and numbers of elements are made of these; quotients and remainders are the model's."""


class LayoutConditions:
    """The conditions on memory layouts of one program."""

    def __init__(self, program: ExportedProgram) -> None:
        values = [value for node in program.graph.nodes for value in _tensors(node.meta.get("val"))]
        shapes: list[tuple[Any, ...]] = [tuple(value.shape) for value in values]
        sizes = {size.node.expr for shape in shapes for size in shape if isinstance(size, torch.SymInt)}
        # A size may be a part of another one.
        self._sizes = sorted(sizes, key=lambda size: (-size.count_ops(), str(size)))

    def __contains__(self, condition: sympy.Basic) -> bool:
        """Whether a condition is written in sizes of tensors, and holds for all sizes from 2 on."""
        names: list[sympy.Symbol] = []
        for size in self._sizes:
            name = sympy.Symbol(f"size {len(names)}", integer=True, positive=True)
            replaced = condition.xreplace({size: name})
            if replaced != condition:
                names.append(name)
                condition = replaced
        parts = sympy.preorder_traversal(condition)
        if condition.free_symbols - set(names) or not all(isinstance(part, _PARTS) for part in parts):
            return False
        found = sorted(condition.free_symbols, key=str)
        choices = itertools.product(_SIZES, repeat=len(found))
        return distinguishes_zero_or_one(condition) and all(
            _holds(condition, SizeValues(dict(zip(found, sizes, strict=True)))) for sizes in choices
        )


def _tensors(value: object) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]


def _holds(condition: sympy.Basic, sizes: SizeValues) -> bool:
    try:
        return bool(sizes.value(condition))
    except UndefinedSizeError:
        return False
