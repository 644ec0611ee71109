"""Differences of form between opsets: translations are written in the newest form, this table rewrites the call.

An operator that does not exist at an opset is another matter: see ``compositions``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from .shapes import ints_of

if TYPE_CHECKING:
    from .builder import Builder

__all__ = ["FORMS", "Form", "FormError"]


class FormError(ValueError):
    """The call can not be written in the older form."""


Form = Callable[["Builder", str, list[Any], dict[str, Any]], "ir.Value | None"]
"""Changes inputs and attributes in place, or emits something else and returns its value."""


def _ints(value: Any, what: str) -> list[int]:
    if isinstance(value, (list, tuple)):
        return [int(item) for item in value]
    numbers = ints_of(value) if isinstance(value, ir.Value) else None
    if numbers is not None:
        return numbers
    raise FormError(f"{what} must be known at export time before it became an input")


def _input_to_attribute(name: str, index: int = 1) -> Form:
    def form(builder: Builder, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
        attributes.pop("noop_with_empty_axes", None)
        if len(inputs) > index:
            value = inputs.pop(index)
            if value is not None:
                attributes[name] = _ints(value, f"{name} of {op_type}")

    return form


def _drop(*names: str) -> Form:
    def form(builder: Builder, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
        for name in names:
            attributes.pop(name, None)

    return form


def _split(builder: Builder, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    attributes.pop("num_outputs", None)
    if builder.opset_version < 13 and len(inputs) > 1:
        attributes["split"] = _ints(inputs.pop(1), "split of Split")


def _softmax_of_last_axis(
    builder: Builder, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 13 Softmax flattened everything from ``axis`` on, which is the same only for the last axis."""
    rank = len(builder.dims(inputs[0]))
    axis = attributes.get("axis", -1) % max(rank, 1)
    attributes["axis"] = rank - 1
    if axis == rank - 1:
        return None
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    moved = builder.value_of("Transpose", inputs[0], perm=perm)
    return builder.value_of("Transpose", builder.value_of(op_type, moved, axis=rank - 1), perm=perm)


def _clip_of_integers(builder: Builder, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> ir.Value | None:
    """Before opset 12 Clip takes floats only."""
    value, low, high = (*inputs, None, None)[:3]
    if value.dtype.is_floating_point():
        return None
    if low is not None:
        value = builder.value_of("Max", value, low)
    return value if high is None else builder.value_of("Min", value, high)


def _extremum_of_integers(
    builder: Builder, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 12 Max and Min take floats only."""
    typed = [value for value in inputs if isinstance(value, ir.Value)]
    if not typed or typed[0].dtype is None or typed[0].dtype.is_floating_point():
        return None
    result, *others = [
        value if isinstance(value, ir.Value) else builder.constant(value, typed[0].dtype) for value in inputs
    ]
    for other in others:
        smaller = builder.value_of("Less", result, other)
        pair = (other, result) if op_type == "Max" else (result, other)
        result = builder.value_of("Where", smaller, *pair)
    return result


def _empty_for_absent(builder: Builder, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Before opset 13 the optional inputs of Resize were empty tensors instead."""
    inputs[1:3] = [builder.constant([], ir.DataType.FLOAT) if value is None else value for value in inputs[1:3]]


FORMS: Mapping[str, tuple[tuple[int, Form], ...]] = {
    # operator: (opset from which the newest form holds, rewrite for the opsets before it)
    "ReduceSum": ((13, _input_to_attribute("axes")),),
    **{
        name: ((18, _input_to_attribute("axes")),)
        for name in (
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceSumSquare",
        )
    },
    "Squeeze": ((13, _input_to_attribute("axes")),),
    "Unsqueeze": ((13, _input_to_attribute("axes")),),
    "Split": ((18, _split),),
    "Softmax": ((13, _softmax_of_last_axis),),
    "LogSoftmax": ((13, _softmax_of_last_axis),),
    "Clip": ((12, _clip_of_integers),),
    "Max": ((12, _extremum_of_integers),),
    "Min": ((12, _extremum_of_integers),),
    "Reshape": ((14, _drop("allowzero")),),
    "BatchNormalization": ((14, _drop("training_mode")),),
    "Cast": ((19, _drop("saturate")),),
    "Resize": ((18, _drop("antialias", "axes", "keep_aspect_ratio_policy")), (13, _empty_for_absent)),
    "AveragePool": ((19, _drop("dilations")),),
}
