"""Pack the projections of queries, keys and values into one, whose weight is stored."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from .matching import VIEWS, as_call, dims_of, has_one_user, insert_before, is_same_dtype_cast

__all__ = ["pack_projections", "packed_source"]

aten = torch.ops.aten

_BETWEEN = (*VIEWS, aten.transpose.int, aten.rms_norm.default, aten.flatten.using_ints)


def pack_projections(operands: Sequence[torch.fx.Node]) -> None:
    """Replace three linear layers of one input by one, and a split of its result.

    Args:
        operands: Queries, keys and values; between them and the layers are changes of the shape and norms only.
    """
    layers = [_layer(operand) for operand in operands]
    if any(layer is None for layer in layers) or len(set(layers)) != len(layers):
        return
    found: list[torch.fx.Node] = layers  # type: ignore[assignment]
    arguments: list[Any] = [(*layer.args, None)[:3] for layer in found]
    inputs, weights, biases = zip(*arguments, strict=True)
    if len(set(inputs)) > 1 or len({bias is None for bias in biases}) > 1 or not all(map(has_one_user, found)):
        return
    if not all(_is_stored(weight) for weight in (*weights, *(bias for bias in biases if bias is not None))):
        return
    first = min(found)
    joined = [insert_before(first, aten.cat.default, list(weights), 0)]
    if biases[0] is not None:
        joined.append(insert_before(first, aten.cat.default, list(biases), 0))
    whole = insert_before(first, aten.linear.default, inputs[0], *joined)
    widths = [layer.meta["val"].shape[-1] for layer in found]
    parts = insert_before(first, aten.split_with_sizes.default, whole, widths, 2)
    for index, layer in enumerate(found):
        layer.replace_all_uses_with(insert_before(first, operator.getitem, parts, index, origin=layer))


def packed_source(operands: Sequence[torch.fx.Node]) -> torch.fx.Node | None:
    """The tensor that queries, keys and values are consecutive parts of, along the last of three axes."""
    start, source = 0, None
    for index, operand in enumerate(operands):
        width, item = operand.meta["val"].shape[-1], as_call(operand, operator.getitem)
        if item is not None:
            part = as_call(item.args[0], aten.split_with_sizes.default)
            fits = part is not None and item.args[1] == index and part.args[2:] in ((2,), (-1,))
        else:
            part = as_call(operand, aten.slice.Tensor)
            fits = part is not None and part.args[1] in (2, -1) and part.args[2] == start and len(part.args) == 4
        if part is None or not fits or source not in (None, part.args[0]):
            return None
        source, start = part.args[0], start + width
    dims = dims_of(source)
    return source if dims is not None and len(dims) == 3 and dims[2] == start else None  # type: ignore[return-value]


def _layer(node: Any) -> torch.fx.Node | None:
    """The linear layer before changes of the shape and norms."""
    while as_call(node, *_BETWEEN) is not None or is_same_dtype_cast(node):
        node = node.args[0]
    layer = as_call(node, aten.linear.default)
    return layer if layer is not None and not layer.kwargs and len(dims_of(layer) or ()) == 3 else None


def _is_stored(weight: Any) -> bool:
    return isinstance(weight, torch.fx.Node) and weight.op == "placeholder" and has_one_user(weight)
