"""Expressions whose scope a transformation would change."""

from __future__ import annotations

import ast

__all__ = ["binds_late", "binds_name", "scope_function"]

_SCOPE_FUNCTIONS = {"locals": 0, "vars": 0, "dir": 0, "eval": 1, "exec": 1}
"""Functions of local variables by the number of arguments with which they are ones."""


def scope_function(node: ast.Call) -> str | None:
    """The name in a call that reads or writes variables of the function by name: ``locals()``, ``eval("x + 1")``."""
    match node:
        case ast.Call(ast.Name(name), arguments, []) if len(arguments) == _SCOPE_FUNCTIONS.get(name):
            return name
    return None


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
