"""Scripted modules and functions as Python modules and functions that run in the interpreter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fxonnx_translations._torch_compat import jit_pass_inline, pytree, sym_float

from ..._capture.inputs.preserve import changed_attributes
from ..._capture.patches import applied
from ..._capture.patches.patch import Patch
from ..._capture.suspicions.departures import DepartureKind, record_departure
from .effects import schema_of
from .interpreter import run_graph

__all__ = ["interpret_function", "scripted_as_python"]


class ScriptedModule(torch.nn.Module):
    """Python module for a scripted module: shares its parameters and buffers and interprets its methods.

    Args:
        scripted: The scripted module.
        parameters: The parameters made so far, by the tensor of the script; parameters that modules share are one.
    """

    def __init__(self, scripted: Any, parameters: dict[torch.Tensor, torch.nn.Parameter] | None = None) -> None:
        super().__init__()
        made = {} if parameters is None else parameters
        # A frozen module has no mode: it was in evaluation mode when it was frozen.
        self.training = getattr(scripted, "training", False)
        for name, tensor in scripted.named_parameters(recurse=False):
            self.register_parameter(name, made.setdefault(tensor, _as_parameter(tensor)))
        for name, buffer in scripted.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        for name, child in scripted.named_children():
            self.add_module(name, ScriptedModule(child, made))
        for name in sorted(set(changed_attributes(scripted._c))):
            if scripted._c.hasattr(name) and not any(name in table for table in (self._parameters, self._buffers)):
                # A list is a copy each time that it is read from the script.
                self.__dict__[name] = _attribute(scripted._c, name, made)
        # Last, because torch refuses to register a parameter or buffer if the module has an attribute of that name.
        self._script = scripted._c
        self._made = made
        if scripted._c._has_method("forward"):
            self.forward = _ScriptedFunction(scripted._c._get_method("forward"), self)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            script = self.__dict__.get("_script")
            if script is not None and script._has_method(name):
                return _ScriptedFunction(script._get_method(name), self)
            if script is None or not script.hasattr(name):
                raise
            return _attribute(script, name, self.__dict__["_made"])


def _attribute(script: Any, name: str, made: dict[torch.Tensor, torch.nn.Parameter]) -> Any:
    """An attribute of a script, with its parameters: a recurrent module has a list of them."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: made.get(tensor, tensor), script.getattr(name))


def _as_parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    """A parameter of a scripted module; those of a loaded file are plain tensors."""
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    return torch.nn.Parameter(tensor, requires_grad=tensor.requires_grad)


class _ScriptedFunction:
    """A scripted function as a Python callable with a name and a signature.

    Args:
        script: The scripted function or method.
        owner: The module of a method.
    """

    def __init__(self, script: Any, owner: torch.nn.Module | None = None) -> None:
        self._owner = [] if owner is None else [owner]
        self._graph = script.graph.copy()
        jit_pass_inline(self._graph)
        self._python = _python_form(script, self._graph)
        self._arguments = {argument.name: argument for argument in script.schema.arguments}
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
        record_departure(DepartureKind.SCRIPT, self.__name__)
        values = [_received(self._arguments[name], value) for name, value in bound.arguments.items()]
        if self._python is None:
            return run_graph(self._graph, [*self._owner, *values])
        with applied(_IN_SCRIPT):
            return self._python(*values)


class _FunctionModule(torch.nn.Module):
    """A module with a scripted function as its forward; its class name is part of the provenance metadata."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.eval()
        self.forward = _ScriptedFunction(function)


@contextmanager
def scripted_as_python(model: Any) -> Iterator[torch.nn.Module]:
    """Replace the scripted modules in a model by Python modules inside the context.

    Args:
        model: A scripted function or module, or a module with scripted submodules, which are restored on exit.
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


def interpret_function(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``ScriptFunction.__call__``: run the Python form of the function, or interpret it."""
    return _ScriptedFunction(function)(*args, **kwargs)


_IN_SCRIPT = (Patch("torch.jit:is_scripting", lambda original: True, "a script takes the branches for scripts"),)
"""The patches while a Python form runs."""

_DIFFERENT = frozenset({"aten::pow.int", "aten::round.float", "aten::eq.int_list", "aten::ne.int_list"})
"""Operators whose result is not Python's: ``2 ** 3`` and ``round(2.5)`` are floats in a script, and a size, which is a
list in a script, equals a list."""


def _python_form(function: Any, graph: Any) -> Callable[..., Any] | None:
    """The Python function that a scripted function was compiled from; None if an operator has another result there."""
    form = getattr(function, "_torchdynamo_inline", None)
    return form if inspect.isfunction(form) and not any(map(_differs, _nodes(graph))) else None


def _received(argument: Any, value: Any) -> Any:
    """The value that a script receives for an argument: lists and dicts are copies, an integer may become a float."""
    declared = argument.type.kind()
    if declared == "FloatType" and isinstance(value, int | torch.SymInt):
        return sym_float(value)
    if declared in ("ListType", "DictType", "TupleType"):
        return pytree.tree_map(lambda leaf: leaf, value)
    return value


def _differs(node: Any) -> bool:
    schema = schema_of(node)
    if schema is None:
        return False
    if schema.name == "aten::add" and schema.overload_name == "t":
        # A size is a list in a script, and a tuple in Python, which cannot be added to a list.
        return str(node.output().type()) == "List[int]"
    return f"{schema.name}.{schema.overload_name}" in _DIFFERENT


def _nodes(block: Any) -> Iterator[Any]:
    """The nodes of a graph or block and of the blocks in it."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
