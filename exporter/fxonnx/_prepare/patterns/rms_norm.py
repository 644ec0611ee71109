"""Fuse decomposed root mean square norms: ``weight * (x * rsqrt(mean(x ** 2) + eps))``."""

from __future__ import annotations

from typing import Any

import torch

from .formula import Formula
from .matches import Matches
from .matching import (
    as_call,
    dtype_of,
    half_source,
    insert_after,
    is_last_axis,
    is_same_dtype_cast,
    is_vector_of,
    narrowed_user,
    value_of,
)
from .terms import Match, Number, Tensor, Term, Value, either, op

__all__ = ["fuse_rms_norm"]

aten = torch.ops.aten


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


_FORMULA = Formula(
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


def _weighted(norm: Tensor, weight: Tensor) -> Term:
    return norm * weight


def _is_weight(match: Match) -> bool:
    weight, norm = match.node("weight"), match.node("norm")
    return is_vector_of(weight, norm) and dtype_of(match.end) == dtype_of(norm)


_WEIGHTED = Formula(_weighted, _is_weight, passes=is_same_dtype_cast)


def fuse_rms_norm(graph: torch.fx.Graph) -> Matches:
    """Fuse norms over the last axis to ``aten.rms_norm``, with the weight if it follows in the same dtype.

    A norm of a half-precision tensor that is computed in float32 between casts becomes one without the casts, whose
    kernels compute in float32 as well.
    """
    found = Matches()
    for match in _FORMULA.matches(graph, found):
        end, x, size, epsilon = match.end, match.node("x"), _size(match), match.number("epsilon")
        half = half_source(x)
        narrowed = None if half is None else narrowed_user(end, dtype_of(half))
        if half is not None and narrowed is not None:
            end, x = narrowed, half
        norm = insert_after(end, aten.rms_norm.default, (x, [size], None, epsilon))
        end.replace_all_uses_with(norm)
        weighted = _WEIGHTED.after(norm)
        if weighted is None:
            found.fused.append(norm)
        else:
            args = (x, [size], weighted.node("weight"), epsilon)
            found.replace(weighted.end, insert_after(weighted.end, aten.rms_norm.default, args))
    return found
