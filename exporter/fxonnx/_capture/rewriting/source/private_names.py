"""Private names in the source of a method."""

from __future__ import annotations

import ast

__all__ = ["mangle"]


class _Mangler(ast.NodeTransformer):
    """Private names (``self.__x``) of a class, whose methods are compiled outside of it."""

    def __init__(self, owner: str) -> None:
        self._owner = owner.lstrip("_")

    def _name(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and "." not in name
        return f"_{self._owner}{name}" if private and self._owner else name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self._name(node.attr)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._name(node.arg)
        return self.generic_visit(node)


def mangle(function: ast.FunctionDef, owner: str | None) -> None:
    """Replace the private names in a method as Python does inside of a class.

    Args:
        function: The definition; changed in place.
        owner: Name of the class; None outside of classes.
    """
    if owner is not None:
        for part in [function.args, *function.body]:
            _Mangler(owner).visit(part)
