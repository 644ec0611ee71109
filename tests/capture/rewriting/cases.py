"""Functions with control flow on tensors, and their comparison with eager torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnxruntime
import torch
from torch.utils import _pytree as pytree

import fxonnx

from ...functions import Function

__all__ = ["OPSETS", "SHAPES", "check", "counts", "signs"]

OPSETS = (13, 18, 20)
SHAPES = (None, {"x": {0: "n"}})


def signs(rows: int) -> tuple[torch.Tensor, ...]:
    """Inputs with positive, negative and mixed values."""
    values = torch.arange(rows * 3, dtype=torch.float32).reshape(rows, 3)
    return values + 1, -values - 1, values - rows, torch.zeros(rows, 3)


def counts(rows: int) -> tuple[torch.Tensor, ...]:
    """Inputs with 0, 1, 2 and 5 (or all) positive values, whose sizes are the trip counts of loops."""
    made = []
    for count in (2, 0, 1, 5):
        x = -torch.arange(1.0, rows * 3 + 1).reshape(rows, 3) / 4
        flat = x.flatten()
        flat[:count] = -flat[:count]
        made.append(x)
    return tuple(made)


def check(
    function: Callable[..., Any],
    inputs: Callable[[int], Sequence[torch.Tensor | tuple[torch.Tensor, ...]]],
    shapes: Any,
    rows: tuple[int, ...] = (4,),
) -> fxonnx.ONNXProgram:
    """Export a function at every opset, from one capture, and compare the models with eager torch on all inputs.

    Args:
        function: The function.
        inputs: Returns the inputs for a number of rows: the arguments of several calls, the example first.
        shapes: The dynamic shapes.
        rows: The numbers of rows, if they are dynamic.

    Returns:
        The program at the first opset.
    """
    first, *others = OPSETS
    model = Function(function).eval()
    program = fxonnx.export(model, _arguments(inputs(4)[0]), dynamic_shapes=shapes, opset_version=first)
    converted = [fxonnx.export(program.exported_program, opset_version=opset) for opset in others]
    assert tuple(item.model.opset_imports[""] for item in (program, *converted)) == OPSETS
    sessions = [onnxruntime.InferenceSession(item.model_proto.SerializeToString()) for item in (program, *converted)]
    for count in (4,) if shapes is None else (4, *rows):
        for given in map(_arguments, inputs(count)):
            expected = pytree.tree_leaves(function(*(tensor.clone() for tensor in given)))
            for session in sessions:
                names = [value.name for value in session.get_inputs()]
                results = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)})
                assert len(results) == len(expected)
                for result, value in zip(results, expected, strict=True):
                    torch.testing.assert_close(torch.from_numpy(result), torch.as_tensor(value), check_dtype=False)
    return program


def _arguments(given: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return given if isinstance(given, tuple) else (given,)
