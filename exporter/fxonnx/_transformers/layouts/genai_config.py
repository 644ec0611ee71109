"""genai_config.json: the architecture, the names of inputs and outputs, and the defaults of the search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from ...errors import ArgumentError
from ..core import warn_user
from ..decoders.attention import dynamic_factor

__all__ = [
    "INPUT_KEYS",
    "OUTPUT_KEYS",
    "context_length",
    "genai_config",
    "genai_keys",
    "genai_type",
    "search_settings",
    "session_options",
    "token_ids",
]

_CONTEXT_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_DEFAULT_CONTEXT_LENGTH = 4096

_SEARCH: Mapping[str, Any] = MappingProxyType(
    {
        "diversity_penalty": 0.0,
        "do_sample": False,
        "length_penalty": 1.0,
        "min_length": 0,
        "no_repeat_ngram_size": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }
)
"""Settings that the generation configuration of transformers may override, with its defaults."""

INPUT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "input_ids": "input_ids",
        "inputs_embeds": "inputs_embeds",
        "attention_mask": "attention_mask",
        "position_ids": "position_ids",
        "past_key_values.%d.key": "past_key_names",
        "past_key_values.%d.value": "past_value_names",
        "past_key_values.%d.conv": "past_conv_names",
        "past_key_values.%d.conv_state": "past_conv_names",
        "past_key_values.%d.recurrent_state": "past_recurrent_names",
    }
)
OUTPUT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "logits": "logits",
        "hidden_states": "hidden_states",
        "present.%d.key": "present_key_names",
        "present.%d.value": "present_value_names",
        "present.%d.conv": "present_conv_names",
        "present.%d.conv_state": "present_conv_names",
        "present.%d.recurrent_state": "present_recurrent_names",
    }
)
"""Names of graph inputs and outputs, with %d for the layer, and their keys in genai_config.json."""

_CACHED = re.compile(r"(past_key_values|present)\.\d+\.(key|value)")

_PROVIDERS: Mapping[str, str] = MappingProxyType(
    {"cuda": "cuda", "webgpu": "webgpu", "directml": "dml", "tensorrt-rtx": "NvTensorRtRtx"}
)
"""Device to the name of its execution provider in genai_config.json."""


def genai_config(model: Any, tokenizer: Any, graph: ir.Graph, target: str, filename: str) -> dict[str, Any]:
    """Describe an exported decoder."""
    config = model.config.get_text_config(decoder=True)
    # Inputs with default values are weights of adapters.
    needed = [value for value in graph.inputs if not value.is_initializer()]
    inputs, outputs = genai_keys(needed, INPUT_KEYS), genai_keys(graph.outputs, OUTPUT_KEYS)
    keys = [value for value in graph.inputs if re.fullmatch(r"past_key_values\.\d+\.key", str(value.name))]
    states = [value for value in needed if re.fullmatch(r"past_key_values\.\d+\.conv", str(value.name))]
    has_recurrence = "present_recurrent_names" in outputs
    if "present_key_names" not in outputs and not has_recurrence:
        raise ArgumentError(
            "model", f"{type(model).__name__} does not return its cache", hint="is_decoder=True in its configuration?"
        )
    length = context_length(config)
    decoder = {
        "session_options": session_options(target),
        "filename": filename,
        **({"head_size": _size(keys[0], 3)} if keys else {}),
        "hidden_size": config.hidden_size,
        **({"num_attention_heads": config.num_attention_heads} if keys else {}),
        "num_hidden_layers": config.num_hidden_layers if has_recurrence else len(keys) + len(states),
        **({"num_key_value_heads": _size(keys[0], 1)} if keys else {}),
        "inputs": inputs,
        "outputs": outputs,
    }
    if states:
        decoder |= {"layer_types": list(config.layer_types), "conv_cache_size": _size(states[0], 2)}
    return {
        "model": {
            "type": genai_type(config.model_type),
            "vocab_size": _size(graph.outputs[0], 2),
            "context_length": length,
            **token_ids(model, tokenizer),
            "decoder": decoder,
        },
        "search": {
            **search_settings(model, length, shares_buffers=_shares_buffers(graph)),
            **(_single_beam(model) if has_recurrence else {}),
        },
    }


def _single_beam(model: Any) -> dict[str, Any]:
    """Settings of models with recurrent states, whose beams onnxruntime-genai confuses without an error."""
    beams = model.generation_config.num_beams or 1
    default = f"; genai_config.json has num_beams 1 in place of {beams}" if beams > 1 else ""
    warn_user(
        "onnxruntime-genai does not reorder recurrent states in a beam search: num_beams above 1 gives other tokens "
        f"than transformers{default}"
    )
    return {"num_beams": 1}


def _shares_buffers(graph: ir.Graph) -> bool:
    """Whether past and present may be one buffer: only GroupQueryAttention appends to it in place, and not integers."""
    presents = [value for value in graph.outputs if _CACHED.fullmatch(str(value.name))]
    nodes = (value.producer() for value in presents)
    has_integers = any(value.dtype == ir.DataType.INT8 for value in presents)
    return not has_integers and all(node is not None and node.op_type == "GroupQueryAttention" for node in nodes)


def genai_keys(values: Sequence[ir.Value], known: Mapping[str, str]) -> dict[str, str]:
    """Return key in genai_config.json to name, for the inputs or outputs of a graph."""
    patterns = {str(value.name): re.sub(r"\.\d+\.", ".%d.", str(value.name)) for value in values}
    unknown = [name for name, pattern in patterns.items() if pattern not in known]
    if unknown:
        raise ArgumentError(
            "model", f"onnxruntime-genai cannot provide or use these inputs or outputs: {', '.join(unknown)}"
        )
    return {known[pattern]: pattern for pattern in patterns.values()}


def _size(value: ir.Value, axis: int) -> int:
    size = None if value.shape is None else value.shape[axis]
    if not isinstance(size, int):
        raise ArgumentError("model", f"axis {axis} of {value.name} must have one size, but has the shape {value.shape}")
    return size


def context_length(config: Any) -> int:
    """The largest number of tokens that a model can process."""
    found = (getattr(config, name, None) for name in _CONTEXT_LENGTHS)
    length = next((length for length in found if isinstance(length, int)), _DEFAULT_CONTEXT_LENGTH)
    return int(length * dynamic_factor(config))


def token_ids(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Ids of the special tokens that are known."""
    ids: dict[str, Any] = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        sources = (model.generation_config, model.config.get_text_config(decoder=True), tokenizer)
        values = (getattr(source, name, None) for source in sources)
        ids[name] = next((value for value in values if value is not None), None)
    eos = ids["eos_token_id"]
    if ids["pad_token_id"] is None:
        ids["pad_token_id"] = eos[0] if isinstance(eos, list) else eos
    return {name: value for name, value in ids.items() if value is not None}


def search_settings(model: Any, max_length: int, *, shares_buffers: bool = False) -> dict[str, Any]:
    """The defaults of the search, from the generation configuration of the model."""
    specified = {name: getattr(model.generation_config, name, None) for name in _SEARCH}
    settings = {name: default if specified[name] is None else specified[name] for name, default in _SEARCH.items()}
    return {**settings, "early_stopping": True, "max_length": max_length, "past_present_share_buffer": shares_buffers}


def session_options(target: str) -> dict[str, Any]:
    """The session options of one model file."""
    providers: list[Any] = [{_PROVIDERS[target]: {}}] if target in _PROVIDERS else []
    return {"log_id": "onnxruntime-genai", "provider_options": providers}


_KNOWN = frozenset(
    {
        *("chatglm", "ernie4_5", "gemma", "gemma2", "gemma3_text", "gemma4_text", "gptoss", "granite"),
        *("granitemoehybrid", "hunyuandensev1", "internlm2", "lfm2", "lfm2_moe", "llama", "mistral", "nemotron"),
        *("olmo", "phi", "phi3", "phimoe", "qwen2", "qwen3", "smollm3"),
    }
)
"""Types of decoder-only models in onnxruntime-genai 0.18; for gpt2 it expects keys and values in one input."""

_RENAMED: Mapping[str, str] = MappingProxyType({"gpt_oss": "gptoss", "hunyuan_v1_dense": "hunyuandensev1"})

_GENERAL = "decoder"
"""Type of any other decoder-only model; onnxruntime-genai derives the rest from the names of inputs and outputs."""


def genai_type(model_type: str) -> str:
    """The type in genai_config.json for a decoder-only model."""
    name = _RENAMED.get(model_type, model_type)
    return name if name in _KNOWN else _GENERAL
