"""Lines of the user's code where loops and lists begin."""

from __future__ import annotations

import ast
import linecache

__all__ = ["begins_loop"]


def begins_loop(file: str, line: int) -> bool:
    """Whether a loop or a list that a loop fills begins at a line of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    return any(_begins_loop(node, line) for node in ast.walk(tree))


def _begins_loop(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.For | ast.While):
        header = node.iter if isinstance(node, ast.For) else node.test
        return node.lineno <= line <= (header.end_lineno or header.lineno)
    match node:
        case ast.If(body=[ast.Break()]):
            return line == node.lineno
        case (
            ast.ListComp()
            | ast.GeneratorExp()
            | ast.BinOp(ast.List(), ast.Mult())
            | ast.BinOp(_, ast.Mult(), ast.List())
        ):
            pass
        case ast.Call(ast.Name("map" | "sum" | "list" | "tuple")):
            pass
        case ast.Call(ast.Attribute(attr="unbind" | "split" | "chunk")):
            pass
        case _:
            return False
    return bool(node.lineno <= line <= (node.end_lineno or node.lineno))
