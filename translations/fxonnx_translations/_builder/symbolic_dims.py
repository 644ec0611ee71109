"""Symbolic dims: captured sympy expressions in the user's dim names, and the values that define their symbols."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import TypeAlias

import onnx_ir as ir
import sympy
import torch

__all__ = ["Dim", "SymbolTable", "affine_coefficients", "is_static"]

Dim: TypeAlias = int | sympy.Expr
"""A size: a number, or an expression in the symbols of the graph, renamed to the user's dim names."""


def is_static(dims: Sequence[Dim]) -> bool:
    """Whether all sizes are numbers."""
    return all(isinstance(dim, int) for dim in dims)


class SymbolTable:
    """The symbols of one export: their names in the model and the values that define them.

    Args:
        names: torch's symbol (``s77``) to the user's dim name (``batch``); symbols without one keep torch's name.
        ones: The sizes that guards keep at 1, in the user's dim names.
    """

    def __init__(
        self, names: Mapping[sympy.Symbol, str] | None = None, ones: Collection[sympy.Expr] = frozenset()
    ) -> None:
        self._ones = ones
        self._renamed = {symbol: _named_like(symbol, name) for symbol, name in (names or {}).items()}
        self._exprs: dict[sympy.Expr, Dim] = {}
        self._origins: MutableMapping[sympy.Symbol, tuple[ir.Value, int | None, sympy.Expr]] = {}

    def nested(self, renamed: Mapping[sympy.Symbol, sympy.Symbol]) -> SymbolTable:
        """Return the table of a subgraph: definitions made in it are not visible outside.

        Args:
            renamed: Symbols that mean something else in the subgraph, such as the number of the iteration.
        """
        inner = SymbolTable(ones=self._ones)
        inner._renamed = {**self._renamed, **renamed}
        inner._origins = ChainMap({}, self._origins)
        return inner

    def dim(self, size: int | torch.SymInt | torch.SymFloat | torch.SymBool) -> Dim:
        """Return the size as it appears in the model: an int, or an expression in the user's dim names."""
        if isinstance(size, int):
            return size
        return self.expr(size.node.expr)

    def expr(self, expr: sympy.Expr) -> Dim:
        """Return torch's expression in the user's dim names; a constant expression becomes an int."""
        known = self._exprs.get(expr)
        if known is None:
            renamed = expr.xreplace(self._renamed)
            known = int(renamed) if renamed.is_Integer else renamed
            self._exprs[expr] = known
        return known

    def dims(self, shape: Sequence[int | torch.SymInt]) -> tuple[Dim, ...]:
        """Return the sizes of a shape as they appear in the model."""
        return tuple(dim if type(dim) is int else self.dim(dim) for dim in shape)

    def is_one(self, expr: sympy.Expr) -> bool:
        """Whether a guard keeps this size at 1."""
        return expr in self._ones

    def define(self, value: ir.Value, dims: Sequence[Dim]) -> None:
        """Record that ``value`` has the given sizes: it defines the symbols in them."""
        for axis, dim in enumerate(dims):
            if not isinstance(dim, int):
                self._define(dim, value, axis)

    def define_scalar(self, value: ir.Value, expr: Dim) -> None:
        """Record that the 0-dim tensor ``value`` holds the symbol, e.g. the result of ``item()``."""
        if not isinstance(expr, int):
            self._define(expr, value, None)

    def _define(self, expr: sympy.Expr, value: ir.Value, axis: int | None) -> None:
        if expr.is_Symbol:
            known = self._origins.get(expr)
            # Reading a size is cheaper than solving an expression for its symbol.
            if known is None or not known[2].is_Symbol:
                self._origins[expr] = (value, axis, expr)
            return
        if isinstance(expr, sympy.Eq):
            # The value of a bool: torch's expression is ``Eq(symbol, 1)``.
            if expr.lhs.is_Symbol and expr.rhs == 1:
                self._origins.setdefault(expr.lhs, (value, axis, expr.lhs))
            return
        free = list(expr.free_symbols)
        if len(free) == 1 and free[0] not in self._origins and affine_coefficients(expr, free[0]) is not None:
            self._origins[free[0]] = (value, axis, expr)

    def is_defined(self, symbol: sympy.Symbol) -> bool:
        """Whether a value defines the symbol."""
        return symbol in self._origins

    def lacks(self, dims: Sequence[Dim]) -> bool:
        """Whether one of the sizes is a symbol that no value defines."""
        return any(not isinstance(dim, int) and dim.is_Symbol and dim not in self._origins for dim in dims)

    def origin(self, symbol: sympy.Symbol) -> tuple[ir.Value, int | None, sympy.Expr]:
        """Return the value that defines a symbol, the axis (None: the value itself) and the expression of its size."""
        return self._origins[symbol]


def _named_like(symbol: sympy.Symbol, name: str) -> sympy.Symbol:
    assumptions = {key: True for key in ("integer", "positive", "nonnegative") if getattr(symbol, f"is_{key}") is True}
    return sympy.Symbol(name, **assumptions)


def affine_coefficients(expr: sympy.Expr, symbol: sympy.Symbol) -> tuple[int, int] | None:
    """Return (a, b) of ``a*symbol + b`` with integers a > 0 and b, or None if the expression has another form."""
    # A condition (sympy.Boolean) is not an expression.
    is_polynomial = isinstance(expr, sympy.Expr) and expr.is_polynomial(symbol)
    polynomial = sympy.Poly(expr, symbol) if is_polynomial else None
    if polynomial is None or polynomial.degree() != 1:
        return None
    a, b = polynomial.all_coeffs()
    return (int(a), int(b)) if a.is_Integer and b.is_Integer and a > 0 else None
