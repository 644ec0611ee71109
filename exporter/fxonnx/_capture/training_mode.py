"""The modules in training mode, and whether their results depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

__all__ = ["results_depend_on_mode", "training_modules"]

_MODE_CHANGES = frozenset({"__init__", "eval", "train"})


def training_modules(model: Any) -> frozenset[str] | None:
    """Return the names of the modules that are in training mode; None if the model is not a module."""
    if not isinstance(model, torch.nn.Module):
        return None
    # Frozen scripted modules have no mode.
    return frozenset(name for name, module in model.named_modules() if getattr(module, "training", False))


def results_depend_on_mode(model: torch.nn.Module) -> bool:
    """Whether the results may differ in evaluation mode: a module in training mode whose class reads ``training``.

    Dropout with a probability of 0, and norms without running statistics, do not count.
    """
    in_training = (module for module in model.modules() if getattr(module, "training", False))
    return any(_reads_mode(module) for module in in_training)


def _reads_mode(module: torch.nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule):
        return True
    if type(module).__module__.startswith("torch.nn.modules."):
        if "running_mean" in module._buffers:
            return module._buffers["running_mean"] is not None
        for name in ("p", "dropout"):
            if isinstance(probability := getattr(module, name, None), int | float):
                return probability > 0
    return any("training" in _names(code) for code in _methods(type(module)))


def _methods(cls: type) -> Iterator[CodeType]:
    for base in cls.__mro__:
        if base is torch.nn.Module:
            continue
        for name, value in vars(base).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(function, FunctionType) and name not in _MODE_CHANGES:
                yield function.__code__


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):  # getattr(self, "training")
            yield constant
