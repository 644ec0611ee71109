"""Plain forms of relations between sizes: without floats, clamps and quotients that are known numbers."""

from __future__ import annotations

import sympy

from fxonnx_translations._builder.exact_quotients import CONVERSIONS, exact_integer
from fxonnx_translations._torch_compat import FloorDiv, Max, Min, sympy_functions

__all__ = ["without_clamps", "without_floats", "without_known_quotients"]


def without_floats(expression: sympy.Basic) -> sympy.Basic:
    """Replace conversions: ``int(2.0 * float(n))``, the size of a scaled image, by ``2*n``, float(n) by n."""
    found = expression.replace(lambda part: isinstance(part, CONVERSIONS), exact_integer)
    if isinstance(found, sympy.Rel) and any(isinstance(side, sympy_functions.ToFloat) for side in found.args):
        sides = [side.args[0] if isinstance(side, sympy_functions.ToFloat) else side for side in found.args]
        sides = [sympy.Integer(int(side)) if side.is_Float and float(side).is_integer() else side for side in sides]
        found = found.func(*sides) if all(side.is_integer for side in sides) else found
    return found if isinstance(found, sympy.Basic) else expression


def without_clamps(expression: sympy.Basic) -> sympy.Basic:
    """Remove clamps that have no effect: ``max(min(s, 128) - s, 0)``, a slice of a slice, is 0."""

    def never_positive(value: sympy.Expr) -> bool:
        least = [part for part in sympy.Add.make_args(value) if isinstance(part, Min)]
        return any(sympy.expand(part - one - value) == 0 for part in least for one in part.args)

    def plain(clamp: sympy.Expr) -> sympy.Expr:
        if 0 not in clamp.args:
            return clamp
        others = [one for one in clamp.args if one != 0 and not never_positive(one)]
        is_plain = (
            len(others) == 1 and isinstance(others[0], Min) and all(part.is_nonnegative for part in others[0].args)
        )
        return others[0] if is_plain else Max(0, *others)

    found = expression.replace(lambda part: isinstance(part, Max), plain)
    return found if isinstance(found, sympy.Basic) else expression


def without_known_quotients(relation: sympy.Rel) -> list[sympy.Basic]:
    """The relation with numbers for quotients such as ``(3*n - 1) // n``, which is 2, and the bounds of their divisors.

    ``x.split(n)`` computes such a number of parts.
    """
    numbers = {
        quotient: number
        for quotient in relation.atoms(FloorDiv)
        if (number := _known_quotient(*quotient.args)) is not None
    }
    bounds = {sympy.Ge(symbol, 1): None for quotient in numbers for symbol in quotient.args[1].free_symbols}
    return [relation.xreplace(numbers), *bounds] if numbers else [relation]


def _known_quotient(value: sympy.Expr, divisor: sympy.Expr) -> sympy.Integer | None:
    """The quotient of sizes by a positive multiple of one of them, if it is the same for all sizes."""
    factor, size = divisor.as_coeff_Mul()
    if not (factor.is_Integer and factor > 0 and size.is_Symbol and size.is_integer and size.is_nonnegative):
        return None
    number = sympy.floor(sympy.expand(value / divisor).as_coeff_Add()[0])
    for whole in (number, number - 1):
        rest = sympy.expand(value - whole * divisor)
        if _is_never_negative(rest, size) and _is_never_negative(divisor - 1 - rest, size):
            return sympy.Integer(whole)
    return None


def _is_never_negative(expression: sympy.Expr, positive: sympy.Symbol) -> bool:
    """Whether a polynomial of sizes, one of which is positive, has no negative term."""
    shifted = sympy.expand(expression.xreplace({positive: positive + 1}))
    terms = shifted.as_coefficients_dict()
    return all(symbol.is_nonnegative for symbol in shifted.free_symbols) and all(
        coefficient >= 0 and term.is_polynomial() for term, coefficient in terms.items()
    )
