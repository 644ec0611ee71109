"""onnxscript's optimizer, kept only if the model computes the same afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch

from .._comparison import compare
from ..errors import VerificationError
from .session import Session

__all__ = ["optimized"]


def optimized(model: ir.Model, inputs: Sequence[Any] | None) -> ir.Model | None:
    """The model after onnxscript's optimizer.

    Args:
        model: The model; it is left as it is.
        inputs: A value for each graph input to compare on, if there are any.

    Returns:
        The optimized model; None, with a warning that says why, if it fails, or computes something else.
    """
    from onnxscript import optimizer

    copy = model.clone()
    try:
        with _without_defaults(copy.graph):
            optimizer.optimize(copy)
        if inputs is not None:
            _check_same(model, _run(model, inputs), _run(copy, inputs))
    except Exception as error:  # noqa: BLE001 - whatever a rewrite rule raises, the model is as it was
        warnings.warn(f"the optimizer was not applied: {type(error).__name__}: {error}", UserWarning, stacklevel=3)
        return None
    return copy


@contextmanager
def _without_defaults(graph: ir.Graph) -> Iterator[None]:
    """Inputs that have a value at export may be given another: the optimizer is not to know it."""
    defaults = {value: value.const_value for value in graph.inputs if str(value.name) in graph.initializers}
    for value in defaults:
        del graph.initializers[str(value.name)]
        value.const_value = None
    yield
    for value, constant in defaults.items():
        value.const_value = constant
        graph.register_initializer(value)


def _check_same(model: ir.Model, before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> None:
    names = [str(value.name) for value in model.graph.outputs]
    wrong = [row for row in compare(names, before, after) if row.status != "ok"]
    if wrong:
        raise VerificationError(f"{wrong[0].name} has changed: {wrong[0].message}", rows=wrong)


def _run(model: ir.Model, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    session = Session(model)
    try:
        return session.run(inputs)
    finally:
        session.close()
