"""Capture again with transformed functions, as long as Python asks for the value of a tensor."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Protocol, TypeVar

from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fxonnx_translations._torch_compat import DataDependentOutputException, UncapturedHigherOrderOpError

from ...errors import CaptureError
from ..attempts import next_attempt
from ..constraints.guard_recorder import is_user_file
from ..constraints.specialized_dims import SpecializedDimsError
from ..patches import Patch, applied, rewriting_patches
from ..source_code import running_definition
from .operators.conditionals import traced_cond
from .operators.helpers import Helpers, Rewrite
from .operators.memory import recorded_memory
from .source.functions import compile_transformed, function_of_code, looping_functions, replaced
from .source.transformer import Site
from .written_copies import reject_written_copies

__all__ = ["Rewritten", "capture_with_loops", "capture_with_rewrites"]


class _Captured(Protocol):
    """The result of a capture."""

    @property
    def exported_program(self) -> ExportedProgram: ...


_Result = TypeVar("_Result", bound=_Captured)
_PLACE = re.compile(r"(.+):(\d+) in ")
_MAX_FUNCTIONS = 40
# The file of code that exec compiles from a string.
_EXECUTED = "<string>"


@dataclass(frozen=True)
class Rewritten:
    """The constructs and functions that a capture rewrote.

    Attributes:
        constructs: The control flow that was captured as operators.
        functions: The places of the functions that ran in a transformed form.
    """

    constructs: tuple[Rewrite, ...]
    functions: tuple[str, ...]


_COND_PATCHES = (Patch("torch:cond", traced_cond, "TorchDynamo refuses control flow inside of the branches"),)


def capture_with_rewrites(attempt: Callable[[], _Result], failure: CaptureError) -> tuple[_Result, Rewritten]:
    """Rewrite the functions that ask for the value of a tensor, or specialize a dim in a loop, and capture again.

    Args:
        attempt: Captures the model; raises a CaptureError whose ``__cause__`` is torch's error.
        failure: The failure of the first attempt.

    Returns:
        The result, and what was rewritten.

    Raises:
        CaptureError: If a construct cannot be rewritten; ``failure`` itself if there is none.
    """
    return _capture_again(attempt, failure, _failing_functions(failure))


def capture_with_loops(attempt: Callable[[], _Result], lines: Iterable[str]) -> tuple[_Result, Rewritten] | None:
    """Rewrite the functions whose loops limit the inputs for which a captured model is valid, and capture it again.

    Args:
        attempt: Captures the model.
        lines: The lines that limit the sizes or values of inputs.

    Returns:
        The result, and what was rewritten; None without such a loop.

    Raises:
        CaptureError: If the capture fails.
    """
    functions = _functions_at(lines)
    if not functions:
        return None
    return _capture_again(attempt, CaptureError("a loop limits the inputs of the model"), functions)


def _capture_again(
    attempt: Callable[[], _Result], failure: CaptureError, functions: Sequence[FunctionType]
) -> tuple[_Result, Rewritten]:
    """Capture with transformed functions, and transform further ones after each failure."""
    first = last = failure
    rewritten: set[CodeType] = set()
    found: dict[Rewrite, None] = {}
    places: dict[str, None] = {}
    unrolled: dict[CodeType, set[int]] = {}
    refusals: list[tuple[str, str]] = []
    lines = 0
    runs_branches = False
    with rewriting_patches(), ExitStack() as stack:
        while True:
            if not runs_branches and _fails_in_cond(last):
                # TorchDynamo cannot compile transformed functions; without it, the next failure is in the branch.
                runs_branches = True
                next_attempt("the branches of torch.cond are traced without TorchDynamo")
                stack.enter_context(applied(_COND_PATCHES))
            else:
                functions = [function for function in functions if function.__code__ not in rewritten]
                try:
                    replacements = [(each, _transformed(each, found, unrolled, refusals)) for each in functions]
                except CaptureError as refusal:
                    raise _informative(first, refusal) from None
                before, lines = lines, sum(map(len, unrolled.values()))
                if (not replacements and lines == before) or len(rewritten) > _MAX_FUNCTIONS:
                    raise _informative(first, last)
                if lines > before:
                    next_attempt("loops that cannot be operators are unrolled")
                for function, replacement in replacements:
                    stack.enter_context(replaced(function, replacement))
                    # The original code may belong to further functions: each closure of a definition is one.
                    places[_place(function.__code__)] = None
                    next_attempt(f"control flow of {_place(function.__code__)} is rewritten")
                    rewritten.update((function.__code__, replacement.__code__))
            found.clear()
            refusals.clear()
            try:
                with recorded_memory() as memory:
                    captured = attempt()
                if refusals:
                    # The model has handled the error as if it were one of its own, and has taken another branch.
                    message, hint = refusals[0]
                    raise CaptureError(message, hint=hint)
                reject_written_copies(captured.exported_program.graph_module, memory)
                return captured, Rewritten(tuple(found), tuple(places))
            except CaptureError as error:
                if _is_refusal(last) and isinstance(error, SpecializedDimsError):
                    error = SpecializedDimsError(error.specialized, last)
                last = error
            functions = _failing_functions(last)


def _place(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


def _fails_in_cond(error: CaptureError) -> bool:
    """Whether TorchDynamo could not compile a branch of the user's ``torch.cond``."""
    cause = error.__cause__
    return isinstance(cause, UncapturedHigherOrderOpError) and "torch.cond" in str(cause)


def _informative(first: CaptureError, last: CaptureError) -> CaptureError:
    """The failure to report: a refused construct, a smaller number of specialized dims, or the first one."""
    if isinstance(last, SpecializedDimsError):
        if not isinstance(first, SpecializedDimsError) or len(last.specialized) < len(first.specialized):
            return last
        return SpecializedDimsError(first.specialized, last.refusal)
    if _is_refusal(last):
        return SpecializedDimsError(first.specialized, last) if isinstance(first, SpecializedDimsError) else last
    return first


def _is_refusal(error: CaptureError) -> bool:
    """Whether a failure is a construct that cannot be rewritten."""
    return error.__cause__ is None and not isinstance(error, SpecializedDimsError)


def _failing_functions(error: CaptureError) -> list[FunctionType]:
    """The functions to rewrite after a failure."""
    if not isinstance(error, SpecializedDimsError):
        function = failing_function(error)
        return [] if function is None else [function]
    return _functions_at(line.place for dim in error.specialized for line in dim.lines)


def _functions_at(lines: Iterable[str]) -> list[FunctionType]:
    """The functions in which loops begin at lines (``file.py:12 in forward``)."""
    places = [match for match in map(_PLACE.match, dict.fromkeys(lines)) if match is not None]
    return list(dict.fromkeys(found for place in places for found in looping_functions(place[1], int(place[2]))))


def failing_function(error: BaseException) -> FunctionType | None:
    """The innermost function of the user's code, or of a library, that asked for the value of a tensor.

    Args:
        error: The failure of a capture.

    Returns:
        The function; None if the failure has another reason, or the function is a lambda or no longer exists.

    Raises:
        CaptureError: If the code that asked is the text of an ``exec``, which does not exist any more.
    """
    cause = error.__cause__
    while isinstance(cause, CaptureError):
        cause = cause.__cause__
    if cause is None or not _asks_for_value(cause):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    for index in range(len(frames) - 1, -1, -1):
        code = frames[index].f_code
        if is_user_file(code.co_filename):
            return _function_of_frame(frames[: index + 1])
        if code.co_filename == _EXECUTED:
            raise CaptureError(
                f"{code.co_name} asks for the value of a tensor and was defined by exec, without source code from "
                "which it could be rewritten",
                hint="define the function in a file",
            )
    return None


def _asks_for_value(error: BaseException) -> bool:
    """Whether a failure is the question for a value that only the data of tensors determines."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, GuardOnDataDependentSymNode | DataDependentOutputException):
            return True
        if isinstance(seen, TypeError) and "integer" in str(seen):
            return True
        if any(text in str(seen) for text in _MESSAGES):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


_MESSAGES = (
    "Could not guard on data-dependent",
    "Could not extract specialized integer from data-dependent",
    "_local_scalar_dense",
    "data-dependent",
)


def _function_of_frame(frames: Sequence[FrameType]) -> FunctionType | None:
    """The function of the last frame; for functions inside of a running function, the outermost of these."""
    code = frames[-1].f_code
    for frame in reversed(frames[:-1]):
        if _defines(frame.f_code, code):
            code = frame.f_code
    return None if code.co_name == "<lambda>" else function_of_code(code)


def _defines(outer: CodeType, inner: CodeType) -> bool:
    return any(item is inner or _defines(item, inner) for item in outer.co_consts if isinstance(item, CodeType))


def _transformed(
    function: FunctionType,
    found: dict[Rewrite, None],
    unrolled: dict[CodeType, set[int]],
    refusals: list[tuple[str, str]],
) -> FunctionType:
    definition = running_definition(function)

    def record(rewrite: Rewrite) -> None:
        found[rewrite] = None

    own = unrolled.setdefault(function.__code__, set())

    def helpers(sites: list[Site]) -> Helpers:
        return Helpers(function.__code__.co_filename, function.__name__, sites, record, own, refusals)

    return compile_transformed(function, definition, helpers)
