"""Gradients of ``torch.unbind(outputs)``, of which there are as many as the dynamic size of a batch."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...function_transforms import computes_gradients
from ...suspicions.departures import DepartureKind, record_departure

__all__ = ["unbind"]


def unbind(original: Callable[..., Sequence[Tensor]], input: Any, dim: int = 0) -> Sequence[Tensor]:
    """``torch.unbind`` as the outputs of ``torch.autograd.grad``, whose gradient is that of their sum."""
    is_vector = isinstance(input, Tensor) and input.dim() == 1 and isinstance(input.shape[0], torch.SymInt)
    caller = sys._getframe(2)
    if not is_vector or not computes_gradients() or not _is_differentiated(caller.f_code.co_filename, caller.f_lineno):
        return original(input, dim)
    record_departure(DepartureKind.REPLACED, "the outputs of torch.autograd.grad, by their sum", caller)
    return (input.sum(),)


def _is_differentiated(file: str, line: int) -> bool:
    """Whether a line has ``grad(unbind(outputs), inputs)``, with no other parts and no weights of the outputs."""
    lines = linecache.getlines(file)
    if not any("unbind" in text for text in lines[line - 1 : line]):
        return False
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return False
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_at(node, line)]
    gradients = [call for call in calls if _name(call.func) == "grad" and _outputs_are_parts(call)]
    return bool(gradients) and sum(_name(call.func) == "unbind" for call in calls) == 1


def _outputs_are_parts(call: ast.Call) -> bool:
    given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "outputs")]
    has_weights = len(call.args) > 2 or any(keyword.arg in (None, "grad_outputs") for keyword in call.keywords)
    return not has_weights and any(isinstance(value, ast.Call) and _name(value.func) == "unbind" for value in given)


def _is_at(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
