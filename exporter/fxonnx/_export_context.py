"""State during an export: the flag ``is_in_onnx_export`` and the training mode of the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.onnx import TrainingMode

from fxonnx_translations._optional_names import MissingNameError

from ._context_values import activated, active
from ._public import public
from .errors import ArgumentError, UntestedTorchError

__all__ = ["exporting", "in_mode", "is_in_onnx_export", "outside_of_export", "without_wrappers"]


class _Exports(int):
    """The number of exports around the caller."""


@contextmanager
def exporting() -> Iterator[None]:
    """Mark the body as an export for the current thread; exports may be nested.

    Raises:
        UntestedTorchError: If the body needs a private name that the installed torch does not have.
    """
    try:
        with activated(_Exports((active(_Exports) or 0) + 1)):
            yield
    except MissingNameError as error:
        raise UntestedTorchError(str(error), hint="install a torch version that fxonnx is tested with") from error


def without_wrappers(model: Any) -> Any:
    """The module inside of ``torch.compile`` and ``DataParallel``, which has its own names of inputs and weights."""
    wrappers = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif (type(model).__module__, type(model).__name__) == ("torch._dynamo.eval_frame", "OptimizedModule"):
            model = model._orig_mod
        else:
            _check_constructed(model)
            _reject_offloaded(model)
            return model


def _check_constructed(model: Any) -> None:
    """Reject a module without the attributes of modules, which none of their methods can be called on."""
    is_scripted = isinstance(model, torch.jit.ScriptModule)
    if isinstance(model, torch.nn.Module) and not is_scripted and "_parameters" not in vars(model):
        problem = f"{type(model).__name__}.__init__ has not called the __init__ of nn.Module"
        raise ArgumentError("model", problem, hint="call super().__init__() in its first line")


def _reject_offloaded(model: Any) -> None:
    """Refuse weights that accelerate brings to the device of a layer for each call.

    Raises:
        ArgumentError: If there are any.
    """
    if "accelerate" not in sys.modules or not isinstance(model, torch.nn.Module):
        return
    hooks = [getattr(module, "_hf_hook", None) for module in model.modules()]
    hooks += [one for hook in hooks for one in getattr(hook, "hooks", ())]
    if any(getattr(hook, "offload", False) for hook in hooks):
        raise ArgumentError(
            "model",
            "accelerate brings some of its weights to their device for each call (device_map, dispatch_model)",
            hint="load it without device_map, or call accelerate.hooks.remove_hook_from_module(model, recurse=True)",
        )


@contextmanager
def outside_of_export() -> Iterator[None]:
    """Mark the body, a run of the user's model in eager torch, as no part of an export."""
    with activated(_Exports(0)):
        yield


@public
def is_in_onnx_export() -> bool:
    """Return whether the calling code runs during an export, so that a model can branch on it."""
    return bool(active(_Exports))


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
