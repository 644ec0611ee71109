"""What torch assumes about sizes while it captures a model, and which line of the user's code makes it do so.

torch keeps little of this: a guard that narrows the range of a size leaves only the range, and the stacks are dropped
at the end of the capture. So they are written down as they arise.
"""

from __future__ import annotations

import linecache
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
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxonnx_translations._torch_compat import TracingContext, ValueRanges, bound_sympy, int_oo

__all__ = [
    "COMPARISONS",
    "Guard",
    "GuardLog",
    "SourceLine",
    "compare",
    "guard_bool",
    "guard_or_defer_runtime_assert",
    "guards_of_shape_env",
    "is_user_file",
    "line_of_node",
    "log_guard",
    "maybe_guard_rel",
    "recorded_guards",
    "source_line_of",
]

_TORCH = str(Path(torch.__file__).parent) + "/"
_OWN = str(Path(__file__).parents[2]) + "/"
_SYMPY = str(Path(sympy.__file__).parent) + "/"
_LIBRARY = sysconfig.get_path("stdlib")
# Where symbolic numbers are made and asked: the frame behind it is the one that wants to know.
_PATCHES = _OWN + "_capture/patches/patch.py"
_MACHINERY = (_TORCH + "fx/experimental/", _TORCH + "__init__.py", _TORCH + "_dynamo/", _SYMPY, __file__, _PATCHES, "<")
# The fake convolution wants to know which memory format its result has, a fake view whether the elements lie in
# order, a fake Fourier transform whether to resize. Where the elements do not lie in order, eager torch copies them or
# fails; ONNX has no such thing.
_LAYOUT = frozenset(
    {
        (_TORCH + "_subclasses/fake_impls.py", "conv"),
        (_TORCH + "_subclasses/fake_impls.py", "convert"),
        (_TORCH + "_subclasses/fake_impls.py", "_is_contiguous_with_hinted_checks"),
        (_TORCH + "_subclasses/fake_impls.py", "_hinted_eq"),
        (_TORCH + "_meta_registrations.py", "_exec_fft"),
    }
)
# transformers asks here whether to repeat a mask or positions, which of two kernels to call for the same result, and
# whether a cache is empty, to answer that its length is 0.
_BROADCASTING = re.compile(r"/transformers/(masking_utils\.py|cache_utils\.py|integrations/\w+\.py)$")

_MASKS = re.compile(r"/transformers/masking_utils\.py$")
COMPARISONS: Mapping[str, type[sympy.Rel]] = MappingProxyType(
    {"eq": sympy.Eq, "ne": sympy.Ne, "lt": sympy.Lt, "le": sympy.Le, "gt": sympy.Gt, "ge": sympy.Ge}
)
"""Methods of ``SymNode`` that compare two sizes, with their relations."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (.+)')


@dataclass(frozen=True)
class SourceLine:
    """One line of the user's code.

    Attributes:
        place: ``file.py:12 in forward``.
        code: The line itself.
    """

    place: str
    code: str

    def __str__(self) -> str:
        return f"{self.place}: {self.code}" if self.code else self.place


@dataclass(frozen=True)
class Guard:
    """Something that holds at the sizes of the examples, and that the captured program relies on.

    Attributes:
        expression: It, in torch's symbols.
        line: The user's line that asked, if it is known.
    """

    expression: sympy.Basic
    line: SourceLine | None


@dataclass
class GuardLog:
    """All guards of one capture.

    Attributes:
        guards: In the order they arose, without repetitions.
        sources: torch's symbol to what torch calls its place: ``L['x'].size()[0]``.
        nonzero: Sums of symbols that the model's code compares with 0, and the first line that does. torch answers
            such comparisons without a guard: its symbols are positive.
    """

    guards: list[Guard] = field(default_factory=list)
    sources: dict[sympy.Symbol, str] = field(default_factory=dict)
    nonzero: dict[sympy.Expr, SourceLine | None] = field(default_factory=dict)
    _settled: set[sympy.Basic] = field(default_factory=set)

    def add(self, shape_env: ShapeEnv, expression: sympy.Basic, frame: FrameType | None) -> None:
        """Writes a guard down, once."""
        if expression in self._settled:
            return
        self._settled.add(expression)
        for symbol in sorted(expression.free_symbols, key=str):
            if symbol not in self.sources:
                sources = shape_env.var_to_sources.get(symbol)
                if sources:
                    self.sources[symbol] = sources[0].name
        self.guards.append(Guard(expression, _users_line(frame)))

    def add_comparison(self, relation: type[sympy.Rel], sides: Sequence[sympy.Expr], frame: FrameType | None) -> None:
        """Writes down for which sizes a comparison that torch answered for positive sizes needs them not to be 0."""
        for expression in _nonzero(relation, sides):
            self.nonzero.setdefault(expression, _users_line(frame))

    def specializing_line(self, place: str) -> SourceLine | None:
        """The first line that leaves one size for a place, named as torch does."""
        symbols = {symbol for symbol, source in self.sources.items() if source == place}
        for guard in self.guards:
            if isinstance(guard.expression, sympy.Eq) and symbols & guard.expression.free_symbols:
                return guard.line
        return None


def is_user_file(filename: str) -> bool:
    """Whether a file is neither torch's, nor ours, nor Python's."""
    if filename.startswith((_TORCH, _OWN, _SYMPY, "<")):
        return False
    return not filename.startswith(_LIBRARY) or "site-packages" in filename


def source_line_of(filename: str, number: int, function: str) -> SourceLine:
    """The record of one line of a file."""
    return SourceLine(f"{filename}:{number} in {function}", linecache.getline(filename, number).strip())


def line_of_node(node: torch.fx.Node) -> SourceLine | None:
    """The innermost line of the user's code that a node comes from."""
    for filename, number, function in reversed(_FRAME.findall(node.meta.get("stack_trace") or "")):
        if is_user_file(filename):
            return source_line_of(filename, int(number), function)
    return None


def guards_of_shape_env(environment: ShapeEnv) -> Iterator[Guard]:
    """The guards that torch notes itself, where it does not turn them into assertions."""
    for guard in environment.guards:
        asking = guard.sloc.framework_loc
        name = getattr(asking, "filename", "")
        if name.startswith(_TORCH) and _is_about_one(guard.expr):
            continue
        line = None
        if name and is_user_file(name):
            line = source_line_of(name, getattr(asking, "lineno", 0), getattr(asking, "name", ""))
        elif guard.sloc.maybe_user_loc is not None:
            line = SourceLine(str(guard.sloc.maybe_user_loc), "")
        yield Guard(guard.expr, line)


@dataclass
class _Recorder:
    """A capture whose guards are recorded.

    Attributes:
        log: Gets the guards.
        shortcuts: Guards that torch must not draw conclusions from.
    """

    log: GuardLog
    shortcuts: set[sympy.Basic] = field(default_factory=set)


_recorder: ContextVar[_Recorder | None] = ContextVar("fxonnx_guard_recorder", default=None)


@contextmanager
def recorded_guards(log: GuardLog) -> Iterator[None]:
    """Record the guards of the capture in the body, where ``capture_patches`` are applied.

    What the user's code asks counts: its other branch is not in the program. What torch checks counts, too: the model
    fails at other sizes. What torch asks for shortcuts and memory layouts at sizes 0 and 1 does not count, since the
    values are the same. torch must not draw conclusions from it, either, or it would take later checks for granted.
    """
    token = _recorder.set(_Recorder(log))
    try:
        yield
    finally:
        _recorder.reset(token)


def guard_bool(evaluate: Callable[..., bool], self: Any, file: str, line: int) -> bool:
    """``SymNode.guard_bool``, which the user's code calls in ``if x.shape[0] > 4``."""
    recorder, caller = _recorder.get(), _caller()
    asking = _asking(caller)
    if recorder is None or (asking is not None and asking.f_code.co_filename.startswith((_TORCH, _OWN))):
        return evaluate(self, file, line)
    question = self.expr
    decided = _decided_for_sizes(self)
    if decided is not None:
        answer, backed = decided
        for symbol in backed:
            recorder.log.nonzero.setdefault(symbol, _users_line(caller))
        return answer
    answer = evaluate(self, file, line)
    if asking is not None and _is_shortcut(question, asking):
        return answer
    # Not while torch suppresses guards: it asks out of curiosity then.
    if question.free_symbols and not ShapeEnv._suppress_guards_tls():
        recorder.log.add(self.shape_env, _weakened(question if answer else sympy.Not(question), asking), caller)
    return answer


def _decided_for_sizes(node: Any) -> tuple[bool, list[sympy.Symbol]] | None:
    """The answer to a question about sizes known at run time only, if it is the same for all sizes of the inputs but 0.

    torch raises instead: with ``backed_size_oblivious`` an input's size may be 0 (``index.numel() == 0``, where the
    index has one element per node and one for each of the edges that are selected).
    """
    question, environment = node.expr, node.shape_env
    backed = sorted(question.free_symbols & environment.backed_var_to_val.keys(), key=str)
    if not backed or len(backed) == len(question.free_symbols):
        return None
    ranges = {symbol: environment.var_to_range[symbol] for symbol in question.free_symbols}
    # Backed symbols are sizes if their range says so; the value of an int is anything.
    sizes = [symbol for symbol in backed if ranges[symbol].lower >= 0]
    ranges |= {symbol: ranges[symbol] & ValueRanges(1, int_oo) for symbol in sizes}
    answer = bound_sympy(question, ranges)
    return (bool(answer.lower), sizes) if answer.is_singleton() else None


def log_guard(note: Callable[..., None], self: Any, prefix: str, g: Any, forcing_spec: bool) -> None:
    """``ShapeEnv._log_guard``, which torch calls for every guard it adds."""
    recorder = _recorder.get()
    if recorder is not None and "suppressed" not in prefix:
        caller = _caller()
        asking = _asking(caller)
        is_condition = prefix == "eval" and _is_condition(caller)
        if is_condition and asking is not None and _is_shortcut(g, asking):
            recorder.shortcuts.add(g)
        else:
            recorder.log.add(self, _weakened(g, asking), caller)
    note(self, prefix, g, forcing_spec)


def maybe_guard_rel(learn: Callable[..., None], self: Any, expr: Any) -> None:
    """``ShapeEnv._maybe_guard_rel``, in which torch draws conclusions from a guard."""
    recorder = _recorder.get()
    if recorder is None or expr not in recorder.shortcuts:
        learn(self, expr)


def guard_or_defer_runtime_assert(
    assert_later: Callable[..., bool], self: Any, orig_expr: Any, msg: str, fx_node: Any = None
) -> bool:
    """``ShapeEnv.guard_or_defer_runtime_assert``, which turns a guard into an assertion of the program."""
    recorder = _recorder.get()
    if recorder is not None and orig_expr in recorder.shortcuts and msg.startswith("evaluate_expr"):
        recorder.shortcuts.discard(orig_expr)
        return True
    asking = _asking(_caller())
    if asking is not None and _is_about_layout(asking):
        return True
    return assert_later(self, orig_expr, msg, fx_node)


def compare(relation: type[sympy.Rel], original: Callable[..., Any], self: Any, other: Any) -> Any:
    """``SymNode.eq`` and the like, which answer comparisons of sizes with 0 without a guard."""
    result = original(self, other)
    recorder = _recorder.get()
    if recorder is not None and isinstance(result.expr, BooleanAtom):
        sides = self.expr, other.expr
        if any(side.free_symbols for side in sides):
            caller = _caller()
            asking = _asking(caller)
            if asking is None or not _is_of_library(asking):
                recorder.log.add_comparison(relation, sides, caller)
    return result


def _caller() -> FrameType:
    """The frame in torch that called the function that is replaced by the caller of this one."""
    # Between the two is the frame of the patch, which chooses by thread.
    return sys._getframe(3)


def _is_of_library(asking: FrameType) -> bool:
    """Whether torch asks, or transformers where the answer for a size of 0 or 1 makes no difference."""
    name = asking.f_code.co_filename
    return name.startswith((_TORCH, _OWN)) or _BROADCASTING.search(name) is not None


def _nonzero(relation: type[sympy.Rel], sides: Sequence[sympy.Expr]) -> Iterator[sympy.Expr]:
    """The symbols, or their sum, of which a comparison has another answer at 0 than at positive sizes."""
    symbols = sorted({symbol for side in sides for symbol in side.free_symbols}, key=str)
    answer = relation(*sides)

    def differs_at_zero(zeros: Sequence[sympy.Symbol]) -> bool:
        try:
            return bool(relation(*(side.xreplace(dict.fromkeys(zeros, sympy.Integer(0))) for side in sides)) != answer)
        except ZeroDivisionError:
            return False

    found = [symbol for symbol in symbols if differs_at_zero([symbol])]
    if found:
        yield from found
    elif differs_at_zero(symbols):
        yield sympy.Add(*symbols)


def _asking(frame: FrameType | None) -> FrameType | None:
    """Who wants to know; None if it is the user's code, which ``strict`` capture reads without running it."""
    while frame is not None and frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.f_back
    return frame


def _is_condition(evaluation: FrameType) -> bool:
    """Whether torch evaluates a condition. A number is built into the program, so it is never a shortcut.

    Args:
        evaluation: The frame of ``ShapeEnv._evaluate_expr``, the only place where torch logs evaluations.
    """
    return isinstance(evaluation.f_locals.get("concrete_val"), BooleanAtom)


def _weakened(guard: sympy.Basic, asking: FrameType | None) -> sympy.Basic:
    """A guard as far as the captured branch needs it.

    transformers cuts a mask that is longer than what it is for; cut to the length it has, a mask stays as it is.
    """
    if asking is not None and _MASKS.search(asking.f_code.co_filename) and isinstance(guard, sympy.Gt | sympy.Lt):
        return (sympy.Ge if isinstance(guard, sympy.Gt) else sympy.Le)(*guard.args)
    return guard


def _is_shortcut(guard: sympy.Basic, asking: FrameType) -> bool:
    """Whether torch, or transformers about a mask, asked for a shortcut or a memory layout."""
    name = asking.f_code.co_filename
    if _BROADCASTING.search(name) is not None:
        return _is_about_one(guard)
    if not name.startswith((_TORCH, _OWN)):
        return False
    # Every operator is called from __torch_function__; what else torch.export asks is about the program.
    if name.startswith((_TORCH + "export/", _TORCH + "_export/")) and not _is_call(asking):
        return False
    return _is_about_layout(asking) or _is_about_one(guard)


def _is_about_layout(asking: FrameType) -> bool:
    if _is_call(asking):
        # It returns the same values, copied or not.
        return asking.f_locals.get("func") is torch.Tensor.contiguous
    return (asking.f_code.co_filename, asking.f_code.co_name) in _LAYOUT


def _is_call(asking: FrameType) -> bool:
    """Whether torch asks while it computes an operator that it has written in C++."""
    return asking.f_code.co_name == "__torch_function__"


def _is_about_one(guard: sympy.Basic) -> bool:
    """Whether it only tells a size of 0 or 1 from others."""
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
    """Whether a ratio is sizes times the factor, or times any number: two strides of one tensor, for example."""
    number, rest = ratio.as_coeff_Mul()
    if not number.is_Integer or (factor is not None and number != factor):
        return False
    return number > 0 and not rest.is_number and sympy.fraction(rest)[1] == 1 and not isinstance(rest, sympy.Add)


def _users_line(frame: FrameType | None) -> SourceLine | None:
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
