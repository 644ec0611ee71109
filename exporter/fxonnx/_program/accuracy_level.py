"""The precision of references and of ONNX Runtime: the rounding of activations, and float32 products of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch

__all__ = [
    "ROUNDED",
    "UNROUNDED",
    "always_rounds",
    "full_float32_products",
    "multiplies_stored_weights",
    "products_in_float",
]

ROUNDED = 0.05
"""Tolerance, times the largest absolute value of an output, for models that round activations to int8."""
UNROUNDED = ("session.qdq_matmulnbits_accuracy_level", "1")
"""Session option and value with which products by DequantizeLinear do not round activations; 4 is the default."""


def always_rounds(model: ir.Model) -> bool:
    """Whether a model has experts of 8 bits: their kernel rounds activations to int8 at every accuracy level."""
    graphs: list[Any] = [model.graph, *model.functions.values()]
    return any(
        node.op_type == "QMoE" and node.attributes["expert_weight_bits"].as_int() == 8
        for graph in graphs
        for node in ir.traversal.RecursiveGraphIterator(graph)
    )


def multiplies_stored_weights(model: ir.Model) -> bool:
    """Whether ONNX Runtime may multiply by quantized weights, for which it rounds the activations by default."""
    return any(node.op_type in ("DequantizeLinear", "MatMulNBits", "QMoE") for node in model.graph)


@contextmanager
def products_in_float(model: ir.Model) -> Iterator[None]:
    """Disable the rounding of activations by MatMulNBits and QMoE for the body."""
    graphs: list[Any] = [model.graph, *model.functions.values()]
    nodes = [
        node
        for graph in graphs
        for node in ir.traversal.RecursiveGraphIterator(graph)
        if node.op_type in ("MatMulNBits", "QMoE") and "accuracy_level" in node.attributes
    ]
    before = [(node, node.attributes["accuracy_level"]) for node in nodes]
    for node in nodes:
        node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 1)
    try:
        yield
    finally:
        for node, attribute in before:
            node.attributes["accuracy_level"] = attribute


@contextmanager
def full_float32_products() -> Iterator[None]:
    """Context in which GPUs do not round the factors of float32 products to TF32, as torch does in convolutions.

    The settings of the process are as before after it. They are read and written by operator, since torch refuses to
    read the older ones, for all operators, where a user has set one of these.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield
        return
    settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision
