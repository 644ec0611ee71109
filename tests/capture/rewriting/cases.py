"""Functions with control flow on tensors, and their comparison with eager torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnxruntime
import torch
from torch.utils import _pytree as pytree

import fxonnx

from ...functions import Function, VariadicFunction

__all__ = ["OPSETS", "SHAPES", "check", "check_static_sizes", "counts", "signs", "sums"]

OPSETS = (13, 18, 20)
SHAPES = (None, {"x": {0: "n"}})


def signs(rows: int) -> tuple[torch.Tensor, ...]:
    """Inputs with positive, negative and mixed values."""
    values = torch.arange(rows * 3, dtype=torch.float32).reshape(rows, 3)
    return values + 1, -values - 1, values - rows, torch.zeros(rows, 3)


def counts(rows: int, numbers: Sequence[int] = (2, 0, 1, 5)) -> tuple[torch.Tensor, ...]:
    """Inputs with these numbers of positive values, which are the trip counts of loops."""
    made = []
    for count in numbers:
        x = -torch.arange(1.0, rows * 3 + 1).reshape(rows, 3) / 4
        flat = x.flatten()
        flat[:count] = -flat[:count]
        made.append(x)
    return tuple(made)


def sums(rows: int) -> tuple[torch.Tensor, ...]:
    """Inputs whose sums exceed 500, after 0, 1, 2 and 5 doublings, or 100, after 1, 2 and 5 multiplications by 1.5."""
    return tuple(torch.full((rows, 3), total / rows / 3) for total in (400.0, 600.0, 240.0, 15.83, 50.0))


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
    example = _arguments(inputs(4)[0])
    model = (Function if len(example) <= 2 else VariadicFunction)(function).eval()
    program = fxonnx.export(model, example, dynamic_shapes=shapes, opset_version=first)
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


def check_static_sizes(function: Callable[..., Any], rows: Sequence[torch.Tensor]) -> None:
    """Export a function of each of the inputs, whose sizes are static, and compare the models with eager torch.

    Args:
        function: The function.
        rows: Inputs of several sizes; one model computes all of them.
    """
    program = check(lambda *given: [function(x) for x in given], lambda _: [tuple(rows)], None)
    assert not program.record.constraints


def _arguments(given: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return given if isinstance(given, tuple) else (given,)
