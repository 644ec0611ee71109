"""Padding of prompts: whether it changes the tokens that follow, and masks and positions that leave it out."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from torch import Tensor, nn

from ... import ONNXProgram
from ..extras import import_extra
from ..layouts.genai_config import context_length

__all__ = ["assume_right_padding", "counting_tokens", "counts_places", "ignores_padding"]

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

    They are computed from sizes, the attention mask and the positions alone, so that no weights are needed: in a step
    after a padded prompt and after the same prompt alone, they must be equal but for the places of the padding.
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
    """Whether two arrays are equal without the places of padding."""
    if padded.ndim != plain.ndim:
        return False
    for axis, (size, expected) in enumerate(zip(padded.shape, plain.shape, strict=True)):
        if size != expected:
            padded = padded.take(kept.get(size, []), axis)
    return np.array_equal(padded, plain)


_Mask: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""From the indices of row, head, query and key to whether the query attends to the key."""


def counts_places(model: Any) -> bool:
    """Whether windows or positions of a model may count places, in a way that ``counting_tokens`` changes."""
    known = vars(sys.modules[type(model).__module__])
    has_windows = "create_sliding_window_causal_mask" in known or "create_chunked_causal_mask" in known
    return has_windows or _position_embedding(model) is not None


@contextmanager
def counting_tokens(model: Any) -> Iterator[None]:
    """In the body, windows, chunks and learned positions are those of a row without its padding."""
    utils = import_extra("transformers").masking_utils
    masks: list[Tensor | None] = [None]

    def keep_mask(_module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        masks[:] = [kwargs.get("attention_mask")]

    def sliding(size: int) -> _Mask:
        mask = masks[0]
        return originals[0](size) if mask is None else partial(_in_window, mask.cumsum(1), size)

    def chunked(size: int, left_padding: Tensor) -> _Mask:
        mask = masks[0]
        return originals[1](size, left_padding) if mask is None else partial(_in_chunk, mask.cumsum(1) - 1, size)

    originals: tuple[Callable[..., _Mask], ...] = utils.sliding_window_overlay, utils.chunked_overlay
    hooks = [model.register_forward_pre_hook(keep_mask, with_kwargs=True)]
    embedding = _position_embedding(model)
    if embedding is not None:
        hooks.append(embedding.register_forward_pre_hook(partial(_give_positions, masks), with_kwargs=True))
        hooks.append(embedding.register_forward_hook(partial(_by_row, masks)))
    utils.sliding_window_overlay, utils.chunked_overlay = sliding, chunked
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        utils.sliding_window_overlay, utils.chunked_overlay = originals


def _in_window(positions: Tensor, size: int, row: Any, _head: Any, query: Any, key: Any) -> Any:
    return positions[row, key] > positions[row, query] - size


def _in_chunk(positions: Tensor, size: int, row: Any, _head: Any, query: Any, key: Any) -> Any:
    return positions[row, key] // size == positions[row, query] // size


def _position_embedding(model: Any) -> nn.Module | None:
    """The embedding that counts positions from the length of the past, as in the decoders of Bart."""
    module = getattr(model.get_decoder(), "embed_positions", None)
    known = inspect.signature(module.forward).parameters if isinstance(module, nn.Module) else {}
    return module if {"past_key_values_length", "position_ids"} <= known.keys() else None


def _give_positions(
    masks: list[Tensor | None], _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Pass the positions of all rows in one dim, which embeddings of one and of two dims take."""
    mask, past = masks[0], args[1] if len(args) > 1 else kwargs.get("past_key_values_length", 0)
    if mask is None:
        return None
    positions = (mask.cumsum(1)[:, past:] - 1).clamp(min=0)
    return args, {**kwargs, "position_ids": positions.flatten()}


def _by_row(masks: list[Tensor | None], _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
    mask = masks[0]
    return output if mask is None else output.reshape(mask.shape[0], -1, output.shape[-1])


_LENGTHS, _BIAS = 5, 10
"""Inputs of GroupQueryAttention: the lengths mask padding after a sequence, and the bias that before it."""


def assume_right_padding(graph: ir.Graph) -> None:
    """Remove the mask of padding on the left, which slows attention down; a length is the sum of the mask."""
    attentions = [node for node in graph if node.op_type == "GroupQueryAttention"]
    if not attentions:
        return
    for node in attentions:
        if len(node.inputs) > _BIAS and node.inputs[_BIAS] is not None:
            node.replace_input_with(_BIAS, None)
            node.resize_inputs(1 + max(index for index, value in enumerate(node.inputs) if value is not None))
    for lengths in {node.inputs[_LENGTHS]: None for node in attentions}:
        _count_without_offset(lengths)
    _merge_sums(graph)
    for node in reversed(graph):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
    used = {*graph.inputs, *graph.outputs}
    for name, value in [*graph.initializers.items()]:
        if not value.uses() and value not in used:
            del graph.initializers[name]


def _count_without_offset(lengths: ir.Value | None) -> None:
    """Simplify ``sum(sign(mask)) + argmax(sign(mask)) - 1`` to ``sum(mask) - 1``."""
    less_one = _operand(_producer(lengths, "Cast"), "Sub")
    end = _operand(less_one, "Add")
    tokens, offset = _operand(end, "ReduceSum"), _operand(end, "ArgMax")
    signs = _operand(tokens, "Sign")
    if less_one is None or tokens is None or signs is None or _operand(offset, "Sign") is not signs:
        return
    less_one.replace_input_with(0, tokens.outputs[0])
    tokens.replace_input_with(0, signs.inputs[0])


def _merge_sums(graph: ir.Graph) -> None:
    """Compute equal sums once: the logits of the last token are selected by the sum of the mask as well."""
    first: dict[ir.Value | None, ir.Node] = {}
    for node in graph:
        if node.op_type != "ReduceSum":
            continue
        equal = first.setdefault(node.inputs[0], node)
        if equal is not node and equal.inputs == node.inputs and equal.attributes == node.attributes:
            node.outputs[0].replace_all_uses_with(equal.outputs[0])


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type else None


def _operand(node: ir.Node | None, op_type: str) -> ir.Node | None:
    """The operator of a type that computes an input of a node."""
    found = (_producer(value, op_type) for value in (() if node is None else node.inputs))
    return next((operand for operand in found if operand is not None), None)
