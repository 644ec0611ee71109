"""Structured control flow: ``break``, ``continue`` and early ``return`` become flags and nested functions.

After an ``if`` with a jump in one branch, the remaining statements move into the other branch; if both branches may
continue there, they become a function that both call. A jump out of a loop sets a flag that ends the loop. Of ``while``
loops, those are found that count: their test compares a variable, which each iteration changes by the same step.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .analysis import contains, dotted_name, jumps, mutated_containers, scope_nodes, stored_attributes, stored_names

__all__ = ["CountedWhile", "Structured", "counted_loops", "generated", "structure", "with_keys", "with_tests"]


_NATIVE = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)


@dataclass(frozen=True)
class _Region:
    """Where statements are: the names of the flags that jumps set; None for a plain ``return`` of the function.

    Attributes:
        returned: Flag of an early return; the value is in the variable with the suffix ``_value``.
        broken: Flag of a ``break``.
        continued: Flag of a ``continue``; None if the end of the region is the end of the iteration.
        is_function: Whether the end of the region is the end of the function.
    """

    returned: str | None = None
    broken: str | None = None
    continued: str | None = None
    is_function: bool = True


class Structured:
    """The transformed statements of a function.

    Attributes:
        body: The statements.
        regions: The generated functions for remaining statements, by name.
        returning: ``id`` of the ``if`` statements both of whose branches return.
        flags: ``id`` of a loop to the flags that end it.
        native: ``id`` of a statement that is not transformed to the reason.
        values: Generated variables for returned values: undefined unless their flag is set.
    """

    def __init__(self, prefix: str) -> None:
        self.body: list[ast.stmt] = []
        self.regions: dict[str, ast.FunctionDef] = {}
        self.returning: set[int] = set()
        self.flags: dict[int, tuple[str, ...]] = {}
        self.native: dict[int, str] = {}
        self._prefix = prefix
        self._count = 0

    def name(self, kind: str) -> str:
        """A new generated name."""
        self._count += 1
        return f"{self._prefix}{kind}_{self._count}"

    def block(self, statements: Sequence[ast.stmt], region: _Region) -> list[ast.stmt]:
        """Transform statements; the last one leaves the region in the sense of ``region``."""
        made: list[ast.stmt] = []
        for index, node in enumerate(statements):
            rest = list(statements[index + 1 :])
            if isinstance(node, ast.Return | ast.Break | ast.Continue):
                return [*made, *_jump(node, region)]
            if isinstance(node, ast.Raise):
                return [*made, node]
            reason = _why_native(node)
            if reason is not None:
                self._keep(node, reason)
                made.append(node)
            elif isinstance(node, ast.If):
                if jumps([node]):
                    return [*made, *self._branch(node, rest, region)]
                node.body, node.orelse = self.block(node.body, region), self.block(node.orelse, region)
                made.append(node)
            elif isinstance(node, ast.For | ast.While):
                return [*made, *self._loop(node, rest, region)]
            elif isinstance(node, ast.With):
                if jumps([node]) and (not region.is_function or _falls_through(node.body)):
                    return [*made, *self._with(node, rest, region)]
                node.body = self.block(node.body, region)
                made.append(node)
            else:
                self._nested(node, region)
                made.append(node)
        return made

    def _branch(self, node: ast.If, rest: list[ast.stmt], region: _Region) -> list[ast.stmt]:
        """An ``if`` with a jump: the remaining statements move into the branches that continue."""
        branches = [list(node.body), list(node.orelse)]
        continuing = [_falls_through(branch) for branch in branches]
        made: list[ast.stmt] = []
        if all(continuing) and rest:
            name = self.name("rest")
            (function,) = generated(f"def {name}(): pass", rest[0])
            self.regions[name] = function
            function.body = self.block(rest, region)
            if region.is_function and _falls_through(function.body):
                function.body += generated("return", rest[-1])
            made.append(function)
            rests = [generated(f"{'return ' * region.is_function}{name}()", node) for _ in branches]
        else:
            rests = [rest if continues else [] for continues in continuing]
        node.body, node.orelse = (
            self.block([*branch, *after], region) for branch, after in zip(branches, rests, strict=True)
        )
        if region.is_function:
            self.returning.add(id(node))
            for branch in (node.body, node.orelse):
                if not branch or _falls_through(branch):
                    branch += generated("return", node)
        elif not node.body:
            node.body += generated("pass", node)
        return [*made, node]

    def _loop(self, node: ast.For | ast.While, rest: list[ast.stmt], region: _Region) -> list[ast.stmt]:
        """A loop: its jumps set flags that end it."""
        kinds = jumps(node.body)
        broken = self.name("break") if ast.Break in kinds else None
        returned = self.name("return") if ast.Return in kinds else None
        inner = _Region(returned, broken, None, is_function=False)
        node.body = self.block(node.body, inner) or generated("pass", node)
        flags = self.flags[id(node)] = tuple(flag for flag in (broken, returned) if flag)
        after = generated(f"if {returned}: return {returned}_value", node) if returned else []
        if node.orelse and broken:
            (unbroken,) = generated(f"if not {broken}: pass", node)
            unbroken.body = node.orelse
            after.append(unbroken)
        else:
            after.extend(node.orelse)
        node.orelse = []
        return [*_unset(flags, node), node, *self.block([*after, *rest], region)]

    def _with(self, node: ast.With, rest: list[ast.stmt], region: _Region) -> list[ast.stmt]:
        """A ``with`` statement that a jump leaves: the jump follows after it."""
        kinds = jumps(node.body)
        returned = self.name("return") if ast.Return in kinds else None
        broken = self.name("break") if ast.Break in kinds else None
        continued = self.name("continue") if ast.Continue in kinds else None
        node.body = self.block(node.body, _Region(returned, broken, continued, is_function=False))
        leave = ((returned, f"return {returned}_value"), (broken, "break"), (continued, "continue"))
        after = [found for flag, jump in leave if flag for found in generated(f"if {flag}: {jump}", node)]
        flags = [flag for flag, _ in leave if flag]
        return [*_unset(flags, node), node, *self.block([*after, *rest], region)]

    def _keep(self, node: ast.stmt, reason: str) -> None:
        """Mark a statement, and the statements inside that share its jumps, as not transformed."""
        for found in ast.walk(node):
            if isinstance(found, ast.If | ast.For | ast.While):
                self.native[id(found)] = reason

    def _nested(self, node: ast.stmt, region: _Region) -> None:
        """Transform the blocks of ``try`` and similar statements without jumps."""
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if block and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                setattr(node, field, self.block(block, region))
        for part in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            part.body = self.block(part.body, region)


def structure(function: ast.FunctionDef, prefix: str) -> Structured:
    """Transform the jumps in the body of a function."""
    made = Structured(prefix)
    made.body = made.block(function.body, _Region())
    return made


def _why_native(node: ast.stmt) -> str | None:
    """Why a statement cannot be moved into a nested function; None if it can."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return None
    suspending = contains([node], _NATIVE)
    if suspending is not None:
        return f"it contains {'await' if isinstance(suspending, ast.Await) else 'yield'}"
    for found in [node, *ast.walk(node)]:
        if isinstance(found, (ast.Try, getattr(ast, "TryStar", ast.Try), ast.Match)) and jumps([found]):
            return f"{'match' if isinstance(found, ast.Match) else 'try'} inside it contains return, break or continue"
    return None


def _jump(node: ast.Return | ast.Break | ast.Continue, region: _Region) -> list[ast.stmt]:
    match node:
        case ast.Return():
            if region.returned is None:
                return [node]
            value, flag = generated(f"{region.returned}_value = None\n{region.returned} = True", node)
            value.value = node.value or value.value
            return [value, flag]
        case ast.Break():
            return [node] if region.broken is None else generated(f"{region.broken} = True", node)
        case _:
            return [] if region.continued is None else generated(f"{region.continued} = True", node)


def _unset(flags: Iterable[str], node: ast.stmt) -> list[Any]:
    return [made for flag in flags for made in generated(f"{flag} = False", node)]


def _falls_through(statements: Sequence[ast.stmt]) -> bool:
    """Whether execution may continue after the statements."""
    if not statements:
        return True
    last = statements[-1]
    if isinstance(last, ast.Return | ast.Break | ast.Continue | ast.Raise):
        return False
    if isinstance(last, ast.If):
        return _falls_through(last.body) or _falls_through(last.orelse)
    return _falls_through(last.body) if isinstance(last, ast.With) else True


def generated(text: str, like: ast.AST) -> list[Any]:
    """Statements at the location of another one."""
    made = ast.parse(text).body
    for found in (found for node in made for found in ast.walk(node)):
        if "lineno" in found._attributes:
            ast.copy_location(found, like)
    return made


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

    Statements before the test run once before the loop, and then at the end of each iteration. A test in the middle is
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


_LOOKUPS = ("get", "pop", "setdefault")


def with_keys(function: ast.FunctionDef, helper: ast.expr) -> None:
    """Let a helper find the keys of dictionaries in them, as in ``cache[n]``, ``cache.get(n)`` and ``{n: table}``."""
    # Inner nodes first: their form is copied.
    for node in reversed(list(ast.walk(function))):
        match node:
            case ast.Subscript(owner, key) if contains([key], ast.Slice) is None and not _is_shape(owner):
                node.slice = _stored_key(helper, owner, key)
            case ast.Call(ast.Attribute(owner, name), [key, *others]) if name in _LOOKUPS:
                node.args = [_stored_key(helper, owner, key), *others]
            case ast.Dict([ast.expr() as key], _):
                node.keys = [_stored_key(helper, ast.Dict([], []), key)]


def _stored_key(helper: ast.expr, owner: ast.expr, key: ast.expr) -> ast.expr:
    # The container is evaluated twice.
    if not isinstance(owner, ast.Dict) and dotted_name(owner) is None:
        return key
    owner = copy.deepcopy(owner)
    vars(owner).update(ctx=ast.Load())
    return ast.copy_location(ast.Call(copy.deepcopy(helper), [owner, key], []), key)


def _is_shape(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Attribute) and owner.attr == "shape"
