"""``while`` loops that count: their test compares a variable, which each iteration changes by the same step."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .analysis import contains, dotted_name, jumps, mutated_containers, scope_nodes, stored_attributes, stored_names

__all__ = ["CountedWhile", "counted_loops", "with_tests"]

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


def with_tests(function: ast.FunctionDef) -> None:
    """Move the test of loops ``while True`` with ``if test: break`` to their head.

    What precedes the test runs once before the loop, and then at the end of each iteration. A test in the middle is
    moved in loops that count; others keep it, which does not repeat code.
    """
    for owner in list(ast.walk(function)):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(owner, field, None)
            if isinstance(block, list):
                setattr(owner, field, [made for node in block for made in _with_test(node)])


def _with_test(node: ast.stmt) -> list[ast.stmt]:
    match node:
        case ast.While(test=ast.Constant(True), body=body, orelse=[]):
            tests = (index for index, each in enumerate(body) if _is_exit(each))
            index = next(tests, len(body))
        case _:
            return [node]
    before, head, after = body[:index], body[index : index + 1], body[index + 1 :]
    match head:
        case [ast.If(test)] if len(body) > 1 and not contains([test], (ast.NamedExpr, ast.Await)):
            opposite = ast.copy_location(ast.UnaryOp(ast.Not(), test), head[0])
        case _:
            return [node]
    if before and (jumps(before) or contains(before, (ast.NamedExpr, ast.Await, ast.FunctionDef))):
        return [node]
    moved = ast.copy_location(ast.While(opposite, [*after, *before], []), node)
    if before and after and (jumps(after) or _counted(moved) is None):
        return [node]
    return [*copy.deepcopy(before), moved]


def _is_exit(node: ast.stmt) -> bool:
    match node:
        case ast.If(body=[ast.Break()], orelse=[]):
            return True
    return False


_OPPOSITES: Mapping[type[ast.cmpop], type[ast.cmpop]] = MappingProxyType(
    {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq}
)


def _comparison(test: ast.expr) -> ast.expr:
    """The test without ``not``, as a comparison of integers."""
    match test:
        case ast.UnaryOp(ast.Not(), ast.Compare(left, [operation], [right])) if type(operation) in _OPPOSITES:
            return ast.copy_location(ast.Compare(left, [_OPPOSITES[type(operation)]()], [right]), test)
    return test


def _counted(node: ast.While) -> CountedWhile | None:
    test = _comparison(node.test)
    match test:
        case ast.Compare(left=smaller, ops=[ast.Lt() | ast.LtE()], comparators=[larger]):
            pass
        case ast.Compare(left=larger, ops=[ast.Gt() | ast.GtE()], comparators=[smaller]):
            pass
        case ast.Compare(left=smaller, ops=[ast.NotEq()], comparators=[larger]) if not jumps(node.body):
            # A loop that ends: the counter moves towards the other side by 1.
            for loop in (_counter(node, test, smaller, larger), _counter(node, test, larger, smaller)):
                if loop is not None and _unit(loop.step) == -loop.sign:
                    return loop
            return None
        case _:
            return None
    return _counter(node, test, smaller, larger)


def _unit(step: ast.expr) -> int:
    """1 or -1 for such a step; 0 for others."""
    match step:
        case ast.Constant(1):
            return 1
        case ast.UnaryOp(ast.USub(), ast.Constant(1)):
            return -1
    return 0


def _counter(node: ast.While, test: ast.Compare, smaller: ast.expr, larger: ast.expr) -> CountedWhile | None:
    """The counter of a loop that ends when the smaller side has reached the larger one."""
    names = [found.id for side in (smaller, larger) for found in ast.walk(side) if isinstance(found, ast.Name)]
    for name in dict.fromkeys(names):
        step = _step_of(name, node.body)
        sign = _sign_of(name, larger) - _sign_of(name, smaller)
        if step is None or names.count(name) != 1 or not sign:
            continue
        sized = _changed_sizes(name, [step, smaller, larger], node.body)
        if sized is not None:
            is_inclusive = isinstance(test.ops[0], ast.LtE | ast.GtE)
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
