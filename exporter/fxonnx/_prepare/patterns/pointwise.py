"""Fusions of a few operators: GELU, half-precision softmax, reciprocal roots and flattened linear layers."""

from __future__ import annotations

import math

import torch

from .formula import Formula, Matches
from .matching import FLOATS, dims_of, dtype_of, insert_after
from .terms import Match, Tensor, Term, Value, cast_of, either, op, product, view_of, widened

__all__ = ["fuse_gelu", "fuse_softmax", "replace_rsqrt", "unflatten_linears"]

aten = torch.ops.aten


# ---- linear layers of flattened tensors


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Term:
    flat = view_of(x).named("flat")
    return either(
        view_of(op.addmm(bias, flat, weight).anchor()),
        view_of(op.mm(flat, weight).anchor()),
    )


def _restores_axes(match: Match) -> bool:
    """Whether the first view only flattens the leading axes of a tensor, and the last one only restores them."""
    given, joined, result = (dims_of(node) for node in (match.node("x"), match.node("flat"), match.end))
    columns, bias = (dims_of(match.anchor) or ())[-1:], match.value("bias")
    if given is None or joined is None or result is None or len(given) < 3 or len(joined) != 2:
        return False
    if bias is not None and dims_of(bias) != columns:
        return False
    return [*map(str, (*given[:-1], *columns))] == [*map(str, result)] and str(given[-1]) == str(joined[-1])


_LINEAR = Formula(_linear, _restores_axes)


def unflatten_linears(graph: torch.fx.Graph) -> Matches:
    """Replace matrix products of flattened tensors by batched ones, which need no sizes computed at run time."""
    found = Matches()
    for match in _LINEAR.matches(graph, found):
        whole = insert_after(match.end, aten.matmul.default, (match.node("x"), match.node("weight")))
        if match.value("bias") is not None:
            whole = insert_after(whole, aten.add.Tensor, (whole, match.node("bias")))
        found.replace(match.end, whole)
    return found


# ---- reciprocal roots


def _product(x: Tensor, y: Tensor) -> Term:
    return x * op.rsqrt(y).anchor()


def _is_quotient(match: Match) -> bool:
    x, root = match.node("x"), match.anchor
    return x is not root and root.meta["val"].is_floating_point() and dtype_of(x) == dtype_of(root)


_RSQRT = Formula(_product, _is_quotient)


def replace_rsqrt(graph: torch.fx.Graph) -> Matches:
    """Replace multiplications with a reciprocal square root by divisions by the square root."""
    found = Matches()
    for match in _RSQRT.matches(graph, found):
        root = insert_after(match.anchor, aten.sqrt.default, (match.node("y"),))
        found.replace(match.end, insert_after(match.end, aten.div.Tensor, (match.node("x"), root)))
    return found


# ---- softmax in float32


def _softmax(x: Tensor, axis: Value) -> Term:
    wide = op(aten.softmax, aten.log_softmax)(either(widened(x), x), axis).loose().anchor()
    return cast_of(wide.when(lambda node: dtype_of(node) == torch.float32))


def _is_narrow_softmax(match: Match) -> bool:
    return dtype_of(match.end) == dtype_of(match.node("x"))


_SOFTMAX = Formula(_softmax, _is_narrow_softmax)


def fuse_softmax(graph: torch.fx.Graph) -> Matches:
    """Remove the casts around a softmax: the kernels of half-precision dtypes compute in float32 themselves."""
    found = Matches()
    for match in _SOFTMAX.matches(graph, found):
        fused = insert_after(match.end, match.anchor.target, (match.node("x"), match.value("axis")))
        found.replace(match.end, fused)
    return found


# ---- GELU


def _gelu(x: Tensor) -> Term:
    scaled = either(x / math.sqrt(2), x * math.sqrt(0.5))
    return product(0.5, x, 1.0 + op.erf(scaled).anchor())


def _tanh_gelu(x: Tensor) -> Term:
    cube = either(x**3, x * x**2)
    return product(0.5, x, 1.0 + op.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * cube)).anchor())


def _is_float(match: Match) -> bool:
    return dtype_of(match.node("x")) in FLOATS


_GELUS = ((Formula(_gelu, _is_float), "none"), (Formula(_tanh_gelu, _is_float), "tanh"))


def fuse_gelu(graph: torch.fx.Graph) -> Matches:
    """Fuse to ``aten.gelu``."""
    found = Matches()
    for formula, approximate in _GELUS:
        for match in formula.matches(graph, found):
            gelu = insert_after(match.end, aten.gelu.default, (match.node("x"),), approximate=approximate)
            found.replace(match.end, gelu)
    return found
