"""Limits that the operators of a graph enforce without a guard."""

from __future__ import annotations

import ast

import onnx_ir as ir
import sympy

from fxonnx_translations._builder.builder import Builder

from .._capture.constraints.constraint import Constraint

__all__ = ["is_enforced"]

_SIZE_READERS = frozenset({"Shape", "Size"})
_WITHOUT_CHECKS = frozenset({"Attention", "GRU", "LSTM", "RNN", "If", "Loop", "Scan", "Resize"})
"""Operators whose kernels do not check all sizes of their inputs, or whose body may be one that was not captured."""
_DECISIONS = (ast.Compare, ast.IfExp, ast.BoolOp, ast.If, ast.While, ast.Assert)
_CHOOSING = frozenset({"all", "any", "bool", "max", "min", "sorted"})


def is_enforced(constraint: Constraint, builder: Builder) -> bool:
    """Whether the operators of a graph require two dims to be equal as those of the model do.

    That is the case for sums of tensors, for example: ONNX broadcasts a size of 1 as torch does, and any other size is
    an error. It is not if the model itself compares the sizes, or if the graph computes with a size.

    Args:
        constraint: A constraint.
        builder: The builder of the graph.
    """
    expression = constraint.expression
    if not isinstance(expression, sympy.Eq) or not all(side.is_Symbol for side in expression.args):
        return False
    return not _decides(constraint.code) and not _computes_with_sizes(builder)


def _decides(code: str | None) -> bool:
    """Whether a line of code may compare sizes; True if it is not known."""
    try:
        tree = ast.parse(code or "?")
    except SyntaxError:
        return True
    return any(
        isinstance(node, _DECISIONS) or (isinstance(node, ast.Name) and node.id in _CHOOSING) for node in ast.walk(tree)
    )


def _computes_with_sizes(builder: Builder) -> bool:
    return any(
        node.op_type in _SIZE_READERS or node.op_type in _WITHOUT_CHECKS or node.domain not in ("", "ai.onnx")
        for node in ir.traversal.RecursiveGraphIterator(builder.graph)
    )
