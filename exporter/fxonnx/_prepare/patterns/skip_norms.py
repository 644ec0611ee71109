"""Fuse the sum of a residual connection and the norm after it to ONNX Runtime's operators for both."""

from __future__ import annotations

import torch

from .context import PatternContext
from .formula import Formula
from .matches import Matches
from .matching import dims_of, dtype_of, is_same_dtype_cast, value_of
from .onnx_nodes import insert_onnx_op
from .terms import Match, Number, Tensor, Term, Value, op

__all__ = ["fuse_skip_norms"]


def _rms_norm(x: Tensor, skip: Tensor, width: Value, weight: Tensor, epsilon: Number) -> Term:
    return op.rms_norm((x + skip).named("sum"), [width], weight, epsilon).anchor()


def _layer_norm(x: Tensor, skip: Tensor, width: Value, weight: Tensor, bias: Tensor, epsilon: Number) -> Term:
    return op.layer_norm((x + skip).named("sum"), [width], weight, bias, epsilon).loose().anchor()


def _is_residual(match: Match) -> bool:
    """Whether the sum is one of two tensors of equal shape, [batch, length, size]."""
    tensors = [match.node(name) for name in ("x", "skip", "sum")]
    shapes = {tuple(map(str, dims_of(each) or ())) for each in tensors}
    return len(shapes) == 1 and len(shapes.pop()) == 3 and len(set(map(dtype_of, tensors))) == 1


_RMS_NORM, _LAYER_NORM = (Formula(form, _is_residual, passes=is_same_dtype_cast) for form in (_rms_norm, _layer_norm))


def fuse_skip_norms(graph: torch.fx.Graph, context: PatternContext) -> Matches:
    """Fuse to ONNX Runtime's SkipSimplifiedLayerNormalization and SkipLayerNormalization."""
    found = Matches()
    for formula, op_type, names in (
        (_RMS_NORM, "SkipSimplifiedLayerNormalization", ["weight"]),
        (_LAYER_NORM, "SkipLayerNormalization", ["weight", "bias"]),
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
