"""Recorder of the guards of a capture, with the lines of the user's code that cause them.

torch keeps only the range of a size that guards narrow, and drops stack traces: guards are recorded as they are added.
"""

from __future__ import annotations

import linecache
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType, MappingProxyType
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxonnx_translations._builder.size_values import EVALUATION_ERRORS
from fxonnx_translations._torch_compat import (
    DisableTorchFunction,
    FloorDiv,
    Mod,
    TracingContext,
    ValueRanges,
    bound_sympy,
    int_oo,
)

from ..._context_values import activated, active
from ..._user_files import OWN, TORCH, is_user_file, is_user_frame
from ..evaluating_code import (
    DYNAMO_CHECKS,
    DYNAMO_VARIABLES,
    SPLITS,
    Asking,
    compares_strides,
    distinguishes_zero_or_one,
    evaluating_frame,
    is_library_frame,
    is_shortcut,
    queries_layout,
    relaxed,
)
from .constraint_solver import normal_forms, required_multiples

__all__ = [
    "COMPARISONS",
    "DataEdge",
    "Guard",
    "GuardLog",
    "SourceLine",
    "assertions_of_branch",
    "compare_sizes",
    "distinguishes_zero_or_one",
    "guard_bool",
    "guard_or_defer_runtime_assert",
    "guards_of_shape_env",
    "known_divisors",
    "line_of_node",
    "log_guard",
    "maybe_guard_rel",
    "record_condition",
    "record_nonempty",
    "recorded_guards",
    "source_line_of",
    "truth_as_number",
    "user_line",
]

COMPARISONS: Mapping[str, type[sympy.Rel]] = MappingProxyType(
    {"eq": sympy.Eq, "ne": sympy.Ne, "lt": sympy.Lt, "le": sympy.Le, "gt": sympy.Gt, "ge": sympy.Ge}
)
"""Methods of ``SymNode`` that compare two sizes, with their relations."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (.+)')


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's code.

    Attributes:
        place: The location, ``file.py:12 in forward``.
        code: The text of the line.
    """

    place: str
    code: str

    def __str__(self) -> str:
        return f"{self.place}: {self.code}" if self.code else self.place


@dataclass(frozen=True)
class Guard:
    """A condition that holds for the example sizes and that the captured program requires.

    Attributes:
        expression: The condition, in torch's symbols.
        line: The user's line that evaluated it, if it is known.
    """

    expression: sympy.Basic
    line: SourceLine | None


@dataclass(frozen=True)
class DataEdge:
    """A condition that is answered as for all sizes but one.

    Attributes:
        text: The text of its node in the program.
        condition: The condition, in the symbols of the capture.
        answer: The answer.
        line: The line that asks.
        file: Its file.
        body: The first and the last line of the statements that run beside the edge; None if others run at the edge.
    """

    text: str
    condition: sympy.Basic
    answer: bool
    line: SourceLine | None
    file: str
    body: tuple[int, int] | None


@dataclass
class GuardLog:
    """All guards of one capture.

    Attributes:
        guards: The guards in the order they were added, without duplicates.
        sources: torch's symbol to torch's name of its source: ``L['x'].size()[0]``.
        nonzero: Sums of symbols that the model's code compares with 0, with the first line that does. torch evaluates
            such comparisons without a guard, since its symbols are positive.
        layouts: Conditions, with their lines, by which ``reshape`` returns a view or a copy: the values are the same.
        converted: Files in which truth values of sizes become numbers.
        asked: Conditions on sizes that the model's code asks for, with the place of the last one.
        edges: Conditions that the capture assumes, with the lines that ask; see ``answered_beside_edges``.
        data_edges: Conditions on sizes that depend on data; see ``answered_beside_data_edges``.
        has_unsigned_slices: Whether a slice has begun or ended at a size of unknown sign.
        has_data_edges: Whether there are such conditions, also if they are not answered so.
        side: The condition of the branch on sizes that is traced: guards are required where it holds.
        observer: Called with each new guard.
    """

    guards: list[Guard] = field(default_factory=list)
    sources: dict[sympy.Symbol, str] = field(default_factory=dict)
    nonzero: dict[sympy.Expr, SourceLine | None] = field(default_factory=dict)
    layouts: dict[sympy.Basic, SourceLine | None] = field(default_factory=dict)
    converted: set[str] = field(default_factory=set)
    asked: dict[sympy.Basic, Asking] = field(default_factory=dict)
    edges: dict[sympy.Basic, SourceLine | None] = field(default_factory=dict)
    data_edges: list[DataEdge] = field(default_factory=list)
    has_unsigned_slices: bool = False
    has_data_edges: bool = False
    side: sympy.Basic = sympy.true
    observer: Callable[[GuardLog, Guard], None] | None = None
    _recorded: set[sympy.Basic] = field(default_factory=set)
    _divisors: dict[sympy.Expr, int] = field(default_factory=dict)
    _divisors_of: int = 0

    def add(self, shape_env: ShapeEnv, expression: sympy.Basic, frame: FrameType | None) -> None:
        """Record a guard, unless it is recorded already."""
        is_known = expression in sympy.And.make_args(self.side)
        if self.side is not sympy.true:
            expression = sympy.Or(sympy.Not(self.side), expression)
        if is_known or expression in self._recorded or expression is sympy.true:
            return
        self._recorded.add(expression)
        for symbol in sorted(expression.free_symbols, key=str):
            if symbol not in self.sources:
                sources = shape_env.var_to_sources.get(symbol)
                if sources:
                    self.sources[symbol] = sources[0].name
        guard = Guard(expression, user_line(frame))
        self.guards.append(guard)
        if self.observer is not None:
            # A mode that records the operands of a branch would take the example, whose size the observer reads, for
            # a tensor of the branch.
            with DisableTorchFunction():
                self.observer(self, guard)

    def clear(self) -> None:
        """Forget the guards of an attempt that is repeated."""
        for recorded in (
            self.guards,
            self.sources,
            self.nonzero,
            self.layouts,
            self.asked,
            self.edges,
            self.data_edges,
        ):
            recorded.clear()
        for noted in (self.converted, self._recorded):
            noted.clear()
        self._divisors, self._divisors_of = {}, 0
        self.has_unsigned_slices = self.has_data_edges = False

    def divisors(self) -> Mapping[sympy.Expr, int]:
        """The sizes that the guards require to be multiples of a number, with the number."""
        for guard in self.guards[self._divisors_of :]:
            if isinstance(guard.expression, sympy.Eq) and guard.expression.has(Mod, FloorDiv):
                for size, divisor in required_multiples(guard.expression):
                    self._divisors[size] = math.lcm(divisor, self._divisors.get(size, 1))
        self._divisors_of = len(self.guards)
        return self._divisors

    def add_comparison(self, relation: type[sympy.Rel], sides: Sequence[sympy.Expr], frame: FrameType | None) -> None:
        """Record the symbols that must not be 0 for a comparison that torch evaluated for positive sizes."""
        for expression in _symbols_deciding_at_zero(relation, sides):
            self.nonzero.setdefault(expression, user_line(frame))

    def add_layout(self, condition: sympy.Basic, evaluating: FrameType, frame: FrameType | None) -> None:
        """Record a condition that only selects a memory layout, if it is one of strides."""
        if not distinguishes_zero_or_one(condition) and compares_strides(evaluating):
            self.layouts.setdefault(sympy.Or(sympy.Not(self.side), condition), user_line(frame))

    def equality_lines(self) -> list[str]:
        """The lines that require a size to have one value, or two sizes to be equal."""
        return [
            str(guard.line)
            for guard in self.guards
            if guard.line is not None and isinstance(guard.expression, sympy.Eq)
        ]

    def specializing_line(self, place: str) -> SourceLine | None:
        """The first line that specializes a dim, by torch's name of its source, or the last line that bounds it.

        A line that relates it to other dims only is the second choice: ``reshape`` compares products of sizes.
        """
        symbols = {symbol for symbol, source in self.sources.items() if source == place}
        alone, related, found = None, None, None
        for guard in self.guards:
            if symbols & guard.expression.free_symbols:
                if isinstance(guard.expression, sympy.Eq):
                    if guard.line is None and all(side.is_Symbol for side in guard.expression.args):
                        # Dims with one name are equal: a line that specializes one of them specializes all.
                        symbols |= guard.expression.free_symbols
                        continue
                    if guard.expression.free_symbols <= symbols:
                        if any(side.is_number for side in guard.expression.args) and symbols & {*guard.expression.args}:
                            return guard.line
                        alone = alone or guard.line
                    related = related or guard.line
                found = guard.line or found
        return alone or related or found


def source_line_of(filename: str, number: int, function: str) -> SourceLine:
    """Build the record of a line of a file."""
    return SourceLine(f"{filename}:{number} in {function}", linecache.getline(filename, number).strip())


def line_of_node(node: torch.fx.Node) -> SourceLine | None:
    """The innermost line of user code in the stack trace of an FX node."""
    for filename, number, function in reversed(_FRAME.findall(node.meta.get("stack_trace") or "")):
        if is_user_file(filename):
            return source_line_of(filename, int(number), function)
    return None


def guards_of_shape_env(environment: ShapeEnv) -> Iterator[Guard]:
    """The guards that a ShapeEnv keeps, without those that became assertions of the program."""
    for guard in environment.guards:
        evaluating = guard.sloc.framework_loc
        name = getattr(evaluating, "filename", "")
        counts_results = getattr(evaluating, "name", "") in SPLITS and isinstance(guard.expr, sympy.Eq)
        is_of_torch = name.startswith(TORCH) and not name.startswith(DYNAMO_VARIABLES)
        if is_of_torch and distinguishes_zero_or_one(guard.expr) and not counts_results:
            continue
        line = None
        if name and is_user_file(name):
            line = source_line_of(name, getattr(evaluating, "lineno", 0), getattr(evaluating, "name", ""))
        elif guard.sloc.maybe_user_loc is not None:
            line = SourceLine(str(guard.sloc.maybe_user_loc), "")
        yield Guard(guard.expr, line)


@dataclass
class _Recorder:
    """State of the recorder during a capture.

    Attributes:
        log: Receives the guards.
        shortcuts: Guards that torch must not use to simplify later conditions.
        asserted: Assertions that hold, with their ShapeEnv: torch evaluates each one again whenever it is repeated.
        interpreted: Normal forms of the guards of interpreted user code, with anonymous symbols.
    """

    log: GuardLog
    shortcuts: set[sympy.Basic] = field(default_factory=set)
    asserted: set[tuple[ShapeEnv, sympy.Basic]] = field(default_factory=set)
    interpreted: set[sympy.Basic] = field(default_factory=set)


def recorded_guards(log: GuardLog) -> AbstractContextManager[Any]:
    """Record the guards of a capture inside the context, which requires that ``capture_patches`` are applied.

    Conditions of user code are recorded, since their other branch is not in the program; so are torch's checks, since
    the model fails at other sizes. Conditions that torch evaluates for shortcuts and memory layouts at sizes 0 and 1
    are not recorded, since both branches compute the same values. torch must not use these to simplify later
    conditions, which would drop checks.
    """
    return activated(_Recorder(log))


def guard_bool(evaluate: Callable[..., bool], self: Any, file: str, line: int) -> bool:
    """Replacement of ``SymNode.guard_bool``, which user code calls in ``if x.shape[0] > 4``."""
    recorder, caller = active(_Recorder), _caller()
    evaluating = evaluating_frame(caller)
    if recorder is None and evaluating is not None and queries_layout(evaluating) and self.has_hint():
        # A decomposition, which must not add a guard.
        return bool(self.hint)
    if recorder is None or (evaluating is not None and evaluating.f_code.co_filename.startswith((TORCH, OWN))):
        return evaluate(self, file, line)
    condition = self.expr
    decided = _decide_for_nonzero_sizes(self)
    if decided is not None:
        answer, backed = decided
        for symbol in backed:
            recorder.log.nonzero.setdefault(symbol, user_line(caller))
        return answer
    answer = evaluate(self, file, line)
    if evaluating is not None and is_shortcut(condition, evaluating):
        return answer
    # While torch suppresses guards, it evaluates conditions that the program does not depend on.
    if condition.free_symbols and not ShapeEnv._suppress_guards_tls():
        if evaluating is not None:
            recorder.log.asked[condition] = Asking(evaluating.f_code, evaluating.f_lasti, evaluating.f_lineno)
        recorder.log.add(self.shape_env, relaxed(condition if answer else sympy.Not(condition), evaluating), caller)
    return answer


def known_divisors() -> Mapping[sympy.Expr, int]:
    """The sizes that the current capture requires to be multiples of a number, with the number."""
    recorder = active(_Recorder)
    return {} if recorder is None else recorder.log.divisors()


def record_condition(condition: Any, *, answer: bool, frame: FrameType | None) -> None:
    """Record a condition that a model asks as the truth value of a tensor: torch's frames are not the ones that ask.

    Args:
        condition: The node of the condition on sizes.
        answer: Its value.
        frame: The frame of the model.
    """
    recorder = active(_Recorder)
    if recorder is not None and condition.expr.free_symbols:
        guard = condition.expr if answer else sympy.Not(condition.expr)
        recorder.log.add(condition.shape_env, guard, frame)


def truth_as_number(original: Callable[..., int], self: torch.SymBool) -> int:
    """``SymBool.__int__``, which torch also calls for a term of ``h + (w > h)``; its file is recorded."""
    recorder, frame = active(_Recorder), evaluating_frame(sys._getframe(2))
    if recorder is not None and frame is not None and is_user_frame(frame):
        recorder.log.converted.add(frame.f_code.co_filename)
    return original(self)


def record_nonempty(size: torch.SymInt) -> None:
    """Record that the model asks whether a size is 0, which torch takes for decided."""
    recorder = active(_Recorder)
    if recorder is not None:
        recorder.log.add_comparison(sympy.Ne, (size.node.expr, sympy.Integer(0)), sys._getframe(1))


def _decide_for_nonzero_sizes(node: Any) -> tuple[bool, list[sympy.Symbol]] | None:
    """Decide a condition on unbacked symbols that has the same value for all nonzero sizes of the inputs."""
    # torch raises instead, since an input's size may be 0: ``index.numel() == 0``, where the index has one element per
    # node and one per selected edge.
    condition, environment = node.expr, node.shape_env
    backed = sorted(condition.free_symbols & environment.backed_var_to_val.keys(), key=str)
    if not backed or len(backed) == len(condition.free_symbols):
        return None
    ranges = {symbol: environment.var_to_range[symbol] for symbol in condition.free_symbols}
    # A nonnegative range marks backed symbols of sizes; the value of an int input is unbounded.
    sizes = [symbol for symbol in backed if ranges[symbol].lower >= 0]
    ranges |= {symbol: ranges[symbol] & ValueRanges(1, int_oo) for symbol in sizes}
    answer = bound_sympy(condition, ranges)
    return (bool(answer.lower), sizes) if answer.is_singleton() else None


def log_guard(note: Callable[..., None], self: Any, prefix: str, g: Any, forcing_spec: bool) -> None:
    """Replacement of ``ShapeEnv._log_guard``, which torch calls for every guard that it adds."""
    recorder = active(_Recorder)
    if recorder is not None and "suppressed" not in prefix:
        caller = _caller()
        evaluating = evaluating_frame(caller)
        is_condition = prefix == "eval" and _is_condition(caller)
        if evaluating is None:
            recorder.interpreted.update(_anonymous(g))
        is_checked_again = evaluating is not None and evaluating.f_code.co_filename == DYNAMO_CHECKS
        is_recorded = is_checked_again and not recorder.interpreted.isdisjoint(_anonymous(g))
        if is_condition and evaluating is not None and not is_recorded and is_shortcut(g, evaluating):
            recorder.shortcuts.add(g)
            recorder.log.add_layout(g, evaluating, caller)
        else:
            recorder.log.add(self, relaxed(g, evaluating), caller)
    note(self, prefix, g, forcing_spec)


def maybe_guard_rel(learn: Callable[..., None], self: Any, expr: Any) -> None:
    """Replacement of ``ShapeEnv._maybe_guard_rel``, in which torch simplifies symbols by a guard."""
    recorder = active(_Recorder)
    if recorder is None or expr not in recorder.shortcuts:
        learn(self, expr)


def guard_or_defer_runtime_assert(
    assert_later: Callable[..., bool], self: Any, orig_expr: Any, msg: str, fx_node: Any = None
) -> bool:
    """Replacement of ``ShapeEnv.guard_or_defer_runtime_assert``, which turns a guard into a runtime assertion."""
    recorder = active(_Recorder)
    if recorder is not None and orig_expr in recorder.shortcuts and msg.startswith("evaluate_expr"):
        recorder.shortcuts.discard(orig_expr)
        return True
    if recorder is not None and (self, orig_expr) in recorder.asserted:
        return True
    evaluating = evaluating_frame(_caller())
    if evaluating is not None and queries_layout(evaluating):
        return True
    holds = assert_later(self, orig_expr, msg, fx_node)
    if holds and recorder is not None and not self._suppress_guards_tls():
        recorder.asserted.add((self, orig_expr))
    return holds


@contextmanager
def assertions_of_branch(environment: ShapeEnv) -> Iterator[None]:
    """Forget, after the context, requirements of its operators for values that were computed before it.

    It holds in a branch or the body of a loop only: in ``x.new_zeros(4 - n)``, n is at most 4.
    """
    known = {symbol for symbol in environment.var_to_range if symbol not in environment.backed_var_to_val}
    ranges = {symbol: environment.var_to_range[symbol] for symbol in known}
    replaced = {symbol: environment.replacements[symbol] for symbol in known & environment.replacements.keys()}
    assertions = {symbol: list(environment.deferred_runtime_asserts.get(symbol, [])) for symbol in known}
    axioms, sizes = set(environment.axioms), known - environment.size_like
    recorder = active(_Recorder)
    asserted = set() if recorder is None else set(recorder.asserted)
    try:
        yield
    finally:
        environment.var_to_range.update(ranges)
        for symbol in known - replaced.keys():
            environment.replacements.pop(symbol, None)
        environment.replacements.update(replaced)
        environment.deferred_runtime_asserts.update(assertions)
        for axiom in environment.axioms.keys() - axioms:
            if not known.isdisjoint(axiom.free_symbols):
                del environment.axioms[axiom]
        environment.size_like -= sizes
        # Answers that torch keeps are of these versions.
        environment._version_counter += 1
        environment._replacements_version_counter += 1
        if recorder is not None:
            recorder.asserted.intersection_update(asserted)


def compare_sizes(relation: type[sympy.Rel], original: Callable[..., Any], self: Any, other: Any) -> Any:
    """Replacement of ``SymNode.eq`` etc., which evaluate comparisons of sizes with 0 without a guard."""
    result = original(self, other)
    recorder = active(_Recorder)
    if recorder is not None and isinstance(result.expr, BooleanAtom):
        sides = self.expr, other.expr
        if any(side.free_symbols for side in sides):
            caller = _caller()
            evaluating = evaluating_frame(caller)
            if evaluating is None or not is_library_frame(evaluating):
                recorder.log.add_comparison(relation, sides, caller)
    return result


def _caller() -> FrameType:
    """The frame that called the patched function, given that the caller of this function is the replacement."""
    # Between the two is the frame of ``in_tracing_thread``.
    return sys._getframe(3)


def _symbols_deciding_at_zero(relation: type[sympy.Rel], sides: Sequence[sympy.Expr]) -> Iterator[sympy.Expr]:
    """The symbols, or their sum, at whose value 0 a comparison has a different result than for positive sizes."""
    symbols = sorted({symbol for side in sides for symbol in side.free_symbols}, key=str)
    answer = relation(*sides)

    def differs_at_zero(zeros: Sequence[sympy.Symbol]) -> bool:
        try:
            return bool(relation(*(side.xreplace(dict.fromkeys(zeros, sympy.Integer(0))) for side in sides)) != answer)
        except EVALUATION_ERRORS:
            return False

    found = [symbol for symbol in symbols if differs_at_zero([symbol])]
    if found:
        yield from found
    elif differs_at_zero(symbols):
        yield sympy.Add(*symbols)


def _anonymous(guard: sympy.Basic) -> frozenset[sympy.Basic]:
    """The normal forms of a guard whose symbols are numbered in the order of their occurrence."""
    symbols = dict.fromkeys(node for node in sympy.preorder_traversal(guard) if isinstance(node, sympy.Symbol))
    numbers = {name: sympy.Symbol(f"n{index}", integer=True, nonnegative=True) for index, name in enumerate(symbols)}
    return frozenset(normal_forms(guard.xreplace(numbers)))


def _is_condition(evaluation: FrameType) -> bool:
    """Whether torch evaluates a condition instead of a number, which becomes a constant and is never a shortcut."""
    return isinstance(evaluation.f_locals.get("concrete_val"), BooleanAtom)


def user_line(frame: FrameType | None) -> SourceLine | None:
    """The innermost line of user code in a stack of frames."""
    while frame is not None and not frame.f_code.co_filename.endswith("/fxonnx/_capture/torch_export.py"):
        code = frame.f_code
        if is_user_frame(frame):
            return source_line_of(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    if TracingContext.try_get() is not None:
        for summary in reversed(TracingContext.extract_stack()):
            if is_user_file(summary.filename):
                return source_line_of(summary.filename, summary.lineno or 0, summary.name)
    return None
