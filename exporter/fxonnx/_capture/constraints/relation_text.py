"""Relations between sizes as Python code."""

from __future__ import annotations

import sympy
from sympy.printing.precedence import PRECEDENCE, precedence
from sympy.printing.str import StrPrinter

__all__ = ["text_of"]


class _Printer(StrPrinter):  # type: ignore[misc]
    """Printer in Python's notation; names of sizes may contain any characters (``x.shape[0]``)."""

    printmethod = "_fxonnx"  # torch's functions would print themselves otherwise

    def _print_Relational(self, relation: sympy.Rel) -> str:
        lhs, rhs = relation.lhs, relation.rhs
        if isinstance(relation, sympy.Eq | sympy.Ne):
            # sympy's own order of the sides depends on the names.
            lhs, rhs = sorted((lhs, rhs), key=lambda side: (side.is_number, not side.is_Symbol, str(side)))
        return f"{self._print(lhs)} {relation.rel_op} {self._print(rhs)}"

    def _binary(self, expression: sympy.Expr, sign: str) -> str:
        one, other = (self.parenthesize(side, PRECEDENCE["Mul"] + 1) for side in expression.args)
        return f"{one} {sign} {other}"

    def _print_FloorDiv(self, expression: sympy.Expr) -> str:
        return self._binary(expression, "//")

    _print_CleanDiv = _print_FloorDiv

    def _print_Mod(self, expression: sympy.Expr) -> str:
        return self._binary(expression, "%")

    _print_PythonMod = _print_Mod

    def _print_IntTrueDiv(self, expression: sympy.Expr) -> str:
        return self._binary(expression, "/")

    _print_FloatTrueDiv = _print_IntTrueDiv

    def _print_ToFloat(self, expression: sympy.Expr) -> str:
        # Python converts the integer in the operation that follows.
        return str(self.parenthesize(expression.args[0], PRECEDENCE["Atom"], strict=True))

    def _called(self, name: str, expression: sympy.Expr) -> str:
        return f"{name}({', '.join(map(self._print, expression.args))})"

    def _print_TruncToInt(self, expression: sympy.Expr) -> str:
        return self._called("int", expression)

    def _print_CeilToInt(self, expression: sympy.Expr) -> str:
        return self._called("ceil", expression)

    def _print_FloorToInt(self, expression: sympy.Expr) -> str:
        return self._called("floor", expression)

    def _print_RoundToInt(self, expression: sympy.Expr) -> str:
        return self._called("round", expression)

    _print_RoundDecimal = _print_RoundToInt

    def _print_FloatPow(self, expression: sympy.Expr) -> str:
        base, exponent = (self.parenthesize(side, PRECEDENCE["Pow"], strict=True) for side in expression.args)
        return f"{base}**{exponent}"

    _print_PowByNatural = _print_FloatPow

    def _print_Function(self, expression: sympy.Expr) -> str:
        return self._called(type(expression).__name__.removeprefix("OpaqueUnaryFn_"), expression)

    def _print_Min(self, expression: sympy.Expr) -> str:
        return f"min({', '.join(sorted(self._print(argument) for argument in expression.args))})"

    def _print_Max(self, expression: sympy.Expr) -> str:
        return f"max({', '.join(sorted(self._print(argument) for argument in expression.args))})"

    def _join_operands(self, expression: sympy.Basic, word: str) -> str:
        parts = [
            f"({self._print(part)})" if precedence(part) < PRECEDENCE["Relational"] else self._print(part)
            for part in expression.args
        ]
        return f" {word} ".join(sorted(parts))

    def _print_And(self, expression: sympy.Basic) -> str:
        return self._join_operands(expression, "and")

    def _print_Or(self, expression: sympy.Basic) -> str:
        if all(isinstance(part, sympy.Eq) and part.rhs.is_Integer for part in expression.args):
            values = {part.lhs: sorted(int(one.rhs) for one in expression.args) for part in expression.args}
            if len(values) == 1:
                ((value, numbers),) = values.items()
                return f"{self._print(value)} in {{{', '.join(map(str, numbers))}}}"
        return self._join_operands(expression, "or")

    def _print_Not(self, expression: sympy.Basic) -> str:
        return f"not ({self._print(expression.args[0])})"


def text_of(relation: sympy.Basic) -> str:
    """Print a relation as Python code: ``seq >= 9``, ``batch % 16 == 0``."""
    if isinstance(relation, sympy.Gt | sympy.Lt | sympy.Ge | sympy.Le) and relation.lhs.is_number:
        relation = relation.reversed
    return str(_Printer().doprint(relation))
