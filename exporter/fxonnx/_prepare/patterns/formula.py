"""Formulas: fusion patterns written as Python functions of operators, and the search for them in an FX graph.

    def gelu(x: Tensor) -> Term:
        return product(0.5, x, 1.0 + op.erf(x / math.sqrt(2)).anchor())

    GELU = Formula(gelu, lambda match: dtype_of(match.node("x")) in FLOATS)

A parameter stands for any value of its type: ``Tensor``, ``Number`` or ``Value``. ``op.name`` is a call of that ATen
operator in any overload. Operands of sums and products may have either order, ``x ** 2`` is a square in any form, and
arguments that are not given have their defaults.

The search begins at each call of the anchor, the rarest operator of the formula. Its operands are matched first, then
its users one after the other up to the end of the formula; each node on this path has one user. If only a number, an
option or a condition differs, the search goes on. In formulas with near misses, those of attention and norms, an anchor
whose operands have the form of the formula is one if the whole does not match; the reason is the first difference, or
else the first node of another form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from fxonnx_translations._torch_compat import OpOverloadPacket

from .terms import Call, Match, Number, Tensor, Term, Value

__all__ = ["Formula", "Matches", "always"]


class Matches:
    """The result of applying a fusion pattern to a graph.

    Attributes:
        fused: The nodes that replaced a match, in order.
        missed: Anchors of subgraphs that nearly match, with the reason why they do not.
    """

    def __init__(self) -> None:
        self.fused: list[torch.fx.Node] = []
        self.missed: dict[torch.fx.Node, str] = {}

    def replace(self, end: torch.fx.Node, fused: torch.fx.Node) -> None:
        """Replace the end of a match by an operator, which is recorded."""
        end.replace_all_uses_with(fused)
        self.fused.append(fused)


_Condition = Callable[[Match], bool]
_Path = tuple[Term, ...]
_DIFFERS = "a condition does not hold"

_PARAMETERS = {each.__name__: each for each in (Tensor, Number, Value)}


def always(match: Match) -> bool:
    """For formulas of which each match of the anchor's operands is a near miss."""
    return True


class Formula:
    """A formula with its conditions.

    Args:
        function: Returns the formula; its parameters are annotated as ``Tensor``, ``Number`` or ``Value``.
        conditions: Conditions on a match, in order, each with the reason for a near miss if there are near misses.
        near: Whether a match of the anchor's operands only is a near miss; by default, there are none.
        passes: Whether a call, such as a cast, is ignored wherever it occurs.
    """

    def __init__(
        self,
        function: Callable[..., Term],
        *conditions: _Condition | tuple[_Condition, str],
        near: _Condition | None = None,
        passes: Callable[[torch.fx.Node], bool] | None = None,
    ) -> None:
        parameters: list[Term] = []
        for name, parameter in inspect.signature(function).parameters.items():
            parameters.append(_PARAMETERS[parameter.annotation]().named(name))
        self._root = function(*parameters)
        self._conditions = [one if isinstance(one, tuple) else (one, _DIFFERS) for one in conditions]
        self._near = near
        self._passes = passes
        self._names: dict[str, list[Term]] = {parameter.name: [parameter] for parameter in parameters}
        self._first = parameters[0] if parameters else self._root
        self._paths: dict[Term, list[_Path]] = {}
        for term in _terms(self._root):
            if term.name and term not in parameters:
                self._names.setdefault(term.name, []).append(term)
            if term.is_anchor or term is self._first:
                self._paths[term] = [path[1:] for path in _paths(self._root, term)]
        self._anchors: dict[Any, list[Term]] = {}
        for term in self._paths:
            for target in _overloads(term) if term.is_anchor else ():
                self._anchors.setdefault(target, []).append(term)

    def matches(self, graph: torch.fx.Graph, found: Matches) -> Iterator[Match]:
        """Find the formula in a graph, which may be changed meanwhile; near misses are recorded.

        Args:
            graph: A functional graph.
            found: The matches of the pattern.

        Raises:
            ValueError: If no operator of the formula is an anchor.
        """
        if not self._anchors:
            raise ValueError("a formula that is searched needs an operator with .anchor()")
        for target, anchors in self._anchors.items():
            for node in graph.find_nodes(op="call_function", target=target):
                for anchor in anchors if node.users else ():
                    match = self._search(node, anchor, found)
                    if match is not None:
                        yield match
                        break

    def at(self, node: Any) -> Match | None:
        """Match a node as the end of the formula."""
        match = Match(self._names, self._passes)
        match.begin(node)
        return match if self._root.match(node, match) and not self._difference(match) else None

    def after(self, node: torch.fx.Node) -> Match | None:
        """Match a node as the first parameter of the formula, and its users as the rest."""
        match = Match(self._names, self._passes)
        match.begin(node)
        if not self._first.match(node, match) or not self._follow(match, self._first) or self._difference(match):
            return None
        return match

    def _search(self, node: torch.fx.Node, anchor: Term, found: Matches) -> Match | None:
        match = Match(self._names, self._passes)
        if not anchor.match(node, match):
            return None
        match.begin(node)
        match.explains = self._near is not None
        if self._follow(match, anchor):
            reason = self._difference(match)
            if not reason:
                return match if match.end.users else None
        elif all(path and path[-1].is_rejected for path in self._paths[anchor]):
            return None
        else:
            reason = next(iter(match.differences), match.reason)
        if self._near is not None and self._near(match):
            found.missed[node] = reason
        return None

    def _follow(self, match: Match, start: Term) -> bool:
        return match.first([partial(match.follow, path) for path in self._paths[start]])

    def _difference(self, match: Match) -> str:
        """The reason why a match of the formula's form is none; empty for a match."""
        if match.differences:
            return match.differences[0]
        return next((reason for condition, reason in self._conditions if not condition(match)), "")


def _terms(root: Term) -> list[Term]:
    """All terms of a formula."""
    found: dict[Term, None] = {}
    pending = [root]
    while pending:
        term = pending.pop()
        if term not in found:
            found[term] = None
            pending.extend(reversed(term.parts()))
    return list(found)


def _paths(term: Term, start: Term) -> Iterator[_Path]:
    """The calls from a term of a formula to its end."""
    if term is start:
        yield (term,)
        return
    for part in term.parts():
        for path in _paths(part, start):
            yield (*path, term) if isinstance(term, Call) else path


def _overloads(anchor: Term) -> Sequence[Any]:
    """The operators of an anchor, indexed in a graph: operators on tensors that do not write to an argument."""
    found: list[Any] = []
    for target in anchor.targets if isinstance(anchor, Call) else ():
        if isinstance(target, OpOverloadPacket):
            names: list[str] = target.overloads()  # type: ignore[no-untyped-call]
            found += [each for name in names if _is_functional((each := getattr(target, name))._schema)]
        else:
            found.append(target)
    return found


def _is_functional(schema: Any) -> bool:
    return not schema.is_mutable and "Tensor" in str(schema.arguments[0].type)
