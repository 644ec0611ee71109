"""Comparison of models with higher-order operators: static and dynamic sizes, every example, through the saved file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx
import torch
from torch import nn

import fxonnx
from fxonnx._capture.eager_runs import run_uncompiled

from ..functions import VariadicFunction
from ..hygiene import check_graph
from ..saved import run_from_file

__all__ = ["Row", "check_row", "lengths", "nodes_of"]

LENGTHS = (3, 1, 2, 7)


@dataclass(frozen=True)
class Row:
    """A model with examples for every branch and several trip counts.

    Attributes:
        name: Name of the test.
        model: A module, or a function of tensors.
        examples: Inputs; the model is exported with the first one.
        shapes: The dynamic dims of each input.
        kind: The ONNX operator that the dynamic model has; empty for none.
    """

    name: str
    model: nn.Module | Callable[..., Any]
    examples: Sequence[tuple[torch.Tensor, ...]]
    shapes: tuple[Any, ...]
    kind: str = ""

    def __str__(self) -> str:
        return self.name


def lengths(*sizes: int, count: int = 1) -> list[tuple[torch.Tensor, ...]]:
    """Examples of ``count`` tensors with several sizes of the first axis."""
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randn(n, *sizes, generator=generator) for _ in range(count)) for n in LENGTHS]


def check_row(row: Row, opset: int) -> None:
    """Compare with eager torch: dynamic sizes for all examples, static ones for the second and those of its shapes."""
    model = (row.model if isinstance(row.model, nn.Module) else VariadicFunction(row.model)).eval()
    shapes = row.shapes if isinstance(row.model, nn.Module) else (row.shapes,)
    dynamic = fxonnx.export(model, row.examples[0], dynamic_shapes=shapes, opset_version=opset)
    kinds = {node.op_type for node in nodes_of(dynamic.model_proto.graph)}
    assert not row.kind or row.kind in kinds
    _compare(model, dynamic, row.examples)
    example = row.examples[min(1, len(row.examples) - 1)]  # the dynamic export has had the first one
    alike = [other for other in row.examples if [x.shape for x in other] == [x.shape for x in example]]
    _compare(model, fxonnx.export(model, example, opset_version=opset), alike)


def _compare(model: nn.Module, program: fxonnx.ONNXProgram, examples: Sequence[tuple[torch.Tensor, ...]]) -> None:
    check_graph(program.model_proto)
    run_from_file(program)
    for example in examples:
        # Compiled for each size anew, since torch fails if it does so again with symbolic sizes.
        with torch.no_grad(), torch._dynamo.config.patch(automatic_dynamic_shapes=False):
            results = run_uncompiled(partial(model, *example))
        expected = [leaf for leaf in torch.utils._pytree.tree_leaves(results) if leaf is not None]
        found = program(*example)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            if isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            else:
                assert ours.item() == theirs


def nodes_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """All nodes, including subgraphs."""
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                found.extend(nodes_of(body))
    return found
