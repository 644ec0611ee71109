"""The error that the model itself raises in eager mode, on copies of the example inputs."""

from __future__ import annotations

import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fxonnx_translations._torch_compat import FakeTensor, UncapturedHigherOrderOpError

from .._cost import bytes_of
from .._interrupts import interruptible
from .._user_files import is_user_file
from ..errors import CaptureError
from .constraints.guard_recorder import source_line_of
from .constraints.specialized_dims import SpecializedDimsError
from .data_dependence.data_dependent_guards import is_data_dependent
from .eager_state import copies_of_inputs, preserved_random_states, preserved_state
from .inputs.example_inputs import BoundInputs
from .inputs.preserve import preserve_model
from .patches import not_tracing

__all__ = ["eager_failure", "user_line"]

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
    """The error of the model itself, if it fails on the example; None otherwise, and where it cannot run.

    Args:
        error: The error of the capture.
        model: The model.
        inputs: The example inputs.
        forward: Its ``forward``, which takes them.
    """
    cause = error.__cause__
    if cause is None and not isinstance(error, SpecializedDimsError):
        # A construct that fxonnx refuses.
        return None
    if is_data_dependent(cause) or _is_from_patches(cause):
        # After a guard, the model may change state that nobody restores; errors of the patches are clearer themselves.
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
    lines = [f"  {line}" for line in str(raised).strip().splitlines()[:_MOST_LINES]]
    place = [f"  at: {line}" for line in [user_line(raised)] if line]
    module = [f"  in module {name}" for name in [_failing_module(raised, model)] if name]
    text = "\n".join(
        [f"the model itself fails on the example inputs: {type(raised).__name__}", *lines, *place, *module]
    )
    # The hint of another error of the capture would not help.
    hint = error.hint if type(raised) is type(cause) else None
    found = CaptureError(text, hint=hint or "call model(*args, **kwargs) until it runs, then export")
    found.__cause__ = cause
    return found


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
