"""Facts about expressions: scopes that a transformation would change, tests, and the iterables of loops."""

from __future__ import annotations

import ast
from collections.abc import Container

__all__ = ["as_iterable", "as_test", "binds_late", "binds_name", "is_iterated", "is_test", "scope_function"]

_SCOPE_FUNCTIONS = {"locals": 0, "vars": 0, "dir": 0, "eval": 1, "exec": 1}
"""Functions of local variables by the number of arguments with which they are ones."""


def scope_function(node: ast.Call) -> str | None:
    """The name in a call that reads or writes variables of the function by name: ``locals()``, ``eval("x + 1")``."""
    match node:
        case ast.Call(ast.Name(name), arguments, []) if len(arguments) == _SCOPE_FUNCTIONS.get(name):
            return name
    return None


def as_test(node: ast.expr) -> ast.expr:
    """The expression itself, after its boolean operators have been marked: only the truth of their values matters."""
    if isinstance(node, ast.BoolOp):
        vars(node)["is_test"] = True
        for value in node.values:
            as_test(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        as_test(node.operand)
    return node


def is_test(node: ast.BoolOp) -> bool:
    """Whether only the truth of an operator's value matters, and not which operand it is."""
    return "is_test" in vars(node)


def as_iterable(node: ast.expr, variables: Container[str]) -> ast.expr:
    """The iterable of a loop itself, after the calls whose results only the loop reads have been marked.

    Args:
        node: The expression.
        variables: Names that may be other functions than the builtin ones.
    """
    match node:
        case ast.Call(ast.Attribute(attr="unbind" | "split")):
            vars(node)["is_iterated"] = True
        case ast.Call(ast.Name("enumerate" | "reversed" | "zip" as name), arguments) if name not in variables:
            for argument in arguments:
                as_iterable(argument, variables)
    return node


def is_iterated(node: ast.Call) -> bool:
    """Whether only a loop reads the result of a call."""
    return "is_iterated" in vars(node)


def binds_name(node: ast.AST) -> bool:
    """Whether an expression assigns a variable."""
    return any(isinstance(found, ast.NamedExpr) for found in ast.walk(node))


def binds_late(node: ast.ListComp) -> bool:
    """Whether functions in the items of a comprehension read its variables when they are called, after its end."""
    targets = {
        name.id
        for found in ast.walk(node)
        if isinstance(found, ast.comprehension)
        for name in ast.walk(found.target)
        if isinstance(name, ast.Name)
    }
    consumed = {id(argument) for found in ast.walk(node.elt) if isinstance(found, ast.Call) for argument in found.args}
    for found in ast.walk(node.elt):
        if isinstance(found, ast.Lambda):
            own = {argument.arg for argument in ast.walk(found.args) if isinstance(argument, ast.arg)}
            if (_loaded(found.body) - own) & targets:
                return True
        elif isinstance(found, ast.GeneratorExp) and id(found) not in consumed and _loaded(found) & targets:
            return True
    return False


def _loaded(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load)}
