"""Branches whose other side only raises an error or writes a log message, found in the source of the asking line.

A guard on the value of a tensor that no check and no known value decides ends an attempt.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound

from fxonnx_translations._torch_compat import DataDependentOutputException, DynamicOutputShapeException

from ...errors import CaptureError
from ..constraints.guard_recorder import record_condition
from ..constraints.specialized_dims import SpecializedDimsError
from ..evaluating_code import Asking
from ..suspicions.handled_errors import handles_errors
from ..user_code import function_source
from .assumption import AssumptionKind, asking_frame
from .concrete_values import ConcreteValues, active_values

__all__ = [
    "OTHER_HINT",
    "UNHASHABLE",
    "answer_at",
    "answer_of_check",
    "answer_without_raise",
    "asks_several",
    "compared_values",
    "guard_bool",
    "inputs_of_guard",
    "is_data_dependent",
    "is_unhashable",
    "may_be_data_dependent",
    "raises_otherwise",
    "unresolved_error",
]

OTHER_HINT = (
    "compute with functions of torch at this line, or leave it out of exports: "
    "if not torch.compiler.is_exporting(): ..."
)
"""The hint for an error of the capture that is none of the known ones."""

UNHASHABLE = "unhashable type: non-nested SymInt"
"""torch's message for a symbolic number as the key of a dictionary or set."""


_LOGGING = frozenset({"debug", "info", "warning", "warning_once", "warn", "error"})
_LOGGERS = frozenset({"logging", "logger", "_logger", "log", "_log", "LOGGER", "LOG", "warnings"})

_Position = tuple[int, int, int, int]


def guard_bool(original: Callable[..., bool], self: Any, file: str, line: int) -> bool:
    """Replacement of ``SymNode.guard_bool``, called in ``if valid.all():``, that answers checks of arguments."""
    try:
        return original(self, file, line)
    except GuardOnDataDependentSymNode:
        values, frame = active_values(), asking_frame()
        condition = None if values is None else values.condition(self.expr)
        if condition is not None:
            holds = original(condition.node, file, line)
            record_condition(condition.node, answer=holds, frame=frame)
            return holds
        answer = None if values is None or frame is None else answer_of_check(frame)
        if values is None or answer is None:
            raise
        values.log.add(AssumptionKind.CHECK, answer, frame=frame)
        return answer


def answer_of_check(frame: FrameType) -> bool | None:
    """The truth value of the condition a frame evaluates with which execution goes on.

    Returns:
        The value; None if the condition does not select between going on and raising or logging, or the error would be
        handled.
    """
    return None if handles_errors(frame, _raised(frame)) else answer_at(frame)


def answer_at(frame: FrameType | Asking) -> bool | None:
    """The truth value with which execution goes on, whether or not the error would be handled."""
    position = _position(frame)
    tree = function_source(frame.f_code)
    if tree is None:
        return answer_without_raise(frame)
    if position is None:
        return None
    found = _innermost(tree, position)
    if found is None:
        return None
    statement, wanted = found
    asked = _asked_expression(frame, statement.test, position)
    return None if asked is None else _wanted_of_operand(statement.test, asked, wanted=wanted)


_SEVERAL = re.compile(r"\b(all|any|sorted|index|count)\(")


def asks_several(frame: FrameType) -> bool:
    """Whether an instruction asks for further conditions at the edge: a comparison of tuples, or ``all(...)``."""
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if not operation.startswith(("CALL", "PRECALL")):
        return operation.startswith(("COMPARE", "CONTAINS"))
    first, last, *_ = _position(frame) or (0, -1)
    lines = (linecache.getline(frame.f_code.co_filename, line) for line in range(first, last + 1))
    return _SEVERAL.search("".join(lines)) is not None


def compared_values(frame: FrameType) -> tuple[Any, Any] | None:
    """The two values whose equality a frame evaluates, if reading them again has no effect."""
    position, tree = _position(frame), function_source(frame.f_code)
    if position is None or tree is None or position[2] < 0:
        return None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and _is_at(node, position)]
    match found:
        case [ast.Compare(left, [ast.Eq() | ast.NotEq()], [right])]:
            try:
                return _read(left, frame), _read(right, frame)
            except (LookupError, TypeError, ValueError):
                return None
    return None


def _read(node: ast.expr, frame: FrameType) -> Any:
    """The value of an expression that runs no code: a variable, an attribute that is not a property, or sizes.

    Raises:
        LookupError: If evaluating it may run code, or a name or item does not exist.
        TypeError: If an object has no attributes of its own.
        ValueError: If an index is not a literal.
    """
    match node:
        case ast.Name(name):
            return (frame.f_locals if name in frame.f_locals else frame.f_globals)[name]
        case ast.Attribute(owner, name):
            value = _read(owner, frame)
            is_shape = name == "shape" and isinstance(value, torch.Tensor)
            if is_shape or inspect.getattr_static(value, name, None) is vars(value)[name]:
                return getattr(value, name)
        case ast.Subscript(owner, index):
            value = _read(owner, frame)
            if isinstance(value, tuple | list):
                ends = (index.lower, index.upper, index.step) if isinstance(index, ast.Slice) else (index,)
                numbers = [None if end is None else ast.literal_eval(end) for end in ends]
                part: Any = slice(*numbers) if isinstance(index, ast.Slice) else numbers[0]
                return value[part]
        case ast.Tuple(elements):
            return tuple(_read(element, frame) for element in elements)
        case ast.Call(ast.Name("tuple"), [sizes], []) if "tuple" not in frame.f_globals:
            return tuple(_read(sizes, frame))
        case ast.Constant(value):
            return value
    raise LookupError


def raises_otherwise(frame: FrameType) -> bool:
    """Whether a frame evaluates a condition whose other value raises an error, which a caller may handle."""
    position, tree = _position(frame), function_source(frame.f_code)
    if position is None or tree is None or position[2] < 0:
        return False
    found = _innermost(tree, position)
    if found is None:
        return False
    statement, wanted = found
    if isinstance(statement, ast.If) and not _raises(statement.orelse if wanted else statement.body):
        return False
    asked = _asked_expression(frame, statement.test, position)
    return asked is not None and _is_at(statement.test, asked)


def _raised(frame: FrameType) -> ast.expr | None:
    """The error that the check which a frame evaluates raises, or its class; None if it is unknown."""
    tree, position = function_source(frame.f_code), _position(frame)
    found = None if tree is None or position is None else _innermost(tree, position)
    match found:
        case (ast.If(body=[*_, ast.Raise(error)]), False) | (ast.If(orelse=[*_, ast.Raise(error)]), True):
            return error
        case (ast.Assert(), _):
            return ast.Name(AssertionError.__name__, ast.Load())
    return None


def _position(frame: FrameType | Asking) -> _Position | None:
    """First line, last line, first column and end column of the expression that a frame evaluates."""
    if not hasattr(frame.f_code, "co_positions"):
        # Python 3.10 knows the line only.
        return frame.f_lineno, frame.f_lineno, -1, -1
    position = next(islice(_positions(frame.f_code), frame.f_lasti // 2, None), None)
    return None if position is None or None in position else position


def _positions(code: CodeType, count: int | None = None) -> Iterator[_Position]:
    """The positions of the instructions of a function, some or all of which may be None."""
    positions: Callable[[], Iterator[_Position]] | None = getattr(code, "co_positions", None)
    return iter(()) if positions is None else islice(positions(), count)


def _asked_expression(frame: FrameType | Asking, test: ast.expr, position: _Position) -> _Position | None:
    """The part of a condition whose truth value is asked.

    A jump has the position of the whole statement or, in CPython 3.11, of the first operand of the condition: the
    instruction before it computes the value.
    """
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if _contains(test, position) and (position[2] < 0 or not operation.startswith(("POP_JUMP", "TO_BOOL"))):
        return position
    before = list(_positions(frame.f_code, frame.f_lasti // 2))
    return next((each for each in reversed(before) if None not in each and _contains(test, each)), None)


def _innermost(tree: ast.AST, position: _Position) -> tuple[ast.If | ast.Assert, bool] | None:
    """The innermost statement whose condition contains a position, and the value with which execution goes on."""
    found: tuple[ast.If | ast.Assert, bool] | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.Assert):
            continue
        # Without columns, every statement would be the one at the position.
        if not (_contains(node.test, position) or (position[2] >= 0 and _is_at(node, position))):
            continue
        if isinstance(node, ast.If):
            found = None if (wanted := _side_that_goes_on(node)) is None else (node, wanted)
        else:
            found = node, True
    return found


def _side_that_goes_on(node: ast.If) -> bool | None:
    """The value of a condition with which execution goes on; None if the sides have different effects."""
    if _raises(node.body):
        return False
    if _raises(node.orelse):
        return True
    return False if _only_logs(node.body) and _only_logs(node.orelse) else None


def _wanted_of_operand(test: ast.expr, position: _Position, *, wanted: bool) -> bool | None:
    """The value of the operand at a position that makes, or lets, a condition have the wanted value."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        # The negation itself asks for the truth value of its operand.
        return not wanted if _is_at(test, position) else _wanted_of_operand(test.operand, position, wanted=not wanted)
    if isinstance(test, ast.BoolOp):
        operands = [operand for operand in test.values if _contains(operand, position)]
        # The whole expression has the position of the jump after the last operand.
        return _wanted_of_operand(operands[0] if len(operands) == 1 else test.values[-1], position, wanted=wanted)
    # A comparison or a call as a whole; a guard inside of it is on another value.
    return wanted if _is_at(test, position) else None


def _contains(node: ast.expr, position: _Position) -> bool:
    line, end_line, column, end_column = position
    if column < 0:
        return node.lineno <= line <= (node.end_lineno or 0)
    start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return start <= (line, column) and (end_line, end_column) <= end


def _is_at(node: ast.expr | ast.stmt, position: _Position) -> bool:
    """Whether a node is the one at a position, not a part of it."""
    if position[2] < 0:
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bool":
        return _contains(node, position)
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) == (
        position[0],
        position[2],
        position[1],
        position[3],
    )


def _raises(body: Sequence[ast.stmt]) -> bool:
    """Whether statements end in an error without an effect before it."""
    return (
        bool(body)
        and isinstance(body[-1], ast.Raise)
        and all(isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr) for statement in body[:-1])
    )


def _only_logs(body: Sequence[ast.stmt]) -> bool:
    """Whether statements do nothing but write log messages, or raise errors under further conditions."""
    return all(
        _logs(statement)
        or (
            isinstance(statement, ast.If)
            and all(_raises(side) or _only_logs(side) for side in (statement.body, statement.orelse))
        )
        for statement in body
    )


def _logs(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    function = statement.value.func
    if isinstance(function, ast.Name):
        return function.id == "print"
    if not isinstance(function, ast.Attribute) or function.attr not in _LOGGING:
        return False
    owner = function.value
    return (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) in _LOGGERS


_JUMP_IF = ("POP_JUMP_IF_", "POP_JUMP_FORWARD_IF_")
# Without an effect but on the stack, and calls and names for the error.
_PLAIN = (
    *("LOAD_", "CALL", "BUILD_", "FORMAT_", "CONVERT_VALUE", "PUSH_NULL", "PRECALL", "KW_NAMES", "COPY", "SWAP"),
    *("BINARY_", "COMPARE_OP", "STORE_FAST", "RESUME", "NOP", "CACHE", "EXTENDED_ARG", "ROT_", "NOT_TAKEN"),
)


def answer_without_raise(frame: FrameType | Asking) -> bool | None:
    """The truth value with which execution goes on at the jump that a frame executes; None if both or none raise."""
    instructions = list(dis.get_instructions(frame.f_code))
    place = next((index for index, one in enumerate(instructions) if one.offset == frame.f_lasti), None)
    if place is None:
        return None
    while place < len(instructions) and instructions[place].opname in ("TO_BOOL", "CACHE", "EXTENDED_ARG"):
        place += 1
    jump = instructions[place] if place < len(instructions) else None
    condition = next((jump.opname[len(name) :] for name in _JUMP_IF if jump and jump.opname.startswith(name)), "")
    if jump is None or condition not in ("TRUE", "FALSE"):
        return None
    target = next(index for index, one in enumerate(instructions) if one.offset == jump.argval)
    next_raises, target_raises = _ends_in_error(instructions[place + 1 :]), _ends_in_error(instructions[target:])
    if next_raises == target_raises:
        return None
    return (condition == "TRUE") == next_raises


def _ends_in_error(instructions: list[dis.Instruction]) -> bool:
    """Whether a sequence of instructions ends in an error without another effect."""
    for one in instructions:
        if one.opname == "RAISE_VARARGS":
            return True
        if not one.opname.startswith(_PLAIN):
            return False
    return False


_GUARDS = (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    DataDependentOutputException,
    DynamicOutputShapeException,
)


def is_data_dependent(error: BaseException | None) -> bool:
    """Whether an error of torch, or one of its causes, stems from a guard on the value of a tensor."""
    return any(isinstance(cause, _GUARDS) for cause in _causes(error))


def may_be_data_dependent(error: CaptureError) -> bool:
    """Whether a capture failed at a guard on the value of a tensor, or used one where torch requires a number.

    Sizes have no hash either, and are the keys of dictionaries in rewritten functions.
    """
    if isinstance(error, SpecializedDimsError):
        return False
    return is_unhashable(error.__cause__) or any(
        isinstance(cause, _GUARDS) or "data-dependent" in str(cause) or "unbacked" in str(cause)
        for cause in _causes(error.__cause__)
    )


def is_unhashable(error: BaseException | None) -> bool:
    """Whether an error stems from a symbolic number as the key of a dictionary or set."""
    return any(isinstance(cause, TypeError) and UNHASHABLE in str(cause) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def inputs_of_guard(error: CaptureError, values: ConcreteValues | None) -> tuple[str, ...]:
    """Labels of the inputs that the condition of a failed guard depends on.

    Args:
        error: The failure.
        values: The concrete values of that attempt; None without any.
    """
    for cause in _causes(error.__cause__):
        condition = getattr(cause, "cond", None)
        if values is not None and condition is not None and hasattr(condition, "free_symbols"):
            return tuple(sorted(values.sources_of(condition)))
    return ()


_LAMBDA = re.compile(r"  at: .* in <lambda>: .*\b(if|for|and|or|not)\b")


def unresolved_error(
    guard: CaptureError, inputs: tuple[str, ...], last: CaptureError, states: frozenset[str]
) -> CaptureError:
    """The error for a guard that no strategy resolves.

    Args:
        guard: The failure at the guard.
        inputs: Labels of the inputs that its condition depends on.
        last: The failure of the last attempt with rewritten control flow; ``guard`` itself without one.
        states: FQNs of the parameters and buffers that are inputs, among these labels.
    """
    if guard.hint not in (None, OTHER_HINT):
        # The error of a library function that fxonnx explains itself.
        return guard
    names = ", ".join(f'"{name}"' for name in inputs)
    hint = 'pass data_dependent="example" to follow the branch that the example takes'
    if names:
        constants = f"frozen=[{names}]" if states.isdisjoint(inputs) else 'state="outputs"'
        hint = f"the value depends on {names}: {hint}, or {constants} to make it a constant"
    if last is guard and _LAMBDA.search(last.message):
        hint = f"a branch or loop is captured in a function with def, and not in a lambda; {hint}"
    if last is not guard and last.hint not in (None, OTHER_HINT):
        hint = f"{last.hint}; or {hint}" if not names else f"{last.hint}; {hint}"
    error = CaptureError(
        "the model asks for the value of a tensor, which depends on its inputs:\n"
        f"{last.message}\n"
        "  tried: values that depend on no input, checks that only raise, rewriting to torch.cond and torch.while_loop",
        hint=hint,
    )
    error.__cause__ = guard.__cause__
    return error
