"""GGUF files of small models, as llama.cpp's converter writes them, and the model that each represents."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from .small_models import VOCABULARY, make_model, make_tokenizer

SIZES: Mapping[str, Any] = MappingProxyType(
    {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 64, "num_attention_heads": 4}
)
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.sliding_window": "sliding_window",
    }
)
_HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]}
"""Type to the places of numbers of float16 in a block."""
_HALVES |= {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
_SMALL = {"Q4_K": 40, "Q5_K": 60, "Q6_K": 60, "Q8_0": 8}
"""By how much the integers of scales and codes are larger than those of the others."""


def random_blocks(shape: tuple[int, ...], type_name: str, seed: int) -> np.ndarray:
    """Blocks of any bytes, whose scales are small."""
    import gguf

    generator = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    blocks = generator.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    for start in _HALVES[type_name]:
        scales = generator.uniform(-0.06, 0.06, blocks.shape[:-1]) / _SMALL.get(type_name, 1)
        blocks[..., start : start + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a projection to heads in the order of llama.cpp's Llama."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def add_tokenizer(writer: Any) -> None:
    """The vocabulary of the small tokenizer."""
    tokenizer = make_tokenizer()
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    tokens += [f"<unused{index}>" for index in range(VOCABULARY - len(tokens))]
    merges = __import__("json").loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if index < 3 else 1 for index in range(VOCABULARY)])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(tokenizer.chat_template)


def write_model(
    path: Path,
    types: Mapping[str, str] = MappingProxyType({}),
    *,
    architecture: str = "llama",
    factors: np.ndarray | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    **sizes: Any,
) -> Any:
    """Write a file, and return the model of transformers that it represents.

    Args:
        path: The file.
        types: End of the name of a weight to its type; "" for all others. Vectors are F32, other matrices F16.
        architecture: The architecture, which is the type of the model but for ``gemma3``.
        factors: Divisors of the frequencies of rotary embeddings.
        settings: Further settings of the architecture.
        **sizes: Settings of the model.
    """
    import gguf
    from gguf import GGMLQuantizationType as Type

    model_type = {"gemma3": "gemma3_text"}.get(architecture, architecture)
    model = make_model(model_type, **{**SIZES, **sizes})
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    for name, attribute in SETTINGS.items():
        value = getattr(config, attribute, None)
        if value is not None:
            writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    rotary = config.rope_parameters
    writer.add_float32(f"{architecture}.rope.freq_base", rotary.get("full_attention", rotary)["rope_theta"])
    writer.add_uint32(f"{architecture}.rope.dimension_count", config.head_dim)
    for name, value in settings.items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(f"{architecture}.{name}", value)
    add_tokenizer(writer)
    names = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), 9
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    offset = 1 if architecture.startswith("gemma") else 0
    for index, (name, parameter) in enumerate(model.named_parameters()):
        module = name.rpartition(".")[0]
        stored = f"{names.get_name(module)}.{name.rpartition('.')[2]}"
        rows = heads.get(module.rpartition(".")[2]) if architecture == "llama" else None
        kind = next((kind for end, kind in types.items() if module.endswith(end)), "F16")
        if parameter.ndim < 2:
            writer.add_tensor(stored, parameter.detach().numpy() + (offset if "norm" in name else 0))
            continue
        if kind in _HALVES:
            # The rows of the file are those of the model in another order.
            blocks = random_blocks(tuple(parameter.shape), kind, index)
            values = gguf.dequantize(blocks, Type[kind])
            blocks = blocks if rows is None else permuted(blocks, rows)
            writer.add_tensor(stored, blocks, raw_dtype=Type[kind])
        else:
            values = parameter.detach().numpy().astype(np.float16)
            writer.add_tensor(stored, values if rows is None else permuted(values, rows))
        parameter.data = torch.from_numpy(np.array(values, np.float32))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
        for rotary in [module for module in model.modules() if hasattr(module, "inv_freq")]:
            rotary.inv_freq /= torch.from_numpy(factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def header(*settings: bytes, tensors: int = 0, count: int | None = None, version: int = 3) -> bytes:
    """The beginning of a file, by hand."""
    found = len(settings) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", version, tensors, found) + b"".join(settings)


def text(value: str, length: int | None = None) -> bytes:
    """A string, whose length may be wrong."""
    return struct.pack("<Q", len(value) if length is None else length) + value.encode()


def setting(key: str, value: str | int) -> bytes:
    """A setting: a text or an unsigned integer."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    return text(key) + struct.pack("<II", 4, value)


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """The entry of a tensor, with the axis of consecutive numbers first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
