"""onnxscript's optimizer, kept only if the model computes the same afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

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
        optimizer.optimize(copy)
        if inputs is not None:
            _check_same(model, _run(model, inputs), _run(copy, inputs))
    except Exception as error:  # noqa: BLE001 - whatever a rewrite rule raises, the model is as it was
        warnings.warn(f"the optimizer was not applied: {type(error).__name__}: {error}", UserWarning, stacklevel=3)
        return None
    return copy


def _check_same(model: ir.Model, before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> None:
    from ..verification import compare

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
