"""Names in the source of a function: which ones statements store, and which ones are live."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "MUTATING_METHODS",
    "Liveness",
    "adds_items",
    "contains",
    "dotted_name",
    "jumps",
    "loads",
    "mutated_containers",
    "scope_nodes",
    "stored_attributes",
    "stored_names",
    "with_called",
]

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

MUTATING_METHODS = frozenset(
    {
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "update",
        "setdefault",
        "add",
        "popitem",
        "reverse",
        "sort",
    }
)
"""Methods of lists, dicts and sets that modify them."""

_ADDING_METHODS = frozenset({"append", "extend", "insert"})


def scope_nodes(root: ast.AST | Sequence[ast.AST], *, regions: Iterable[str] = ()) -> Iterator[ast.AST]:
    """Nodes of a function or of statements, without the bodies of nested functions, lambdas and classes.

    Args:
        root: The node, which is included, or several.
        regions: Names of nested functions that belong to the scope: the ones that rewriting has generated.
    """
    pending = list(reversed(root)) if isinstance(root, Sequence) else [root]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, _SCOPES):
            if isinstance(node, ast.FunctionDef) and node.name in regions:
                pending.extend(reversed(node.body))
            elif not isinstance(node, ast.Lambda):
                pending.extend(node.decorator_list)
            continue
        pending.extend(reversed(list(ast.iter_child_nodes(node))))


def adds_items(nodes: Sequence[ast.AST], regions: Iterable[str] = ()) -> bool:
    """Whether statements add items to lists."""
    for node in scope_nodes(nodes, regions=regions):
        match node:
            case ast.Call(ast.Attribute(attr=attr)) if attr in _ADDING_METHODS:
                return True
            case ast.AugAssign(op=ast.Add(), value=ast.List()):
                return True
    return False


def stored_names(nodes: ast.AST | Sequence[ast.AST], regions: Iterable[str] = ()) -> dict[str, None]:
    """Variables of the function that statements bind or delete, in order; targets of comprehensions are not."""
    found: dict[str, None] = {}
    own = _comprehension_targets(nodes, regions)
    for node in scope_nodes(nodes, regions=regions):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in own:
            found[node.id] = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in regions:
            found[node.name] = None
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= dict.fromkeys((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found[node.name] = None
    return found


def _comprehension_targets(nodes: ast.AST | Sequence[ast.AST], regions: Iterable[str]) -> set[int]:
    return {
        id(name)
        for node in scope_nodes(nodes, regions=regions)
        if isinstance(node, _COMPREHENSIONS)
        for generator in node.generators
        for name in ast.walk(generator.target)
    }


def dotted_name(node: ast.AST) -> str | None:
    """``self.cache.key`` of an attribute of a variable; None for other expressions."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def stored_attributes(nodes: Sequence[ast.AST], regions: Iterable[str] = ()) -> dict[str, None]:
    """Attributes of variables that statements assign or delete: ``self.h``."""
    found: dict[str, None] = {}
    for node in scope_nodes(nodes, regions=regions):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            name = dotted_name(node)
            if name:
                found[name] = None
    return found


def mutated_containers(nodes: Sequence[ast.AST], regions: Iterable[str] = ()) -> dict[str, None]:
    """Variables and attributes whose items statements assign, or whose mutating methods they call."""
    found: dict[str, None] = {}
    for node in scope_nodes(nodes, regions=regions):
        owner: ast.AST | None = None
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            owner = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING_METHODS:
            owner = node.func.value
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        name = dotted_name(owner) if owner is not None else None
        if name:
            found[name] = None
    return found


def with_called(nodes: Sequence[ast.stmt], regions: Mapping[str, ast.FunctionDef]) -> list[ast.stmt]:
    """Statements, and the statements of the generated functions that they call."""
    made = list(nodes)
    pending, seen = list(nodes), set[str]()
    while pending:
        names = [
            found.id
            for found in scope_nodes([pending.pop()], regions=regions)
            if isinstance(found, ast.Name) and found.id in regions and found.id not in seen
        ]
        seen.update(names)
        for name in names:
            made += regions[name].body
            pending += regions[name].body
    return made


def loads(node: ast.AST | Sequence[ast.AST]) -> set[str]:
    """Names that an expression or a statement reads, also in nested functions."""
    roots = list(node) if isinstance(node, Sequence) else [node]
    return {
        found.id
        for root in roots
        for found in ast.walk(root)
        if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load)
    }


def jumps(nodes: Sequence[ast.AST], *, inside_loop: bool = False) -> set[type[ast.AST]]:
    """The jumps out of statements: ``ast.Return``, ``ast.Break``, ``ast.Continue``.

    Args:
        nodes: The statements.
        inside_loop: Whether they are inside another loop, whose own ``break`` and ``continue`` do not count.
    """
    found: set[type[ast.AST]] = set()
    for node in nodes:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break | ast.Continue) and not inside_loop):
            found.add(type(node))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            found |= jumps(node.body, inside_loop=True) | jumps(node.orelse, inside_loop=inside_loop)
        elif not isinstance(node, _SCOPES):
            found |= jumps(list(ast.iter_child_nodes(node)), inside_loop=inside_loop)
    return found


def contains(nodes: Sequence[ast.AST], kinds: type[ast.AST] | tuple[type[ast.AST], ...]) -> ast.AST | None:
    """The first node of the given kinds in statements, not in nested functions."""
    return next((node for node in scope_nodes(nodes) if isinstance(node, kinds)), None)


@dataclass(frozen=True)
class _Exits:
    """Names that are live at the targets of jumps."""

    after_break: frozenset[str] = frozenset()
    after_continue: frozenset[str] = frozenset()


class Liveness:
    """Live variables of a function: the ones that may be read before they are assigned again.

    Args:
        body: The statements of the function.
        regions: Names of the nested functions that belong to its scope.
        flags: ``id`` of a loop to the flags that end it.
        outer: Names of variables of enclosing functions that the function assigns, which these may read after it.

    Attributes:
        after: ``id`` of an ``if`` or a loop to the names that are live after it.
        head: ``id`` of a loop to the names that are live before each of its iterations.
    """

    def __init__(
        self,
        body: Sequence[ast.stmt],
        regions: Mapping[str, ast.FunctionDef],
        flags: Mapping[int, Sequence[str]],
        outer: frozenset[str] = frozenset(),
    ) -> None:
        self.after: dict[int, frozenset[str]] = {}
        self.head: dict[int, frozenset[str]] = {}
        self._outer = outer
        self._regions = regions
        self._flags = flags
        self._at_region: dict[str, frozenset[str]] = {}
        # Nested functions read variables when they are called.
        self._captured = frozenset(
            name
            for node in scope_nodes(list(body), regions=regions)
            if isinstance(node, _SCOPES) and getattr(node, "name", None) not in regions
            for name in loads(node)
        )
        self._block(body, outer, _Exits())

    def _block(self, body: Sequence[ast.stmt], out: frozenset[str], exits: _Exits) -> frozenset[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name in self._regions:
                self._at_region[node.name] = self._block(node.body, out, exits)
        for node in reversed(body):
            out = self._statement(node, out, exits)
        return out

    def _statement(self, node: ast.stmt, out: frozenset[str], exits: _Exits) -> frozenset[str]:
        match node:
            case ast.FunctionDef() if node.name in self._regions:
                return out
            case ast.If():
                self.after[id(node)] = out | self._captured
                both = self._block(node.body, out, exits) | self._block(node.orelse, out, exits)
                return both | self._reads(node.test)
            case ast.While():
                return self._loop(node, self._reads(node.test), frozenset(), out, exits)
            case ast.For():
                targets = frozenset(stored_names(node.target))
                return self._loop(node, frozenset(), targets, out, exits) | self._reads(node.iter)
            case ast.With():
                out = self._block(node.body, out, exits)
                stored = frozenset(name for item in node.items for name in stored_names(item))
                return (out - stored) | self._reads(*node.items)
            case ast.Return() | ast.Raise():
                return self._reads(node) | self._outer
            case ast.Break():
                return exits.after_break
            case ast.Continue():
                return exits.after_continue
            case ast.Assign() | ast.AnnAssign() | ast.Expr() | ast.Import() | ast.ImportFrom() | ast.Delete():
                return (out - frozenset(stored_names(node))) | self._reads(node)
            case ast.AugAssign():
                return out | self._reads(node) | frozenset(stored_names(node.target))
            case _:
                # try, match and others: every name that is read inside is live throughout.
                every = out | self._reads(node)
                for field in ("body", "orelse", "finalbody"):
                    every |= self._block(getattr(node, field, []), every, exits)
                for handler in getattr(node, "handlers", []):
                    every |= self._block(handler.body, every, exits)
                for case in getattr(node, "cases", []):
                    every |= self._block(case.body, every, exits)
                return every

    def _loop(
        self,
        node: ast.For | ast.While,
        test: frozenset[str],
        targets: frozenset[str],
        out: frozenset[str],
        exits: _Exits,
    ) -> frozenset[str]:
        self.after[id(node)] = out | self._captured
        after = self._block(node.orelse, out, exits)
        head = test | after | frozenset(self._flags.get(id(node), ()))
        while True:
            body = self._block(node.body, head, _Exits(out, head))
            grown = head | (body - targets)
            if grown == head:
                break
            head = grown
        self.head[id(node)] = head | self._captured
        return head

    def _reads(self, *nodes: ast.AST) -> frozenset[str]:
        read: set[str] = set()
        for node in nodes:
            for found in ast.walk(node):
                if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Load):
                    read.add(found.id)
                    read |= self._at_region.get(found.id, frozenset())
        return frozenset(read)
