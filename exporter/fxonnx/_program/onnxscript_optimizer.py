"""Optimization with onnxscript's optimizer, whose result is verified against the model before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch

from .._comparison import compare
from .._warnings import warn_user
from ..errors import VerificationError
from .session import Session

__all__ = ["optimize_model"]


def optimize_model(model: ir.Model, inputs: Sequence[Any] | None) -> ir.Model | None:
    """Run onnxscript's optimizer on a copy of a model.

    Args:
        model: The model; it is not modified.
        inputs: A value for each graph input, on which to compare the outputs; None to skip the comparison.

    Returns:
        The optimized model; None, with a warning that gives the reason, if the optimizer fails or an output changes.
    """
    from onnxscript import optimizer

    copy = model.clone()
    try:
        with _without_defaults(copy.graph):
            optimizer.optimize(copy)
        if inputs is not None:
            _check_same(model, _run(model, inputs), _run(copy, inputs))
    except Exception as error:  # noqa: BLE001 - rewrite rules may raise anything; the model is unchanged
        warn_user(f"the optimizer was not applied: {type(error).__name__}: {error}")
        return None
    return copy


@contextmanager
def _without_defaults(graph: ir.Graph) -> Iterator[None]:
    """Remove the default values of graph inputs for the body, so that the optimizer does not fold them."""
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
        raise VerificationError(f"output {wrong[0].name!r} changed: {wrong[0].message}", rows=wrong)


def _run(model: ir.Model, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    session = Session(model)
    try:
        return session.run(inputs)
    finally:
        session.close()
