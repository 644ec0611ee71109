"""AST transformation: control flow statements and expressions become calls of the helpers in ``operators.helpers``.

The bodies of branches and loops become nested functions that share the variables of the function (``nonlocal``). The
helpers decide at run time: a condition that is a Python value is evaluated as Python does.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .analysis import (
    Liveness,
    adds_items,
    as_iterable,
    as_test,
    binds_late,
    binds_name,
    contains,
    is_iterated,
    is_test,
    mark_iterated_variables,
    mutated_containers,
    only_raises,
    scope_function,
    scope_nodes,
    stored_attributes,
    stored_names,
    with_called,
)
from .structure import CountedWhile, Structured, counted_loops, generated, structure, with_keys, with_tests

__all__ = ["HELPERS", "PREFIX", "Site", "transform"]


_Node = TypeVar("_Node", bound=ast.AST)

PREFIX = "__fxonnx_"
HELPERS = f"{PREFIX}helpers"
"""Variable of the transformed function that refers to the helpers."""

_BUILTINS = frozenset(
    {
        *("range", "int", "float", "bool", "len", "enumerate", "zip", "reversed", "min", "max", "any", "all"),
        *("list", "tuple", "sum", "map"),
    }
)
_CONSUMERS = frozenset({"list", "tuple", "sum", "any", "all", "max", "min"})
"""Functions that read a generator at once, as a list; ``any`` and ``all`` up to the first item that decides."""
_FUNCTIONS = {
    **dict.fromkeys(("stack", "cat", "concat", "concatenate"), "joining"),
    **dict.fromkeys(("unbind", "split", "chunk"), "pieces"),
}
"""Functions and methods by the helper in their place."""
_TERNARY = "conditional expression on a tensor's value"


@dataclass(frozen=True)
class Site:
    """A construct in the source of a function.

    Attributes:
        line: Its line number.
        construct: Its description, such as ``while on a tensor's value``.
        names: The variables, attributes and containers that it may change.
        needed: The ones that are read after it, or in the next iteration.
        flags: Whether flags may end the loop.
        reason: Why it is not transformed.
        grows: Whether it adds items to lists.
    """

    line: int
    construct: str
    names: tuple[str, ...] = ()
    needed: frozenset[str] = frozenset()
    flags: bool = False
    reason: str = ""
    grows: bool = False


def transform(function: ast.FunctionDef, *, has_keys: bool = False) -> tuple[ast.FunctionDef, list[Site]]:
    """Transform a function.

    The definition is changed in place, and loses its decorators and annotations. The helpers get the index of a
    construct. With ``has_keys``, the keys of dictionaries may be sizes.
    """
    if has_keys:
        with_keys(function, ast.Attribute(_load(HELPERS), "key", ast.Load()))
    sites: list[Site] = []
    _Function(function, sites, frozenset()).run()
    function.decorator_list = []
    return ast.fix_missing_locations(function), sites


class _Function:
    """The transformation of one function.

    The definition is changed in place; ``outer`` are variables of the enclosing functions.
    """

    def __init__(self, function: ast.FunctionDef, sites: list[Site], outer: frozenset[str]) -> None:
        self.node = function
        self.sites = sites
        arguments = function.args
        self.parameters = [
            argument.arg
            for argument in [
                *arguments.posonlyargs,
                *arguments.args,
                *([arguments.vararg] if arguments.vararg else []),
                *arguments.kwonlyargs,
                *([arguments.kwarg] if arguments.kwarg else []),
            ]
        ]
        for argument in ast.walk(arguments):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        function.returns = None
        self.globals = _declared(function.body, ast.Global)
        self.free = _declared(function.body, ast.Nonlocal)
        _remove_declarations(function)
        self.docstring = function.body[:1] if ast.get_docstring(function) is not None else []
        function.body = function.body[len(self.docstring) :]
        mark_iterated_variables(function)
        with_tests(function)
        self.counted = counted_loops(function)
        self.structured: Structured = structure(function, PREFIX)
        self.regions = self.structured.regions
        body = self.structured.body
        self.locals = frozenset({*self.parameters, *stored_names(body, self.regions)}) - self.globals - self.free
        self.outer = outer | self.locals
        self.live = Liveness(body, self.regions, self.structured.flags, self.free)
        self.count = 0

    def run(self) -> None:
        """Transform the function in place."""
        body = self.block(self.structured.body)
        header = _declared_names("global", sorted(self.globals)) + _declared_names("nonlocal", sorted(self.free))
        if own := sorted(self.locals - set(self.parameters)):
            # Never executed: it makes the names variables of this function, which nested functions assign.
            header.append(f"if False: {' = '.join(own)} = None")
        self.node.body = [*self.docstring, *generated("\n".join(header), self.node), *body]
        self.node.body = self.node.body or generated("pass", self.node)

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Transform statements."""
        made: list[ast.stmt] = []
        for node in statements:
            made.extend(self.statement(node))
        return made

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """Transform a statement."""
        if isinstance(node, ast.FunctionDef) and node.name in self.regions:
            body = self.block(node.body)
            node.body = [*self._declarations(node, body), *body]
            return [node]
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [self.expression(item) for item in node.decorator_list]
            _Function(node, self.sites, self.outer).run()
            return [node]
        if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef):
            return [node]
        if isinstance(node, ast.If) and not only_raises(node):
            return self._if(node)
        if isinstance(node, ast.While):
            return self._while(node)
        if isinstance(node, ast.For):
            return self._for(node)
        for name, value in list(ast.iter_fields(node)):
            if isinstance(value, ast.expr):
                setattr(node, name, self.expression(value))
            elif isinstance(value, list):
                setattr(node, name, self._items(value))
        return [node]

    def _items(self, values: list[Any]) -> list[Any]:
        made: list[Any] = []
        for value in values:
            if isinstance(value, ast.stmt):
                made.extend(self.statement(value))
            elif isinstance(value, ast.expr):
                made.append(self.expression(value))
            else:
                if isinstance(value, ast.AST):
                    for name, field in list(ast.iter_fields(value)):
                        if isinstance(field, ast.expr):
                            setattr(value, name, self.expression(field))
                        elif isinstance(field, list):
                            setattr(value, name, self._items(field))
                made.append(value)
        return made

    def expression(self, node: ast.expr) -> ast.expr:
        """Transform the conditions inside an expression."""
        transformed: ast.expr = _Expressions(self).visit(node)
        return transformed

    def _if(self, node: ast.If) -> list[ast.stmt]:
        returning = id(node) in self.structured.returning
        construct = "if on a tensor's value"
        if id(node) in self.structured.native:
            node.test = self._plain(node, as_test(node.test), construct)
            node.body, node.orelse = self.block(node.body), self.block(node.orelse)
            return [node]
        site = self._site(node, construct, [*node.body, *node.orelse], self.live.after[id(node)])
        test = self.expression(as_test(node.test))
        then, state = self._closure("then", node, node.body), self._state(node, site)
        otherwise = self._closure("else", node, node.orelse)
        call = self._call(
            "returning" if returning else "branch", site, test, *_names(then, otherwise), *_names(*state), like=node
        )
        last = ast.Return(call) if returning else ast.Expr(call)
        return [then, otherwise, *state, _locate(last, node)]

    def _while(self, node: ast.While) -> list[ast.stmt]:
        construct = "while on a tensor's value"
        if id(node) in self.structured.native:
            node.test = self._plain(node, as_test(node.test), construct)
            node.body = self.block(node.body)
            return [node]
        reason = "its condition assigns a variable" if binds_name(node.test) else ""
        site = self._site(node, construct, [*node.body, ast.Expr(node.test)], self.live.head[id(node)], reason)
        test = self._closure("test", node, [_locate(ast.Return(as_test(node.test)), node.test)])
        body, state = self._closure("body", node, node.body), self._state(node, site)
        counted = self.counted.get(id(node))
        made: list[ast.FunctionDef] = [test, body, *state]
        arguments: list[ast.expr] = [*_names(test, body), self._flags(node), *_names(*state)]
        if counted is not None and counted.name in self.locals:
            item = f"{PREFIX}item"
            assign = self._closure("count", node, [ast.Assign([_store(counted.name)], _load(item))], [item])
            made.append(assign)
            arguments.append(self._counting(counted, assign, is_used=counted.name in self.live.after[id(node)]))
        return [*made, _locate(ast.Expr(self._call("loop", site, *arguments, like=node)), node)]

    def _counting(self, counted: CountedWhile, assign: ast.FunctionDef, *, is_used: bool) -> ast.expr:
        """The description of a loop that counts, for the helpers."""
        position = f"{PREFIX}position"
        sides = [_Renamed(counted.name, position).visit(side) for side in (counted.smaller, counted.larger)]
        parts = [
            _lambda(_load(counted.name)),
            _lambda(self.expression(counted.step)),
            _lambda(ast.Tuple([self.expression(side) for side in sides], ast.Load()), [position]),
            ast.Constant(counted.sign),
            ast.Constant(counted.is_inclusive),
            _lambda(ast.Tuple([_load(name) for name in counted.sized], ast.Load())),
            _load(assign.name),
            ast.Constant(counted.name),
            ast.Constant(is_used),
        ]
        return _call_helper("counting", parts)

    def _for(self, node: ast.For) -> list[ast.stmt]:
        construct = "for over a tensor or a dynamic range"
        if id(node) in self.structured.native:
            node.iter = self._plain(node, self.expression(node.iter), construct, helper="plain_iterable")
            node.body = self.block(node.body)
            return [node]
        item = f"{PREFIX}item"
        assign = _locate(ast.Assign([node.target], _load(item)), node.target)
        site = self._site(node, construct, [assign, *node.body], self.live.head[id(node)])
        body = self._closure("body", node, [assign, *node.body], [item])
        state = self._state(node, site)
        iterable = self.expression(as_iterable(node.iter, self.outer))
        call = self._call("iterate", site, iterable, *_names(body), self._flags(node), *_names(*state), like=node)
        return [body, *state, _locate(ast.Expr(call), node)]

    def _plain(self, node: ast.stmt, value: ast.expr, construct: str, helper: str = "plain") -> ast.expr:
        """A check that a condition or an iterable of a statement that is not transformed is a Python value."""
        site = self._add(Site(node.lineno, construct, reason=self.structured.native[id(node)]))
        return self._call(helper, site, self.expression(value) if helper == "plain" else value, like=node)

    def _flags(self, node: ast.For | ast.While) -> ast.expr:
        """A function that returns the flags that end the loop."""
        flags: list[ast.expr] = [_load(flag) for flag in self.structured.flags.get(id(node), ())]
        return _lambda(ast.Tuple(flags, ast.Load()))

    def _site(
        self, node: ast.stmt, construct: str, inside: list[ast.stmt], live: frozenset[str], reason: str = ""
    ) -> int:
        inside = with_called(inside, self.regions)
        names = [name for name in stored_names(inside, self.regions) if name not in self.regions]
        names = [name for name in names if name in self.locals or name in self.free]
        kept = [
            name
            for name in {**stored_attributes(inside, self.regions), **mutated_containers(inside, self.regions)}
            if name.partition(".")[0] in self.outer and name not in names
        ]
        flags = bool(self.structured.flags.get(id(node)))
        grows = adds_items(inside, self.regions)
        return self._add(Site(node.lineno, construct, (*names, *kept), live | set(kept), flags, reason, grows))

    def _add(self, site: Site) -> int:
        self.sites.append(site)
        return len(self.sites) - 1

    def _closure(
        self, kind: str, node: ast.stmt, body: Sequence[ast.stmt], parameters: Sequence[str] = ()
    ) -> ast.FunctionDef:
        """A nested function with the statements of a branch or a loop."""
        made: ast.FunctionDef = self._function(kind, parameters, "pass", node)
        originals = list(body)
        declarations = self._declarations(node, originals)
        made.body = [*declarations, *(self.block(originals) or made.body)]
        return _locate(made, node)

    def _function(self, kind: str, parameters: Sequence[str], body: str, node: ast.stmt) -> Any:
        """A nested function with a new name."""
        self.count += 1
        (made,) = generated(f"def {PREFIX}{kind}_{self.count}({', '.join(parameters)}):\n {body}", node)
        return made

    def _declarations(self, node: ast.stmt, body: Sequence[ast.stmt]) -> list[Any]:
        names = [
            name for name in stored_names(body, self.regions) if not name.startswith(PREFIX) or name in self.locals
        ]
        shared = [name for name in names if name in self.locals or name in self.free]
        known = [name for name in names if name in self.globals]
        return generated("\n".join(_declared_names("nonlocal", shared) + _declared_names("global", known)), node)

    def _state(self, node: ast.stmt, site: int) -> tuple[Any, Any]:
        """Functions that read and write the variables of a construct."""
        names = self.sites[site].names
        shared = [name for name in names if "." not in name and (name in self.locals or name in self.free)]
        values = "".join(f"{HELPERS}.value(lambda: {name}), " for name in names)
        given = f"{PREFIX}values"
        body = _declared_names("nonlocal", shared)
        for index, name in enumerate(names):
            if "." in name or name in shared:
                body += [f"{name} = {given}[{index}]", f"if {given}[{index}] is {HELPERS}.UNBOUND: del {name}"]
        get = self._function("get", [], f"return ({values})", node)
        return get, self._function("set", [given], "\n ".join(body or ["pass"]), node)

    def _call(self, helper: str, site: int, *arguments: ast.expr, like: ast.AST) -> ast.Call:
        return _locate(_call_helper(helper, [ast.Constant(site), *arguments]), like)

    def expression_site(self, node: ast.expr, construct: str) -> ast.expr:
        """The index of an expression's construct."""
        return ast.Constant(self._add(Site(node.lineno, construct)))


class _Expressions(ast.NodeTransformer):
    """Transform conditional expressions, boolean operators, comprehensions and builtin functions."""

    def __init__(self, owner: _Function) -> None:
        self._owner = owner

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        if _binds(node):
            return node
        as_test(node.test)
        self.generic_visit(node)
        site = self._owner.expression_site(node, _TERNARY)
        return _locate(_call_helper("choose", [site, node.test, _lambda(node.body), _lambda(node.orelse)]), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        if _binds(node):
            return node
        self.generic_visit(node)
        word = "and" if isinstance(node.op, ast.And) else "or"
        site = self._owner.expression_site(node, f"{word} of tensors")
        return _locate(_call_helper(f"{word}_", [site, ast.Constant(is_test(node)), *map(_lambda, node.values)]), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if not isinstance(node.op, ast.Not):
            self.generic_visit(node)
            return node
        as_test(node.operand)
        self.generic_visit(node)
        return _locate(_call_helper("not_", [node.operand]), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(left, [ast.Is() | ast.IsNot()], [ast.Constant(bool())]):
                site = self._owner.expression_site(node, "identity of a tensor's value")
                node.left = _locate(_call_helper("identified", [site, left]), node)
            case ast.Compare(left, [ast.In() | ast.NotIn()], [container]):
                found = _call_helper("contains", [left, container])
                return _locate(found if isinstance(node.ops[0], ast.In) else _call_helper("not_", [found]), node)
        if len(node.ops) == 1 or _binds(node):
            return node
        # a < b < c: b is evaluated once, c only if a < b.
        site = self._owner.expression_site(node, "chained comparison of tensors")
        parts: list[ast.expr] = [site, node.left]
        for operation, right in zip(node.ops, node.comparators, strict=True):
            one, other = f"{PREFIX}left", f"{PREFIX}right"
            compare = ast.Compare(_load(one), [operation], [_load(other)])
            parts.append(ast.Tuple([_lambda(right), _lambda(compare, [one, other])], ast.Load()))
        return _locate(_call_helper("chain", parts), node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        if any(generator.is_async for generator in node.generators) or _binds(node) or binds_late(node):
            self.generic_visit(node)
            return node
        generator, *others = node.generators
        ifs, outer = generator.ifs, self._owner.outer
        if others and any(one.ifs for one in node.generators):
            return self._filtered(node)
        if others:
            # [element for a in one for b in other]: each a adds a list of items.
            node.elt = _locate(ast.ListComp(node.elt, others), node)
        match node.elt, generator.iter:
            case ast.Constant(), ast.Call(func=ast.Name("range"), keywords=[]) if not ifs and "range" not in outer:
                length = _locate(ast.Call(_load("len"), [generator.iter], []), node)
                count: ast.expr = self.visit(length)
                return _locate(_call_helper("repeated", [ast.List([node.elt], ast.Load()), count]), node)
        iterable = self.visit(as_iterable(generator.iter, outer))
        tests = [as_test(one) for one in ([_locate(ast.BoolOp(ast.And(), ifs), node)] if len(ifs) > 1 else ifs)]
        item = f"{PREFIX}item"
        own = ast.comprehension(generator.target, ast.Tuple([_load(item)], ast.Load()), [], 0)
        # [expression for target in (item,)][0]: the target's own scope, for any kind of target.
        inner = [ast.ListComp(self.visit(expression), [own]) for expression in (node.elt, *tests)]
        of_item = [_lambda(ast.Subscript(one, ast.Constant(0), ast.Load()), [item]) for one in inner]
        site = self._owner.expression_site(node, "comprehension over a tensor or a dynamic range")
        helper = "comprehend_flat" if others else "comprehend"
        return _locate(_call_helper(helper, [site, iterable, *of_item]), node)

    def _filtered(self, node: ast.ListComp) -> ast.expr:
        """Nested loops with a filter, which checks that Python knows their iterables and conditions."""
        for generator in node.generators:
            site = self._owner.expression_site(node, "comprehension with a filter")
            generator.iter = _call_helper("plain_items", [site, self.visit(generator.iter)])
            generator.ifs = [_call_helper("plain_filter", [site, self.visit(test)]) for test in generator.ifs]
        node.elt = self.visit(node.elt)
        return _locate(node, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = scope_function(node)
        if name is not None and name not in self._owner.outer:
            site = self._owner.expression_site(node, f"{name}() of local variables")
            return _locate(_call_helper("unsupported", [site]), node)
        match node.func:
            case ast.Name("super") if not node.args and self._owner.parameters:
                node.args = [_load("__class__"), _load(self._owner.parameters[0])]
                return _locate(node, node)
            case ast.Name(name) if name in _BUILTINS and name not in self._owner.outer:
                if name in _CONSUMERS and node.args:
                    node.args[0] = _as_list(node.args[0], self._owner.outer)
                self.generic_visit(node)
                node.func = _locate(_call_helper("builtin", [node.func]), node)
                return node
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _FUNCTIONS:
            helper = "iterated" if is_iterated(node) else _FUNCTIONS[node.func.attr]
            node.func = _locate(_call_helper(helper, [node.func]), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr != "__class__" or not isinstance(node.ctx, ast.Load):
            return node
        return _locate(_call_helper("class_of", [node.value]), node)

    def visit_List(self, node: ast.List) -> ast.expr:
        match node.elts:
            case [ast.Starred(ast.GeneratorExp() as generator)]:
                visited: ast.expr = self.visit(_as_list(generator, self._owner.outer))
                return visited
        self.generic_visit(node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.List([_]) as items, ast.Mult(), count) | ast.BinOp(
                count, ast.Mult(), ast.List([_]) as items
            ):
                return _locate(_call_helper("repeated", [items, count]), node)
            case ast.BinOp(ast.Tuple([_]) as items, ast.Mult(), count) if is_iterated(node):
                return _locate(_call_helper("repeated", [items, count]), node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        if contains([node.body], (ast.Yield, ast.YieldFrom)):
            return node
        self.generic_visit(node)
        return node


def _as_list(node: ast.expr, outer: Container[str]) -> ast.expr:
    """The argument of a function that reads it to its end: a generator or a ``map`` as a list comprehension."""
    match node:
        case ast.GeneratorExp(element, generators) if not binds_name(node):
            return _locate(ast.ListComp(element, generators), node)
        case ast.Call(ast.Name("map"), [ast.Name() | ast.Attribute() | ast.Lambda() as function, iterable], []):
            if "map" not in outer:
                item = f"{PREFIX}mapped"
                element = ast.Call(function, [_load(item)], [])
                return _locate(ast.ListComp(element, [ast.comprehension(_store(item), iterable, [], 0)]), node)
    return node


class _Renamed(ast.NodeTransformer):
    """Rename a variable in an expression."""

    def __init__(self, name: str, new: str) -> None:
        self._name, self._new = name, new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return _locate(_load(self._new), node) if node.id == self._name else node


def _declared(body: Sequence[ast.stmt], kind: type[ast.Global | ast.Nonlocal]) -> frozenset[str]:
    return frozenset(name for node in scope_nodes(list(body)) if isinstance(node, kind) for name in node.names)


def _remove_declarations(function: ast.FunctionDef) -> None:
    """Replace ``global`` and ``nonlocal``, which nested functions repeat for the names that they assign."""

    class Remover(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            return self.generic_visit(node) if node is function else node

        def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
            return node

        def visit_Global(self, node: ast.Global) -> ast.AST:
            return ast.copy_location(ast.Pass(), node)

        def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
            return ast.copy_location(ast.Pass(), node)

    Remover().visit(function)


def _binds(node: ast.AST) -> bool:
    """Whether an expression cannot move into a lambda: it assigns a variable or suspends the function."""
    return contains([node], (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)) is not None


def _names(*functions: ast.FunctionDef) -> list[ast.expr]:
    return [_load(function.name) for function in functions]


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def _call_helper(name: str, arguments: Iterable[ast.expr]) -> ast.Call:
    return ast.Call(ast.Attribute(_load(HELPERS), name, ast.Load()), list(arguments), [])


def _arguments(names: Sequence[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )


def _lambda(body: ast.expr, parameters: Sequence[str] = ()) -> ast.Lambda:
    return ast.Lambda(_arguments(parameters), body)


def _declared_names(kind: str, names: Sequence[str]) -> list[str]:
    return [f"{kind} {', '.join(names)}"] if names else []


def _locate(node: _Node, like: ast.AST) -> _Node:
    """The node and the nodes inside it, where they have no location of their own, at the location of another."""
    for found in ast.walk(node):
        if "lineno" in found._attributes and not hasattr(found, "lineno"):
            ast.copy_location(found, like)
            if isinstance(found, ast.Attribute):
                # Python gives a call the last line of an attribute.
                found.end_lineno, found.end_col_offset = found.lineno, found.col_offset
    return node
