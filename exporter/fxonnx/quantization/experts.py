"""Mixtures of experts with quantized weights: QMoE instead of MoE, for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

__all__ = ["EXPERT_WEIGHTS", "expert_attributes", "expert_block_size", "expert_weights", "inputs_of_qmoe", "routers"]

EXPERT_WEIGHTS = (2, 4, 6)
"""Positions of the weights among the inputs of MoE, each followed by its bias; the last one is optional."""
_LEAST_BLOCK = 16


def expert_weights(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the weights of MoE, of shape (experts, out_features, in_features)."""
    for position in EXPERT_WEIGHTS:
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is not None:
            yield value


def routers(node: ir.Node) -> set[ir.Node]:
    """Return the products of MoE's router, with an output for each expert: the last ones before its second input."""
    experts = next(expert_weights(node)).shape
    pending, seen, found = [node.inputs[1]], set(), set()
    while pending:
        value = pending.pop()
        producer = None if value is None else value.producer()
        if value is None or producer is None or producer in seen:
            continue
        seen.add(producer)
        if producer.op_type not in ("MatMul", "Gemm"):
            pending.extend(producer.inputs)
        elif value.shape is not None and experts is not None and value.shape[-1] == experts[0]:
            found.add(producer)
    return found


def expert_block_size(wanted: int, in_features: Sequence[int]) -> int | None:
    """Return the largest size of blocks, up to the wanted one, that divides all rows; None if there is none."""
    size = wanted
    while any(count % size for count in in_features):
        size //= 2
    return size if size >= _LEAST_BLOCK else None


def expert_attributes(bits: int, block_size: int, accuracy_level: int) -> dict[str, int]:
    """Return the attributes of QMoE in addition to MoE's."""
    # Without prepacked weights, all providers have the layout of MatMulNBits.
    return {
        "expert_weight_bits": bits,
        "block_size": block_size,
        "accuracy_level": accuracy_level,
        "weights_prepacked": 0,
    }


def inputs_of_qmoe(node: ir.Node, quantized: Sequence[Sequence[ir.Value | None]]) -> list[ir.Value | None]:
    """Arrange the inputs of QMoE.

    Args:
        node: The MoE.
        quantized: Codes, scales and zero points of each of its weights.
    """
    inputs: list[ir.Value | None] = [*node.inputs[:2], *[None] * 12]
    for index, (codes, scales, points) in enumerate(quantized):
        bias = EXPERT_WEIGHTS[index] + 1
        inputs[2 + 3 * index] = codes
        inputs[3 + 3 * index] = scales
        inputs[4 + 3 * index] = node.inputs[bias] if bias < len(node.inputs) else None
        inputs[11 + index] = points
    return inputs
