"""Scripted modules as modules of Python, and calls of scripted functions that run in Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fxonnx_translations._torch_compat import jit_pass_inline

from .interpreter import run_graph

__all__ = ["as_modules", "call_in_python"]


class ScriptedModule(torch.nn.Module):
    """A scripted module in Python: it shares parameters and buffers, and its methods are interpreted.

    Args:
        scripted: The scripted module.
    """

    def __init__(self, scripted: Any) -> None:
        super().__init__()
        self.training = scripted.training
        for name, parameter in scripted.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in scripted.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        for name, child in scripted.named_children():
            self.add_module(name, ScriptedModule(child))
        # Not before: what is an attribute already can not be registered.
        self._script = scripted._c
        if scripted._c._has_method("forward"):
            self.forward = _Function(scripted._c._get_method("forward"), self)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            script = self.__dict__.get("_script")
            if script is not None and script._has_method(name):
                return _Function(script._get_method(name), self)
            if script is None or not script.hasattr(name):
                raise
            return script.getattr(name)


class _Function:
    """A scripted function; it looks like a function of Python with its parameters.

    Args:
        script: The scripted function, or a method.
        owner: The module that a method is of.
    """

    def __init__(self, script: Any, owner: torch.nn.Module | None = None) -> None:
        self._owner = [] if owner is None else [owner]
        self._graph = script.graph.copy()
        jit_pass_inline(self._graph)
        self.__name__ = script.name
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    argument.name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
                )
                for argument in script.schema.arguments[len(self._owner) :]
            ]
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        return run_graph(self._graph, [*self._owner, *bound.arguments.values()])


class _FunctionModule(torch.nn.Module):
    """A module whose forward is a scripted function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.eval()
        self.forward = _Function(function)


@contextmanager
def as_modules(model: Any) -> Iterator[torch.nn.Module]:
    """For the body, the scripted modules in a model are modules of Python.

    Args:
        model: A scripted function or module, or one with scripted submodules, which are in their places afterwards.
    """
    if isinstance(model, torch.jit.ScriptModule):
        yield ScriptedModule(model)
        return
    if isinstance(model, torch.jit.ScriptFunction):
        yield _FunctionModule(model)
        return
    places = [
        (module, name, child)
        for module in list(model.modules())
        if not isinstance(module, torch.jit.ScriptModule)
        for name, child in module._modules.items()
        if isinstance(child, torch.jit.ScriptModule)
    ]
    made = {id(child): ScriptedModule(child) for _, _, child in places}
    try:
        for module, name, child in places:
            module._modules[name] = made[id(child)]
        yield model
    finally:
        for module, name, child in places:
            module._modules[name] = child


def call_in_python(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """``ScriptFunction.__call__`` for the capture: the function is interpreted."""
    return _Function(function)(*args, **kwargs)
