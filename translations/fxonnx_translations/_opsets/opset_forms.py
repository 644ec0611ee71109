"""Opset forms: rewrite an operator call from the newest form to an older opset's (axes as an attribute ...).

Operators that an opset does not have at all are in ``op_polyfills``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from .._builder.builder_protocol import BuilderProtocol
from .._builder.constants import array_of
from .._builder.dtypes import FLOAT8
from .._builder.op_schema import OpSchemaInfo, default_of, missing_attribute_message
from .._builder.shape_inference import ints_of

__all__ = ["OPSET_FORMS", "FormError", "OpsetForm", "check_form"]


class FormError(ValueError):
    """The older form of the operator cannot express the call."""


OpsetForm = Callable[[BuilderProtocol, str, list[Any], dict[str, Any]], ir.Value | None]
"""Changes inputs and attributes in place, or emits a replacement and returns its value."""


def _ints(value: Any, name: str) -> list[int]:
    if isinstance(value, (list, tuple)):
        return [int(item) for item in value]
    numbers = ints_of(value) if isinstance(value, ir.Value) else None
    if numbers is not None:
        return numbers
    raise FormError(f"{name} is an attribute and must be a constant")


def _input_to_attribute(name: str, index: int = 1) -> OpsetForm:
    def form(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
        attributes.pop("noop_with_empty_axes", None)
        if len(inputs) > index:
            value = inputs.pop(index)
            if value is not None:
                attributes[name] = _ints(value, f"{name} of {op_type}")

    return form


def _nonnegative_axes(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Make axes nonnegative: ONNX Runtime reduces empty tensors wrongly along negative axes (returns the input's shape)."""
    axes = inputs[1] if len(inputs) > 1 else None
    numbers = ints_of(axes) if isinstance(axes, ir.Value) else axes
    if numbers is None or min(numbers, default=0) >= 0:
        return
    rank = builder.rank(inputs[0])
    if rank:
        inputs[1] = [axis % rank for axis in numbers]


def _drop(*names: str) -> OpsetForm:
    def form(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
        for name in names:
            attributes.pop(name, None)

    return form


def _split(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    attributes.pop("num_outputs", None)
    if builder.opset_version < 13 and len(inputs) > 1:
        attributes["split"] = _ints(inputs.pop(1), "split of Split")


def _softmax_of_last_axis(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 13 Softmax normalizes over all axes from ``axis`` on, which agrees only for the last axis."""
    rank = len(builder.dims(inputs[0]))
    axis = attributes.get("axis", -1) % max(rank, 1)
    attributes["axis"] = rank - 1
    if axis == rank - 1:
        return None
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    moved = builder.value_of("Transpose", inputs[0], perm=perm)
    return builder.value_of("Transpose", builder.value_of(op_type, moved, axis=rank - 1), perm=perm)


def _clip_of_integers(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 12 Clip accepts floats only."""
    value, low, high = (*inputs, None, None)[:3]
    if value.dtype.is_floating_point():
        return None
    if low is not None:
        value = builder.value_of("Max", value, low)
    return value if high is None else builder.value_of("Min", value, high)


def _max_min_of_integers(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 12 Max and Min accept floats only."""
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


def _empty_for_absent(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Before opset 13 absent inputs of Resize are passed as empty tensors."""
    inputs[1:3] = [builder.constant([], ir.DataType.FLOAT) if value is None else value for value in inputs[1:3]]


def _clip_attributes(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 11 the limits of Clip are attributes; limits that are not constant become Max and Min."""
    value: ir.Value
    value, *bounds = inputs
    numbers = [_number(bound) for bound in bounds]
    if any(number is None and bound is not None for number, bound in zip(numbers, bounds, strict=True)):
        for name, bound in zip(("Max", "Min"), bounds, strict=False):
            value = value if bound is None else builder.value_of(name, value, bound)
        return value
    del inputs[1:]
    attributes |= {name: number for name, number in zip(("min", "max"), numbers, strict=False) if number is not None}
    return None


def _number(value: Any) -> float | None:
    """Return the number of a constant scalar, or None."""
    if isinstance(value, ir.Value):
        array = array_of(value)
        return float(array.item()) if array is not None and array.size == 1 else None
    return None if value is None else float(value)


def _pad(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Before opset 11 the pads and the value of Pad are attributes."""
    pads, fill, axes = (*inputs[1:], None, None, None)[:3]
    if axes is not None:
        raise FormError("Pad has no axes")
    del inputs[1:]
    attributes["pads"] = _ints(pads, "pads of Pad")
    if fill is not None:
        number = _number(fill)
        if number is None:
            raise FormError("value of Pad is an attribute and must be a constant")
        attributes["value"] = number


def _slice(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> ir.Value | None:
    """Before opset 10 starts, ends and axes of Slice are attributes, and steps do not exist."""
    starts, ends, axes, steps = (*inputs[1:], None, None)[:4]
    if steps is not None and set(_ints(steps, "steps of Slice")) != {1}:
        raise FormError("Slice has no steps")
    if isinstance(ends, ir.Value) and ints_of(ends) is None:
        return _slice_as_gather(builder, inputs[0], starts, ends, [0] if axes is None else axes)
    del inputs[1:]
    attributes["starts"], attributes["ends"] = _ints(starts, "starts of Slice"), _ints(ends, "ends of Slice")
    if axes is not None:
        rank = len(builder.dims(inputs[0]))
        attributes["axes"] = [axis % rank for axis in _ints(axes, "axes of Slice")]
    return None


def _slice_as_gather(builder: BuilderProtocol, value: ir.Value, starts: Any, end: ir.Value, axes: Any) -> ir.Value:
    """Gather the elements of a slice along one axis, up to a size that is computed at run time."""
    (start, *others), (axis, *_) = _ints(starts, "starts of Slice"), _ints(axes, "axes of Slice")
    limit = builder.size_expr(end)
    if others or start < 0 or limit is None or not limit.is_nonnegative:
        raise FormError("ends of Slice is an attribute and must be a constant, or one size")
    dims = builder.dims(value)
    size = dims[axis]
    held = builder.size(size)
    count = end if limit == size else builder.value_of("Min", end, held)
    if start:
        count = builder.value_of("Max", builder.value_of("Sub", count, [start]), builder.constant([0]))
    one = ir.tensor([1], dtype=ir.DataType.INT64)
    positions = builder.value_of("NonZero", builder.value_of("ConstantOfShape", count, value=one))
    positions = builder.value_of("Reshape", positions, [-1])
    if start:
        positions = builder.value_of("Add", positions, [start])
    return builder.value_of("Gather", value, positions, axis=axis % len(dims))


def _resize(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> ir.Value | None:
    """Before opset 11 Resize has scales only, and asymmetric coordinates; before opset 10 it is Upsample."""
    value, _roi, scales, sizes = (*inputs, None, None, None)[:4]
    factors = None if scales is None else array_of(scales)
    dims = builder.dims(value)
    wanted = None if sizes is None else ints_of(sizes)
    if factors is None and wanted is not None and all(isinstance(dim, int) and dim for dim in dims):
        factors = np.array(wanted, np.float32) / np.array(dims, np.float32)
        # The size must be right in float and in double: shape inference and ONNX Runtime differ in the precision.
        made = [
            {int(dim * factor), int(np.float32(dim) * factor)}
            for dim, factor in zip(dims, factors.tolist(), strict=True)
        ]
        if any(sizes != {size} for sizes, size in zip(made, wanted, strict=True)):
            raise FormError("Resize has no scale for this size")
    if factors is None:
        raise FormError("Resize has no sizes")
    mode = attributes.get("mode", "nearest")
    plain = attributes.get("coordinate_transformation_mode"), attributes.get("nearest_mode")
    # For smaller images ONNX Runtime rounds differently.
    if mode != "nearest" or plain != ("asymmetric", "floor") or factors.min() < 1:
        raise FormError("Resize supports nearest neighbors of larger images only")
    if builder.opset_version < 9:
        return builder.value_of("Upsample", value, mode=mode, scales=[float(factor) for factor in factors])
    constant = builder.constant([float(factor) for factor in factors], ir.DataType.FLOAT)
    return builder.value_of("Upsample" if builder.opset_version < 10 else "Resize", value, constant, mode=mode)


def _resize_before_11(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    is_old = len(inputs) == 2 and attributes.keys() <= {"mode"}
    return None if is_old else _resize(builder, op_type, inputs, attributes)


def _gemm(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Before opset 11 the third input of Gemm is required."""
    if len(inputs) < 3 or inputs[2] is None:
        inputs[2:] = [builder.constant([0.0], inputs[0].dtype)]


def _equality_of_floats(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 11 Equal does not accept floats: equal means neither less nor greater nor NaN."""
    typed = [value for value in inputs if isinstance(value, ir.Value)]
    if not typed or typed[0].dtype is None or not typed[0].dtype.is_floating_point():
        return None
    differs = builder.value_of("Or", builder.value_of("Less", *inputs), builder.value_of("Greater", *inputs))
    for value in typed:
        differs = builder.value_of("Or", differs, builder.value_of("IsNaN", value))
    return builder.value_of("Not", differs)


def _comparison_of_integers(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 9 Less and Greater accept floats only; DOUBLE represents all 32-bit integers."""
    typed = [value for value in inputs if isinstance(value, ir.Value)]
    dtype = typed[0].dtype if typed else None
    if dtype is None or dtype.is_floating_point():
        return None
    if dtype.bitwidth > 32:
        raise FormError(f"{op_type} does not accept {dtype.name}")
    wide = [
        builder.value_of("Cast", value, to=ir.DataType.DOUBLE) if isinstance(value, ir.Value) else float(value)
        for value in inputs
    ]
    return builder.value_of(op_type, *wide)


def _no_broadcasting(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Before opset 8 Max, Min, Sum and Mean do not broadcast."""
    shapes = {builder.dims(value) if isinstance(value, ir.Value) else () for value in inputs}
    if len(shapes) > 1:
        raise FormError(f"{op_type} does not broadcast")


def _top_k(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    if len(inputs) > 1:
        (attributes["k"],) = _ints(inputs.pop(), "k of TopK")


def _without_dilations(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Pools without dilations: drop the attribute if all dilations are 1."""
    if set(attributes.get("dilations", ())) <= {1}:
        attributes.pop("dilations", None)


def _max_pool_of_floats(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Before opset 8, ONNX Runtime implements MaxPool only for float."""
    if inputs[0].dtype != ir.DataType.FLOAT:
        raise FormError(f"ONNX Runtime has no kernel of {op_type} for {inputs[0].dtype.name}")


def _ceil_mode_as_padding(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    """Before opset 10 pools have no ceil_mode: MaxPool gets padding that completes the last window."""
    if not attributes.get("ceil_mode") or "dilations" in attributes:
        return
    sizes = builder.dims(inputs[0])[2:]
    rank, kernel = len(sizes), attributes["kernel_shape"]
    strides, pads = attributes.get("strides", [1] * rank), list(attributes.get("pads", [0] * 2 * rank))
    if not all(isinstance(size, int) for size in sizes):
        raise FormError("MaxPool has no ceil_mode")
    for axis, size in enumerate(map(int, sizes)):
        padded, stride = size + pads[axis] + pads[axis + rank], strides[axis]
        count = -((kernel[axis] - padded) // stride) + 1
        if (count - 1) * stride >= size + pads[axis]:
            # torch drops a window that begins in the padding at the end.
            count -= 1
        pads[axis + rank] += max(0, (count - 1) * stride + kernel[axis] - padded)
        if (
            pads[axis + rank] >= kernel[axis]
            or (size + pads[axis] + pads[axis + rank] - kernel[axis]) // stride + 1 != count
        ):
            raise FormError("MaxPool has no ceil_mode")
    attributes["pads"] = pads
    del attributes["ceil_mode"]


def _grid_sample_modes(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    """Before opset 20 GridSample is for images only, and its modes are called bilinear and bicubic."""
    if "mode" in attributes:
        mode = attributes["mode"]
        attributes["mode"] = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)


def _scatter(builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> ir.Value:
    """Before opset 11 ScatterElements is called Scatter."""
    if attributes.pop("reduction", "none") != "none":
        raise FormError("Scatter has no reduction")
    return builder.value_of("Scatter", *inputs, **attributes)


def _depth_to_space(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 11 DepthToSpace has the mode DCR only."""
    if attributes.pop("mode", "DCR") == "DCR":
        return None
    block = int(attributes["blocksize"])
    _, channels, height, width = builder.dims(inputs[0])
    sizes = [channels, height, width]
    if not all(isinstance(size, int) for size in sizes):
        raise FormError("DepthToSpace in mode CRD needs static channels, height and width")
    parts = int(channels) // block**2
    split = builder.value_of("Reshape", inputs[0], [0, parts, block, block, height, width])
    moved = builder.value_of("Transpose", split, perm=[0, 1, 4, 2, 5, 3])
    return builder.value_of("Reshape", moved, [0, parts, int(height) * block, int(width) * block])


def _without_float8(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> ir.Value | None:
    """Before opset 21 ONNX Runtime has no kernels for float8, which FLOAT represents."""
    value = inputs[0]
    if not isinstance(value, ir.Value) or value.dtype not in FLOAT8:
        return None
    result = builder.value_of(op_type, builder.value_of("Cast", value, to=ir.DataType.FLOAT), *inputs[1:], **attributes)
    return builder.value_of("Cast", result, to=value.dtype, saturate=0)


def check_form(
    builder: BuilderProtocol,
    op_type: str,
    schema: OpSchemaInfo,
    inputs: list[Any],
    attributes: dict[str, Any],
    outputs: int,
) -> None:
    """Check a call against the opset's schema: drop unknown attributes with their default, make axes nonnegative.

    Raises:
        FormError: If an unknown attribute has another value, or there are too many inputs or outputs.
    """
    for name in [name for name in attributes if name not in schema.attributes]:
        default = default_of(op_type, name)
        value = attributes.pop(name)
        if value != (default.decode() if isinstance(default, bytes) else default):
            raise FormError(missing_attribute_message(op_type, name))
    if len(inputs) > len(schema.inputs) and not schema.variadic:
        raise FormError(f"{op_type} has {len(schema.inputs)} inputs")
    if outputs > len(schema.outputs) and schema.outputs and not schema.least_outputs > len(schema.outputs):
        raise FormError(f"{op_type} has {len(schema.outputs)} outputs")
    if builder.opset_version < 11 and inputs and isinstance(inputs[0], ir.Value):
        _make_axes_nonnegative(builder, op_type, inputs, attributes)


def _make_axes_nonnegative(
    builder: BuilderProtocol, op_type: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    """Before opset 11 axes must not be negative."""
    axis, axes = attributes.get("axis"), attributes.get("axes")
    if isinstance(axis, int) and axis < 0:
        attributes["axis"] = axis + len(builder.dims(inputs[0])) + (op_type == "OneHot")
    if axes is not None and any(each < 0 for each in axes):
        rank = len(builder.dims(inputs[0])) + (len(axes) if op_type == "Unsqueeze" else 0)
        attributes["axes"] = [each % rank for each in axes]


_ALWAYS = 2**31

OPSET_FORMS: Mapping[str, tuple[tuple[int, OpsetForm], ...]] = {
    # operator: (opset that introduced the newer form, rewrite for the opsets before)
    "ReduceSum": ((_ALWAYS, _nonnegative_axes), (13, _input_to_attribute("axes"))),
    **{
        name: ((_ALWAYS, _nonnegative_axes), (18, _input_to_attribute("axes")))
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
    "Clip": ((12, _clip_of_integers), (11, _clip_attributes)),
    "Max": ((12, _max_min_of_integers), (8, _no_broadcasting)),
    "Min": ((12, _max_min_of_integers), (8, _no_broadcasting)),
    "Sum": ((8, _no_broadcasting),),
    "Mean": ((8, _no_broadcasting),),
    "Reshape": ((14, _drop("allowzero")), (21, _without_float8)),
    "BatchNormalization": ((14, _drop("training_mode")),),
    "Cast": ((19, _drop("saturate")),),
    "Resize": (
        (18, _drop("antialias", "axes", "keep_aspect_ratio_policy")),
        (11, _resize_before_11),
        (13, _empty_for_absent),
    ),
    "AveragePool": ((19, _without_dilations),),
    "MaxPool": ((10, _without_dilations), (10, _ceil_mode_as_padding), (8, _max_pool_of_floats)),
    "Pad": ((11, _pad),),
    "Slice": ((10, _slice),),
    "TopK": ((10, _top_k),),
    "Gemm": ((11, _gemm),),
    "Equal": ((11, _equality_of_floats),),
    "Less": ((9, _comparison_of_integers),),
    "Greater": ((9, _comparison_of_integers),),
    "GridSample": ((20, _grid_sample_modes),),
    "ScatterElements": ((11, _scatter),),
    "DepthToSpace": ((11, _depth_to_space),),
}
