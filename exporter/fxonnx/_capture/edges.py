"""Edges: single sizes at which a model takes another branch, where the branch for all other sizes may compute the same.

``if pad > 0: x = F.pad(x, (0, pad))`` skips a padding by nothing, and ``if x.shape != skip.shape`` an interpolation to
the same size. With the answer for the other sizes, the captured program may be right at all of them. In
``if n % 8 != 0: x = F.pad(x, (0, 8 - n % 8))``, it is right if the padding is ``-n % 8``: the same beside the edge, and
0 at it.

``if index.numel() > 0: y.index_add_(0, index, x)`` is one of a size that depends on data. If control flow on it cannot
be captured, such as beside gradients, the proof shows whether the program is right at the edge as well; otherwise the
graph checks that no input is there.

Where the branches compute something else, both can be captured: each is traced for sizes at which it runs, and its
guards are limits there.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from traceback import StackSummary
from types import FrameType
from typing import Any, TypeVar, cast

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import has_side_effect

from fxonnx_translations._builder.size_values import EVALUATION_ERRORS
from fxonnx_translations._torch_compat import FloorDiv, Mod, PythonMod, ValueRanges, int_oo, sym_min, sym_not

from .._context_values import activated, active
from .._own_operators import define_operator
from .._user_files import is_user_file, is_user_frame
from .constraints.constraint_solver import are_equal, holds_where
from .constraints.guard_recorder import DataEdge, GuardLog, SourceLine, recorded_guards, user_line
from .constraints.relation_forms import edge_of, indicator_of, without_floats
from .constraints.size_forms import OtherSizes
from .data_dependence.checks import answer_at, asks_several, compared_values
from .data_dependence.concrete_values import active_values
from .evaluating_code import Asking, evaluating_frame, is_shortcut, relaxed
from .patches.patch import Patch, applied
from .patches.size_numbers import Shape, shape_patches
from .user_code import function_source

__all__ = [
    "AskedEdges",
    "SizeBranches",
    "answer_in_branch",
    "answered_beside_data_edges",
    "answered_beside_edges",
    "chosen",
    "edge_places",
    "graphs_run_at_sides",
    "is_size_branch",
    "sides_of",
    "traced_size_branches",
    "without_methods",
]

_T = TypeVar("_T")


def edge_places(conditions: Mapping[sympy.Basic, Asking]) -> set[str]:
    """The places of the conditions of a model, with sizes as symbols, that have edges and are no checks."""
    return {
        f"{asking.f_code.co_filename}:{asking.f_lineno} in {asking.f_code.co_name}"
        for condition, asking in conditions.items()
        if edge_of(condition, dict.fromkeys(condition.free_symbols, ValueRanges(1, int_oo)))
        and answer_at(asking) is None
    }


@contextmanager
def answered_beside_edges(kept: Collection[str] | None, log: GuardLog) -> Iterator[None]:
    """Answer the conditions of a model on sizes as for the sizes beside their edges, whatever the size of the example.

    Args:
        kept: The lines whose conditions are answered for the example; None for all lines.
        log: Receives the conditions that the answers assume.
    """
    if kept is None:
        context: Any = nullcontext()
    else:
        guard = Patch(
            "torch.fx.experimental.sym_node:SymNode.guard_bool",
            partial(_guard_bool, kept, log),
            "a model branches on single sizes",
        )
        padding = (
            Patch(f"torch:SymInt.{name}", partial(replacement, log), "a model pads to a multiple in a branch")
            for name, replacement in (
                ("__rsub__", _rest_of_block),
                ("__add__", _next_block),
                ("__radd__", _next_block),
            )
        )
        context = applied((guard, *padding, *shape_patches(_ComparedShape)))
    with context:
        yield


def _guard_bool(
    kept: Collection[str], log: GuardLog, original: Callable[..., bool], self: SymNode, file: str, line: int
) -> bool:
    """``SymNode.guard_bool``, which a model calls in ``if x.shape[0] % 8 != 0``."""
    frame = evaluating_frame(sys._getframe(1))
    if frame is None or not is_user_frame(frame):
        return original(self, file, line)
    condition, environment = self.expr, self.shape_env
    symbols = condition.free_symbols
    if environment is None or not symbols or not symbols <= environment.backed_var_to_val.keys():
        return original(self, file, line)
    if asks_several(frame):
        whole = _same_sizes(*(compared_values(frame) or ((), ())))
        if whole is None:
            return original(self, file, line)
        # Shapes that differ in the first size need not be compared further.
        condition = whole.node.expr
        symbols = condition.free_symbols
    edge = edge_of(condition, {symbol: environment.var_to_range[symbol] for symbol in symbols})
    if edge is None or environment._maybe_evaluate_static(condition) is not None:
        return original(self, file, line)
    assumed, answer = edge
    place = user_line(frame)
    # A check of the sizes does not choose between computations.
    if str(place) in kept or answer_at(frame) is not None:
        return original(self, file, line)
    log.edges.setdefault(assumed, place)
    asked = active(AskedEdges)
    if asked is not None:
        asked.count += 1
    return answer


@dataclass
class AskedEdges:
    """The number of conditions that have been answered as for the sizes beside their edges."""

    count: int = 0


def _rest_of_block(log: GuardLog, original: Callable[..., Any], self: torch.SymInt, other: Any) -> Any:
    """``8 - n % 8``, which becomes 0 where n is a multiple of 8, if the capture assumes that it is not."""
    found, remainder = original(self, other), self.node.expr
    is_rest = isinstance(remainder, Mod | PythonMod) and remainder.args[1] == other
    return found % other if is_rest and _is_assumed(log, *remainder.args) else found


def _next_block(log: GuardLog, original: Callable[..., Any], self: torch.SymInt, other: Any) -> Any:
    """``n // 8 + 1``, which becomes ``n // 8`` where n is a multiple of 8, if the capture assumes that it is not."""
    quotient = self.node.expr
    if type(other) is int and other == 1 and isinstance(quotient, FloorDiv) and _is_assumed(log, *quotient.args):
        remainder = Mod(*quotient.args)
        hint = self.node.shape_env.size_hint(remainder)
        other = sym_min(self.node.shape_env.create_symintnode(remainder, hint=int(hint)), 1)
    return original(self, other)


def _is_assumed(log: GuardLog, size: sympy.Expr, divisor: sympy.Expr) -> bool:
    """Whether the capture assumes that a size is not a multiple of a number."""
    return any(sympy.Ne(kind(size, divisor), 0) in log.edges for kind in (Mod, PythonMod))


def _hold(condition: Any, text: str) -> None:
    """An assertion that does not hold at the edge, and from which torch derives nothing."""


_OPERATOR = define_operator("fxonnx::beside_edge(Scalar condition, str text) -> ()", _hold, _hold)
has_side_effect(torch.ops.fxonnx.beside_edge.default)

_TEXT = "edge "


@contextmanager
def answered_beside_data_edges(log: GuardLog, *, is_applied: bool, is_noted: bool) -> Iterator[None]:
    """Answer the conditions of a model on sizes that depend on data as beside their edges, or note that it has some."""
    patches = (
        Patch(
            "torch.fx.experimental.sym_node:SymNode.guard_bool",
            partial(_guard_bool_of_data, log, is_applied),
            "a model branches on single sizes that depend on data",
        ),
        Patch(
            "torch.fx.proxy:TracerBase._filter_traceback_frames",
            _keep_user_frames,
            "it keeps only frames of functions with the name forward",
        ),
    )
    with applied(patches if is_applied else patches[:1]) if is_applied or is_noted else nullcontext():
        yield


def _keep_user_frames(original: Callable[..., StackSummary], tracer: Any, stack: StackSummary) -> StackSummary:
    """``_filter_traceback_frames``, which also keeps the functions that forward calls."""
    kept = {id(frame) for frame in original(tracer, stack)}
    return StackSummary.from_list([frame for frame in stack if id(frame) in kept or is_user_file(frame.filename)])


def _guard_bool_of_data(
    log: GuardLog, is_applied: bool, original: Callable[..., bool], self: SymNode, file: str, line: int
) -> bool:
    """``SymNode.guard_bool``, which a model calls in ``if index.numel() > 0``."""
    try:
        return original(self, file, line)
    except GuardOnDataDependentSymNode:
        if not is_applied:
            log.has_data_edges |= _found_answer(self) is not None
            raise
        frame, values = evaluating_frame(sys._getframe(1)), active_values()
        if values is not None and values.condition(self.expr) is not None:
            raise
        if frame is None or not is_user_frame(frame):
            known = next((at for at, edge in enumerate(log.data_edges) if edge.condition == self.expr), None)
            if known is None:
                raise
            # Nothing is known about the code of torch at the edge.
            log.data_edges[known] = replace(log.data_edges[known], body=None)
            return log.data_edges[known].answer
        found = _found_answer(self)
        if found is None or answer_at(frame) is not None:
            raise
        file_name, text = frame.f_code.co_filename, f"{_TEXT}{len(log.data_edges)}"
        body = _body(frame, answer=found)
        log.data_edges.append(DataEdge(text, self.expr, found, user_line(frame), file_name, body))
        make_condition: Any = torch.SymBool if found else _negated
        # Passes that trace the program anew give its sizes other symbols, but keep the text.
        torch.ops.fxonnx.beside_edge(make_condition(self), text)
        return found


def _negated(node: SymNode) -> Any:
    negate, condition = cast(Any, torch.sym_not), cast(Any, torch.SymBool)(node)
    return negate(condition)


def _found_answer(node: SymNode) -> bool | None:
    """The answer beside the edge of a condition; None without an edge."""
    known = {} if node.shape_env is None else node.shape_env.var_to_range
    found = edge_of(node.expr, {one: known.get(one, ValueRanges(0, int_oo)) for one in node.expr.free_symbols})
    return None if found is None else found[1]


def _body(frame: FrameType, *, answer: bool) -> tuple[int, int] | None:
    """The lines of the statement that a frame evaluates, if nothing else runs at the edge."""
    tree = function_source(frame.f_code)
    for node in () if tree is None else ast.walk(tree):
        is_asked = isinstance(node, ast.If) and node.test.lineno <= frame.f_lineno <= (node.test.end_lineno or 0)
        if isinstance(node, ast.If) and is_asked:
            last = node.body[-1].end_lineno
            return (node.body[0].lineno, last) if answer and not node.orelse and last is not None else None
    return None


@dataclass(frozen=True)
class SizeBranches:
    """The conditions on sizes whose branches are both captured, and the branch that is traced.

    Attributes:
        places: The lines of the conditions, ``file.py:12``.
        log: Receives the conditions, and the guards of the branches.
        sizes: The sizes for which a branch is traced, by symbol; empty outside of branches.
        holding: The conditions that hold in it.
        graphs: Receives the graphs of branches.
    """

    places: Collection[str]
    log: GuardLog
    sizes: Mapping[sympy.Symbol, sympy.Integer] = field(default_factory=dict)
    holding: frozenset[sympy.Basic] = frozenset()
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)


class _ComparedShape(Shape):
    """A shape whose comparison with another one is one condition."""

    __slots__ = ()

    def __eq__(self, other: object) -> Any:
        same = _same_sizes(self, other)
        return super().__eq__(other) if same is None else same

    def __ne__(self, other: object) -> Any:
        same = _same_sizes(self, other)
        return super().__ne__(other) if same is None else sym_not(same)

    __hash__ = Shape.__hash__


def _same_sizes(one: object, other: object) -> torch.SymBool | None:
    """Whether shapes are equal, if Python does not know; sizes that it knows are equal or decide."""
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return None
    if not all(isinstance(size, int | torch.SymInt) for size in other):
        return None
    same = [size == length for size, length in zip(one, other, strict=False)]
    unknown = [each for each in same if isinstance(each, torch.SymBool)]
    is_known = len(one) != len(other) or not unknown or any(each is False for each in same)
    return None if is_known else reduce(operator.and_, unknown)


@contextmanager
def traced_size_branches(places: Collection[str], log: GuardLog) -> Iterator[None]:
    """Capture both branches of the conditions on sizes at some lines."""
    evaluation = Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv.evaluate_expr",
        _evaluate_at_side,
        "a branch on sizes is traced for sizes at which it runs",
    )
    graphs = Patch(
        "torch._higher_order_ops.cond:reenter_make_fx",
        _graph_of_branch,
        "torch runs the graphs of branches again, for the sizes of the example",
    )
    comparisons = (
        Patch(target, _equal, "sizes that differ in the example are equal elsewhere")
        for target in ("torch:equal", "torch:Tensor.equal")
    )
    assertions = Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv.guard_or_defer_runtime_assert",
        _assert_at_side,
        "an assertion of a branch would hold for all sizes",
    )
    guesses = Patch(
        "torch.fx.experimental.symbolic_shapes:_guard_or",
        _guard_or_at_side,
        "the condition of a branch decides others there",
    )
    patches = (evaluation, assertions, guesses, graphs, *comparisons, *shape_patches(_ComparedShape))
    with applied(patches), activated(SizeBranches(places, log)):
        yield


def is_size_branch(condition: Any, place: str) -> bool:
    """Whether both branches of a condition of unknown value are captured, if it is one on sizes of inputs.

    With the value of a tensor, it may be one on sizes as well: ``m == n and (x == y).all()``.
    """
    known = active(SizeBranches)
    if known is None or not isinstance(condition, torch.SymBool):
        return False
    on_sizes, on_data = _conjuncts(condition)
    return bool(on_sizes) and (bool(on_data) or place in known.places)


def without_methods(condition: torch.SymBool) -> torch.SymBool:
    """A condition in a form that graphs can compute: they have no ``is_integer``."""
    plain = without_floats(condition.node.expr)
    return condition if plain == condition.node.expr else condition.node.shape_env.create_symboolnode(plain)


def _conjuncts(condition: torch.SymBool) -> tuple[list[sympy.Basic], list[sympy.Basic]]:
    """The parts of a condition, or of its negation, that all hold where it does: on sizes of inputs, and others."""
    environment = condition.node.shape_env
    asked = environment.replace(condition.node.expr)
    parts = sympy.And.make_args(sympy.Not(asked) if isinstance(asked, sympy.Not) else asked)
    on_sizes = [part for part in parts if part.free_symbols <= environment.backed_var_to_val.keys()]
    return on_sizes, [part for part in parts if part not in on_sizes]


def absorbs(condition: torch.SymBool, value: torch.SymBool, *, is_and: bool) -> bool:
    """Whether ``value and condition``, or ``value or condition``, is the condition, as for ``torch.equal``."""
    asked, known = (one.node.shape_env.replace(one.node.expr) for one in (condition, value))
    parts = [sympy.And.make_args(one if is_and else sympy.Not(one)) for one in (known, asked)]
    return set(parts[0]) <= set(parts[1])


def sides_of(
    condition: torch.SymBool, branches: tuple[Callable[[], _T], Callable[[], _T]], line: SourceLine
) -> list[Callable[[], _T]] | None:
    """The branches, each of which is traced for sizes at which it runs; None if one of them never does."""
    known = active(SizeBranches)
    if known is None:
        return None
    environment, log = condition.node.shape_env, known.log
    on_sizes, on_data = _conjuncts(condition)
    asked = sympy.And(*on_sizes)
    relations = [asked, sympy.true if on_data else sympy.Not(asked)]
    if isinstance(condition.node.expr, sympy.Not):
        relations.reverse()
    answers = (condition.node.expr, sympy.Not(condition.node.expr))
    made: list[Callable[[], _T]] = []
    for relation, answer, branch in zip(relations, answers, branches, strict=True):
        sizes = _sizes_where(relation, environment, known)
        if sizes is None:
            return None
        side = replace(known, sizes=sizes, holding=known.holding | {answer})
        made.append(_Side(side, sympy.And(log.side, relation), branch))
    # The proof runs the program where each of these does not hold; an equation would specialize a dim until then.
    assumed = sympy.Not(asked) if asked.atoms(sympy.Eq) else asked
    is_known = {*on_sizes} <= {*sympy.And.make_args(log.side)}
    for relation in (assumed,) if log.side is sympy.true else () if is_known else (asked, sympy.Not(asked)):
        log.edges.setdefault(sympy.Or(sympy.Not(log.side), relation), line)
    return made


def answer_in_branch(condition: Any) -> bool | None:
    """The value of a condition in a branch that is traced, if the branch depends on it."""
    known = active(SizeBranches)
    if known is None or not isinstance(condition, torch.SymBool):
        return None
    answers = {True: condition.node.expr, False: sympy.Not(condition.node.expr)}
    return next((value for value, one in answers.items() if one in known.holding), None)


@dataclass(frozen=True)
class _Side:
    """A branch that is traced for the sizes at which its condition holds."""

    known: SizeBranches
    condition: sympy.Basic
    branch: Callable[[], Any]

    def __call__(self) -> Any:
        log = self.known.log
        before, log.side = log.side, self.condition
        try:
            with activated(OtherSizes()), activated(self.known):
                return self.branch()
        finally:
            log.side = before

    def run_again(self, graph: torch.fx.GraphModule, *args: Any) -> Any:
        """Run the graph of the branch for the same sizes; its guards are recorded."""
        known = replace(self.known, log=GuardLog(side=self.condition))
        with activated(OtherSizes()), activated(known), recorded_guards(GuardLog()):
            return type(graph).forward(graph, *args)


def _graph_of_branch(original: Callable[..., Any], fn: Any, *options: Any) -> Any:
    """``reenter_make_fx``; torch also runs the graph of a branch, for the shapes of its results."""
    trace, side = original(fn, *options), getattr(fn, "branch", None)

    def traced(*args: Any) -> torch.fx.GraphModule:
        graph: torch.fx.GraphModule = trace(*args)
        if isinstance(side, _Side):
            vars(graph)["forward"] = partial(side.run_again, graph)
            side.known.graphs.append(graph)
        return graph

    return traced


@contextmanager
def graphs_run_at_sides() -> Iterator[None]:
    """Run the graphs of branches for the sizes of their branches inside the context, which is the operator's."""
    known = active(SizeBranches)
    try:
        yield
    finally:
        # Branches in a branch are run with it.
        while known is not None and not known.sizes and known.graphs:
            del vars(known.graphs.pop())["forward"]


def _sizes_where(
    relation: sympy.Basic, environment: Any, known: SizeBranches
) -> dict[sympy.Symbol, sympy.Integer] | None:
    """The sizes closest to the example at which a relation and the guards so far hold."""
    example = {symbol: sympy.Integer(int(value)) for symbol, value in environment.backed_var_to_val.items()}
    example |= known.sizes
    required = [known.log.side, *(environment.replace(guard.expression) for guard in known.log.guards)]
    required = [one for one in required if one.free_symbols <= example.keys()]
    for sizes in _sizes_near(example, relation, known.log.side, environment.var_to_range):
        if _holds(relation, sizes) and all(_holds(one, sizes) for one in required):
            return sizes
    return None


_STEPS = 64


def _sizes_near(
    example: dict[sympy.Symbol, sympy.Integer], relation: sympy.Basic, side: Any, ranges: Mapping[sympy.Symbol, Any]
) -> Iterator[dict[sympy.Symbol, sympy.Integer]]:
    yield example
    # The shape of one tensor is that of another.
    equal = [one for one in relation.atoms(sympy.Eq) if one.lhs.is_Symbol and one.rhs in example]
    yield example | {one.lhs: example[one.rhs] for one in equal}
    ordered, tied = (sorted(one & example.keys(), key=str) for one in (relation.free_symbols, side.free_symbols))
    for step in range(1, _STEPS + 1):
        for factor, added in ((1, step), (1, -step), (1 << step, 0)):
            for changed in (*([one] for one in ordered), ordered, *([*{*ordered, *tied}] for _ in tied[:1])):
                sizes = example | {one: example[one] * factor + added for one in changed}
                if all(max(2, ranges[one].lower) <= sizes[one] <= ranges[one].upper for one in changed):
                    yield sizes


def _holds(relation: sympy.Basic, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> bool:
    try:
        return relation.xreplace(dict(sizes)) is sympy.true
    except EVALUATION_ERRORS:
        return False


def _evaluate_at_side(
    original: Callable[..., sympy.Basic], self: Any, orig_expr: sympy.Basic, *args: Any, **kwargs: Any
) -> sympy.Basic:
    """``ShapeEnv.evaluate_expr``; what torch learns about sizes in a branch does not hold outside of it."""
    side = active(SizeBranches)
    expression = orig_expr if side is None else self.replace(orig_expr)
    if side is None or not side.sizes or not expression.free_symbols <= side.sizes.keys():
        return original(self, orig_expr, *args, **kwargs)
    known = self._maybe_evaluate_static(expression)
    if known is not None:
        return cast(sympy.Basic, known)
    value = expression.xreplace(dict(side.sizes))
    guard = sympy.Eq(expression, value)
    if value in (sympy.true, sympy.false):
        guard = expression if value is sympy.true else sympy.Not(expression)
    caller = sys._getframe(1)
    evaluating = evaluating_frame(caller)
    if evaluating is None or not is_shortcut(guard, evaluating):
        side.log.add(self, relaxed(guard, evaluating), caller)
    else:
        side.log.add_layout(guard, evaluating, caller)
    return value


def _assert_at_side(original: Callable[..., bool], self: Any, orig_expr: Any, *args: Any, **kwargs: Any) -> bool:
    """``guard_or_defer_runtime_assert``: an assertion on the sizes of a branch is a guard of it."""
    side = active(SizeBranches)
    if side is None or not side.sizes or not self.replace(orig_expr).free_symbols <= side.sizes.keys():
        return original(self, orig_expr, *args, **kwargs)
    return bool(self.evaluate_expr(orig_expr))


def _guard_or_at_side(original: Callable[[Any, bool], bool], condition: Any, default: bool) -> bool:
    """``guard_or_false``, ``guard_or_true`` where the condition of a branch decides: ``-p < 0`` in ``if p > 0``."""
    side = active(SizeBranches)
    if side is not None and side.sizes and isinstance(condition, torch.SymBool):
        asked = condition.node.shape_env.replace(condition.node.expr)
        found = sympy.sympify(
            default if not asked.free_symbols <= side.sizes.keys() else asked.xreplace(dict(side.sizes))
        )
        if found == sympy.Not(default) and holds_where(asked if found else sympy.Not(asked), side.log.side):
            return not default
    return original(condition, default)


def _equal(original: Callable[..., Any], input: torch.Tensor, other: torch.Tensor) -> Any:
    """``torch.equal`` of tensors whose sizes may be equal."""
    known, line = active(SizeBranches), user_line(sys._getframe(1))
    if (
        known is None
        or line is None
        or line.place.partition(" in ")[0] not in known.places
        or input.dim() != other.dim()
    ):
        return original(input, other)
    is_same: Any = True
    for axis, (size, length) in enumerate(zip(input.shape, other.shape, strict=True)):
        common = sym_min(size, length)
        input, other = input.narrow(axis, 0, common), other.narrow(axis, 0, common)
        is_same = (size == length) & is_same
    if is_same is False:
        return False
    # A number: graphs of branches can compute conditions on it.
    return is_same & ((input == other).all().to(torch.int64).item() == 1)


def chosen(condition: torch.SymBool, one: Any, other: Any) -> Any:
    """``one if condition else other`` for sizes or truth values, of the same kind; None for others."""
    if type(one) is type(other) is bool and one is not other:
        return condition if one else sym_not(condition)
    if not all(type(number) in (int, torch.SymInt) for number in (one, other)):
        return None
    environment = condition.node.shape_env
    values = [getattr(number, "node", None) for number in (one, other)]
    sides = [
        sympy.Integer(number) if node is None else node.expr for number, node in zip((one, other), values, strict=True)
    ]
    asked = environment.replace(condition.node.expr)
    sides = [environment.replace(side) for side in sides]
    on_sizes, on_data = _conjuncts(condition)
    where = sympy.And(*on_sizes) if on_data else asked
    first, last = sides[::-1] if on_data and isinstance(asked, sympy.Not) else sides
    if are_equal(first, last, where):
        size = last
    elif not on_data and are_equal(first, last, sympy.Not(asked)):
        size = first
    else:
        indicator = None if on_data else indicator_of(asked)
        if indicator is None:
            return None
        size = environment.replace(last + indicator * (first - last))
    if not size.free_symbols:
        return int(size)
    if not size.free_symbols <= environment.backed_var_to_val.keys():
        return None
    return environment.create_symintnode(size, hint=int(size.xreplace(dict(environment.backed_var_to_val))))
