"""Scripted functions in the Python form that they were compiled from, where both have the same result.

The capture rewrites data-dependent control flow of Python functions, which the interpreter of scripts unrolls or
refuses. A function loaded from a file has no Python form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree, sym_float

from ..._capture.patches.patch import Patch
from .effects import schema_of

__all__ = ["IN_SCRIPT", "python_form", "received"]

IN_SCRIPT = (Patch("torch.jit:is_scripting", lambda original: True, "a script takes the branches for scripts"),)
"""The patches while a Python form runs."""

_DIFFERENT = frozenset({"aten::pow.int", "aten::round.float", "aten::eq.int_list", "aten::ne.int_list"})
"""Operators whose result is not Python's: ``2 ** 3`` and ``round(2.5)`` are floats in a script, and a size, which is a
list in a script, equals a list."""


def python_form(function: Any, graph: Any) -> Callable[..., Any] | None:
    """The Python function that a scripted function was compiled from.

    Args:
        function: The scripted function.
        graph: Its graph, in which all calls are inlined.

    Returns:
        The Python function; None if it is not there or if an operator of the script has another result in Python.
    """
    form = getattr(function, "_torchdynamo_inline", None)
    return form if inspect.isfunction(form) and not any(map(_differs, _nodes(graph))) else None


def received(argument: Any, value: Any) -> Any:
    """The value that a script receives for an argument: lists and dicts are copies, an integer may become a float.

    Args:
        argument: The argument in the schema of the function.
        value: The value in the call.
    """
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
