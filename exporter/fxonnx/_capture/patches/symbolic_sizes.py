"""Shortcuts in torch's symbolic sizes, which give the same answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

__all__ = ["cached_expression", "maybe_as_int"]


def cached_expression(original: property) -> property:
    """``SymNode.expr``, which looks for its cached result before it walks through the expression."""

    def expression(node: Any) -> sympy.Basic:
        environment = node.shape_env
        if environment is not None:
            version = environment._replacements_version_counter
            if version == 0:
                return node._expr
            if node._expr_cache is not None and version == node._expr_ver:
                return node._expr_cache
        return original.__get__(node)

    return property(expression)


def maybe_as_int(original: Callable[..., int | None], node: Any) -> int | None:
    """``SymNode.maybe_as_int``, which asks an expression with symbols whether it is a number."""
    expression = node.expr
    # The sum of two symbols is never a number; sympy would ask all of its parts.
    return None if _has_symbol(expression) else original(node)


def _has_symbol(expression: sympy.Basic) -> bool:
    return expression.is_Symbol or any(map(_has_symbol, expression.args))
