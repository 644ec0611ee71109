"""Facts about the source of a function: stored and live names, scopes, tests, iterables, and where loops begin."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "Liveness",
    "adds_items",
    "as_iterable",
    "as_test",
    "begins_loop",
    "binds_late",
    "binds_name",
    "branch_lines",
    "contains",
    "dotted_name",
    "is_iterated",
    "is_test",
    "jumps",
    "loads",
    "loop_lines",
    "mark_iterated_variables",
    "mutated_containers",
    "only_raises",
    "scope_function",
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

    The root is included, and the bodies of functions in ``regions``, which rewriting has generated.
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

    Inside of another loop, its own ``break`` and ``continue`` do not count.
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

    ``flags`` has the flags that end a loop by its ``id``, and ``outer`` the variables of enclosing functions that the
    function assigns, which these may read after it.

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

    The variables may be other functions than the builtin ones.
    """
    for part in _iterated(node, variables):
        if isinstance(part, ast.Call):
            _mark_iterated(part)
    return node


def mark_iterated_variables(function: ast.FunctionDef) -> None:
    """Mark the values of variables that only loops and ``len`` read, as those that a loop reads itself."""
    nodes = list(ast.walk(function))
    variables = set(stored_names(function.body))
    iterated: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.For | ast.comprehension):
            iterated.update(map(id, _iterated(node.iter, variables)))
        match node:
            case ast.Call(ast.Name("len"), [ast.Name() as read], []) if "len" not in variables:
                iterated.add(id(read))
    others = {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store) and id(node) not in iterated
    }
    others |= {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    others |= {name for node in nodes if isinstance(node, ast.AugAssign) for name in stored_names(node.target)}
    for node in nodes:
        match node:
            case ast.Assign([ast.Tuple(names) | ast.List(names)], ast.Tuple(values) | ast.List(values)):
                is_paired = len(names) == len(values) and not contains([node], ast.Starred)
                pairs = list(zip(names, values, strict=True)) if is_paired else []
            case ast.Assign([target], value):
                pairs = [(target, value)]
            case _:
                continue
        for target, value in pairs:
            if isinstance(target, ast.Name) and target.id not in others:
                _mark_iterated(value)


def _iterated(node: ast.expr, variables: Container[str]) -> Iterator[ast.expr]:
    """The expressions whose elements a loop over an expression reads in order."""
    match node:
        case ast.Call(ast.Name("enumerate" | "reversed" | "zip" as name), arguments) if name not in variables:
            for argument in arguments:
                yield from _iterated(argument, variables)
        case _:
            yield node


def _mark_iterated(node: ast.expr) -> None:
    match node:
        case ast.Call(ast.Attribute(attr="unbind" | "split")) | ast.BinOp(ast.Tuple([_]), ast.Mult()):
            vars(node)["is_iterated"] = True
        case ast.IfExp(_, one, other):
            _mark_iterated(one)
            _mark_iterated(other)


def is_iterated(node: ast.Call | ast.BinOp) -> bool:
    """Whether only loops read the value of an expression."""
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


def begins_loop(file: str, line: int) -> bool:
    """Whether a loop or a list that a loop fills begins at a line of a file."""
    return line in loop_lines(file, (line,))


def loop_lines(file: str, lines: Iterable[int]) -> set[int]:
    """The lines of a file, of those that are given, where a loop or a list that a loop fills begins."""
    return _lines_where(_begins_loop, file, lines)


def branch_lines(file: str, lines: Iterable[int]) -> set[int]:
    """The lines of a file, of those that are given, with the test of a branch."""
    return _lines_where(_has_test, file, lines)


def _lines_where(begins: Callable[[ast.AST, int], bool], file: str, lines: Iterable[int]) -> set[int]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return set()
    return {line for line in lines if any(begins(node, line) for node in _nodes_at(tree, line))}


def _has_test(node: ast.AST, line: int) -> bool:
    match node:
        case ast.Call(ast.Attribute(attr="equal")):
            return node.lineno <= line <= (node.end_lineno or line)
        case ast.BoolOp() if not any(isinstance(value, ast.Compare | ast.UnaryOp) for value in node.values):
            # A choice between sizes: ``n % 8 or 8``.
            return node.lineno <= line <= (node.end_lineno or line)
    if not isinstance(node, ast.If | ast.IfExp) or (isinstance(node, ast.If) and only_raises(node)):
        return False
    return node.test.lineno <= line <= (node.test.end_lineno or line)


def _nodes_at(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """A node and all nodes in it, without statements and expressions that lie on other lines, and without assertions.

    An assertion chooses between no computations: ``assert all([size % 4 == 0 for size in x.shape])``.
    """
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert):
            continue
        # Decorators lie above the line number of their function.
        first = min([getattr(child, "lineno", line), *(one.lineno for one in getattr(child, "decorator_list", ()))])
        if first <= line <= (getattr(child, "end_lineno", None) or line):
            yield from _nodes_at(child, line)


def only_raises(node: ast.If) -> bool:
    """Whether one branch of an ``if`` only raises an error: an argument check, which remains as it is."""
    return any(branch and isinstance(branch[-1], ast.Raise) for branch in (node.body, node.orelse))


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
