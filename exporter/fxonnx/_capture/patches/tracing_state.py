"""Replacements that confine process-wide state to the tracing thread.

Tracing sets flags and replaces builtins for the whole process, and models seed the global generator or write through
``tensor.data``; torch's messages and its loader of archives are process-wide as well. In order: flags and builtins,
TorchDynamo's caches, state that models change, messages, loading, prints of models.
"""

from __future__ import annotations

import builtins
import math
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar

import torch

from fxonnx_translations._torch_compat import (
    DisableTorchFunction,
    FakeTensor,
    OpOverload,
    function_tables,
    fx_tracing,
    recording_mode,
    set_grad_enabled,
)

from ..._archives import read_program, refuse_compiled_code
from ..._context_values import activated, active
from ..suspicions.departures import DepartureKind, record_departure
from .patch import Patch, PatchKind, StandIn, ValuePatch, applied, in_tracing_thread, is_tracing, written

__all__ = [
    "LOADING_PATCHES",
    "REWRITING_PATCHES",
    "STATE_PATCHES",
    "CompilingState",
    "FilteredWarnings",
    "TracedData",
    "call_module",
    "clone_input",
    "compile_anew",
    "convert_module",
    "copying_operands",
    "loading_patches",
    "model_prints",
    "new_patcher",
    "recorded_compiling_state",
    "rewriting_patches",
    "without_function_tables",
]


_F = TypeVar("_F", bound=Callable[..., Any])

_OWN = ("fxonnx.", "fxonnx_translations.")


@dataclass
class CompilingState:
    """Whether a model asks if it is compiled.

    Attributes:
        is_asked: Whether the model, or a library other than torch, has asked.
        is_eager: Whether the answer is the one of eager mode.
    """

    is_asked: bool = False
    is_eager: bool = False


def recorded_compiling_state(*, is_eager: bool) -> AbstractContextManager[CompilingState]:
    """Record inside the context whether the model asks, and answer as in eager mode if requested."""
    return activated(CompilingState(is_eager=is_eager))


def _answer_is_compiling(original: Callable[[], bool]) -> bool:
    """``is_compiling`` in the tracing thread: torch's own functions get its answer, others the recorded state's.

    BigBird-Pegasus of transformers 4.57 makes a causal mask that is a column too long if a program is compiled.
    """
    state, value = active(CompilingState), original()
    if state is None or not value:
        return value
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        return value
    state.is_asked = True
    if state.is_eager:
        record_departure(DepartureKind.REPLACED, "torch.compiler.is_compiling", frame)
    return not state.is_eager


_RNN_WEIGHT_WARNING = re.compile(r"The tensor attributes? (self\.[\w.]*_flat_weights\[\d+\](, )?)+ (was|were) assigned")


_MODULES = ("torch._higher_order_ops.", "torch.nn.attention.")
"""Modules whose functions TorchDynamo traces one by one inside torch.export, for higher-order operators."""


class _TrueInTracingThread:
    """Value of a flag that is true in the tracing thread only."""

    def __bool__(self) -> bool:
        return is_tracing()


@contextmanager
def new_patcher(original: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    """``_new_patcher``, the context in which torch.fx traces, with its global flag set for this thread only."""
    with original() as patcher:
        # The flag is thread-local in later versions of torch; torch.fx restores its previous value on exit.
        if hasattr(fx_tracing, "_is_fx_tracing_flag"):
            vars(fx_tracing)["_is_fx_tracing_flag"] = _TrueInTracingThread()
        yield patcher


def call_module(original: Callable[..., Any], tracer: Any, *arguments: Any) -> Any:
    """``Tracer.call_module``, after which the stack of modules is as it was before, even if the module raised an error.

    The model may handle the error: x-vectors of speechbrain call each layer with lengths, and without them if the
    layer does not take any.
    """
    depth = len(tracer.module_stack)
    try:
        return original(tracer, *arguments)
    finally:
        while len(tracer.module_stack) > depth:
            tracer.module_stack.popitem(last=True)


@contextmanager
def without_function_tables() -> Iterator[None]:
    """Clear the tables of functions that torch caches inside the context, which would keep replaced functions."""
    sizes = [table.cache_info().currsize for table in function_tables]
    try:
        yield
    finally:
        for table, size in zip(function_tables, sizes, strict=True):
            if table.cache_info().currsize != size:
                table.cache_clear()


@contextmanager
def _override_builtins(original: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """``_override_builtin_ops`` of torch.export (``max``, ``min``, ``math.pow``), for this thread only."""
    largest, smallest, power = builtins.max, builtins.min, math.pow
    with original():
        # torch restores the builtins on exit, whatever their values are then.
        builtins.max = in_tracing_thread(builtins.max, largest)
        builtins.min = in_tracing_thread(builtins.min, smallest)
        math.pow = in_tracing_thread(math.pow, power)
        yield


def _return_false(original: Callable[[], bool]) -> bool:
    """``is_compiling`` and ``is_exporting`` for threads that do not export."""
    return False


def compile_anew(original: Callable[..., Any], model: Any = None, **options: Any) -> Any:
    """``torch.compile`` without the cache of a function of torch that calls a higher-order operator.

    TorchDynamo caches by code object: guards of earlier calls, with static sizes, would be evaluated on dynamic ones.
    """
    if isinstance(model, FunctionType) and model.__module__.startswith(_MODULES):
        code = model.__code__.replace()
        model = FunctionType(code, model.__globals__, model.__name__, model.__defaults__, model.__closure__)
    return original(model, **options)


def clone_input(original: Callable[..., Any], x: torch.Tensor, **options: Any) -> torch.Tensor:
    """``torch._dynamo.utils.clone_input``, which returns fake tensors as they are.

    The states of ``scan`` that begin with the same tensor would be one state in its subgraph.
    """
    copy: torch.Tensor = x.clone() if isinstance(x, FakeTensor) else original(x, **options)
    return copy


class TracedData:
    """``Tensor.data`` as a descriptor that traces reads as ``detach()`` and writes as ``copy_()``."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        if tensor is not None and _is_traced(tensor):
            return tensor.detach()
        return self._original.__get__(tensor, owner)

    def __set__(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if not _is_traced(tensor):
            self._original.__set__(tensor, value)
            return
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            raise RuntimeError(
                "forward assigns a tensor of a different shape or dtype to .data, which cannot be captured; "
                "assign it to a new variable instead"
            )
        # Without the memory that both tensors share from then on.
        record_departure(DepartureKind.REPLACED, "assignment to tensor.data")
        with torch.no_grad():
            tensor.copy_(value)


def _is_traced(tensor: torch.Tensor) -> bool:
    return is_tracing() and isinstance(tensor, FakeTensor) and recording_mode() is not None


def convert_module(
    original: Callable[..., torch.nn.Module],
    self: torch.nn.Module,
    fn: Callable[[torch.Tensor], torch.Tensor],
    recurse: bool = True,
) -> torch.nn.Module:
    """``Module._apply``, which implements ``to``, ``half`` and the like, as called by forward.

    A conversion that changes nothing, the usual case, has no effect. The others replace the tensors of the module for
    the rest of the trace; torch.export restores them afterwards.
    """
    if recording_mode() is None:
        return original(self, fn, recurse)
    if recurse:
        children: Iterator[Any] = self.children()
        for module in children:
            module._apply(fn)
    # A traced value may replace a parameter.
    owned: tuple[dict[str, Any], ...] = (self._parameters, self._buffers)
    for tensors in owned:
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            with torch.no_grad():
                converted = fn(tensor)
            if not _is_same(tensor, converted):
                tensors[name] = converted
    return self


def _is_same(tensor: torch.Tensor, converted: torch.Tensor) -> bool:
    """Whether a converted tensor is the tensor itself, or an alias with the same elements."""
    return tensor is converted or (
        tensor.dtype == converted.dtype
        and tensor.device == converted.device
        and tensor.untyped_storage()._cdata == converted.untyped_storage()._cdata
    )


class FilteredWarnings(StandIn):
    """The ``warnings`` module for one module of torch, without its warning about the weight lists of RNNs.

    These lists are restored after the export. A warnings filter would apply to all threads, and overlapping exports
    could leave it installed.
    """

    def warn(self, message: Any, *args: Any, stacklevel: int = 1, **options: Any) -> None:
        """Issue a warning, unless it is about the weight list of an RNN in the tracing thread."""
        if not (is_tracing() and _RNN_WEIGHT_WARNING.match(str(message))):
            self._original.warn(message, *args, stacklevel=stacklevel + 1, **options)


def _print_nothing(original: Callable[..., None], *values: object, **options: object) -> None:
    """``print`` that discards its arguments: the graph of a large model would hide the error."""


def _suggest_checks(original: Callable[..., None], error: Any, names: Any) -> None:
    """``_suggest_torch_checks``, without its log message if a symbol of the condition has no name in user code."""
    if all(symbol.name in names for symbol in error.cond.free_symbols):
        original(error, names)


def _load_weights_only(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.load`` with ``weights_only=True``, which does not unpickle arbitrary objects."""
    return original(*args, **{**kwargs, "weights_only": True})


class RestrictedPickle(StandIn):
    """The ``pickle`` module for torch's archive loader, which refuses to unpickle in the loading thread."""

    def loads(self, *args: Any, **kwargs: Any) -> Any:
        """Unpickle in other threads."""
        if is_tracing():
            raise pickle.UnpicklingError("it contains pickled Python objects, which could execute arbitrary code")
        return self._original.loads(*args, **kwargs)


def _without_gradient_modes(
    original: Callable[..., Any], mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """Replacement of the mode that records ``torch.no_grad``: set the mode without recording it."""
    if func is set_grad_enabled:
        with DisableTorchFunction():
            return func(*args, **(kwargs or {}))
    return original(mode, func, types, args, kwargs)


def path_of_module(original: Callable[..., str], tracer: Any, module: Any) -> str:
    """``_ModuleStackTracer.path_of_module``, also for the stand-ins of shared modules that the outer tracer made."""
    try:
        return original(tracer, module)
    except KeyError:
        return original(tracer, module.get_base())


_COPIES = "_fxonnx_copies_operands"
_UNWRITTEN = SimpleNamespace(arguments=())


def copying_operands(function: _F) -> _F:
    """Mark a branch or a body that writes copies of its operands only."""
    vars(function)[_COPIES] = True
    return function


def schema_of_operator(
    original: Callable[..., Any], operator: Any, first: Any, function: Any, *args: Any, **kwargs: Any
) -> Any:
    """``gen_schema``, of which torch asks whether operands are written: known without a trace of each branch."""
    is_known = vars(function).get(_COPIES, False) or (
        isinstance(function, torch.fx.GraphModule) and not any(map(_has_writes, (function, *args)))
    )
    return _UNWRITTEN if is_known else original(operator, first, function, *args, **kwargs)


def _has_writes(branch: Any) -> bool:
    """Whether operators in the graph of a branch may write their operands."""
    modules = branch.modules() if isinstance(branch, torch.fx.GraphModule) else ()
    graphs = [part.graph for part in modules if isinstance(part, torch.fx.GraphModule)]
    targets = [node.target for graph in graphs for node in graph.nodes]
    return any(isinstance(one, OpOverload) and one._schema.is_mutable for one in targets)


REWRITING_PATCHES: tuple[Patch, ...] = (
    *(
        Patch(
            f"torch._higher_order_ops.{name}.gen_schema",
            schema_of_operator,
            "to check that training writes no operands, torch traces each branch and body once more",
            PatchKind.SPEED,
        )
        for name in ("cond:CondOp", "while_loop:WhileLoopOp")
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:PreDispatchTorchFunctionMode.__torch_function__",
        _without_gradient_modes,
        "torch.export loses the graphs of nested operators (a cond in a while_loop) if it records torch.no_grad",
        needs=(DisableTorchFunction, set_grad_enabled),
    ),
    Patch(
        "torch.fx.experimental.proxy_tensor:_ModuleStackTracer.path_of_module",
        path_of_module,
        "in the subgraphs of control flow, it does not know the modules of a model in which modules are shared",
    ),
)
"""Applied while functions with control flow are rewritten."""


@contextmanager
def rewriting_patches() -> Iterator[None]:
    """Apply ``REWRITING_PATCHES`` for this thread, under the lock."""
    with applied(REWRITING_PATCHES):
        yield


class _OwnBuffers:
    """Replacement of ``register_buffer_assignment_hook``: forward's wrapper records the assignments of all buffers.

    torch's own table of assignments stays empty.
    """

    def __init__(self, original: Callable[..., Any], module: torch.nn.Module, assigned: dict[str, str]) -> None:
        self._buffers: dict[str, Any] = module._buffers
        self._inputs = frozenset(name for name, buffer in module._buffers.items() if buffer is not None)

    def remove(self) -> None:
        """Drop the other buffers, which torch.export counts among the inputs, until the model is restored."""
        for name in [name for name in self._buffers if name not in self._inputs]:
            del self._buffers[name]


def is_python_assert(original: Callable[..., bool], environment: Any) -> bool:
    """``ShapeEnv._is_python_assert``: whether a condition belongs to an ``assert``, which ``python -O`` leaves out."""
    return not sys.flags.optimize and original(environment)


STATE_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv._is_python_assert",
        is_python_assert,
        "it compiles an assert, which python -O leaves out, and raises StopIteration",
    ),
    Patch(
        "torch.fx.experimental.symbolic_shapes:_suggest_torch_checks",
        _suggest_checks,
        "torch logs a warning about a guard that another attempt resolves",
        PatchKind.SPEED,
    ),
    Patch(
        "torch.export._trace:print",
        _print_nothing,
        "torch prints the whole graph when an export fails",
        PatchKind.SPEED,
    ),
    Patch(
        "torch.export._trace:_override_builtin_ops",
        _override_builtins,
        "torch.export replaces the builtins max and min and math.pow for all threads",
        strict=False,
    ),
    Patch(
        "torch.export._trace:register_buffer_assignment_hook",
        _OwnBuffers,
        "only the buffers of the model itself are written, one after the other, and others if some are None",
        PatchKind.SOUND,
        strict=False,
    ),
    Patch(
        "torch.compiler:is_compiling",
        _answer_is_compiling,
        "it is true for all threads: optimizers in other threads would compute with tensors instead of numbers",
        elsewhere=_return_false,
        strict=False,
    ),
    Patch(
        "torch.compiler:is_exporting",
        lambda original: original(),
        "it is true for all threads: models in other threads would take their branch for exports",
        elsewhere=_return_false,
        strict=False,
    ),
)
"""Applied during captures."""


def model_prints(*, shown: bool) -> AbstractContextManager[None]:
    """Drop this thread's prints to the standard streams inside the context; other threads and files get theirs.

    Shown ones are printed: strict mode, which refuses ``print``, then captures the same models.
    """
    replaced = partial(_print, None if shown else threading.get_ident())
    return written((ValuePatch("builtins:print", replaced, "models print fake tensors, and each run of them again"),))


def _print(silent: int | None, original: Callable[..., None]) -> Callable[..., None]:
    """``print``, which writes nothing to the standard streams in one thread."""

    def printed(*values: Any, file: Any = None, **options: Any) -> None:
        if threading.get_ident() != silent or file not in (None, sys.stdout, sys.stderr):
            original(*values, file=file, **options)

    # TorchDynamo, which refuses ``print``, calls it instead of tracing it.
    printed._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return printed


LOADING_PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch:load",
        _load_weights_only,
        "torch.export.load unpickles older files without restrictions",
        PatchKind.SOUND,
    ),
    ValuePatch(
        "torch.export.pt2_archive._package:pickle",
        RestrictedPickle,
        "torch.export.load unpickles the entries that a file marks as pickled",
        PatchKind.SOUND,
    ),
    Patch(
        "torch._export.serde.serialize:_bytes_to_dataclass",
        read_program,
        "torch.export.load evaluates, compiles and imports texts of the file",
        PatchKind.SOUND,
    ),
    Patch(
        "torch.export.pt2_archive._package:_load_aoti",
        refuse_compiled_code,
        "torch.export.load loads shared libraries of the file",
        PatchKind.SOUND,
    ),
)
"""Applied by torch.export.load, since the command line loads files from untrusted sources."""


@contextmanager
def loading_patches() -> Iterator[None]:
    """Apply ``LOADING_PATCHES`` for this thread, under the lock."""
    with applied(LOADING_PATCHES):
        yield
