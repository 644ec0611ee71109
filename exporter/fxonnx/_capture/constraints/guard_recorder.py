"""Recorder of the guards of a capture, with the lines of the user's code that cause them.

torch keeps only the range of a size that guards narrow, and drops stack traces: guards are recorded as they are added.
"""

from __future__ import annotations

import linecache
import math
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true

from fxonnx_translations._builder.size_values import EVALUATION_ERRORS
from fxonnx_translations._torch_compat import FloorDiv, Mod, TracingContext, ValueRanges, bound_sympy, int_oo

from ..._context_values import assigned
from ..._extensions import active_extensions
from .constraint_solver import normal_forms
from .truncations import truncates_at

__all__ = [
    "COMPARISONS",
    "Guard",
    "GuardLog",
    "SourceLine",
    "compare_sizes",
    "distinguishes_zero_or_one",
    "evaluating_frame",
    "guard_bool",
    "guard_or_defer_runtime_assert",
    "guards_of_shape_env",
    "is_user_file",
    "known_divisors",
    "line_of_node",
    "log_guard",
    "maybe_guard_rel",
    "record_condition",
    "record_nonempty",
    "recorded_guards",
    "source_line_of",
    "user_line",
]

_TORCH = str(Path(torch.__file__).parent) + "/"
_OWN = str(Path(__file__).parents[2]) + "/"
_SYMPY = str(Path(sympy.__file__).parent) + "/"
_LIBRARY = sysconfig.get_path("stdlib")
# Code that implements symbolic numbers; the first frame outside of it is the one that evaluates a condition.
_PATCHES = (_OWN + "_capture/patches/patch.py", _OWN + "_capture/constraints/edges.py")
_DATA_DEPENDENCE = _OWN + "_capture/data_dependence/"
# They evaluate the conditions of rewritten functions.
_HELPERS = _OWN + "_capture/rewriting/operators/helpers.py"
_MACHINERY = (
    *(_TORCH + name for name in ("fx/experimental/", "__init__.py", "_dynamo/")),
    *(_SYMPY, __file__, *_PATCHES, _DATA_DEPENDENCE, _HELPERS, "<"),
)
# Interpreter of user code: of the functions of torch.cond, and of all code in strict mode.
_DYNAMO = _TORCH + "_dynamo/symbolic_convert.py"
# It evaluates the conditions of interpreted code.
_DYNAMO_VARIABLES = _TORCH + "_dynamo/variables/"
# After it has traced a function, Dynamo evaluates the guards of its own symbols again, for the sizes of the caller.
_DYNAMO_CHECKS = _TORCH + "_utils_internal.py"
# Functions of torch that query memory layouts: the memory format of a convolution's result, whether a view is
# contiguous, whether a Fourier transform resizes its result. Layouts do not matter to ONNX.
_LAYOUT = frozenset(
    {
        (_TORCH + "_subclasses/fake_impls.py", "conv"),
        (_TORCH + "_subclasses/fake_impls.py", "convert"),
        (_TORCH + "_subclasses/fake_impls.py", "_compute_stride"),
        (_TORCH + "_subclasses/fake_impls.py", "_is_contiguous_with_hinted_checks"),
        (_TORCH + "_subclasses/fake_impls.py", "_hinted_eq"),
        (_TORCH + "_meta_registrations.py", "_exec_fft"),
    }
)
# Functions of torch whose number of results depends on a size. Whether it is 0 is no shortcut for them.
_SPLITS = frozenset({"split", "chunk", "unsafe_split", "unsafe_chunk", "unsafe_chunk_py_impl"})
# Their C++ code compares strides, to return a view where it can.
_RESHAPES = (torch.ops.aten.flatten.using_ints, torch.ops.aten.ravel.default, torch.ops.aten.reshape.default)
# Code of transformers that branches on sizes of 0 and 1 with equal results: whether to repeat a mask or positions,
# which of two equivalent kernels to call, and whether a cache is empty.
_BROADCASTING = re.compile(r"/transformers/(masking_utils\.py|cache_utils\.py|integrations/\w+\.py)$")

_MASKS = re.compile(r"/transformers/masking_utils\.py$")
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


@dataclass
class GuardLog:
    """All guards of one capture.

    Attributes:
        guards: The guards in the order they were added, without duplicates.
        sources: torch's symbol to torch's name of its source: ``L['x'].size()[0]``.
        nonzero: Sums of symbols that the model's code compares with 0, with the first line that does. torch evaluates
            such comparisons without a guard, since its symbols are positive.
        layouts: Conditions, with their lines, by which ``reshape`` returns a view or a copy: the values are the same.
        asked: Conditions on sizes that the model's code asks for.
        edges: Conditions that the capture assumes, with the lines that ask; see ``answered_beside_edges``.
        observer: Called with each new guard.
    """

    guards: list[Guard] = field(default_factory=list)
    sources: dict[sympy.Symbol, str] = field(default_factory=dict)
    nonzero: dict[sympy.Expr, SourceLine | None] = field(default_factory=dict)
    layouts: dict[sympy.Basic, SourceLine | None] = field(default_factory=dict)
    asked: set[sympy.Basic] = field(default_factory=set)
    edges: dict[sympy.Basic, SourceLine | None] = field(default_factory=dict)
    observer: Callable[[GuardLog, Guard], None] | None = None
    _recorded: set[sympy.Basic] = field(default_factory=set)
    _divisors: dict[sympy.Expr, int] = field(default_factory=dict)
    _divisors_of: int = 0

    def add(self, shape_env: ShapeEnv, expression: sympy.Basic, frame: FrameType | None) -> None:
        """Record a guard, unless it is recorded already."""
        if expression in self._recorded:
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
            self.observer(self, guard)

    def clear(self) -> None:
        """Forget the guards of an attempt that is repeated."""
        for recorded in (self.guards, self.sources, self.nonzero, self.layouts, self.asked, self.edges, self._recorded):
            recorded.clear()
        self._divisors, self._divisors_of = {}, 0

    def divisors(self) -> Mapping[sympy.Expr, int]:
        """The sizes that the guards require to be multiples of a number, with the number."""
        for guard in self.guards[self._divisors_of :]:
            is_remainder = isinstance(guard.expression, sympy.Eq) and guard.expression.has(Mod, FloorDiv)
            for form in normal_forms(guard.expression) if is_remainder else ():
                if isinstance(form, sympy.Eq) and isinstance(form.lhs, Mod) and form.rhs == 0:
                    size, divisor = form.lhs.args
                    if divisor.is_Integer:
                        self._divisors[size] = math.lcm(int(divisor), self._divisors.get(size, 1))
        self._divisors_of = len(self.guards)
        return self._divisors

    def add_comparison(self, relation: type[sympy.Rel], sides: Sequence[sympy.Expr], frame: FrameType | None) -> None:
        """Record the symbols that must not be 0 for a comparison that torch evaluated for positive sizes."""
        for expression in _symbols_deciding_at_zero(relation, sides):
            self.nonzero.setdefault(expression, user_line(frame))

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


def is_user_file(filename: str) -> bool:
    """Whether a file is user code: not part of torch, sympy, fxonnx or Python's standard library."""
    if filename.startswith((_TORCH, _OWN, _SYMPY, "<")):
        return False
    return not filename.startswith(_LIBRARY) or "site-packages" in filename


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
        counts_results = getattr(evaluating, "name", "") in _SPLITS and isinstance(guard.expr, sympy.Eq)
        is_shortcut = name.startswith(_TORCH) and not name.startswith(_DYNAMO_VARIABLES)
        if is_shortcut and distinguishes_zero_or_one(guard.expr) and not counts_results:
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


_recorder: ContextVar[_Recorder | None] = ContextVar("fxonnx_guard_recorder", default=None)


@contextmanager
def recorded_guards(log: GuardLog) -> Iterator[None]:
    """Record the guards of a capture inside the context, which requires that ``capture_patches`` are applied.

    Conditions of user code are recorded, since their other branch is not in the program; so are torch's checks, since
    the model fails at other sizes. Conditions that torch evaluates for shortcuts and memory layouts at sizes 0 and 1
    are not recorded, since both branches compute the same values. torch must not use these to simplify later
    conditions, which would drop checks.
    """
    with assigned(_recorder, _Recorder(log)):
        yield


def guard_bool(evaluate: Callable[..., bool], self: Any, file: str, line: int) -> bool:
    """Replacement of ``SymNode.guard_bool``, which user code calls in ``if x.shape[0] > 4``."""
    recorder, caller = _recorder.get(), _caller()
    evaluating = evaluating_frame(caller)
    if recorder is None and evaluating is not None and _queries_layout(evaluating) and self.has_hint():
        # A decomposition, which must not add a guard.
        return bool(self.hint)
    if recorder is None or (evaluating is not None and evaluating.f_code.co_filename.startswith((_TORCH, _OWN))):
        return evaluate(self, file, line)
    condition = self.expr
    decided = _decide_for_nonzero_sizes(self)
    if decided is not None:
        answer, backed = decided
        for symbol in backed:
            recorder.log.nonzero.setdefault(symbol, user_line(caller))
        return answer
    answer = evaluate(self, file, line)
    if evaluating is not None and _is_shortcut(condition, evaluating):
        return answer
    # While torch suppresses guards, it evaluates conditions that the program does not depend on.
    if condition.free_symbols and not ShapeEnv._suppress_guards_tls():
        recorder.log.asked.add(condition)
        recorder.log.add(self.shape_env, _relaxed(condition if answer else sympy.Not(condition), evaluating), caller)
    return answer


def known_divisors() -> Mapping[sympy.Expr, int]:
    """The sizes that the current capture requires to be multiples of a number, with the number."""
    recorder = _recorder.get()
    return {} if recorder is None else recorder.log.divisors()


def record_condition(condition: Any, *, answer: bool, frame: FrameType | None) -> None:
    """Record a condition that a model asks as the truth value of a tensor: torch's frames are not the ones that ask.

    Args:
        condition: The node of the condition on sizes.
        answer: Its value.
        frame: The frame of the model.
    """
    recorder = _recorder.get()
    if recorder is not None and condition.expr.free_symbols:
        guard = condition.expr if answer else sympy.Not(condition.expr)
        recorder.log.add(condition.shape_env, guard, frame)


def record_nonempty(size: torch.SymInt) -> None:
    """Record that the model asks whether a size is 0, which torch takes for decided.

    Args:
        size: The size, which is not 0 in the example.
    """
    recorder = _recorder.get()
    if recorder is not None:
        recorder.log.add_comparison(sympy.Ne, (size.node.expr, sympy.Integer(0)), sys._getframe(1))


def _decide_for_nonzero_sizes(node: Any) -> tuple[bool, list[sympy.Symbol]] | None:
    """Decide a condition on unbacked symbols that has the same value for all nonzero sizes of the inputs.

    torch raises instead, because with ``backed_size_oblivious`` an input's size may be 0 (``index.numel() == 0``, where
    the index has one element per node and one per selected edge).

    Returns:
        The value and the backed symbols that must not be 0; None if the condition is not decided.
    """
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
    recorder = _recorder.get()
    if recorder is not None and "suppressed" not in prefix:
        caller = _caller()
        evaluating = evaluating_frame(caller)
        is_condition = prefix == "eval" and _is_condition(caller)
        if evaluating is None:
            recorder.interpreted.update(_anonymous(g))
        is_checked_again = evaluating is not None and evaluating.f_code.co_filename == _DYNAMO_CHECKS
        is_recorded = is_checked_again and not recorder.interpreted.isdisjoint(_anonymous(g))
        if is_condition and evaluating is not None and not is_recorded and _is_shortcut(g, evaluating):
            recorder.shortcuts.add(g)
            if not distinguishes_zero_or_one(g) and _compares_strides(evaluating):
                recorder.log.layouts.setdefault(g, user_line(caller))
        else:
            recorder.log.add(self, _relaxed(g, evaluating), caller)
    note(self, prefix, g, forcing_spec)


def maybe_guard_rel(learn: Callable[..., None], self: Any, expr: Any) -> None:
    """Replacement of ``ShapeEnv._maybe_guard_rel``, in which torch simplifies symbols by a guard."""
    recorder = _recorder.get()
    if recorder is None or expr not in recorder.shortcuts:
        learn(self, expr)


def guard_or_defer_runtime_assert(
    assert_later: Callable[..., bool], self: Any, orig_expr: Any, msg: str, fx_node: Any = None
) -> bool:
    """Replacement of ``ShapeEnv.guard_or_defer_runtime_assert``, which turns a guard into a runtime assertion."""
    recorder = _recorder.get()
    if recorder is not None and orig_expr in recorder.shortcuts and msg.startswith("evaluate_expr"):
        recorder.shortcuts.discard(orig_expr)
        return True
    if recorder is not None and (self, orig_expr) in recorder.asserted:
        return True
    evaluating = evaluating_frame(_caller())
    if evaluating is not None and _queries_layout(evaluating):
        return True
    holds = assert_later(self, orig_expr, msg, fx_node)
    if holds and recorder is not None and not self._suppress_guards_tls():
        recorder.asserted.add((self, orig_expr))
    return holds


def compare_sizes(relation: type[sympy.Rel], original: Callable[..., Any], self: Any, other: Any) -> Any:
    """Replacement of ``SymNode.eq`` etc., which evaluate comparisons of sizes with 0 without a guard."""
    result = original(self, other)
    recorder = _recorder.get()
    if recorder is not None and isinstance(result.expr, BooleanAtom):
        sides = self.expr, other.expr
        if any(side.free_symbols for side in sides):
            caller = _caller()
            evaluating = evaluating_frame(caller)
            if evaluating is None or not _is_library_frame(evaluating):
                recorder.log.add_comparison(relation, sides, caller)
    return result


def _caller() -> FrameType:
    """The frame that called the patched function, given that the caller of this function is the replacement."""
    # Between the two is the frame of ``in_tracing_thread``.
    return sys._getframe(3)


def _is_library_frame(evaluating: FrameType) -> bool:
    """Whether a frame is in torch, or in code of transformers that computes the same values for sizes of 0 and 1."""
    name = evaluating.f_code.co_filename
    return name.startswith((_TORCH, _OWN)) or _BROADCASTING.search(name) is not None


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


def evaluating_frame(frame: FrameType | None) -> FrameType | None:
    """The frame that evaluates a condition; None for user code that is interpreted instead of run."""
    interpreters = [one.interpreters for one in active_extensions()]
    while frame is not None:
        name = frame.f_code.co_filename
        if any(name in files for files in interpreters):
            return None
        if name == _DYNAMO:
            code = getattr(frame.f_locals.get("self"), "f_code", None)
            return None if code is None or is_user_file(code.co_filename) else frame
        if not name.startswith(_MACHINERY):
            return frame
        frame = frame.f_back
    return None


def _anonymous(guard: sympy.Basic) -> frozenset[sympy.Basic]:
    """The normal forms of a guard whose symbols are numbered in the order of their occurrence."""
    symbols = dict.fromkeys(node for node in sympy.preorder_traversal(guard) if isinstance(node, sympy.Symbol))
    numbers = {name: sympy.Symbol(f"n{index}", integer=True, nonnegative=True) for index, name in enumerate(symbols)}
    return frozenset(normal_forms(guard.xreplace(numbers)))


def _is_condition(evaluation: FrameType) -> bool:
    """Whether torch evaluates a condition instead of a number, which becomes a constant and is never a shortcut.

    Args:
        evaluation: The frame of ``ShapeEnv._evaluate_expr``, the only function of torch that logs evaluations.
    """
    return isinstance(evaluation.f_locals.get("concrete_val"), BooleanAtom)


def _relaxed(guard: sympy.Basic, evaluating: FrameType | None) -> sympy.Basic:
    """Relax a guard to the sizes for which the captured branch is correct.

    transformers slices a mask if it is longer than the keys, and models truncate tensors; slicing to equal length is
    the identity.
    """
    if evaluating is None or not isinstance(guard, sympy.Gt | sympy.Lt):
        return guard
    file = evaluating.f_code.co_filename
    if _MASKS.search(file) or (is_user_file(file) and truncates_at(evaluating)):
        return (sympy.Ge if isinstance(guard, sympy.Gt) else sympy.Le)(*guard.args)
    return guard


def _is_shortcut(guard: sympy.Basic, evaluating: FrameType) -> bool:
    """Whether a guard only selects a shortcut or a memory layout, in torch or in the masks of transformers."""
    name = evaluating.f_code.co_filename
    if _BROADCASTING.search(name) is not None:
        return distinguishes_zero_or_one(guard)
    if not name.startswith((_TORCH, _OWN)):
        return False
    # Operators are called from __torch_function__; other conditions in torch.export are about the program.
    if name.startswith((_TORCH + "export/", _TORCH + "_export/")) and not _is_operator_call(evaluating):
        return False
    if isinstance(guard, sympy.Eq) and _counts_results(evaluating):
        return False
    return _queries_layout(evaluating) or distinguishes_zero_or_one(guard) or _compares_strides(evaluating)


def _counts_results(evaluating: FrameType) -> bool:
    """Whether a frame computes the number of results of an operator from a size."""
    local, name = evaluating.f_locals, evaluating.f_code.co_name
    if name in ("__torch_function__", "__call__"):
        name = getattr(local.get("func", local.get("self")), "__name__", "").partition(".")[0]
    return name in _SPLITS


def _queries_layout(evaluating: FrameType) -> bool:
    if _is_operator_call(evaluating):
        # contiguous() returns the same values, whether it copies or not.
        return evaluating.f_locals.get("func") is torch.Tensor.contiguous
    return (evaluating.f_code.co_filename, evaluating.f_code.co_name) in _LAYOUT


def _compares_strides(evaluating: FrameType) -> bool:
    """Whether a frame calls ``reshape`` or ``flatten`` for as many elements as there are at all sizes.

    Then their conditions only decide whether the result is a view or a copy.
    """
    local = evaluating.f_locals
    operator, args = local.get("self"), local.get("args", ())
    if evaluating.f_code.co_name != "__call__" or operator not in _RESHAPES:
        return False
    if operator is not torch.ops.aten.reshape.default:
        return True
    elements, known, inferred = args[0].numel(), 1, False
    for size in args[1]:
        if type(size) is int and size == -1:
            inferred = True
        else:
            known *= size
    return statically_known_true(elements % known == 0 if inferred else elements == known)


def _is_operator_call(evaluating: FrameType) -> bool:
    """Whether a frame is torch's dispatch of an operator that is implemented in C++."""
    return evaluating.f_code.co_name == "__torch_function__"


def distinguishes_zero_or_one(guard: sympy.Basic) -> bool:
    """Whether a guard only distinguishes sizes of 0 or 1 from other sizes."""
    if not isinstance(guard, sympy.Rel):
        return False
    if isinstance(guard, sympy.Eq | sympy.Ne):
        return any(side in (0, 1) for side in guard.args) or any(
            _is_product(one / other, 1) for one, other in (guard.args, guard.args[::-1]) if other != 0
        )
    if (guard.lts.is_number and guard.lts in (0, 1, 2)) or (guard.gts.is_number and guard.gts in (0, 1)):
        return True
    return isinstance(guard, sympy.Lt | sympy.Gt) and guard.lts != 0 and _is_product(guard.gts / guard.lts, None)


def _is_product(ratio: sympy.Expr, factor: int | None) -> bool:
    """Whether a ratio, for example of two strides, is a product of sizes and ``factor`` (None: any number)."""
    number, rest = ratio.as_coeff_Mul()
    if not number.is_Integer or (factor is not None and number != factor):
        return False
    return number > 0 and not rest.is_number and sympy.fraction(rest)[1] == 1 and not isinstance(rest, sympy.Add)


def user_line(frame: FrameType | None) -> SourceLine | None:
    """The innermost line of user code in a stack of frames."""
    while frame is not None and not frame.f_code.co_filename.endswith("/fxonnx/_capture/torch_export.py"):
        code = frame.f_code
        if is_user_file(code.co_filename):
            return source_line_of(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    if TracingContext.try_get() is not None:
        for summary in reversed(TracingContext.extract_stack()):
            if is_user_file(summary.filename):
                return source_line_of(summary.filename, summary.lineno or 0, summary.name)
    return None
