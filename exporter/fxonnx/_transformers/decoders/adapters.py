"""LoRA adapters of PEFT: inputs of the model whose default is the base model, and a file for each adapter."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ... import ONNXProgram
from ...errors import ArgumentError, ExportError, did_you_mean
from ..language_models import LanguageModel
from ..untrusted import check_checkpoint, loading

__all__ = ["ADAPTER_PATTERN", "Adapters", "load_adapters", "save_adapters"]

ADAPTER_PATTERN = "*.lora_*"
_FACTORS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")
_SUFFIX = ".onnx_adapter"


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model.

    Attributes:
        directories: Name to directory.
        peft_model: The model of PEFT around the model of transformers; None without adapters.
    """

    directories: Mapping[str, Path] = field(default_factory=dict)
    peft_model: Any = None

    @contextmanager
    def active(self, name: str | None) -> Iterator[None]:
        """Use one adapter in transformers, or none."""
        if self.peft_model is None:
            yield
        elif name is None:
            with self.peft_model.disable_adapter():
                yield
        else:
            before = self.peft_model.active_adapter
            self.peft_model.set_adapter(name)
            yield
            self.peft_model.set_adapter(before)


def load_adapters(
    loaded: LanguageModel, adapters: Mapping[str, str | os.PathLike[str]]
) -> tuple[LanguageModel, Adapters]:
    """Load adapters into a model; one that has the layers and ranks of all is active."""
    if not adapters:
        return loaded, Adapters()
    try:
        import peft
    except ModuleNotFoundError as error:
        raise ExportError(
            "adapters: the module peft is not installed", hint="install it with: pip install peft"
        ) from error
    directories = {name: _checked(name, Path(directory)) for name, directory in adapters.items()}
    if loaded.directory is None:
        loaded = replace(loaded, model=copy.deepcopy(loaded.model))
    peft_model: Any = None
    for name, directory in directories.items():
        peft_model = _with_adapter(peft, loaded.model if peft_model is None else peft_model, name, directory)
    ranks = _ranks(peft_model, directories)
    covering = [name for name in directories if all(found.get(name) == max(found.values()) for found in ranks.values())]
    if covering or not ranks:
        sizes = {
            name: sum(p.numel() for key, p in peft_model.named_parameters() if name in key.split(".")[-2:])
            for name in covering or directories
        }
        peft_model.set_adapter(max(sizes, key=lambda name: sizes[name]))
    else:
        _add_common_adapter(peft, peft_model, {layer: max(found.values()) for layer, found in ranks.items()})
    return loaded, Adapters(directories, peft_model.eval())


def _ranks(peft_model: Any, adapters: Collection[str]) -> dict[str, dict[str, int]]:
    """Name of each layer with LoRA to the ranks of the adapters that it has."""
    return {
        name: {adapter: int(rank) for adapter, rank in layer.r.items() if adapter in adapters}
        for name, layer in peft_model.get_base_model().named_modules()
        if hasattr(layer, "lora_A") and not {*adapters}.isdisjoint(getattr(layer, "r", ()))
    }


def _add_common_adapter(peft: Any, peft_model: Any, ranks: Mapping[str, int]) -> None:
    """Activate an adapter of zeros that has the layers of all adapters, each with the largest rank."""
    name = "all"
    while name in peft_model.peft_config:
        name += "_"
    patterns = {re.escape(layer): rank for layer, rank in ranks.items()}
    first = next(iter(peft_model.peft_config.values()))
    config = peft.LoraConfig(
        task_type=first.task_type,
        target_modules=list(ranks),
        r=max(ranks.values()),
        lora_alpha=max(ranks.values()),
        rank_pattern=patterns,
        alpha_pattern=dict(patterns),
        fan_in_fan_out=first.fan_in_fan_out,
    )
    peft_model.add_adapter(name, config, autocast_adapter_dtype=False)
    peft_model.set_adapter(name)
    with torch.no_grad():
        for key, parameter in peft_model.named_parameters():
            if name in key.split(".")[-2:]:
                parameter.zero_()


def _with_adapter(peft: Any, model: Any, name: str, directory: Path) -> Any:
    """The model of PEFT with one more adapter, in the dtype of the base model."""
    with loading(directory, "adapters"):
        if not isinstance(model, peft.PeftModel):
            return peft.PeftModel.from_pretrained(model, directory, adapter_name=name, autocast_adapter_dtype=False)
        model.load_adapter(directory, adapter_name=name, autocast_adapter_dtype=False)
    return model


def _checked(name: str, directory: Path) -> Path:
    if not name or "." in name or "/" in name:
        raise ArgumentError("adapters", f"{name!r} cannot be the name of an adapter", hint="names have no '.' or '/'")
    if not (directory / "adapter_config.json").is_file():
        hint = did_you_mean(directory.name, (other.name for other in directory.parent.glob("*") if other.is_dir()))
        raise ArgumentError("adapters", f"{directory} has no adapter_config.json", hint=hint)
    check_checkpoint(directory, "adapters")
    return directory


def save_adapters(program: ONNXProgram, adapters: Adapters, out: Path) -> None:
    """Write a file for each adapter; the default values of the program become the base model's."""
    if not adapters.directories:
        return
    for name in adapters.directories:
        program.save_adapter(out / f"{name}{_SUFFIX}", adapter=name)
    zeros = {}
    for name in program.interface.adapters:
        (factor,) = [part for part in name.split(".") if part.startswith("lora_")]
        if factor not in _FACTORS:
            raise ArgumentError("adapters", f"{name!r} is not a factor of a low-rank product", hint="merge the adapter")
        if factor.endswith("B"):
            zeros[name] = torch.zeros_like(program.exported_program.state_dict[name])
    program.apply_weights(zeros)
