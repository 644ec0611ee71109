"""The modules in training mode, whether their results depend on it, and observers that are enabled."""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ..errors import ArgumentError

__all__ = ["reject_enabled_observers", "results_depend_on_mode", "training_modules"]

_MODE_CHANGES = frozenset({"__init__", "eval", "train"})


def training_modules(model: Any) -> frozenset[str] | None:
    """Return the names of the modules that are in training mode; None if the model is not a module."""
    if not isinstance(model, torch.nn.Module):
        return None
    # Frozen scripted modules have no mode.
    return frozenset(name for name, module in model.named_modules() if getattr(module, "training", False))


def results_depend_on_mode(model: torch.nn.Module) -> bool:
    """Whether the results may differ in evaluation mode: a module in training mode whose code reads ``training``.

    Code that cannot be read counts; dropout with a probability of 0, norms without running statistics, and the modules
    of captured programs, whose graph has one mode and whose ``eval`` raises, do not.
    """
    captured = {part for module in model.modules() if _refuses_eval(module) for part in module.modules()}
    in_training = (module for module in model.modules() if getattr(module, "training", False))
    return any(_may_read_mode(module) for module in in_training if module not in captured)


def _refuses_eval(module: torch.nn.Module) -> bool:
    code = getattr(vars(module).get("eval"), "__code__", None)
    return code is not None and "NotImplementedError" in code.co_names


def _may_read_mode(module: torch.nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    if isinstance(module, torch.jit.ScriptModule) or any(hooks) or "forward" in vars(module):
        return True
    if type(module).__module__.startswith("torch.nn.modules."):
        if "running_mean" in module._buffers:
            return module._buffers["running_mean"] is not None
        for name in ("p", "dropout"):
            if isinstance(probability := getattr(module, name, None), int | float):
                return probability > 0
    seen: set[int] = set()
    return any(_reads_mode(method, seen) for method in _methods(type(module)))


def _methods(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        if base not in (torch.nn.Module, object):
            for name, value in vars(base).items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if callable(function) and not isinstance(function, type) and name not in _MODE_CHANGES:
                    yield function


def _reads_mode(function: Any, seen: set[int]) -> bool:
    """Whether a function, one that it wraps or calls by its global name, reads ``training``, or has no code."""
    if id(function) in seen or isinstance(function, type):
        return False
    seen.add(id(function))
    if not isinstance(function, FunctionType):
        return not isinstance(function, BuiltinFunctionType | MethodType | ModuleType)
    names = set(_names(function.__code__))
    if "training" in names:
        return True
    called = [function.__globals__.get(name) for name in names]
    enclosed = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    others = [one for one in (*called, *enclosed) if isinstance(one, FunctionType) and not _is_torch(one)]
    return any(_reads_mode(one, seen) for one in others)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable without a value
        return False


def _is_torch(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):  # getattr(self, "training")
            yield constant


def reject_enabled_observers(model: torch.nn.Module) -> None:
    """Reject a model prepared for quantization-aware training that still observes its activations.

    Raises:
        ArgumentError: If a fake quantization module updates its scale in each call.
    """
    enabled = [name for name, module in model.named_modules() if _is_observing(module)]
    if enabled:
        names = ", ".join(map(repr, enabled[:3])) + (", ..." if len(enabled) > 3 else "")
        package = type(model.get_submodule(enabled[0])).__module__.partition(".")[0]
        namespace = "torchao.quantization.pt2e" if package == "torchao" else "torch.ao.quantization"
        raise ArgumentError(
            "model",
            f"the observers of {names} are enabled: each call updates the scales of the fake quantization",
            hint=f"call model.apply({namespace}.disable_observer) before the export",
        )


def _is_observing(module: torch.nn.Module) -> bool:
    flag = module._buffers.get("observer_enabled")
    if flag is None or "fake_quant_enabled" not in module._buffers or not hasattr(module, "disable_observer"):
        return False
    return flag.numel() == 1 and not flag.is_meta and bool(flag.item())
