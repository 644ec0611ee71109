"""The example inputs and dynamic shapes of a failed export as text."""

from __future__ import annotations

import inspect
import pprint
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxonnx_translations._torch_compat import pytree

from .._capture.inputs.pytree_objects import flatten_objects
from .._request import Request

__all__ = ["ExampleInputs", "example_inputs"]

_LONGEST = 60
"""Number of characters of a string or number that is shown."""


@dataclass(frozen=True)
class ExampleInputs:
    """The inputs of an export.

    Attributes:
        rows: Path, element type or class, and dims or value of each leaf of the example inputs.
        shapes: The arguments that make dims dynamic, as they were passed.
    """

    rows: tuple[tuple[str, str, str], ...]
    shapes: str


def example_inputs(request: Request) -> ExampleInputs:
    """Describe the example inputs; values of tensors are left out."""
    given = [(name, value) for name in ("dynamic_shapes", "dynamic_axes") if (value := getattr(request, name))]
    shapes = [f"{name} = {pprint.pformat(value, width=100, sort_dicts=False)}" for name, value in given]
    rows = [*_rows(request.model, request.args, request.kwargs)]
    further = request.more_inputs if isinstance(request.more_inputs, Sequence) else ()
    for number, pair in enumerate(further):
        if isinstance(pair, tuple) and len(pair) == 2:
            rows += [(f"more_inputs[{number}] {path}", kind, dims) for path, kind, dims in _rows(request.model, *pair)]
    return ExampleInputs(tuple(rows), "\n".join(shapes))


def _rows(model: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, str, str]]:
    """A row for each leaf; the arguments may be those that the export refuses."""
    positional = args if isinstance(args, tuple) else (args,)
    names = _parameters(model, len(positional))
    for name, value in [*zip(names, positional, strict=True), *(kwargs.items() if isinstance(kwargs, Mapping) else ())]:
        try:
            leaves, _ = pytree.tree_flatten_with_path(flatten_objects(value))
        except RecursionError:  # a list that contains itself
            leaves = [((), value)]
        for path, leaf in leaves:
            yield f"{name}{pytree.keystr(path)}", *_described(leaf)


def _parameters(model: Any, count: int) -> list[str]:
    """The names of the first parameters of forward, \"args[2]\" for those beyond it."""
    forward = getattr(model, "forward", None)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known: list[str] = []
    if isinstance(model, torch.nn.Module) and callable(forward):
        try:
            known = [one.name for one in inspect.signature(forward).parameters.values() if one.kind in kinds]
        except (TypeError, ValueError):
            known = []  # a scripted module
    return [*known, *(f"args[{index}]" for index in range(len(known), count))][:count]


def _described(leaf: Any) -> tuple[str, str]:
    """Element type and dims of a tensor, class and value of a number or string, and the class of anything else."""
    if isinstance(leaf, torch.Tensor):
        return str(leaf.dtype).removeprefix("torch."), f"[{', '.join(map(str, leaf.shape))}]"
    shown = repr(leaf) if isinstance(leaf, (bool, int, float, complex, str, torch.dtype, type(None))) else ""
    return type(leaf).__name__, shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
