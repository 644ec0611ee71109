"""Whether padding of a prompt changes the tokens that follow it, by the masks and positions of the graph.

They are computed from sizes, the attention mask and the positions alone, so that no weights are needed: in a step after
a padded prompt and after the same prompt alone, they must be equal but for the places of the padding.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch

from .. import ONNXProgram
from ._config import context_length

__all__ = ["ignores_padding"]

_Array: TypeAlias = "np.ndarray[Any, Any]"

_READ = ("attention_mask", "position_ids")
"""Inputs whose elements are read; of others, only the sizes are."""

_LONG = 8192
"""Number of cached tokens of which half is padding."""

_LARGE = 1 << 26
"""Number of elements of constants that no mask has."""

_SIZES: Mapping[str, Collection[int]] = MappingProxyType(
    {
        **dict.fromkeys(("Expand", "Pad", "Reshape", "Split", "Tile"), (1,)),
        "ConstantOfShape": (0,),
        "GroupQueryAttention": (6,),
        "Slice": (1, 2),
    }
)
"""Operator to the positions of inputs that are sizes of tensors, which padding changes."""


def ignores_padding(program: ONNXProgram, config: Any) -> bool:
    """Whether the masks and positions of a step are the same with and without padding of the prompt before it.

    Args:
        program: An exported decoder.
        config: The configuration of its language model.
    """
    past = _past_beyond_windows(config)
    graph = program.model.graph
    results = _results(graph, _names_without_values(program))
    if not results:
        return True
    given = [value for value in graph.inputs if not value.is_initializer()]
    part = ir.convenience.extract(graph, given, results)
    part.inputs[:] = [value for value in part.inputs if value.uses()]
    for value in part.inputs:
        if value.name not in _READ:
            value.type = ir.TensorType(ir.DataType.UINT8)  # a new one, which the graph does not share
    model = ir.to_proto(ir.Model(part, ir_version=program.model.ir_version))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    prompt = past // 2
    padded, plain = (session.run(None, _feeds(part.inputs, prompt, length)) for length in (past, prompt))
    kept = {past: [*range(prompt)], past + 1: [*range(prompt), past]}
    return all(_are_equal(*pair, kept) for pair in zip(padded, plain, strict=True))


def _past_beyond_windows(config: Any) -> int:
    """A number of cached tokens, more than twice as large as the windows of a model where its context allows that."""
    sizes = [size for name, size in vars(config).items() if isinstance(size, int) and re.search("window|chunk", name)]
    return min(context_length(config) - 1, max([_LONG, *(2 * size + 2 for size in sizes)]))


def _names_without_values(program: ONNXProgram) -> set[str]:
    """Names of the initializers that are weights, or that have no values."""
    state = program.exported_program.state_dict
    return {
        name
        for fqn, names in program.weights.initializers.items()
        if fqn in state and (isinstance(state[fqn], torch.nn.Parameter) or state[fqn].is_meta)
        for name in names
    }


def _results(graph: ir.Graph, excluded: Collection[str]) -> list[ir.Value]:
    """The values of sizes, the mask and the positions that the remaining graph reads, except as sizes."""
    known = {value for value in graph.inputs if value.name in _READ}
    inside: set[ir.Node] = set()
    for node in graph:
        if _is_known(node, known, graph, excluded):
            inside.add(node)
            known.update(node.outputs)
    return [
        value
        for node in graph
        if node in inside
        for value in node.outputs
        if any(user not in inside and not _is_size(user, index) for user, index in value.uses())
    ]


def _is_known(node: ir.Node, known: Collection[ir.Value], graph: ir.Graph, excluded: Collection[str]) -> bool:
    values = [value for value in node.inputs if value is not None]
    if node.op_type == "Shape":
        return values[0] in known or values[0].is_graph_input()
    if any(output.dtype == ir.DataType.BFLOAT16 for output in node.outputs):  # which NumPy does not have
        return False
    constants = [value for value in values if value not in known]
    return len(constants) < len(values) and all(
        value.name in graph.initializers
        and value.name not in excluded
        and value.const_value is not None
        and value.const_value.size < _LARGE
        for value in constants
    )


def _is_size(user: ir.Node, index: int) -> bool:
    """Whether an input of a node is a size; the bounds of a part of a constant are positions."""
    is_table = user.op_type == "Slice" and user.inputs[0] is not None and user.inputs[0].is_initializer()
    return index in _SIZES.get(user.op_type, ()) and not is_table


def _feeds(inputs: Sequence[ir.Value], prompt: int, past: int) -> dict[str, _Array]:
    """The inputs of a step of one token after a prompt that is padded to a length."""
    sizes = {"batch": 1, "tokens": 1, "past": past, "total": past + 1}
    mask = np.ones((1, past + 1), np.int64)
    mask[:, prompt:past] = 0
    shapes = {
        str(value.name): [size if isinstance(size, int) else sizes[str(size)] for size in value.shape or ()]
        for value in inputs
    }
    feeds = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
    read = {"attention_mask": mask, "position_ids": np.full(shapes.get("position_ids", ()), prompt)}
    return feeds | {name: array for name, array in read.items() if name in feeds}


def _are_equal(padded: _Array, plain: _Array, kept: Mapping[int, list[int]]) -> bool:
    """Whether two arrays are equal without the places of padding.

    Args:
        padded: The array with padding.
        plain: The array without.
        kept: Size of an axis with padding to the places that are not padding.
    """
    if padded.ndim != plain.ndim:
        return False
    for axis, (size, expected) in enumerate(zip(padded.shape, plain.shape, strict=True)):
        if size != expected:
            padded = padded.take(kept.get(size, []), axis)
    return np.array_equal(padded, plain)
