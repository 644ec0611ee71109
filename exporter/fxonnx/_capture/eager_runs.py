"""Runs of the user's model in eager mode: copies of its inputs, the state that is restored, the errors it raises.

While a model is traced, hooks of all modules of the process are those of the model only.
"""

from __future__ import annotations

import random
import re
import sys
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fxonnx_translations._builder.sub_byte import PER_BYTE, copy_of
from fxonnx_translations._torch_compat import FakeTensor, UncapturedHigherOrderOpError, global_hooks, pytree

from .._cost import bytes_of
from .._inner_tensors import is_wrapper
from .._interrupts import interruptible
from .._turns import one_at_a_time
from .._user_files import is_user_file
from ..errors import CaptureError
from .constraints.guard_recorder import source_line_of
from .constraints.specialized_dims import SpecializedDimsError
from .data_dependence.checks import OTHER_HINT, is_data_dependent
from .inputs.example_inputs import BoundInputs
from .inputs.preserve import preserve_model
from .patches.patch import is_tracing, not_tracing
from .user_code import codes_of, reachable_functions

__all__ = [
    "call_with_weights",
    "copies_of_inputs",
    "eager_failure",
    "error_of_model",
    "has_same_bits",
    "hooks_for_model_only",
    "is_plain",
    "preserved_gradients",
    "preserved_random_states",
    "preserved_state",
    "run_uncompiled",
    "user_line",
    "without_global_hooks",
]


_T = TypeVar("_T")

# All parameters of a model up to this size are copied for a call, and those that are small themselves.
_MOST_COPIED_BYTES = 2**24
_MOST_BYTES_OF_ONE = 2**20

_WRITES = re.compile("data|numpy|no_grad|set_grad_enabled|inference_mode|[a-z].*_")
"""Names in code that writes to parameters: their data or memory, writes without gradients, methods such as ``mul_``."""

_COMPILING = ("_higher_order_ops", "flex_attention")
"""Parts of the names of torch's files that compile functions of the model."""


def run_uncompiled(run: Callable[[], _T]) -> _T:
    """Call a function that runs a model without TorchDynamo, and with it if that fails.

    In eager mode, torch compiles the branches and bodies of ``cond``, ``while_loop`` and ``scan``, and flex attention,
    for each kind of input again, which takes seconds and gives the same values. Some bodies need it: those that read
    tensors from outside, with gradients.

    Args:
        run: The function, which leaves everything as it was if it fails.
    """
    # A capture in another thread may replace the weights of the model, and needs TorchDynamo: its stance is global.
    with one_at_a_time():
        # torch.export has imported it; its import takes longer than most models.
        if "torch._dynamo" in sys.modules:
            try:
                with torch.compiler.set_stance("force_eager"):
                    return run()
            except Exception as error:
                files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
                if not any(part in file for file in files for part in _COMPILING):
                    raise
        return run()


def copies_of_inputs(inputs: Any) -> Any:
    """Copy the tensors in a pytree; the copies are the same object, or share memory, where the originals do."""
    distinct = {id(leaf): leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)}
    by_storage: dict[int, list[torch.Tensor]] = {}
    for tensor in distinct.values():
        if tensor.layout == torch.strided and not is_wrapper(tensor) and tensor.numel():
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    copies: dict[int, torch.Tensor] = {}
    for address, tensors in by_storage.items():
        if address and len(tensors) > 1:
            shared: Any = tensors[0].untyped_storage()
            storage: torch.UntypedStorage = shared.clone()
            for tensor in tensors:
                view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                copies[id(tensor)] = view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = copy_of(tensor)
        # A result of another model that requires grad is not a leaf tensor, and may be written to.
        return copies[id(tensor)].requires_grad_(tensor.requires_grad and tensor.is_leaf)

    return pytree.tree_map_only(torch.Tensor, copied, inputs)


@contextmanager
def preserved_random_states() -> Iterator[None]:
    """Restore the random number generators of torch, Python and NumPy on exit."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if is_used else []
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def preserved_gradients(model: torch.nn.Module) -> Iterator[None]:
    """Restore the gradients of the parameters on exit: forward may call ``backward``."""
    parameters = list(model.parameters())
    before = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    for parameter, _ in before:
        # Backward would add to it in place.
        parameter.grad = None
    try:
        yield
    finally:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = None
        for parameter, gradient in before:
            parameter.grad = gradient


@contextmanager
def preserved_state(model: Any, training: frozenset[str] | None, written: Collection[str]) -> Iterator[None]:
    """Run a model in given modes; on exit, restore the modes and everything that forward may change.

    Args:
        model: A module; for other functions, nothing is done.
        training: Names of the modules in training mode; None to keep the modes.
        written: Names of the parameters whose values forward is known to change, which are restored even if they are
            large.
    """
    if not isinstance(model, torch.nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    with preserve_model(model, ()) as snapshot, preserved_gradients(model):
        snapshot.values.copy(_copied_weights(model, written))
        try:
            if training is not None:
                for name, module in model.named_modules():
                    if getattr(module, "training", None) is not None and module.training != (name in training):
                        module.training = name in training
            yield
        finally:
            for module, mode in modes:
                if module.training != mode:
                    module.training = mode


def _copied_weights(model: torch.nn.Module, written: Collection[str]) -> list[torch.Tensor]:
    """The tensors that are copied for a call of a model.

    These are the buffers, the parameters to which the captured program writes, and those of which a copy costs little:
    code that runs in eager mode only may write to these. Large ones are copied if the model has code that may do so.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    distinct = {id(one): one for one in parameters.values()}
    is_small = bytes_of(distinct.values()) <= _MOST_COPIED_BYTES or _may_write(model)
    chosen = [
        one for name, one in parameters.items() if is_small or name in written or bytes_of((one,)) <= _MOST_BYTES_OF_ONE
    ]
    return [*chosen, *model.buffers()]


def _may_write(model: torch.nn.Module) -> bool:
    """Whether code that forward may call names a way to write to a parameter in place."""
    functions = (one for one in reachable_functions(model.modules()) if one.__name__ != "__init__")
    codes = (code for one in functions for code in codes_of(one.__code__))
    return any(_WRITES.fullmatch(name) for code in codes for name in code.co_names)


def call_with_weights(model: Any, replaced: dict[str, torch.Tensor], given: Any) -> Any:
    """Call a model with other weights; in scripted modules they are written, and restored by the caller.

    Args:
        model: The model.
        replaced: The other weights, by name; none of functions.
        given: Positional and keyword inputs.
    """
    if not replaced or not isinstance(model, torch.nn.Module):
        return model(*given[0], **given[1])
    if not any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return torch.func.functional_call(model, replaced, *given, tie_weights=False)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in replaced.items():
            own[name].copy_(value)
    return model(*given[0], **given[1])


def has_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same bits; NaN is equal to itself, unlike in torch.equal."""
    parts = [tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten() for tensor in (one, other)]
    return torch.equal(*(part.view(torch.uint8) for part in parts))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor can be copied and written: not of fake, quantized and wrapped tensors."""
    return not (
        tensor.is_meta
        or tensor.is_inference()
        or tensor.layout != torch.strided
        or tensor.is_quantized
        or tensor.dtype in PER_BYTE
        or is_wrapper(tensor)
        or isinstance(tensor, FakeTensor)
    )


# Parameters up to this size are copied for a call of the model.
_MOST_BYTES = 2**29
_MOST_LINES = 8
_PATCHES = str(Path(__file__).parent / "patches")


def user_line(error: BaseException) -> str:
    """The innermost line of the traceback in the user's code, outside of torch, fxonnx and Python's library."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return str(source_line_of(frame.filename, frame.lineno or 0, frame.name))
    return ""


def eager_failure(
    error: CaptureError, model: torch.nn.Module, inputs: BoundInputs, forward: Callable[..., Any]
) -> CaptureError | None:
    """The error of the model itself, if it fails on the example; None otherwise, and where it cannot run."""
    cause = error.__cause__
    if cause is None and not isinstance(error, SpecializedDimsError):
        # A construct that fxonnx refuses.
        return None
    hint = None if error.hint == OTHER_HINT else error.hint
    is_from_patches = _is_from_patches(cause)
    if is_data_dependent(cause) or (hint is not None and is_from_patches):
        # After a guard, the model may change state that nobody restores.
        return None
    is_small = bytes_of(model.parameters()) <= _MOST_BYTES
    # A debugger would wait for input again.
    if isinstance(cause, BdbQuit) or not (is_small and _has_values(model, inputs)):
        return None
    with _preserved(model, inputs):
        raised = _raised(model, inputs, forward)
    # In eager mode, torch.cond is compiled, whose error is not the model's.
    if raised is None or isinstance(raised, UncapturedHigherOrderOpError):
        return None
    # The hint of another error of the capture would not help.
    # Errors of the patches are clearer themselves.
    shown = cause if is_from_patches and cause is not None else raised
    found = error_of_model(shown, model, hint if type(raised) is type(cause) else None)
    found.__cause__ = cause
    return found


def error_of_model(raised: BaseException, model: torch.nn.Module, hint: str | None = None) -> CaptureError:
    """The error for a model that raises another one on its example inputs: with its text, line and submodule."""
    lines = [f"  {line}" for line in str(raised).strip().splitlines()[:_MOST_LINES]]
    place = [f"  at: {line}" for line in [user_line(raised)] if line]
    module = [f"  in module {name}" for name in [_failing_module(raised, model)] if name]
    text = "\n".join(
        [f"the model itself fails on the example inputs: {type(raised).__name__}", *lines, *place, *module]
    )
    return CaptureError(text, hint=hint or "call model(*args, **kwargs) until it runs, then export")


def _is_from_patches(error: BaseException | None) -> bool:
    """Whether a shape function or another replacement of fxonnx raised an error; torch._check raises for its caller."""
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in frames if frame.filename != torch.__file__]
    return bool(files) and files[-1].startswith(_PATCHES)


def _has_values(model: torch.nn.Module, inputs: BoundInputs) -> bool:
    tensors = (*inputs.tensors, *model.parameters(), *model.buffers())
    return not any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in tensors)


@contextmanager
def _preserved(model: torch.nn.Module, inputs: BoundInputs) -> Iterator[None]:
    """Restore everything that a call of the model changes."""
    parameters = dict(model.named_parameters())
    # Few models write to parameters, whose copies may be large.
    is_small = bytes_of(parameters.values()) <= _MOST_BYTES
    with (
        preserve_model(model, inputs.tensors),
        preserved_state(model, None, parameters if is_small else ()),
        preserved_random_states(),
        not_tracing(),
    ):
        yield


def _raised(model: torch.nn.Module, inputs: BoundInputs, forward: Callable[..., Any]) -> Exception | None:
    """The error that the model raises on copies of the example, in eager mode."""
    model.forward = forward
    try:
        args, kwargs = copies_of_inputs((inputs.args, dict(inputs.kwargs)))
        with interruptible():
            model(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the model may raise anything
        return error
    return None


def _failing_module(error: BaseException, model: torch.nn.Module) -> str:
    """The innermost submodule in the traceback of an error: ``'layers.0' (Linear)``; "" if it is the model."""
    names = {id(module): name for name, module in model.named_modules()}
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module) and names.get(id(module)):
            found = f"'{names[id(module)]}' ({type(module).__name__})"
    return found


# torch.export calls the model from modules of its own, whose inputs and outputs have other structures.
_WRAPPERS = ("torch.export.", "torch._export.", "torch._dynamo.", "torch._functorch.", "torch.fx.")


@contextmanager
def hooks_for_model_only(model: torch.nn.Module) -> Iterator[None]:
    """Call global forward hooks and pre-hooks for the modules of a model, and not for torch.export's.

    Raises:
        CaptureError: If there are such hooks and the model is a GraphModule.
    """
    if not any(global_hooks):
        yield
        return
    if isinstance(model, torch.fx.GraphModule):
        raise CaptureError(
            "global forward hooks are registered, which torch.export does not call for a GraphModule",
            hint="call remove() on the handles of the hooks before the export",
        )
    known = {id(module) for module in model.modules()}

    def limited(hook: Callable[..., Any]) -> Callable[..., Any]:
        def called(module: torch.nn.Module, *args: Any) -> Any:
            is_wrapper = type(module).__module__.startswith(_WRAPPERS) and id(module) not in known
            return None if is_wrapper and is_tracing() else hook(module, *args)

        return called

    with _replaced([{key: limited(hook) for key, hook in table.items()} for table in global_hooks]):
        yield


@contextmanager
def without_global_hooks() -> Iterator[None]:
    """Call no global hooks: a captured program has their operators already."""
    with _replaced([{} for _ in global_hooks]):
        yield


@contextmanager
def _replaced(tables: Sequence[dict[int, Any]]) -> Iterator[None]:
    before = [dict(table) for table in global_hooks]

    def fill(contents: Sequence[dict[int, Any]]) -> None:
        for table, hooks in zip(global_hooks, contents, strict=True):
            if table or hooks:
                table.clear()
                table.update(hooks)

    fill(tables)
    try:
        yield
    finally:
        fill(before)
