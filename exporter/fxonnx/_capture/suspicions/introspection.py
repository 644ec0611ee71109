"""Python introspection and caches in user code, in which a capture differs from eager torch.

During a capture, sizes are symbolic numbers and tensors are fake. The builtins ``isinstance`` and ``type`` are replaced
in the modules of the code that the model may run. Other introspection cannot be replaced, and is recorded as a
departure: the program must then have the results of eager torch.

``functools.lru_cache`` keeps the results of functions: those of a capture are fake tensors. A cache refuses symbolic
sizes, which have no hash. The functions are called without their caches for these.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from itertools import islice, pairwise
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.export import ExportedProgram

from fxonnx_translations._torch_compat import get_proxy_mode

from ..._context_values import activated, active
from ...errors import CaptureError
from ..constraints.guard_recorder import line_of_node, source_line_of
from ..patches.patch import is_tracing
from ..user_code import CachePlace, codes_of, reachable_caches, reachable_functions
from .attribute_changes import draws_values
from .departures import Departure, DepartureKind, is_recording, record_departure, recorded_departures
from .eager_types import eager_types

__all__ = [
    "eager_introspection",
    "reject_cached_random_values",
    "truth_values",
    "uncached_sizes",
    "without_traced_results",
]

_ITEM = torch.ops.aten.item.default
_IS = dis.opmap["IS_OP"]
_LOAD_CONST = dis.opmap["LOAD_CONST"]
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_MATCH = dis.opmap["MATCH_CLASS"]
_OPERATIONS = frozenset({"COMPARE_OP", "CONTAINS_OP", "BINARY_OP", "BINARY_SUBSCR"})
_COPIES = frozenset({"COPY", "DUP_TOP"})  # of the subject of a match statement
_IGNORED = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL", "PUSH_NULL", "RESUME", "NOP", "COPY_FREE_VARS"})


@contextmanager
def eager_introspection(model: torch.nn.Module) -> Iterator[None]:
    """Show the types of eager torch to the code of a model inside the context, and record its other introspection."""
    with nullcontext() if is_recording() else recorded_departures():
        asking, with_types, caches = _search(model)
        with eager_types(asking, with_types), known_caches(caches):
            yield


def truth_values(program: ExportedProgram) -> Iterator[Departure]:
    """The values of boolean tensors that are numbers in a capture: ``x.any().item() is True`` is false for all."""
    for node in program.graph.nodes:
        if node.target is _ITEM and node.args[0].meta["val"].dtype == torch.bool:
            line = line_of_node(node)
            yield Departure(DepartureKind.INTROSPECTION, "the value of a boolean tensor", str(line or ""))


def _search(model: torch.nn.Module) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Any]]:
    """Record the introspection in a model's code."""
    modules = list(model.modules())
    own = {type(module).__module__ for module in modules}
    tensors = _TensorNames(model)
    asking: dict[int, dict[str, Any]] = {}
    with_types: dict[int, dict[str, Any]] = {}
    functions = reachable_functions(modules)
    for function in functions:
        # Functions of libraries, apart from those that define the model, rarely depend on classes of tensors.
        is_own = function.__globals__.get("__name__") in own or "site-packages" not in function.__code__.co_filename
        for code in codes_of(function.__code__):
            if is_own:
                _record_introspection(code, function, tensors)
            if "isinstance" in code.co_names:
                asking[id(function.__globals__)] = function.__globals__
            if "type" in code.co_names and _loads_global(code, "type"):
                with_types[id(function.__globals__)] = function.__globals__
    for kind in dict.fromkeys(map(type, model.parameters())):
        if kind is not torch.nn.Parameter and issubclass(kind, torch.nn.Parameter):
            record_departure(DepartureKind.INTROSPECTION, f"parameters of class {kind.__name__}", line="")
    return list(asking.values()), list(with_types.values()), reachable_caches(functions, modules)


def _loads_global(code: CodeType, name: str) -> bool:
    """Whether a code object loads a global of a name, as opposed to an attribute, given one of its names."""
    is_shifted = sys.version_info >= (3, 11)  # the lowest bit has another meaning
    index = code.co_names.index(name) & (0xFF >> is_shifted)
    pairs = zip(code.co_code[::2], code.co_code[1::2], strict=True)
    return any(operation == _LOAD_GLOBAL and argument >> is_shifted == index for operation, argument in pairs)


class _TensorNames:
    """The names of the tensors that are attributes of a model's modules, found when they are first asked for.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        tables = [
            table for module in self._model.modules() for table in (vars(module), module._parameters, module._buffers)
        ]
        return frozenset(name for table in tables for name, value in table.items() if isinstance(value, torch.Tensor))


def _record_introspection(code: CodeType, function: FunctionType, tensors: _TensorNames) -> None:
    """Record the expressions of a function whose values may differ between the capture and eager torch."""
    if "__class__" in code.co_names or _may_introspect(code):
        for detail, number in _introspection(code, tensors):
            place = source_line_of(code.co_filename, number, code.co_name)
            record_departure(DepartureKind.INTROSPECTION, detail, line=place)
    for name in code.co_names:
        value: Any = function.__globals__.get(name)
        # The functions of functools.singledispatch, which looks up the class of its argument.
        if type(value) is FunctionType and "registry" in vars(value):
            place = source_line_of(code.co_filename, code.co_firstlineno, code.co_name)
            record_departure(DepartureKind.INTROSPECTION, f"singledispatch function {name}", line=place)


def _may_introspect(code: CodeType) -> bool:
    """Whether a code object has a class pattern, or ``is`` with another operand than None: most have neither."""
    operations, arguments = code.co_code[::2], code.co_code[1::2]
    if _MATCH in operations:
        return True
    position = operations.find(_IS)
    while position > 0:
        loads_none = operations[position - 1] == _LOAD_CONST and code.co_consts[arguments[position - 1]] is None
        is_long = position > 1 and operations[position - 2] == dis.EXTENDED_ARG
        if is_long or not loads_none:
            return True
        position = operations.find(_IS, position + 1)
    return False


def _introspection(code: CodeType, tensors: _TensorNames) -> Iterator[tuple[str, int]]:
    """The introspection in a code object, with its line: ``x.__class__``, ``a is b``, and class patterns."""
    number = code.co_firstlineno
    seen: list[dis.Instruction] = []
    for item in dis.get_instructions(code):
        number = _line_of(item) or number
        if item.opname in _IGNORED:
            continue
        if item.opname == "MATCH_CLASS":
            yield "class pattern", number
        elif item.argval == "__class__" and item.opname.startswith("LOAD_ATTR"):
            # self.layer.__class__ is not the class of a tensor.
            is_attribute = bool(seen) and seen[-1].opname.startswith("LOAD_ATTR") and seen[-1].argval not in tensors
            if not _loads_self(seen[:-1] if is_attribute else seen, code):
                yield "__class__", number
        elif item.opname == "IS_OP" and _compares_values(seen, code):
            yield "is not" if item.arg else "is", number
        seen.append(item)


def _line_of(item: dis.Instruction) -> int | None:
    # In Python 3.13, starts_line is a bool.
    found = item.starts_line
    return getattr(item, "line_number", None) if isinstance(found, bool) else found


def _loads_self(seen: Sequence[dis.Instruction], code: CodeType) -> bool:
    """Whether the last instruction loads the first parameter, by convention the object of a method."""
    return (
        bool(seen)
        and seen[-1].opname.startswith("LOAD_FAST")
        and code.co_varnames[:1] == ("self",) == (seen[-1].argval,)
    )


def _compares_values(seen: Sequence[dis.Instruction], code: CodeType) -> bool:
    """Whether the operands of ``is`` may be tensors or symbolic numbers, given the instructions that load them."""
    if len(seen) < 2 or _loads_self(seen, code):
        return False
    right = seen[-1]
    if right.opname == "LOAD_CONST" or right.opname == "LOAD_SMALL_INT":
        if isinstance(right.argval, bool):
            return _is_computed(seen[:-1])
        return isinstance(right.argval, int | float)
    position = len(seen) - 1
    while position > 0 and seen[position].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        position -= 1
    return not seen[position].opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_COMMON"))


def _is_computed(seen: Sequence[dis.Instruction]) -> bool:
    """Whether the last instruction computes a value, or loads a variable to which one is assigned.

    It may be the answer to a comparison of sizes, which a function may return.
    """
    end = len(seen)
    while end > 1 and seen[end - 1].opname in _COPIES:
        end -= 1
    last = seen[end - 1]
    if last.opname.startswith("LOAD_FAST"):
        return any(
            _computes(before) and item.opname == "STORE_FAST" and item.argval == last.argval
            for before, item in pairwise(seen)
        )
    return _computes(last)


def _computes(item: dis.Instruction) -> bool:
    return item.opname in _OPERATIONS or item.opname.startswith("CALL")


_DRAWING = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli"),
        *("multinomial", "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "dropout"),
    }
)


class _Known(tuple[CachePlace, ...]):
    """The attributes and variables that hold functions with a cache."""


def known_caches(places: Sequence[CachePlace]) -> AbstractContextManager[Any]:
    """Note the functions with a cache that the captured model may call."""
    return activated(_Known(places))


@contextmanager
def without_traced_results() -> Iterator[None]:
    """Empty the caches on exit to which tracing has added results, which later calls of the model would get."""
    functions = {id(place.function): place.function for place in active(_Known) or ()}
    before = [(function, function.cache_info().misses) for function in functions.values()]
    try:
        yield
    finally:
        for function, misses in before:
            if function.cache_info().misses != misses:
                function.cache_clear()


@contextmanager
def uncached_sizes() -> Iterator[None]:
    """Call the functions with a cache without it for symbolic sizes, and leave no traced results in the others."""
    taking_sizes = {id(place.function): _taking_sizes(place.function) for place in active(_Known) or ()}
    replaced: list[CachePlace] = []
    with without_traced_results():
        try:
            for place in active(_Known) or ():
                place.replace(taking_sizes[id(place.function)])
                replaced.append(place)
            yield
        finally:
            for place in replaced:
                place.restore()


def _taking_sizes(cached: Any) -> Callable[..., Any]:
    """A function with a cache, which is called without it for symbolic sizes."""

    # Partial functions and objects that are called have no name, and nor have their caches.
    known_as = getattr(cached, "__name__", type(cached.__wrapped__).__name__)

    @functools.wraps(cached)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_tracing():
            return cached(*args, **kwargs)
        function = cached
        if _has_size(args) or _has_size(tuple(kwargs.values())):
            detail = f"the function {known_as} without its cache"
            record_departure(DepartureKind.INTROSPECTION, detail, sys._getframe(1))
            function = cached.__wrapped__
        with _without_random_values(known_as):
            return function(*args, **kwargs)

    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(call, name, getattr(cached, name))
    return call


@contextmanager
def _without_random_values(name: str) -> Iterator[None]:
    """Refuse random values of a function: its cache keeps them, and no run tells them from numbers of every call.

    Raises:
        CaptureError: If it draws some.
    """
    mode = get_proxy_mode()
    graph = None if mode is None else mode.tracer.graph
    count = 0 if graph is None else len(graph.nodes)
    yield
    for node in () if graph is None else islice(reversed(graph.nodes), len(graph.nodes) - count):
        if draws_values(node):
            raise _kept_random_values(name)


def reject_cached_random_values(program: ExportedProgram) -> None:
    """Refuse random values of a program of TorchDynamo that may be those of a function with a cache.

    Raises:
        CaptureError: If a function with a cache calls a function that draws some.
    """
    for place in active(_Known) or ():
        code = getattr(place.function.__wrapped__, "__code__", None)
        if code is not None and not _DRAWING.isdisjoint(code.co_names) and any(map(draws_values, program.graph.nodes)):
            raise _kept_random_values(code.co_name)


def _kept_random_values(name: str) -> CaptureError:
    return CaptureError(
        f"the cache of the function {name} keeps random values; the captured program draws them in every call",
        hint="draw them in __init__, for the largest size, and keep them with register_buffer",
    )


def _has_size(values: tuple[Any, ...]) -> bool:
    """Whether some of the arguments are symbolic sizes, or tuples or shapes with some."""
    return any(
        _has_size(value) if isinstance(value, tuple) else isinstance(value, torch.SymInt | torch.SymFloat)
        for value in values
    )
