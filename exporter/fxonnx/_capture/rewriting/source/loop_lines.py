"""Lines of the user's code where loops and lists begin."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator

__all__ = ["begins_loop", "loop_lines"]


def begins_loop(file: str, line: int) -> bool:
    """Whether a loop or a list that a loop fills begins at a line of a file."""
    return line in loop_lines(file, (line,))


def loop_lines(file: str, lines: Iterable[int]) -> set[int]:
    """The lines of a file, of those that are given, where a loop or a list that a loop fills begins."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return set()
    return {line for line in lines if any(_begins_loop(node, line) for node in _nodes_at(tree, line))}


def _nodes_at(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """A node and all nodes in it, without statements and expressions that lie on other lines."""
    yield node
    for child in ast.iter_child_nodes(node):
        # Decorators lie above the line number of their function.
        first = min([getattr(child, "lineno", line), *(one.lineno for one in getattr(child, "decorator_list", ()))])
        if first <= line <= (getattr(child, "end_lineno", None) or line):
            yield from _nodes_at(child, line)


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
