"""Smaller Python programs: statements deleted, blocks replaced by their bodies, conditions and inputs dropped."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from .outcome import Finding
from .python_program import PythonProgram

__all__ = ["smaller_python"]

_BLOCKS = ("body", "orelse", "finalbody")


def smaller_python(program: PythonProgram, finding: Finding) -> Iterator[PythonProgram]:
    """The next candidates, the smallest first.

    Args:
        program: The program.
        finding: The finding to reproduce.
    """
    cases = () if finding.sizes is None else ((int(finding.sizes[0]), str(finding.sizes[1])),)
    if program.kind == "state":
        # A call needs those before it.
        cases = program.cases[:-1]
    if program.cases != cases:
        yield program.replaced(cases=cases)
    for source in _smaller_sources(program.source):
        yield program.replaced(source=source)
    state = "io" if program.kind == "state" else "warn"
    for field, value in (("data_dependent", "error"), ("state", state), ("opset", 20), ("naming", "static")):
        if getattr(program, field) != value:
            changed = program.replaced(**{field: value})
            # A static program has the size of its example only.
            if field != "naming" or all(rows == program.example[0] for rows, _ in program.cases):
                yield changed


def _smaller_sources(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    for change in _changes(tree):
        changed = copy.deepcopy(tree)
        change(changed)
        text = ast.unparse(ast.fix_missing_locations(changed))
        if len(text) < len(ast.unparse(tree)):
            yield text + "\n"


_Change = Callable[[ast.Module], None]


def _changes(tree: ast.Module) -> Iterator[_Change]:
    """The changes of a tree, those of outer statements first; each is made in a copy of the tree."""
    nodes = list(ast.walk(tree))
    for number, node in enumerate(nodes):
        for block in _BLOCKS:
            statements = getattr(node, block, None)
            if not isinstance(statements, list):
                continue
            length = len(statements)
            if length > 3:
                yield from (_deletion(number, block, start, length // 2) for start in (length - length // 2, 0))
            yield from (_deletion(number, block, index, 1) for index in reversed(range(length)))
            for index, statement in enumerate(statements):
                inner = [name for name in _BLOCKS if isinstance(getattr(statement, name, None), list)]
                if isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
                    yield from (_unwrapping(number, block, index, name) for name in inner)
        if isinstance(node, ast.FunctionDef):
            yield from (_without_argument(number, index) for index in range(len(node.args.args)))
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield from (_without_element(number, index) for index in range(len(node.value.elts)))
    for number, node in enumerate(nodes):
        for field, value in ast.iter_fields(node):
            if isinstance(value, (ast.IfExp, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Call, ast.Compare)):
                for child in ast.iter_child_nodes(value):
                    if isinstance(child, ast.Attribute):
                        yield _replacement(number, field, child.value)
                    elif isinstance(child, ast.expr):
                        yield _replacement(number, field, child)


def _node(tree: ast.Module, number: int) -> ast.AST:
    return list(ast.walk(tree))[number]


def _deletion(number: int, block: str, index: int, count: int) -> _Change:
    def change(tree: ast.Module) -> None:
        node = _node(tree, number)
        statements = getattr(node, block)
        del statements[index : index + count]
        if not statements and block == "body":
            statements.append(ast.Pass())

    return change


def _unwrapping(number: int, block: str, index: int, inner: str) -> _Change:
    def change(tree: ast.Module) -> None:
        statements = getattr(_node(tree, number), block)
        statements[index : index + 1] = getattr(statements[index], inner)

    return change


def _without_argument(number: int, index: int) -> _Change:
    def change(tree: ast.Module) -> None:
        arguments = _node(tree, number).args  # type: ignore[attr-defined]
        del arguments.args[index]
        if arguments.defaults:
            del arguments.defaults[: max(0, len(arguments.defaults) - len(arguments.args))]

    return change


def _without_element(number: int, index: int) -> _Change:
    def change(tree: ast.Module) -> None:
        node = _node(tree, number)
        elements = node.value.elts  # type: ignore[attr-defined]
        del elements[index]
        if len(elements) == 1:
            node.value = elements[0]  # type: ignore[attr-defined]

    return change


def _replacement(number: int, field: str, child: ast.expr) -> _Change:
    def change(tree: ast.Module) -> None:
        setattr(_node(tree, number), field, copy.deepcopy(child))

    return change
