"""Functions that run in a transformed form, because Python asks for the value of a tensor in them.

They are found from the failure of an attempt, compiled from transformed source, and replaced for the exporting thread.
"""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fxonnx_translations._torch_compat import DataDependentOutputException, UncapturedHigherOrderOpError

from ..._context_values import activated
from ..._user_files import is_user_file
from ...errors import CaptureError
from ..constraints.guard_recorder import GuardLog
from ..constraints.specialized_dims import SpecializedDimsError
from ..data_dependence.checks import is_unhashable
from ..edges import traced_size_branches
from ..patches import Patch, applied, rewriting_patches
from ..patches.patch import CodePatch, is_tracing, written
from ..suspicions.attribute_uses import SourceFiles
from ..suspicions.departures import Departure, DepartureKind
from ..suspicions.handled_errors import BOUNDARY
from ..user_code import REWRITTEN, Definition, compile_function, find_definition, running_definition
from .analysis import branch_lines, loop_lines
from .operators.conditionals import run_to_end, traced_cond
from .operators.helpers import Helpers, Rewrite
from .operators.values import SharedMemory, recorded_memory
from .structure import generated
from .transformer import HELPERS, PREFIX, Site, transform
from .written_copies import reject_written_copies

__all__ = ["Rewriting", "branches_at", "functions_at", "is_refusal", "rewritten_functions"]


_DISPATCH = f"{PREFIX}dispatch"
_COPY = f"{PREFIX}copy"
"""Attribute of the copy of a replaced function, which must not be rewritten itself."""


@contextmanager
def _with_frozen_objects() -> Iterator[None]:
    """Let ``gc`` find the objects that the user's process has frozen with ``gc.freeze``, as servers do that fork."""
    if not gc.get_freeze_count():
        yield
        return
    gc.collect()  # or the garbage would be frozen as well
    gc.unfreeze()
    try:
        yield
    finally:
        gc.freeze()


def _function_of_code(code: CodeType, known: Collection[int]) -> FunctionType | None:
    """A function object with the given code, of which each closure is one, and whose ``id`` is not among the known."""
    with _with_frozen_objects():
        found = [item for item in gc.get_referrers(code) if isinstance(item, FunctionType) and item.__code__ is code]
    return next((item for item in found if _COPY not in item.__dict__ and id(item) not in known), None)


def _containing_functions(
    file: str, lines: Sequence[int], beginning: Callable[[str, Iterable[int]], set[int]]
) -> list[FunctionType]:
    """The functions, not yet transformed, that contain one of the lines of a file where a construct begins."""
    begin = beginning(file, lines)
    if not begin:
        return []
    with _with_frozen_objects():
        codes = [
            (item, begin.intersection(number for *_, number in _all_lines(item.__code__)))
            for item in gc.get_objects()
            if type(item) is FunctionType
            and item.__code__.co_filename == file
            and HELPERS not in item.__code__.co_freevars
            and _COPY not in item.__dict__
        ]
    found = (item for line in lines for item, contained in codes if line in contained)
    return [item for item in found if find_definition(item.__code__) is not None]


def _all_lines(code: CodeType) -> Iterator[tuple[int, int, int | None]]:
    yield from code.co_lines()
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from _all_lines(item)


def _compile_transformed(
    function: FunctionType, definition: Definition, helpers: Callable[[list[Site]], Any], *, has_keys: bool
) -> FunctionType:
    """Compile the transformed source of a function, with its closure, defaults, globals and line numbers."""
    node = _WithoutAnnotations().visit(copy.deepcopy(definition.node))
    if definition.owner is not None:
        for part in [node.args, *node.body]:
            _Mangler(definition.owner).visit(part)
    node, sites = transform(node, has_keys=has_keys)
    original = function.__code__
    code = _renamed(compile_function(node, original, [*original.co_freevars, HELPERS]), original)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[HELPERS] = CellType(helpers(sites))
    return _function_like(function, code, tuple(cells[name] for name in code.co_freevars))


class _WithoutAnnotations(ast.NodeTransformer):
    """Remove the annotations of variables: a name that is declared ``nonlocal`` must not have one."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None or not isinstance(node.target, ast.Name):
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


@contextmanager
def _replaced(function: FunctionType, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replace a function inside the context for the exporting thread, wherever it is referenced.

    Its ``__code__`` is replaced by a call of the replacement; other threads call a copy of the original.
    """
    original = function.__code__
    copied = _function_like(function, original, function.__closure__)
    copied.__dict__[_COPY] = True

    def dispatch() -> Callable[..., Any]:
        return replacement if is_tracing() else copied

    row = CodePatch(
        f"{function.__module__}:{function.__qualname__}",
        partial(_trampoline, function, dispatch),
        "torch.export cannot capture its control flow",
        function=function,
    )
    with written([row]):
        yield


def _function_like(function: FunctionType, code: CodeType, closure: tuple[CellType, ...] | None) -> FunctionType:
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    made.__module__ = function.__module__
    made.__dict__.update(function.__dict__)
    return made


def _renamed(code: CodeType, original: CodeType) -> CodeType:
    """The code, in which generated functions have the name of the function that contains them, for tracebacks."""
    constants = tuple(
        _renamed(item, original)
        if isinstance(item, CodeType) and item.co_name.startswith((PREFIX, "<lambda>"))
        else item
        for item in code.co_consts
    )
    return code.replace(co_consts=(*constants, REWRITTEN), co_name=original.co_name)


def _trampoline(function: FunctionType, dispatch: Callable[[], Callable[..., Any]]) -> CodeType:
    """Code with the signature and the free variables of a function that calls the function ``dispatch`` returns."""
    code = function.__code__
    names = list(code.co_varnames)
    positional, names = names[: code.co_argcount], names[code.co_argcount :]
    keyword, names = names[: code.co_kwonlyargcount], names[code.co_kwonlyargcount :]
    variadic = [f"*{names.pop(0)}"] if code.co_flags & inspect.CO_VARARGS else []
    keywords = [f"**{names.pop(0)}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    required = code.co_argcount - len(function.__defaults__ or ())
    parameters = [*positional[:required], *(f"{name}=None" for name in positional[required:])]
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    parameters += variadic or ["*"] * bool(keyword)
    parameters += [f"{name}=None" if name in (function.__kwdefaults__ or {}) else name for name in keyword]
    given = [*positional, *variadic, *(f"{name}={name}" for name in keyword), *keywords]
    # The constant is replaced by the function below. The condition keeps the free variables.
    unused = f"if False: {', '.join(code.co_freevars)}" if code.co_freevars else "pass"
    target, line = f"{PREFIX}target", code.co_firstlineno
    (node,) = generated(
        f"def {code.co_name}({', '.join([*parameters, *keywords])}):\n"
        f" {unused}\n {target} = {_DISPATCH!r}\n return {target}()({', '.join(given)})",
        ast.Pass(lineno=line, end_lineno=line, col_offset=0, end_col_offset=0),
    )
    made = compile_function(node, code, code.co_freevars)
    constants = tuple(dispatch if item == _DISPATCH else item for item in made.co_consts)
    return made.replace(co_consts=constants)


class _Mangler(ast.NodeTransformer):
    """Private names (``self.__x``) of a class, whose methods are compiled outside of it."""

    def __init__(self, owner: str) -> None:
        self._owner = owner.lstrip("_")

    def _name(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and "." not in name
        return f"_{self._owner}{name}" if private and self._owner else name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = self._name(node.attr)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._name(node.arg)
        return self.generic_visit(node)


_PLACE = re.compile(r"(.+):(\d+) in ")
_MAX_FUNCTIONS = 20
# The file of code that exec compiles from a string.
_EXECUTED = "<string>"
_COND_PATCHES = (Patch("torch:cond", traced_cond, "TorchDynamo refuses control flow inside of the branches"),)


@dataclass
class RewriteLog:
    """The effects of the helpers of transformed functions.

    Attributes:
        constructs: The control flow of the last attempt that was captured as operators.
        refusals: Problem and hint of each error of the last attempt for a construct that cannot be captured.
        unrolled: Code of a function to the lines of its loops that cannot be operators, which are unrolled.
        forked: Code of a function to the lines of its conditions whose branches go on to the end of a function.
        refused: The code and the line of the condition in the last attempt whose branches have different types, and of
            those that contain it.
        callers: The functions that were running at the innermost of them, from the inner to the outer ones.
    """

    constructs: dict[Rewrite, None] = field(default_factory=dict)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    unrolled: dict[CodeType, set[int]] = field(default_factory=dict)
    forked: dict[CodeType, set[int]] = field(default_factory=dict)
    refused: dict[tuple[CodeType, int], None] = field(default_factory=dict)
    callers: list[CodeType] = field(default_factory=list)

    def clear(self) -> None:
        """Forget the last attempt."""
        for each in (self.constructs, self.refusals, self.refused, self.callers):
            each.clear()

    def refuse(self, code: CodeType, line: int, *, is_inner: bool) -> None:
        """Record a condition whose branches have different types, or that contains such a condition."""
        if not is_inner and not self.callers:
            return
        if not self.callers:
            codes = (frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(1)))
            inside = takewhile(lambda code: not code.co_filename.endswith(BOUNDARY), codes)
            self.callers += (code for code in inside if is_user_file(code.co_filename))
        self.refused[code, line] = None

    @property
    def unrolled_loops(self) -> int:
        """The number of loops that are unrolled."""
        return sum(map(len, self.unrolled.values()))


@dataclass(frozen=True)
class Rewriting:
    """The functions that run in a transformed form, after the failures of earlier attempts.

    Attributes:
        last: The failure of the last attempt.
        functions: Each function with its transformed form.
        traces_branches: Whether the branches of the user's ``torch.cond`` are traced without TorchDynamo.
        sizes: The lines, ``file.py:12``, whose conditions on sizes become operators as well.
        ends: The code and the line of conditions to the function that their branches run to its end, and its callers.
        refusal: The error of the last of these conditions, before its branches went on.
        unrolled_loops: The number of loops that were unrolled when the attempt began.
        has_keys: Whether sizes are keys of dictionaries in the functions.
        log: Receives the effects of the transformed functions.
    """

    last: CaptureError
    functions: tuple[tuple[FunctionType, FunctionType], ...] = ()
    traces_branches: bool = False
    sizes: frozenset[str] = frozenset()
    ends: Mapping[tuple[CodeType, int], tuple[FunctionType, ...]] = field(default_factory=dict)
    refusal: CaptureError | None = None
    unrolled_loops: int = 0
    has_keys: bool = False
    log: RewriteLog = field(default_factory=RewriteLog)

    def after(self, failure: CaptureError) -> tuple[Rewriting, str]:
        """Transform further functions after a failure: those that ask for the value of a tensor, or specialize a dim.

        It returns the difference as well, and raises the last failure if nothing is left to change.
        """
        if is_refusal(self.last) and isinstance(failure, SpecializedDimsError):
            failure = SpecializedDimsError(failure.specialized, self.last)
        rewriting = replace(self, last=failure)
        return rewriting.with_functions(rewriting._failing_functions())

    def with_functions(self, functions: Sequence[FunctionType]) -> tuple[Rewriting, str]:
        """Transform functions; see ``after``."""
        if not self.traces_branches and _fails_in_cond(self.last):
            # TorchDynamo cannot compile transformed functions; without it, the next failure is in the branch.
            return replace(self, traces_branches=True), "the branches of torch.cond are traced without TorchDynamo"
        if is_unhashable(self.last.__cause__) and not self.has_keys:
            again = dict.fromkeys((*dict(self.functions), *functions))
            return replace(self, functions=(), has_keys=True).with_functions([*again])
        known = self._known
        added = [(each, self._transformed(each)) for each in functions if id(each) not in known]
        loops = self.log.unrolled_loops
        if len(self.functions) > _MAX_FUNCTIONS:
            raise self.last
        if not added and loops == self.unrolled_loops:
            return self._with_end()
        changes = ["loops that cannot be operators are unrolled"] if loops > self.unrolled_loops else []
        changes += [f"control flow of {_place(function.__code__)} is rewritten" for function, _ in added]
        rewriting = replace(self, functions=(*self.functions, *added), unrolled_loops=loops)
        return rewriting, ", ".join(dict.fromkeys(changes))

    def with_sizes(self, functions: Sequence[FunctionType], places: frozenset[str]) -> Rewriting:
        """Transform functions, and capture both branches of the conditions on sizes at some lines."""
        known = self._known
        added = tuple((each, self._transformed(each)) for each in functions if id(each) not in known)
        return replace(self, functions=(*self.functions, *added), sizes=self.sizes | places)

    def _with_end(self) -> tuple[Rewriting, str]:
        """Let the branches of a condition that cannot be an operator go on to the end of its function.

        If their results differ in type as well, or they change an object that the caller has made, it is the end of the
        caller, and so on.
        """
        conditions, running = list(self.log.refused), list(filter(None, map(self._function, self.log.callers)))
        if not conditions or not is_refusal(self.last):
            raise self.last
        new = next((each for each in conditions if each not in self.ends), None)
        # Functions that are no longer running have been left.
        ends = {each: _still(functions, running) for each, functions in self.ends.items()}
        if new is not None:
            inner = next((at for at, each in enumerate(running) if each.__code__ is new[0]), len(running))
            ends[new] = tuple(running[inner:])
        code, line = conditions[0] if new is None else new
        known = dict(self.functions)
        if ends == self.ends:
            raise self.refusal or self.last
        made = None
        while ends[code, line] and made is None:
            end = ends[code, line][0]
            made = known.get(end) or self._if_transformed(end)
            ends[code, line] = ends[code, line][made is None :]
        if made is None:
            raise self.refusal or self.last
        refusal = self.refusal if new is None else self.last
        self.log.forked[code].add(line)
        added = () if end in known else ((end, made),)
        change = f"the branches at {code.co_filename}:{line} go on to the end of {end.__code__.co_name}"
        return replace(self, functions=(*self.functions, *added), ends=ends, refusal=refusal), change

    def _transformed(self, function: FunctionType) -> FunctionType:
        return _transformed(function, self.log, has_keys=self.has_keys)

    def _if_transformed(self, function: FunctionType) -> FunctionType | None:
        """The transformed form of a function; None if there is none, such as of a lambda beside another in its line."""
        try:
            return self._transformed(function)
        except CaptureError:
            return None

    def _function(self, code: CodeType) -> FunctionType | None:
        """The function that a frame has run, also in its transformed form."""
        for function, made in self.functions:
            if made.__code__ is code or _defines(made.__code__, code):
                return function
        return _function_of_code(code, self._known)

    @property
    def _known(self) -> frozenset[int]:
        return frozenset(id(function) for pair in self.functions for function in pair)

    def _failing_functions(self) -> Sequence[FunctionType]:
        """The functions to rewrite after the last failure."""
        if isinstance(self.last, SpecializedDimsError):
            return functions_at(line.place for dim in self.last.specialized for line in dim.lines)
        function = _failing_function(self.last, self._known)
        return [] if function is None else [function]

    @property
    def departures(self) -> list[Departure]:
        """The departures of the last attempt from torch.export: each construct and each function."""
        places = dict.fromkeys(_place(function.__code__) for function, _ in self.functions)
        return [
            *(Departure(DepartureKind.REWRITTEN, one.construct, one.place) for one in self.log.constructs),
            *(Departure(DepartureKind.REWRITTEN, "function", place) for place in places),
        ]

    def check(self, program: ExportedProgram, memory: SharedMemory) -> None:
        """Raise a CaptureError if the program of the last attempt may compute other values than the model."""
        if self.log.refusals:
            # The model has handled the error as if it were one of its own, and has taken another branch.
            message, hint = self.log.refusals[0]
            raise CaptureError(message, hint=hint)
        reject_written_copies(program.graph_module, memory)


@contextmanager
def rewritten_functions(rewriting: Rewriting | None, log: GuardLog, model: torch.nn.Module) -> Iterator[SharedMemory]:
    """Run functions of a model in their transformed form inside the context.

    The log receives the conditions on sizes of which both branches are captured. The context yields the tensors that
    share memory in eager torch and are copies in the program.
    """
    if rewriting is None:
        yield SharedMemory()
        return
    rewriting.log.clear()
    with rewriting_patches(), ExitStack() as stack, recorded_memory() as memory:
        stack.enter_context(applied(_COND_PATCHES if rewriting.traces_branches else ()))
        modules = list(model.modules())
        stack.enter_context(activated(SourceFiles(dict.fromkeys(map(type, modules)), modules)))
        if rewriting.sizes:
            stack.enter_context(traced_size_branches(rewriting.sizes, log))
        for function, replacement in rewriting.functions:
            is_end = any(functions[0] is function for functions in rewriting.ends.values())
            stack.enter_context(_replaced(function, _run_to_end(replacement) if is_end else replacement))
        yield memory


def _still(functions: tuple[FunctionType, ...], running: Sequence[FunctionType]) -> tuple[FunctionType, ...]:
    """A function and its callers, from the first one that is running."""
    first = next((at for at, each in enumerate(functions) if each in running), 0)
    return functions[first:]


def _run_to_end(function: FunctionType) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_to_end(lambda: function(*args, **kwargs))

    return run


def _place(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


def _fails_in_cond(error: CaptureError) -> bool:
    """Whether TorchDynamo could not compile a branch of the user's ``torch.cond``."""
    cause = error.__cause__
    return isinstance(cause, UncapturedHigherOrderOpError) and "torch.cond" in str(cause)


def is_refusal(error: CaptureError) -> bool:
    """Whether a failure is a construct that cannot be rewritten."""
    return error.__cause__ is None and not isinstance(error, SpecializedDimsError)


def branches_at(lines: Iterable[str]) -> tuple[list[FunctionType], frozenset[str]]:
    """The functions in which branches begin at lines (``file.py:12 in forward``), and these lines (``file.py:12``)."""
    known = list(lines)
    places = {f"{match[1]}:{match[2]}" for match in map(_PLACE.match, known) if match is not None}
    return functions_at(known, branch_lines), frozenset(places)


def functions_at(
    lines: Iterable[str], beginning: Callable[[str, Iterable[int]], set[int]] = loop_lines
) -> list[FunctionType]:
    """The functions in which loops, or other constructs, begin at lines (``file.py:12 in forward``)."""
    places: dict[str, list[int]] = {}
    for match in map(_PLACE.match, dict.fromkeys(lines)):
        if match is not None:
            places.setdefault(match[1], []).append(int(match[2]))
    return list(
        dict.fromkeys(
            found for file, numbers in places.items() for found in _containing_functions(file, numbers, beginning)
        )
    )


def _failing_function(error: CaptureError, known: Collection[int]) -> FunctionType | None:
    """The innermost function of the user's code, or of a library, that asked for the value of a tensor.

    None if the failure has another reason, or the function is a lambda or no longer exists; ``exec`` leaves no text to
    rewrite, which is a CaptureError.
    """
    cause = error.__cause__
    while isinstance(cause, CaptureError):
        cause = cause.__cause__
    # The model may have handled the first error, and asked for another value there.
    causes = [each for each in _causes(cause) if _asks_for_value(each)]
    found = (_failing_frames(each, known) for each in reversed(causes))
    return next((each for each in found if each is not None), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _failing_frames(error: BaseException, known: Collection[int]) -> FunctionType | None:
    """The innermost function of the user's code, or of a library, in the traceback of an error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for index in range(len(frames) - 1, -1, -1):
        code = frames[index].f_code
        if is_user_file(code.co_filename):
            return _function_of_frame(frames[: index + 1], known)
        if code.co_filename == _EXECUTED:
            raise CaptureError(
                f"{code.co_name} asks for the value of a tensor and was defined by exec, without source code from "
                "which it could be rewritten",
                hint="define the function in a file",
            )
    return None


def _asks_for_value(error: BaseException) -> bool:
    """Whether a failure is a guard on a value that only the data of tensors determines."""
    return is_unhashable(error) or any(
        isinstance(seen, GuardOnDataDependentSymNode | DataDependentOutputException)
        or (isinstance(seen, TypeError) and "integer" in str(seen))
        or any(text in str(seen) for text in _MESSAGES)
        for seen in _causes(error)
    )


_MESSAGES = (
    "Could not guard on data-dependent",
    "Could not extract specialized integer from data-dependent",
    "_local_scalar_dense",
    "data-dependent",
)


def _function_of_frame(frames: Sequence[FrameType], known: Collection[int]) -> FunctionType | None:
    """The function of the last frame; for functions inside of a running function, the outermost of these."""
    found = frames[-1]
    for frame in reversed(frames[:-1]):
        if _defines(frame.f_code, found.f_code):
            found = frame
    code = found.f_code
    if code.co_name == "<lambda>":
        return None
    function = _named_function(found, known) or _function_of_code(code, known)
    # The body of a loop has no source of its own.
    is_body = function is not None and function.__qualname__.rpartition(".")[2].startswith(PREFIX)
    return None if is_body else function


def _named_function(frame: FrameType, known: Collection[int]) -> FunctionType | None:
    """The function of a frame, if its module or the type of its first argument has it: all objects need no search."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    for names in (frame.f_globals, *map(vars, type(first).__mro__)):
        item = names.get(code.co_name)
        if (
            type(item) is FunctionType
            and item.__code__ is code
            and _COPY not in item.__dict__
            and id(item) not in known
        ):
            return item
    return None


def _defines(outer: CodeType, inner: CodeType) -> bool:
    return any(item is inner or _defines(item, inner) for item in outer.co_consts if isinstance(item, CodeType))


def _transformed(function: FunctionType, log: RewriteLog, *, has_keys: bool) -> FunctionType:
    definition = running_definition(function)

    def record(rewrite: Rewrite) -> None:
        log.constructs[rewrite] = None

    code = function.__code__
    lines = (log.unrolled.setdefault(code, set()), log.forked.setdefault(code, set()))
    refused = partial(log.refuse, code)

    def helpers(sites: list[Site]) -> Helpers:
        return Helpers(code.co_filename, function.__name__, sites, record, *lines, log.refusals, refused)

    return _compile_transformed(function, definition, helpers, has_keys=has_keys)
