"""Fuse decomposed GELU: ``0.5 * x * (1 + erf(x / sqrt(2)))`` or the tanh approximation, factors in any order."""

from __future__ import annotations

import math
from typing import Any

import torch

from .matches import Matches, Mismatch, check_uses
from .matching import FLOATS, as_call, dtype_of, has_one_user, insert_after, known_number

__all__ = ["fuse_gelu"]

aten = torch.ops.aten

_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar)
_SUMS = (aten.add.Tensor, aten.add.Scalar)
_TOLERANCE = 1e-6  # models write the constants with seven or more digits


def fuse_gelu(graph: torch.fx.Graph) -> Matches:
    """Fuse to ``aten.gelu``.

    Args:
        graph: A functional graph; changed in place.

    Returns:
        The matches and near misses.
    """
    found = Matches()
    for target, approximate in ((aten.erf.default, "none"), (aten.tanh.default, "tanh")):
        for node in graph.find_nodes(op="call_function", target=target):
            match = found.attempt(node, _match, _is_near)
            if match is None:
                continue
            x, end = match
            gelu = insert_after(end, aten.gelu.default, (x,))
            gelu.kwargs = {"approximate": approximate}
            end.replace_all_uses_with(gelu)
            found.fused.append(gelu)
    return found


def _is_near(node: torch.fx.Node) -> bool:
    """Whether a node is 1 + erf of a multiple of x, or tanh of a sum with a third power."""
    if node.target is aten.erf.default:
        return any(_binary_with(user, node, _SUMS) is not None for user in node.users)
    return _has_cubic_term(node.args[0])


def _has_cubic_term(argument: Any) -> bool:
    """Whether a node is the product of a number with a sum, one term of which is a power or a product of products."""
    sums = [as_call(factor, *_SUMS) for factor in _factors(argument)]
    terms = [term for total in sums if total is not None for term in total.args]
    return any(as_call(inner, aten.pow.Tensor_Scalar, *_PRODUCTS) for term in terms for inner in _factors(term))


def _factors(node: Any) -> tuple[Any, ...]:
    product = as_call(node, *_PRODUCTS)
    return () if product is None else product.args


def _match(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Match a GELU around its erf or tanh; returns x and the last multiplication."""
    x = _erf_input(node.args[0]) if node.target is aten.erf.default else _tanh_input(node.args[0])
    if x is None and node.target is aten.erf.default:
        raise Mismatch("the argument of erf is not x / sqrt(2)")
    if x is None:
        raise Mismatch("the argument of tanh is not sqrt(2 / pi) * (x + 0.044715 * x ** 3)")
    check_uses(node, f"the result of {node.target}")
    plus_one = _binary_with(next(iter(node.users)), node, _SUMS)
    if plus_one is None or not _is_close_to(plus_one[1], 1.0):
        raise Mismatch(f"1 is not added to the result of {node.target}")
    if not _is_float(x):
        raise Mismatch(f"the operator does not accept {dtype_of(x)}")
    end = _product_with_half(plus_one[0], x)
    if end is None:
        raise Mismatch("the sum is not multiplied by x and 0.5 only, or another operator uses a partial product")
    return x, end


def _is_close_to(value: Any, expected: float) -> bool:
    known = known_number(value)
    return known is not None and math.isclose(known, expected, rel_tol=_TOLERANCE)


def _is_float(x: torch.fx.Node) -> bool:
    return dtype_of(x) in FLOATS


def _binary_with(node: Any, operand: Any, targets: Any) -> tuple[torch.fx.Node, Any] | None:
    """Match a binary call of one of the targets on the operand; returns the call and its other operand."""
    call = as_call(node, *targets)
    if call is None or len(call.args) != 2 or call.kwargs:
        return None
    one, other = call.args
    if (one is operand) == (other is operand):
        return None
    return call, other if one is operand else one


def _erf_input(argument: Any) -> torch.fx.Node | None:
    """Match ``x / sqrt(2)`` or ``x * sqrt(1 / 2)``; returns x."""
    quotient = as_call(argument, aten.div.Tensor, aten.div.Scalar)
    if quotient is not None and len(quotient.args) == 2 and _is_close_to(quotient.args[1], math.sqrt(2)):
        return quotient.args[0] if isinstance(quotient.args[0], torch.fx.Node) else None
    return _scaled(argument, math.sqrt(0.5))


def _tanh_input(argument: Any) -> torch.fx.Node | None:
    """Match ``sqrt(2 / pi) * (x + 0.044715 * x ** 3)``; returns x."""
    total = as_call(_scaled(argument, math.sqrt(2 / math.pi)), *_SUMS)
    if total is None or len(total.args) != 2 or total.kwargs:
        return None
    for x, cubic in (total.args, total.args[::-1]):
        cube = _scaled(cubic, 0.044715)
        if cube is not None and isinstance(x, torch.fx.Node) and _is_cube(cube, x):
            return x
    return None


def _scaled(node: Any, factor: float) -> torch.fx.Node | None:
    """Match a product with a constant factor; returns the other operand."""
    product = as_call(node, *_PRODUCTS)
    if product is None or len(product.args) != 2:
        return None
    for value, scale in (product.args, product.args[::-1]):
        if isinstance(value, torch.fx.Node) and _is_close_to(scale, factor):
            return value
    return None


def _is_cube(node: torch.fx.Node, x: torch.fx.Node) -> bool:
    if as_call(node, aten.pow.Tensor_Scalar) is not None:
        return node.args[0] is x and known_number(node.args[1]) == 3
    factor = _binary_with(node, x, _PRODUCTS)
    square = as_call(factor[1], *_PRODUCTS, aten.pow.Tensor_Scalar) if factor is not None else None
    if square is None:
        return False
    if square.target is aten.pow.Tensor_Scalar:
        return square.args[0] is x and known_number(square.args[1]) == 2
    return square.args[0] is x and square.args[1] is x


def _product_with_half(node: torch.fx.Node, x: torch.fx.Node) -> torch.fx.Node | None:
    """Match the product of a node, x and 0.5 in any order; returns its last multiplication."""
    scale, with_x = 1.0, False
    for _ in range(2):
        step = _binary_with(next(iter(node.users), None), node, _PRODUCTS) if has_one_user(node) else None
        if step is None:
            return None
        node, other = step
        known = known_number(other)
        if known is not None:
            scale *= known
        elif other is x and not with_x:
            with_x = True
        elif not with_x and (half := _scaled(other, 0.5)) is x and half is not None:
            with_x, scale = True, scale * 0.5
        else:
            return None
        if with_x and scale == 0.5:
            return node
    return None
