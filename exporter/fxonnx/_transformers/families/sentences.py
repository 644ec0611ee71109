"""The modules after the model in directories of sentence-transformers: pooling, dense layers and normalization."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..core import read_json
from ..untrusted import loading, read_settings

__all__ = [
    "POOLINGS",
    "Dense",
    "Normalize",
    "Pooling",
    "has_sentence_modules",
    "load_sentence_modules",
    "model_directory",
    "sentence_length",
]

Pooling = Literal["cls", "last", "max", "mean", "mean_sqrt_len", "weighted_mean"]

_MODULES = "modules.json"


def has_sentence_modules(directory: Path) -> bool:
    """Whether sentence-transformers saved a directory."""
    return (directory / _MODULES).is_file()


def model_directory(directory: Path) -> Path:
    """The directory of the model and its tokenizer inside of an embedding model's."""
    if has_sentence_modules(directory):
        for name, path in _modules(directory):
            if name == "Transformer":
                return path
    return directory


def sentence_length(directory: Path) -> int:
    """The number of tokens after which sentence-transformers truncates a text."""
    path = directory / "sentence_bert_config.json"
    length = read_settings(path).get("max_seq_length") if path.is_file() else None
    return length if isinstance(length, int) else sys.maxsize


def load_sentence_modules(
    directory: Path, dtype: torch.dtype, pooling: Pooling | None
) -> tuple[Pooling | None, list[nn.Module]]:
    """Read the pooling and the modules after it.

    Returns:
        The pooling, None if it is not known, and the other modules.
    """
    modules: list[nn.Module] = []
    for name, path in _modules(directory) if has_sentence_modules(directory) else ():
        if name == "Pooling":
            pooling = pooling or _pooling(path)
        elif name == "Dense":
            modules.append(_dense(path, dtype))
        elif name == "Normalize":
            modules.append(Normalize())
        elif name != "Transformer":
            raise ArgumentError(
                "model", f"{directory / _MODULES} has a module {name}; supported are Pooling, Dense and Normalize"
            )
    return pooling, modules


def _modules(directory: Path) -> list[tuple[str, Path]]:
    """Class name and directory of each module."""
    entries = read_json(directory / _MODULES, "model")
    return [(entry["type"].rpartition(".")[2], directory / entry["path"]) for entry in entries]


_POOLING_SETTINGS: Mapping[str, Pooling] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_lasttoken": "last",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_weightedmean_tokens": "weighted_mean",
    }
)
_POOLING_MODES: Mapping[str, Pooling] = MappingProxyType(
    {
        "cls": "cls",
        "lasttoken": "last",
        "max": "max",
        "mean": "mean",
        "mean_sqrt_len_tokens": "mean_sqrt_len",
        "weightedmean": "weighted_mean",
    }
)
"""The settings of older and newer versions of sentence-transformers."""


def _pooling(directory: Path) -> Pooling:
    path = directory / "config.json"
    settings = read_settings(path)
    chosen = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    mode = settings.get("pooling_mode")
    if settings.get("include_prompt") is False:
        raise ArgumentError(
            "model",
            f"{path} leaves out the prompt before each text, whose length the exported model does not know",
            hint="pass pooling= to include the prompt",
        )
    if isinstance(mode, str) and mode in _POOLING_MODES:
        return _POOLING_MODES[mode]
    if mode is None and len(chosen) == 1 and chosen[0] in _POOLING_SETTINGS:
        return _POOLING_SETTINGS[chosen[0]]
    found = mode or ", ".join(chosen) or "none"
    raise ArgumentError(
        "model",
        f"{path} has the pooling {found}; supported is one of {', '.join(_POOLING_MODES)}",
        hint="pass pooling=",
    )


def _cls(hidden: Tensor, _mask: Tensor) -> Tensor:
    return hidden[:, 0]


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * positions).argmax(-1)
    return hidden[torch.arange(mask.shape[0], device=mask.device), last]


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(hidden.dtype).min).amax(1)


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def _mean_sqrt_len(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Later tokens, which have seen more of the text in a decoder, count more."""
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    weights = (mask * positions).unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


POOLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "cls": _cls,
        "last": _last,
        "max": _max,
        "mean": _mean,
        "mean_sqrt_len": _mean_sqrt_len,
        "weighted_mean": _weighted_mean,
    }
)
"""Pooling to a function of the hidden states and the attention mask."""


class Dense(nn.Module):
    """A linear layer with an activation."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.activation = linear, activation

    def forward(self, embedding: Tensor) -> Tensor:
        result: Tensor = self.activation(self.linear(embedding))
        return result


class Normalize(nn.Module):
    """Division by the L2 norm."""

    def forward(self, embedding: Tensor) -> Tensor:
        return nn.functional.normalize(embedding, dim=-1)


def _dense(directory: Path, dtype: torch.dtype) -> Dense:
    settings = read_settings(directory / "config.json")
    name = str(settings.get("activation_function", "torch.nn.modules.linear.Identity")).rpartition(".")[2]
    activation = getattr(nn, name, None)
    weights = directory / "model.safetensors"
    if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
        raise ArgumentError("model", f"{directory / 'config.json'} has an unknown activation {name}")
    with loading(directory):
        state = _state(weights) if weights.is_file() else torch.load(directory / "pytorch_model.bin", weights_only=True)
        sizes = settings["in_features"], settings["out_features"]
        linear = nn.Linear(*sizes, bias=settings.get("bias", True), device="meta")
        linear.load_state_dict({key.removeprefix("linear."): value for key, value in state.items()}, assign=True)
        return Dense(linear.to(dtype), activation())


def _state(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(path))
