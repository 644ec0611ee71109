"""State during an export: the flag ``is_in_onnx_export`` and the training mode of the model."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch.onnx import TrainingMode

from fxonnx_translations._optional_names import MissingNameError

from ._public import public
from .errors import UntestedTorchError

__all__ = ["exporting", "in_mode", "is_in_onnx_export", "outside_of_export", "run_uncompiled", "without_wrappers"]

_T = TypeVar("_T")

_COMPILING = ("_higher_order_ops", "flex_attention")
"""Parts of the names of torch's files that compile functions of the model."""

_depth: ContextVar[int] = ContextVar("fxonnx_exports", default=0)


@contextmanager
def exporting() -> Iterator[None]:
    """Mark the body as an export for the current thread; exports may be nested.

    Raises:
        UntestedTorchError: If the body needs a private name that the installed torch does not have.
    """
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    except MissingNameError as error:
        raise UntestedTorchError(str(error), hint="install a torch version that fxonnx is tested with") from error
    finally:
        _depth.reset(token)


def without_wrappers(model: Any) -> Any:
    """The module inside of ``torch.compile`` and ``DataParallel``, which has its own names of inputs and weights."""
    wrappers = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif (type(model).__module__, type(model).__name__) == ("torch._dynamo.eval_frame", "OptimizedModule"):
            model = model._orig_mod
        else:
            return model


@contextmanager
def outside_of_export() -> Iterator[None]:
    """Mark the body, a run of the user's model in eager torch, as no part of an export."""
    token = _depth.set(0)
    try:
        yield
    finally:
        _depth.reset(token)


def run_uncompiled(run: Callable[[], _T]) -> _T:
    """Call a function that runs a model without TorchDynamo, and with it if that fails.

    In eager mode, torch compiles the branches and bodies of ``cond``, ``while_loop`` and ``scan``, and flex attention,
    for each kind of input again, which takes seconds and gives the same values. Some bodies need it: those that read
    tensors from outside, with gradients.

    Args:
        run: The function, which leaves everything as it was if it fails.
    """
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


@public
def is_in_onnx_export() -> bool:
    """Return whether the calling code runs during an export, so that a model can branch on it."""
    return _depth.get() > 0


@contextmanager
def in_mode(model: Any, training: TrainingMode | None) -> Iterator[None]:
    """Put a model into training or evaluation mode; afterwards every module is in its previous mode again.

    Args:
        model: Anything but an ``nn.Module`` is left alone.
        training: None and PRESERVE change nothing.
    """
    if training in (None, TrainingMode.PRESERVE) or not isinstance(model, torch.nn.Module):
        yield
        return
    before = {module: module.training for module in model.modules()}
    try:
        model.train(training == TrainingMode.TRAINING)
        yield
    finally:
        for module, was in before.items():
            module.training = was
