"""Small models with random weights, a trained tokenizer, and generation with both libraries."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import fxonnx.genai
from tests.models.torchvision_shim import import_torchvision

with suppress(ModuleNotFoundError):  # the environment of optimum has none
    import_torchvision()
# torch remembers the functions that create tensors when a device is first the default one. transformers replaces some of
# them while it loads a model and does the same, after which linspace would ignore the device.
with torch.device("meta"):
    torch.empty(0)

__all__ = [
    "PADDING",
    "VOCABULARY",
    "export_small",
    "generated",
    "generated_by_transformers",
    "make_model",
    "make_tokenizer",
    "padded",
    "prompt",
]

VOCABULARY = 300
PADDING = (3, 0, 5)
"""Number of padding tokens in each row of ``padded()``."""
_SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)
_NONE: Mapping[str, Any] = MappingProxyType({})
_TEXT = ("the quick brown fox jumps over the lazy dog", "a language model predicts the next token of a text")


@cache
def make_tokenizer() -> Any:
    """A byte-level BPE tokenizer, trained on two sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )
    made.chat_template = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
    return made


def make_model(model_type: str, **sizes: Any) -> Any:
    """A causal language model with random weights.

    Args:
        model_type: ``model_type`` of the configuration.
        **sizes: Settings that are not those of all small models.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**_SIZES, **sizes})).eval()
    # The usual initialization is so small that a model repeats its last token.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = 2
    return model


def export_small(directory: Path, model_type: str, *, sizes: Mapping[str, Any] = _NONE, **options: Any) -> Any:
    """Export a small model to a directory without the final comparison, and return it."""
    model = make_model(model_type, **sizes)
    fxonnx.genai.export(model, directory, tokenizer=make_tokenizer(), verify=False, **options)
    return model


def prompt(batch: int, length: int = 6) -> torch.Tensor:
    """Random tokens, none of them special."""
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def padded(left: bool) -> torch.Tensor:
    """A batch of prompts of unequal lengths; onnxruntime-genai pads on the right, transformers on the left."""
    ids = prompt(3, 8)
    for row, count in enumerate(PADDING):
        pads = torch.zeros(count, dtype=torch.int64)
        ids[row] = torch.cat([pads, ids[row, count:]] if left else [ids[row, count:], pads])
    return ids


def generated(
    directory: Path, ids: torch.Tensor, new: int = 24, adapter: str | None = None, **options: Any
) -> list[list[int]]:
    """The new tokens of each row from onnxruntime-genai, without the final token."""
    import onnxruntime_genai as og

    model = og.Model(str(directory))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(
        **{"max_length": ids.shape[1] + new, "batch_size": len(ids), "do_sample": False, **options}
    )
    generator = og.Generator(model, parameters)
    if adapter is not None:
        adapters = og.Adapters(model)
        adapters.load(str(directory / f"{adapter}.onnx_adapter"), adapter)
        generator.set_active_adapter(adapters, adapter)
    generator.append_tokens(ids.to(torch.int32).numpy())
    while not generator.is_done():
        generator.generate_next_token()
    return [_until_end(generator.get_sequence(row).tolist()[ids.shape[1] :]) for row in range(len(ids))]


def generated_by_transformers(model: Any, ids: torch.Tensor, new: int = 24, **options: Any) -> list[list[int]]:
    """The same from transformers; 0 is padding."""
    mask = (ids != 0).to(torch.int64)
    tokens = model.generate(ids, attention_mask=mask, **{"max_new_tokens": new, "do_sample": False, **options})
    return [_until_end(row[ids.shape[1] :].tolist()) for row in tokens]


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(2)] if 2 in tokens else tokens
