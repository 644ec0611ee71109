"""Stored codes: initializers of low-precision integers and their scales, computed while the model is saved.

A DequantizeLinear of initializers keeps them: a Transpose after it is applied to the codes, the scales and the zero
points. Runtimes fuse a matrix product with a DequantizeLinear, but not with a Transpose of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from .builder_protocol import BuilderProtocol
from .constants import array_of
from .dtypes import HALF_FLOATS
from .initializers import BITS, DerivedTensor, TorchTensor

__all__ = ["derive_stored", "is_stored", "transposed_dequantization"]


def is_stored(value: ir.Value | None) -> bool:
    """Whether a value is a literal or a weight that callers cannot replace by an input."""
    if value is None or value.is_graph_input():
        return False
    return isinstance(value.const_value, (TorchTensor, DerivedTensor)) or array_of(value) is not None


def derive_stored(
    builder: BuilderProtocol,
    values: Sequence[ir.Value],
    suffix: str,
    recipe: Callable[..., torch.Tensor],
    dtype: ir.DataType | None = None,
    key: Any = None,
) -> ir.Value:
    """Return the initializer that a recipe computes from stored values; a literal if they all are literals.

    Args:
        builder: The builder of the graph.
        values: Weights and literals, see :func:`is_stored`.
        suffix: Names the result ``<weight>::<suffix>``.
        recipe: A function of the torch tensors of the values, in order.
        dtype: Element type of the result, if torch has none for it: the recipe returns one code per element.
        key: Distinguishes recipes with the same suffix.
    """
    known = builder.stored.get((tuple(values), suffix, key))
    if known is not None:
        return known
    literals = {index: torch.from_numpy(array) for index, v in enumerate(values) if (array := array_of(v)) is not None}
    weights = [value for index, value in enumerate(values) if index not in literals]

    def with_literals(*tensors: torch.Tensor) -> torch.Tensor:
        given = iter(tensors)
        device = tensors[0].device if tensors else None
        return recipe(*(literals[i].to(device) if i in literals else next(given) for i in range(len(values))))

    if weights:
        made = builder.register_derived(weights, suffix, with_literals if literals else recipe, dtype)
    else:
        made = _literal(builder, with_literals(), dtype)
    builder.stored[tuple(values), suffix, key] = made
    return made


def _literal(builder: BuilderProtocol, content: torch.Tensor, dtype: ir.DataType | None) -> ir.Value:
    if dtype is None or dtype not in BITS:
        return builder.constant(content.contiguous())
    tensor = DerivedTensor("", (), lambda: content, dtype, tuple(content.shape))
    return builder.constant(tensor.evaluated())


def _stored_dequantization(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear of initializers that computes a value, or None."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain:
        return None
    return node if all(given is None or is_stored(given) for given in node.inputs) else None


def transposed_dequantization(builder: BuilderProtocol, value: ir.Value, perm: Sequence[int]) -> ir.Value | None:
    """Return the transpose of a DequantizeLinear of initializers as one of transposed initializers, or None."""
    producer = value.producer()
    if producer is not None and producer.op_type == "Cast" and producer.domain == "" and value.dtype in HALF_FLOATS:
        source = producer.inputs[0]
        if source is None or _stored_dequantization(source) is None or value.dtype is None:
            return None
        transposed = builder.value_of("Transpose", source, perm=list(perm))
        if value in builder.unrounded:
            return builder.rounded(transposed, value.dtype)
        return builder.value_of("Cast", transposed, to=value.dtype)
    node = _stored_dequantization(value)
    if node is None:
        return None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    size, rank = attributes.get("block_size", 0), len(perm)

    def moved(parameter: ir.Value | None) -> ir.Value | None:
        return parameter if parameter is None or not size else _transposed(builder, parameter, perm)

    codes, scale = node.inputs[0], node.inputs[1]
    if codes is None or scale is None:
        return None
    is_per_axis = len(builder.dims(scale)) > 0
    if is_per_axis:
        attributes["axis"] = list(perm).index(attributes.get("axis", 1) % rank)
    parameters = [moved(parameter) for parameter in node.inputs[1:]]
    result = builder.value_of("DequantizeLinear", _transposed(builder, codes, perm), *parameters, **attributes)
    result.type = value.type
    return result


def _transposed(builder: BuilderProtocol, value: ir.Value, perm: Sequence[int]) -> ir.Value:
    recipe = torch.t if list(perm) == [1, 0] else partial(torch.permute, dims=tuple(perm))
    dtype = value.dtype if value.dtype in BITS else None
    return derive_stored(builder, [value], "transposed", recipe, dtype, tuple(perm))
