"""Caches of 8-bit integers, whose scales are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

import onnx_ir as ir
import torch

from ... import ONNXProgram
from ...errors import ArgumentError
from ..extras import check_choice, import_extra
from ..language_models import LanguageModel
from ..layouts.genai_config import context_length
from .step import example_inputs

__all__ = ["CacheType", "check_cache_type", "use_integer_caches"]

CacheType: TypeAlias = Literal["float", "int8"]

_TOPIC = "class"
"""A text about Python of some thousand letters, which every installation has."""
_TOKENS = 384
_PAST, _SCALES = (3, 4), (12, 13)
"""Inputs of GroupQueryAttention: keys and values, and the scales of each."""
_LARGEST = 127.0
_HEADROOM = 1.25
"""Other texts have larger numbers, whose rounding to the largest integer loses more than larger scales do."""


def check_cache_type(cache: str, target: str) -> None:
    """Check the argument ``cache``."""
    check_choice("cache", cache, get_args(CacheType))
    if cache != "float" and target != "cpu":
        raise ArgumentError("cache", f"caches of {cache} are supported for the CPU only", hint="leave it out")


def use_integer_caches(program: ONNXProgram, loaded: LanguageModel) -> None:
    """Change keys and values in the caches to 8-bit integers, with one scale for each channel of a head, in place."""
    nodes = [node for node in program.model.graph if node.op_type == "GroupQueryAttention"]
    caches = {value for node in nodes for value in (*(node.inputs[index] for index in _PAST), *node.outputs[1:3])}
    graph = program.model.graph
    others = [
        str(value.name)
        for value in (*graph.inputs, *graph.outputs)
        if str(value.name).startswith(("past_key_values.", "present.")) and value not in caches
    ]
    if others or not nodes:
        raise ArgumentError(
            "cache",
            f"caches of int8 require GroupQueryAttention in all layers, and {type(loaded.model).__name__} has another "
            f"operator{f' for {others[0]}' if others else ''}",
            hint="leave it out",
        )
    largest = _largest_magnitudes(program, loaded)
    program.release()
    for node in nodes:
        for index, name in zip(_PAST, ("k", "v"), strict=True):
            past, present = node.inputs[index], node.outputs[index - 2]
            if past is None:
                continue
            magnitudes = largest[str(present.name)]
            scales = (magnitudes * (_HEADROOM / _LARGEST)).clamp(min=torch.finfo(torch.float32).tiny)
            _set_scales(node, _SCALES[index - 3], f"{present.name}.scale", scales)
            node.attributes[f"{name}_quant_type"] = ir.AttrString(f"{name}_quant_type", "PER_CHANNEL")
            for value in (past, present):
                value.type = ir.TensorType(ir.DataType.INT8)
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)


def _set_scales(node: ir.Node, index: int, name: str, scales: torch.Tensor) -> None:
    """Make scales an input of a node."""
    value = ir.val(name, const_value=ir.tensor(scales.flatten().numpy(), name=name))
    if node.graph is not None:
        node.graph.register_initializer(value)
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _largest_magnitudes(program: ONNXProgram, loaded: LanguageModel) -> Mapping[str, torch.Tensor]:
    """Name of each cache to the largest magnitude in each channel of a head, for a text and for random tokens."""
    names = [str(value.name) for value in program.model.graph.outputs]
    largest: dict[str, torch.Tensor] = {}
    for tokens in _prompts(loaded):
        for name, result in zip(names, program(**_inputs(program, loaded, tokens)), strict=True):
            if name.startswith("present."):
                found = torch.as_tensor(result).float().abs().amax((0, 2))
                largest[name] = torch.maximum(found, largest.get(name, found))
    return largest


def _inputs(program: ONNXProgram, loaded: LanguageModel, tokens: torch.Tensor) -> dict[str, Any]:
    """The inputs of a prompt without a past."""
    transformers = import_extra("transformers")
    inputs = example_inputs(loaded.model, batch=1)
    (parameter,) = [name for name, value in inputs.items() if isinstance(value, transformers.DynamicCache)]
    has_positions = any(value.name == "position_ids" for value in program.model.graph.inputs)
    positions = {"position_ids": torch.arange(tokens.shape[1])[None]} if has_positions else {}
    pairs = [(layer.keys[:, :, :0], layer.values[:, :, :0]) for layer in inputs[parameter].layers]
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        parameter: transformers.DynamicCache(pairs),
        **positions,
    }


def _prompts(loaded: LanguageModel) -> Iterator[torch.Tensor]:
    """A text and random tokens, both in tokens that the model has."""
    from pydoc_data import topics  # some hundred kilobytes

    vocabulary = loaded.config.vocab_size
    length = min(_TOKENS, context_length(loaded.config))
    found = loaded.tokenizer(topics.topics[_TOPIC]).input_ids
    yield torch.tensor([[token for token in found if token < vocabulary][:length]])
    yield torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
