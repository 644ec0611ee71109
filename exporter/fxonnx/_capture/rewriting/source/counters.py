"""``while`` loops that count: their test compares a variable, which each iteration changes by the same step."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .analysis import dotted_name, jumps, mutated_containers, scope_nodes, stored_attributes, stored_names

__all__ = ["CountedWhile", "counted_loops"]

_SIZES = frozenset({"shape", "size", "dim", "ndim"})
_FUNCTIONS = frozenset({"len", "min", "max", "int", "abs"})


@dataclass(frozen=True)
class CountedWhile:
    """A ``while`` loop whose number of iterations follows from values before it.

    Attributes:
        name: The counter, a variable of the function.
        step: The number that each iteration adds to it.
        smaller: The smaller side of the comparison; one of the sides is a sum of the counter and other terms.
        larger: The larger side.
        sign: Whether the difference of the sides falls (-1) or grows (1) with the counter.
        is_inclusive: Whether the loop goes on while both sides are equal.
        sized: Variables that the loop changes and whose sizes the test reads: they must be tensors.
    """

    name: str
    step: ast.expr
    smaller: ast.expr
    larger: ast.expr
    sign: int
    is_inclusive: bool
    sized: tuple[str, ...]


def counted_loops(function: ast.FunctionDef) -> dict[int, CountedWhile]:
    """The loops of a function that count, by ``id``."""
    found = {id(node): _counted(node) for node in scope_nodes(function.body) if isinstance(node, ast.While)}
    return {key: loop for key, loop in found.items() if loop is not None}


def _counted(node: ast.While) -> CountedWhile | None:
    match node.test:
        case ast.Compare(left=smaller, ops=[ast.Lt() | ast.LtE()], comparators=[larger]):
            pass
        case ast.Compare(left=larger, ops=[ast.Gt() | ast.GtE()], comparators=[smaller]):
            pass
        case _:
            return None
    names = [found.id for side in (smaller, larger) for found in ast.walk(side) if isinstance(found, ast.Name)]
    for name in dict.fromkeys(names):
        step = _step_of(name, node.body)
        sign = _sign_of(name, larger) - _sign_of(name, smaller)
        if step is None or names.count(name) != 1 or not sign:
            continue
        sized = _changed_sizes(name, [step, smaller, larger], node.body)
        if sized is not None:
            is_inclusive = isinstance(node.test.ops[0], ast.LtE | ast.GtE)
            step, smaller, larger = copy.deepcopy((step, smaller, larger))
            return CountedWhile(name, step, smaller, larger, sign, is_inclusive, sized)
    return None


def _step_of(name: str, body: Sequence[ast.stmt]) -> ast.expr | None:
    """The number that every iteration adds to a variable; None if iterations may change it otherwise."""
    stores = [
        node
        for node in scope_nodes(body)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
    ]
    if len(stores) != 1:
        return None
    for index, node in enumerate(body):
        if ast.Continue in jumps(body[: index + 1]):
            return None
        match node:
            case ast.AugAssign(target=target, op=ast.Add(), value=step) if target is stores[0]:
                return step
            case ast.AugAssign(target=target, op=ast.Sub(), value=step) if target is stores[0]:
                return ast.UnaryOp(ast.USub(), step)
            case ast.Assign(targets=[target], value=ast.BinOp(ast.Name(left), ast.Add(), step)):
                if target is stores[0] and left == name:
                    return step
            case ast.Assign(targets=[target], value=ast.BinOp(ast.Name(left), ast.Sub(), step)):
                if target is stores[0] and left == name:
                    return ast.UnaryOp(ast.USub(), step)
    return None


def _sign_of(name: str, side: ast.expr) -> int:
    """The sign of a variable in a sum of it and others; 0 if the expression is not such a sum."""
    match side:
        case ast.Name(found):
            return int(found == name)
        case ast.BinOp(left, ast.Add(), right):
            return _sign_of(name, left) + _sign_of(name, right)
        case ast.BinOp(left, ast.Sub(), right):
            return _sign_of(name, left) - _sign_of(name, right)
    return 0


def _changed_sizes(name: str, expressions: Sequence[ast.expr], body: Sequence[ast.stmt]) -> tuple[str, ...] | None:
    """Variables that a loop changes and whose sizes expressions read; None if they read other values that change."""
    changed = {*stored_names(body), *mutated_containers(body)} - {name}
    attributes = {*stored_attributes(body), *(found for found in changed if "." in found)}
    sized: dict[str, None] = {}
    for expression in expressions:
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and not _is_pure(node):
                return None
            dotted = dotted_name(node)
            if dotted is not None and any(f"{dotted}.".startswith(f"{found}.") for found in attributes):
                return None
        sizes = set(_names_of_sizes(expression))
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and node.id in changed:
                if id(node) not in sizes:
                    return None
                sized[node.id] = None
    return tuple(sized)


def _is_pure(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(name):
            return name in _FUNCTIONS
        case ast.Attribute(attr=attribute):
            return attribute in _SIZES
    return False


def _names_of_sizes(expression: ast.expr) -> Iterator[int]:
    """``id`` of the variables in ``x.shape``, ``x.size(0)`` and ``len(x)``."""
    for node in ast.walk(expression):
        match node:
            case ast.Attribute(value=ast.Name() as owner, attr=attribute) if attribute in _SIZES:
                yield id(owner)
            case ast.Call(func=ast.Name("len"), args=[ast.Name() as owner]):
                yield id(owner)
