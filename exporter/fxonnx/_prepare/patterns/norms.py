"""Fuse decomposed layer and root mean square norms, and narrow or extend fused ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .context import PatternContext
from .formula import Formula, Matches, always
from .matching import (
    FLOATS,
    as_call,
    dims_of,
    dtype_of,
    half_source,
    insert_after,
    insert_onnx_op,
    is_last_axis,
    is_same_dtype_cast,
    is_vector_of,
    known_number,
    narrowed_user,
    value_of,
)
from .terms import Match, Number, Tensor, Term, Value, cast_of, either, exactly, op, widened

__all__ = ["fuse_layer_norm", "fuse_rms_norm", "fuse_skip_norms", "narrow_norms"]

aten = torch.ops.aten


# ---- layer norms

_UNBIASED = "the variance is the unbiased one, divided by the number of elements minus 1"


def _layer_norm(x: Tensor, mean_axes: Value, axes: Value, epsilon: Number, weight: Value) -> Term:
    centered = x - op.mean(x, mean_axes, keepdim=True)
    variance = either(
        op.mean(centered**2, axes, keepdim=True),
        op.var(x, axes, correction=exactly(0, _UNBIASED), keepdim=True),
        op.var(x, axes, unbiased=exactly(False, _UNBIASED), keepdim=True),
    )
    total = either(
        (variance + epsilon).once("the variance and epsilon"),
        either(variance).rejected("no constant epsilon is added to the variance"),
    )
    deviation = op.std(x).named("the standard deviation").loose().anchor()
    return either(
        centered / op.sqrt(total).named("the root of the variance").anchor(),
        centered * op.rsqrt(total).named("the reciprocal root of the variance").anchor(),
        centered / _power(total, 0.5).anchor(),
        centered * _power(total, -0.5).anchor(),
        (either(centered, centered * weight) / either(deviation, deviation + epsilon)).rejected(
            "the input is divided by a standard deviation, where the operator adds epsilon to the variance"
        ),
    )


def _power(x: Term, exponent: float) -> Term:
    return op.pow(x, exponent).when(lambda node: known_number(node.args[1]) == exponent)


def _is_layer_norm_of_last_axis(match: Match) -> bool:
    return all(is_last_axis(match.value(axes), match.node("x")) for axes in ("mean_axes", "axes"))


def _is_divisor(match: Match) -> bool:
    root = match.anchor
    is_root = as_call(root, aten.std.correction, aten.std.dim) is None
    return not is_root or any(as_call(user, aten.div.Tensor, aten.mul.Tensor) for user in root.users)


def _has_static_size(match: Match) -> bool:
    dims = dims_of(match.node("x"))
    return dims is not None and isinstance(dims[-1], int) and dims_of(match.end) == dims


_LAYER_NORM = Formula(
    _layer_norm,
    (_is_layer_norm_of_last_axis, "the normalized axis is not the last one"),
    (_has_static_size, "the size of the normalized axis is dynamic, or the result has another shape than the input"),
    (lambda match: dtype_of(match.node("x")) in FLOATS, "the operator does not accept the dtype of the input"),
    near=_is_divisor,
)


def _weighted(norm: Tensor, parameter: Tensor) -> Term:
    return norm * parameter


def _shifted(norm: Tensor, parameter: Tensor) -> Term:
    return norm + parameter


def _is_parameter(match: Match) -> bool:
    norm = match.node("norm")
    return is_vector_of(match.node("parameter"), norm) and dtype_of(match.end) == dtype_of(norm)


_WEIGHTED, _SHIFTED = (Formula(form, _is_parameter) for form in (_weighted, _shifted))


def fuse_layer_norm(graph: torch.fx.Graph) -> Matches:
    """Fuse norms over the last axis to ``aten.layer_norm``, with weight and bias if they follow."""
    found = Matches()
    for match in _LAYER_NORM.matches(graph, found):
        x, end = match.node("x"), match.end
        parameters: list[Any] = []
        for formula in (_WEIGHTED, _SHIFTED):
            parameter = formula.after(end)
            parameters.append(None if parameter is None else parameter.value("parameter"))
            end = end if parameter is None else parameter.end
        size = (dims_of(x) or ())[-1]
        norm = insert_after(end, aten.layer_norm.default, (x, [size], *parameters, match.number("epsilon")))
        found.replace(end, norm)
    return found


# ---- root mean square norms


def _rms_norm(x: Tensor, factor: Tensor, axes: Value, epsilon: Number) -> Term:
    squares = (x**2).once("the squares")
    mean = op.mean(squares, axes, keepdim=True).once("the mean of the squares")
    total = either(
        (mean + epsilon).once("the mean of the squares and epsilon"),
        either(mean).rejected("no constant epsilon is added to the mean of the squares"),
    )
    return either(
        factor * op.rsqrt(total).named("the reciprocal root").anchor(),
        (x / op.sqrt(total).anchor()).rejected("the input is divided by sqrt, not multiplied by rsqrt"),
    )


def _is_same_tensor(match: Match) -> bool:
    # Type promotion casts a half-precision factor to float32.
    x = match.node("x")
    return match.node("factor") in (x, half_source(x))


def _size(match: Match) -> Any:
    return value_of(match.node("x")).shape[-1]


_RMS_NORM = Formula(
    _rms_norm,
    (lambda match: is_last_axis(match.value("axes"), match.node("x")), "the normalized axis is not the last one"),
    (
        lambda match: dtype_of(match.node("x")) in (torch.float32, torch.float64),
        "the squares are computed in half precision",
    ),
    (_is_same_tensor, "the reciprocal root is not multiplied by the tensor of which it is the root"),
    (lambda match: isinstance(_size(match), int), "the size of the normalized axis is dynamic"),
    near=lambda match: as_call(match.node("x"), aten.sub.Tensor) is None,
)


_WEIGHTED_RMS_NORM = Formula(_weighted, _is_parameter, passes=is_same_dtype_cast)


def fuse_rms_norm(graph: torch.fx.Graph) -> Matches:
    """Fuse norms over the last axis to ``aten.rms_norm``, with the weight if it follows in the same dtype.

    A norm of a half-precision tensor that is computed in float32 between casts becomes one without the casts, whose
    kernels compute in float32 as well.
    """
    found = Matches()
    for match in _RMS_NORM.matches(graph, found):
        end, x, size, epsilon = match.end, match.node("x"), _size(match), match.number("epsilon")
        half = half_source(x)
        narrowed = None if half is None else narrowed_user(end, dtype_of(half))
        if half is not None and narrowed is not None:
            end, x = narrowed, half
        norm = insert_after(end, aten.rms_norm.default, (x, [size], None, epsilon))
        end.replace_all_uses_with(norm)
        weighted = _WEIGHTED_RMS_NORM.after(norm)
        if weighted is None:
            found.fused.append(norm)
        else:
            args = (x, [size], weighted.node("parameter"), epsilon)
            found.replace(weighted.end, insert_after(weighted.end, aten.rms_norm.default, args))
    return found


# ---- casts around norms

_PARAMETERS: Mapping[Any, int] = {
    aten.layer_norm.default: 2,
    aten.group_norm.default: 2,
    aten.rms_norm.default: 1,
}
"""Norm to the number of its parameters, which follow the input and one more argument."""


def _norm(x: Tensor) -> Term:
    return cast_of(op(*_PARAMETERS)(widened(x)).loose().named("the norm").anchor())


def _is_cast_back(match: Match) -> bool:
    return dtype_of(match.end) == dtype_of(match.node("x"))


def _has_cast_parameters(match: Match) -> bool:
    given = [each for each in _parameters(match) if each is not None]
    return not match.anchor.kwargs and all(dtype_of(half_source(each)) == dtype_of(match.end) for each in given)


def _parameters(match: Match) -> tuple[Any, ...]:
    return match.anchor.args[2 : 2 + _PARAMETERS[match.anchor.target]]


_WIDE_NORM = Formula(
    _norm,
    (_is_cast_back, "the result is not cast back to the dtype of the input"),
    (_has_cast_parameters, "the weights are not cast from the dtype of the input"),
    near=always,
)


def narrow_norms(graph: torch.fx.Graph) -> Matches:
    """Apply norms to the half-precision tensors themselves: the operators compute in float32."""
    found = Matches()
    for match in _WIDE_NORM.matches(graph, found):
        norm, parameters = match.anchor, _parameters(match)
        sources = [half_source(each) for each in parameters]
        args = (match.node("x"), norm.args[1], *sources, *norm.args[2 + len(parameters) :])
        found.replace(match.end, insert_after(match.end, norm.target, args))
    return found


# ---- sums before norms


def _skip_rms_norm(x: Tensor, skip: Tensor, width: Value, weight: Tensor, epsilon: Number) -> Term:
    return op.rms_norm((x + skip).named("sum"), [width], weight, epsilon).anchor()


def _skip_layer_norm(x: Tensor, skip: Tensor, width: Value, weight: Tensor, bias: Tensor, epsilon: Number) -> Term:
    return op.layer_norm((x + skip).named("sum"), [width], weight, bias, epsilon).loose().anchor()


def _is_residual(match: Match) -> bool:
    """Whether the sum is one of two tensors of equal shape, [batch, length, size]."""
    tensors = [match.node(name) for name in ("x", "skip", "sum")]
    shapes = {tuple(map(str, dims_of(each) or ())) for each in tensors}
    return len(shapes) == 1 and len(shapes.pop()) == 3 and len(set(map(dtype_of, tensors))) == 1


_SKIP_RMS_NORM, _SKIP_LAYER_NORM = (
    Formula(form, _is_residual, passes=is_same_dtype_cast) for form in (_skip_rms_norm, _skip_layer_norm)
)


def fuse_skip_norms(graph: torch.fx.Graph, context: PatternContext) -> Matches:
    """Fuse to ONNX Runtime's SkipSimplifiedLayerNormalization and SkipLayerNormalization."""
    found = Matches()
    for formula, op_type, names in (
        (_SKIP_RMS_NORM, "SkipSimplifiedLayerNormalization", ["weight"]),
        (_SKIP_LAYER_NORM, "SkipLayerNormalization", ["weight", "bias"]),
    ):
        for match in formula.matches(graph, found):
            norm, weights = match.end, [match.node(name) for name in names]
            if dtype_of(norm) not in context.skip_norms or set(map(dtype_of, weights)) != {dtype_of(norm)}:
                continue
            value, inputs = value_of(norm), [match.node("x"), match.node("skip"), *weights]
            mean = value.new_empty((*value.shape[:-1], 1), dtype=torch.float32)
            results, epsilon = [value, mean, mean, value], match.number("epsilon")
            # The sum precedes other users of it, but the weight may be computed after it.
            output, _, _, residual = insert_onnx_op(norm, op_type, inputs, {"epsilon": epsilon}, results)
            found.replace(norm, output)
            _replace_later_uses(match.node("sum"), residual)
    return found


def _replace_later_uses(total: torch.fx.Node, residual: torch.fx.Node) -> None:
    """Replace the uses of a sum by the operator's last output, if all of them come after it."""
    users = [user for user in total.users if user is not residual.args[0]]
    if all(residual < user for user in users):
        total.replace_all_uses_with(residual)
