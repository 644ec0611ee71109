"""The terms of formulas: operators, numbers and parameters, and the values that they stand for in an FX graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import torch

from .matching import CASTS, HALF_FLOATS, VIEWS, dtype_of, has_one_user, known_number

__all__ = [
    "Call",
    "Match",
    "Number",
    "Tensor",
    "Term",
    "Value",
    "cast_of",
    "either",
    "exactly",
    "op",
    "product",
    "transposed",
    "view_of",
    "widened",
]

_Self = TypeVar("_Self", bound="Term")

_TOLERANCE = 1e-6  # models write constants with seven or more digits


class Match:
    """The values that the terms of a formula stand for.

    Attributes:
        passes: Whether a call is ignored, and its first argument stands for it.
        bound: The values of terms.
        differences: Reasons why the values are not the formula, although they have its form.
        explains: Whether the reason is recorded.
        reason: The first node that does not have the form of the formula, in the attempt that came furthest.
    """

    def __init__(self, names: Mapping[str, Sequence[Term]], passes: Callable[[torch.fx.Node], bool] | None) -> None:
        self.passes = passes
        self.bound: dict[Term, Any] = {}
        self.differences: tuple[str, ...] = ()
        self.explains = False
        self.reason = ""
        self._names = names
        self._progress = (-1, -1)
        self._path: tuple[torch.fx.Node, ...] = ()

    @property
    def anchor(self) -> torch.fx.Node:
        """The node at which the search began."""
        return self._path[0]

    @property
    def end(self) -> torch.fx.Node:
        """The node of the formula's result."""
        return self._path[-1]

    def value(self, name: str) -> Any:
        """The value of a parameter or named term; None if it is part of an alternative that does not match."""
        return next((self.bound[term] for term in self._names.get(name, ()) if term in self.bound), None)

    def node(self, name: str) -> torch.fx.Node:
        """The node of a parameter or named term."""
        return cast("torch.fx.Node", self.value(name))

    def number(self, name: str) -> float:
        """The value of a parameter for a number."""
        return float(self.value(name))

    def begin(self, node: torch.fx.Node) -> None:
        """Begin at an anchor, whose operands match."""
        self._path = (node,)

    def follow(self, path: Sequence[Term]) -> bool:
        """Match the operators of a formula from its anchor, which matches, to its end."""
        for term in path:
            user = self.end
            while user is self.end or (self.passes is not None and self.passes(user)):
                if not has_one_user(user):
                    return self.fail(partial("another operator uses {}".format, self._name_of(user)))
                user = next(iter(user.users))
            if not term.match(user, self):
                return False
            self._path = (*self._path, user)
        return True

    def fail(self, reason: Callable[[], str]) -> bool:
        """Record where an attempt ended, if none came further; returns False."""
        progress = len(self._path), len(self.bound)
        if self.explains and progress > self._progress:
            self._progress, self.reason = progress, reason()
        return False

    def mismatch(self, value: Any, expected: str, role: str) -> bool:
        """Record that a value has another form than a term; returns False."""
        if self._path and isinstance(value, torch.fx.Node) and self.end in value.all_input_nodes:
            source = self._name_of(self.end)
            if value.op == "output":
                return self.fail(lambda: f"{source} is returned, where the pattern has {expected}")
            return self.fail(lambda: f"{value.target} is applied to {source}, where the pattern has {expected}")
        return self.fail(lambda: f"{role} is {_described(value)}, where the pattern has {expected}")

    @property
    def prunes(self) -> bool:
        """Whether attempts that cannot match are left out: neither their reasons nor ignored calls matter."""
        return not self.explains and self.passes is None

    def first(self, attempts: Sequence[Callable[[], bool]]) -> bool:
        """Make attempts up to the first that matches; one with a difference counts only if no other matches."""
        if len(attempts) < 2:
            return bool(attempts) and attempts[0]()
        before, state = self._state(), None
        for attempt in attempts:
            if attempt():
                if self.differences == before[1]:
                    return True
                state = state or self._state()
            self.bound, self.differences, self._path = {**before[0]}, *before[1:]
        if state is not None:
            self.bound, self.differences, self._path = state
        return state is not None

    def _state(self) -> tuple[dict[Term, Any], tuple[str, ...], tuple[torch.fx.Node, ...]]:
        return {**self.bound}, self.differences, self._path

    def _name_of(self, node: torch.fx.Node) -> str:
        names = (term.name for term, value in self.bound.items() if value is node and term.name)
        return next(names, f"the result of {node.target}")


def _described(value: Any) -> str:
    if not isinstance(value, torch.fx.Node):
        return "a number" if known_number(value) is not None else str(value)
    return f"a result of {value.target}" if value.op == "call_function" else "an input or weight"


class Term:
    """A part of a formula, which stands for a value in a graph.

    Attributes:
        ignores_casts: Whether calls that ``Match.passes`` names are ignored; a parameter stands for what is given.
        name: Its meaning, for reasons and for ``Match.node``: "the scores".
        role: What it is in reasons if it has no name: "the operand of aten.mul".
        is_anchor: Whether the search begins at it.
        is_rejected: Whether it is a known way to write the formula that is not replaced.
    """

    ignores_casts = True

    def __init__(self) -> None:
        self.name = ""
        self.role = "the operand"
        self.is_anchor = False
        self.is_rejected = False
        self._form: Callable[[Any], bool] | None = None
        self._conditions: list[tuple[Callable[[Any], bool], str | Callable[[Any], str]]] = []

    def named(self: _Self, name: str) -> _Self:
        """Give it a name."""
        self.name = name
        return self

    def anchor(self: _Self) -> _Self:
        """Begin the search at it."""
        self.is_anchor = True
        return self

    def when(self: _Self, condition: Callable[[Any], bool]) -> _Self:
        """Make a condition on its value part of its form: a value for which it does not hold is not even near."""
        self._form = condition
        return self

    def where(self: _Self, condition: Callable[[Any], bool], reason: str) -> _Self:
        """Add a condition on its value, and the reason if that does not hold."""
        self._conditions.append((condition, reason))
        return self

    def once(self: _Self, name: str) -> _Self:
        """Give it a name, and require that nothing else uses it."""
        return self.named(name).where(has_one_user, f"another operator uses {name}")

    def rejected(self: _Self, reason: str | Callable[[Any], str]) -> _Self:
        """Recognize it as a way to write the formula that is not replaced."""
        self.is_rejected = True
        self._conditions.append((lambda value: False, reason))
        return self

    def match(self, value: Any, match: Match) -> bool:
        """Whether a value has its form."""
        if match.passes is not None and self.ignores_casts:
            while isinstance(value, torch.fx.Node) and match.passes(value):
                value = value.args[0]
        if not self.matches(value, match) or (self._form is not None and not self._form(value)):
            return False
        for condition, reason in self._conditions:
            if not condition(value):
                match.differences = (*match.differences, reason if isinstance(reason, str) else reason(value))
                break
        return True

    def matches(self, value: Any, match: Match) -> bool:
        """Whether a value has its form, without its conditions."""
        raise NotImplementedError

    def parts(self) -> Sequence[Term]:
        """Its operands or alternatives."""
        return ()

    def admits(self, value: Any) -> bool:
        """Whether a value may have its form, as far as the value alone shows; cheap."""
        return True

    def play(self, role: str) -> None:
        """Set its role, and its alternatives'."""
        self.role = role

    def __add__(self, other: Any) -> Call:
        return op.add(self, other)

    def __radd__(self, other: Any) -> Call:
        return op.add(other, self)

    def __sub__(self, other: Any) -> Call:
        return op.sub(self, other)

    def __mul__(self, other: Any) -> Call:
        return op.mul(self, other)

    def __rmul__(self, other: Any) -> Call:
        return op.mul(other, self)

    def __truediv__(self, other: Any) -> Call:
        return op.div(self, other)

    def __neg__(self) -> Call:
        return op.neg(self)

    def __pow__(self, exponent: float) -> Term:
        power = op.pow(self, exponent)
        return either(power, op.mul(self, self), op.square(self)) if exponent == 2 else power

    def __matmul__(self, other: Any) -> Call:
        return op(torch.ops.aten.matmul, torch.ops.aten.bmm)(self, other)


class Value(Term):
    """A parameter for any argument: a node, a number, a list or None. It is the same wherever it occurs."""

    ignores_casts = False

    def matches(self, value: Any, match: Match) -> bool:
        if self in match.bound:
            known = match.bound[self]
            is_same = known is value or (not isinstance(value, torch.fx.Node) and known == value)
            return is_same or match.fail(lambda: f"{_described(value)} is used instead of {self.name}")
        if not self.accepts(value):
            return match.fail(lambda: f"{self.name} is {_described(value)}")
        match.bound[self] = value
        return True

    def admits(self, value: Any) -> bool:
        return self.accepts(value)

    def accepts(self, value: Any) -> bool:
        """Whether it may stand for a value."""
        return True


class Tensor(Value):
    """A parameter for a tensor."""

    def accepts(self, value: Any) -> bool:
        return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


class Number(Value):
    """A parameter for a constant number."""

    def accepts(self, value: Any) -> bool:
        return known_number(value) is not None


class _Constant(Term):
    """A number or an option."""

    def __init__(self, constant: Any, reason: str = "") -> None:
        super().__init__()
        self.constant = constant
        self.reason = reason

    def matches(self, value: Any, match: Match) -> bool:
        if isinstance(value, (torch.fx.Node, list, tuple)):
            return match.mismatch(value, str(self), self.name or self.role)
        given, wanted = known_number(value), known_number(self.constant)
        is_close = given is not None and wanted is not None and math.isclose(given, wanted, rel_tol=_TOLERANCE)
        if not is_close and value != self.constant:
            reason = self.reason or f"{self.role} is {value}, where the pattern has {self}"
            match.differences = (*match.differences, reason)
        return True

    def __str__(self) -> str:
        return f"{self.constant:g}" if isinstance(self.constant, float) else str(self.constant)


class _Items(Term):
    """A list of arguments."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__()
        self._items = [_term(item) for item in items]

    def parts(self) -> Sequence[Term]:
        return self._items

    def matches(self, value: Any, match: Match) -> bool:
        if not isinstance(value, (list, tuple)) or len(value) != len(self._items):
            return match.mismatch(value, f"{len(self._items)} items", self.name or self.role)
        return all(term.match(item, match) for term, item in zip(self._items, value, strict=True))


class _Either(Term):
    """Alternatives, of which the first that matches counts."""

    def __init__(self, alternatives: Sequence[Term]) -> None:
        super().__init__()
        self._alternatives = alternatives

    def anchor(self: _Self) -> _Self:
        for term in self.parts():
            term.anchor()
        return self

    def admits(self, value: Any) -> bool:
        return any(term.admits(value) for term in self._alternatives)

    def play(self, role: str) -> None:
        for term in self._alternatives:
            term.play(role)

    def parts(self) -> Sequence[Term]:
        return self._alternatives

    def matches(self, value: Any, match: Match) -> bool:
        candidates = self._alternatives
        if match.prunes:
            candidates = [term for term in candidates if term.admits(value)]
        found = match.first([partial(term.match, value, match) for term in candidates])
        if found:
            match.bound[self] = value
        return found


class Call(Term):
    """A call of one of several operators.

    Attributes:
        targets: The operators: packets of overloads, overloads or functions.
        label: What they are called in reasons.
    """

    def __init__(self, targets: Sequence[Any], operands: Sequence[Any], options: dict[str, Any]) -> None:
        super().__init__()
        self.targets = frozenset(targets)
        self.label = " or ".join(str(target) for target in targets)
        self._operands = [_term(operand) for operand in operands]
        self._options = {name: _term(option) for name, option in options.items()}
        for term in self._operands:
            term.play(f"the operand of {self.label}")
        for name, term in self._options.items():
            term.play(f"{name} of {self.label}")
        self._is_commutative = not self.targets.isdisjoint(_COMMUTATIVE) and len(operands) == 2
        self._is_loose = False
        # Operators exist once, and their hashes are slow.
        self._ids = frozenset(target if isinstance(target, str) else id(target) for target in targets)
        self._has_names = any(isinstance(target, str) for target in targets)

    def loose(self) -> Call:
        """Ignore the arguments that are not given, which have their defaults otherwise."""
        self._is_loose = True
        return self

    def parts(self) -> Sequence[Term]:
        return (*self._operands, *self._options.values())

    def matches(self, value: Any, match: Match) -> bool:
        if match.bound.get(self) is value:
            return True
        arguments = self._arguments(value)
        if arguments is None:
            return match.mismatch(value, self.label, self.name or self.role)
        match.bound[self] = value
        operands, options = arguments
        if not all(term.match(options[name], match) for name, term in self._options.items()):
            return False
        if not self._is_commutative:
            return self._match_operands(operands, match)
        orders: Sequence[Sequence[Any]] = (operands, operands[::-1])
        if match.prunes:
            orders = [
                order
                for order in orders
                if all(term.admits(each) for term, each in zip(self._operands, order, strict=True))
            ]
        return match.first([partial(self._match_operands, order, match) for order in orders])

    def _match_operands(self, values: Sequence[Any], match: Match) -> bool:
        return all(term.match(value, match) for term, value in zip(self._operands, values, strict=True))

    def admits(self, value: Any) -> bool:
        if not isinstance(value, torch.fx.Node) or value.op != "call_function":
            return False
        return id(value.target) in self._ids or self._family(value.target) in self._ids

    def _family(self, target: Any) -> int | str:
        """The identity of an overload's operator; its name if the term has names, for operators that may be missing."""
        if self._has_names:
            return str(target).removesuffix(".default").replace(".", "::", 1)
        return id(getattr(target, "overloadpacket", None))

    def _arguments(self, value: Any) -> tuple[list[Any], dict[str, Any]] | None:
        """The operands and options of a call of one of the operators; None for others."""
        if not self.admits(value):
            return None
        target: Any = value.target
        count = len(self._operands)
        if not self._options and (
            len(value.args) >= count if self._is_loose else len(value.args) == count and not value.kwargs
        ):
            return list(value.args[:count]), {}
        parameters = _parameters(target)
        given = dict(zip((name for name, _ in parameters), value.args, strict=False))
        given.update(value.kwargs)
        positional = [name for name, _ in parameters if name not in self._options]
        if len(positional) < count or not self._options.keys() <= dict(parameters).keys():
            return None
        if not self._is_loose and any(
            name in given and name in positional[count:] and given[name] != default for name, default in parameters
        ):
            return None
        whole = {**dict(parameters), **given}
        return [whole[name] for name in positional[:count]], whole


@lru_cache(maxsize=256)
def _parameters(target: Any) -> tuple[tuple[str, Any], ...]:
    """The names and defaults of an operator's parameters."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return (("0", None), ("1", None))
    return tuple((each.name, each.default_value) for each in schema.arguments)


class _Operators:
    """``op.name(...)`` is a call of an ATen operator in any overload, ``op(targets)(...)`` one of several operators."""

    def __getattr__(self, name: str) -> Callable[..., Call]:
        return self(getattr(torch.ops.aten, name))

    def __call__(self, *targets: Any) -> Callable[..., Call]:
        return lambda *operands, **options: Call(targets, operands, options)


op = _Operators()
_COMMUTATIVE = frozenset({torch.ops.aten.add, torch.ops.aten.mul})


def _term(value: Any) -> Term:
    if isinstance(value, Term):
        return value
    return _Items(value) if isinstance(value, (list, tuple)) else _Constant(value)


def exactly(constant: Any, reason: str) -> Term:
    """A number or an option, with the reason if another one is used."""
    return _Constant(constant, reason)


def either(*alternatives: Any) -> Term:
    """One of several alternatives, the first that matches."""
    return _Either([_term(each) for each in alternatives])


def product(first: Any, second: Any, third: Any) -> Term:
    """A product of three factors in any order."""
    pairs = ((first, second, third), (first, third, second), (second, third, first))
    return either(*(op.mul(op.mul(one, two), last) for one, two, last in pairs))


def cast_of(x: Term) -> Call:
    """A cast, or another call that keeps the values of a tensor and may change its dtype."""
    return _labelled("a cast", op(*CASTS)(x))


def widened(x: Tensor) -> Term:
    """The cast of a half-precision tensor to float32."""
    return cast_of(x.when(lambda node: dtype_of(node) in HALF_FLOATS)).when(
        lambda node: dtype_of(node) == torch.float32
    )


def transposed(x: Term, first: int, second: int, reason: str = "other axes are transposed") -> Call:
    """The transposition of two of four axes."""
    call = op(torch.ops.aten.transpose.int)(x).loose()
    return call.where(lambda node: {axis % 4 for axis in node.args[1:]} == {first, second}, reason)


def view_of(x: Term) -> Call:
    """A call that only changes the shape of a tensor."""
    return _labelled("a change of the shape", op(*VIEWS)(x))


def _labelled(label: str, call: Call) -> Call:
    call.label = label
    return call.loose()
