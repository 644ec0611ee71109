"""Quantizers of activations: Div, Round, Clip and Mul by one scale, as the fake quantization that they are.

QuantizeLinear divides, rounds to even and saturates like them, if the limits are its type's and the zero point
is 0; other quantizers are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..._nodes import input_of
from ..._own_operators import define_operator
from ..._prepare.patterns.matching import dtype_of
from ..._prepare.sizes import element_count, same_shape
from ..._prepare.weight_folding import CODES_KEY, recipe
from ..._provenance import copy_provenance
from .ranges import Ranges, limited_input

__all__ = ["replace_activation_quantizers", "values_of_blocks"]

aten = torch.ops.aten

_LIMITS = frozenset({(-128, 127), (0, 255)})


@dataclass(frozen=True)
class _Quantizer:
    """A quantizer.

    Attributes:
        input: Its input.
        limits: The smallest and the largest integer.
        numbers: The tensors of one number that the limits and the zero point are.
    """

    input: Node
    limits: tuple[int, int]
    numbers: list[Node] = field(default_factory=list)


def replace_activation_quantizers(
    graph: torch.fx.Graph,
    static: Collection[Node],
    literals: Collection[Node],
    ranges: Ranges,
    number_of: Callable[[Node], torch.Tensor | None],
    constant: Callable[[torch.Tensor, Node], Node],
) -> None:
    """Replace quantizers by ``aten::fake_quantize_per_tensor_affine``.

    Args:
        graph: A functional graph; changed in place.
        static: The calls computed from weights and constants only.
        literals: The constant nodes.
        ranges: The ranges of integers.
        number_of: Returns the tensor of a node that is computed from numbers only, or None.
        constant: Inserts a constant.
    """
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        codes, scale = node.args
        if node in static or node.kwargs or not isinstance(codes, Node) or not isinstance(scale, Node):
            continue
        # A size is not a tensor: it has no dtype.
        if dtype_of(node) != torch.float32 or dtype_of(scale) != torch.float32:
            continue
        # One number, of any rank up to the input's: its broadcasting does not change the shape.
        if element_count(scale.meta["val"]) != 1 or scale.meta["val"].dim() > codes.meta["val"].dim():
            continue
        found = _quantizer(codes, scale, ranges, number_of)
        if found is None or (scale not in static and number_of(scale) is None):
            continue
        known = {number: number_of(number) for number in found.numbers if number not in literals}
        checks = [(number, content) for number, content in known.items() if content is not None]
        if len(checks) < len(known) or (checks and scale in literals):
            continue
        with graph.inserting_before(node):
            checked = [part for number, content in checks for part in (number, constant(content.clone(), node))]
            step = graph.call_function(_unchanged, (scale, *checked)) if checked else scale
            step.meta["val"] = scale.meta["val"]
            zero_point = constant(torch.zeros(1, dtype=torch.int32), node)
            made = graph.call_function(
                aten.fake_quantize_per_tensor_affine.tensor_qparams, (found.input, step, zero_point, *found.limits)
            )
        if checked:
            step.meta[CODES_KEY] = True
        made.meta["val"] = node.meta["val"]
        copy_provenance(made, node)
        node.replace_all_uses_with(made)


def _quantizer(
    codes: Node, scale: Node, ranges: Ranges, number_of: Callable[[Node], torch.Tensor | None]
) -> _Quantizer | None:
    numbers: list[Node] = []

    def without_zero(node: Any, target: Any) -> Any:
        """Skip the addition or subtraction of 0."""
        if not isinstance(node, Node) or node.target is not target or node.kwargs:
            return node
        source, other = node.args[:2]
        if isinstance(other, Node):
            content = number_of(other)
            if content is None or content.any() or other.meta["val"].dim() > input_of(node).meta["val"].dim():
                return node
            numbers.append(other)
            return source
        return source if other == 0 else node

    current = limited = without_zero(codes, aten.sub.Tensor)
    limits = ranges.of(limited)
    while isinstance(current, Node) and current.target is not aten.round.default:
        step = limited_input(current, ranges)
        if step is None:
            return None
        current, used = step
        numbers += used
    if not isinstance(current, Node) or limits is None or limits not in _LIMITS:
        return None
    quotient = without_zero(current.args[0], aten.add.Tensor)
    is_quotient = isinstance(quotient, Node) and quotient.target is aten.div.Tensor and not quotient.kwargs
    if not is_quotient or quotient.args[1] is not scale or not isinstance(quotient.args[0], Node):
        return None
    if not same_shape(quotient.args[0].meta["val"], codes.meta["val"]):
        return None
    return _Quantizer(quotient.args[0], (int(limits[0]), int(limits[1])), numbers)


def _dequantize(
    codes: Tensor, scale: Tensor, zero_point: Tensor | None, table: Tensor | None, low: int, high: int, block: list[int]
) -> Tensor:
    def expanded(parameter: Tensor) -> Tensor:
        for axis, size in enumerate(block):
            parameter = parameter.repeat_interleave(size, dim=axis)
        return parameter

    values = codes if table is None else table[codes.long()]
    shifted = values if zero_point is None else values - expanded(zero_point)
    return shifted.to(scale.dtype) * expanded(scale)


_OPERATOR = define_operator(
    "fxonnx::dequantize(Tensor codes, Tensor scale, Tensor? zero_point, Tensor? table, int low, int high, int[] block) "
    "-> Tensor",
    _dequantize,
)


@recipe("blocks")
def values_of_blocks(parameter: Tensor, positions: Tensor, *checked: Tensor) -> Tensor:
    """Select one scale or zero point for each block.

    Args:
        parameter: The scales or zero points.
        positions: The position of each block's.
        *checked: Pairs of an index tensor of the model, and its elements at the export.

    Raises:
        ValueError: If the weights have other index tensors.
    """
    for index, expected in zip(checked[::2], checked[1::2], strict=True):
        if not index.is_meta and not torch.equal(index, expected):
            raise ValueError("the groups of a quantized weight differ from those at the export: export the model again")
    return parameter.reshape(-1)[positions]


@recipe("scale")
def _unchanged(scale: Tensor, *checked: Tensor) -> Tensor:
    """Return the scale of a quantizer."""
    for number, expected in zip(checked[::2], checked[1::2], strict=True):
        if not number.is_meta and not torch.equal(number, expected):
            raise ValueError("the limits of a quantizer differ from those at the export: export the model again")
    return scale
