"""Fuse decomposed layer norms: ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``."""

from __future__ import annotations

from typing import Any

import torch

from .formula import Formula
from .matches import Matches
from .matching import FLOATS, as_call, dims_of, dtype_of, insert_after, is_last_axis, is_vector_of, known_number
from .terms import Match, Number, Tensor, Term, Value, either, exactly, op

__all__ = ["fuse_layer_norm"]

aten = torch.ops.aten

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


def _is_of_last_axis(match: Match) -> bool:
    return all(is_last_axis(match.value(axes), match.node("x")) for axes in ("mean_axes", "axes"))


def _is_divisor(match: Match) -> bool:
    root = match.anchor
    is_root = as_call(root, aten.std.correction, aten.std.dim) is None
    return not is_root or any(as_call(user, aten.div.Tensor, aten.mul.Tensor) for user in root.users)


def _has_static_size(match: Match) -> bool:
    dims = dims_of(match.node("x"))
    return dims is not None and isinstance(dims[-1], int) and dims_of(match.end) == dims


_FORMULA = Formula(
    _layer_norm,
    (_is_of_last_axis, "the normalized axis is not the last one"),
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
    for match in _FORMULA.matches(graph, found):
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
