"""The part of the graph builder that shape inference, value ranges, size expressions, peepholes and opset forms use.

The builder calls all of these; they are typed against this protocol, so that imports have one direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import onnx_ir as ir
import sympy

from .initializers import Recipe
from .symbolic_dims import Dim, SymbolTable

__all__ = ["BuilderProtocol"]


class BuilderProtocol(Protocol):
    """A graph builder; see :class:`fxonnx_translations._builder.builder.Builder` for the methods.

    Attributes:
        symbols: The symbolic dims of the export.
        opset_version: Target opset of the default domain.
        value_ranges: Memo of ``value_ranges.value_range``.
        unrounded: Half-precision value to the FLOAT value that it was rounded from.
        missing_kernels: Operator to the element types that are computed in a wider type.
        stored: Memo of ``stored_codes.derive_stored``.
        unranked: Values that have fewer axes at some sizes than their shapes have.
    """

    symbols: SymbolTable
    opset_version: int
    value_ranges: dict[ir.Value, tuple[Dim, Dim] | None]
    unrounded: dict[ir.Value, ir.Value]
    missing_kernels: Mapping[str, frozenset[ir.DataType]]
    stored: dict[Any, ir.Value]
    unranked: set[ir.Value]

    @property
    def graph(self) -> ir.Graph: ...

    # Types and shapes

    def dims(self, value: ir.Value) -> tuple[Dim, ...]: ...

    def recorded_dims(self, value: ir.Value) -> tuple[Dim, ...] | None: ...

    def rank(self, value: ir.Value) -> int | None: ...

    def write_shape(self, value: ir.Value, dims: Sequence[Dim]) -> None: ...

    def expr_of_dim_param(self, name: str) -> sympy.Expr: ...

    # Values

    def constant(self, value: Any, dtype: ir.DataType | None = None) -> ir.Value: ...

    def size(self, dim: Dim) -> ir.Value: ...

    def recorded_size(self, expr: sympy.Expr) -> ir.Value | None: ...

    def record_size(self, expr: sympy.Expr, value: ir.Value) -> None: ...

    def size_expr(self, value: ir.Value) -> sympy.Expr | None: ...

    # Nodes

    def value_of(self, op_type: str, *inputs: Any, **attributes: Any) -> ir.Value: ...

    def call_op(
        self, op_type: str, args: Sequence[Any], kwargs: dict[str, Any], /
    ) -> ir.Value | Sequence[ir.Value]: ...

    def stored_in(self, value: ir.Value, dtype: ir.DataType) -> ir.Value | None: ...

    def register_derived(
        self, weights: Sequence[ir.Value], suffix: str, recipe: Recipe, dtype: ir.DataType | None = None
    ) -> ir.Value: ...

    def rounded(self, value: ir.Value, dtype: ir.DataType) -> ir.Value: ...

    def widened(self, value: ir.Value, dtype: ir.DataType) -> ir.Value: ...

    def expand(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value: ...
