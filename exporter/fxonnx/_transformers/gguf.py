"""Models in GGUF files: their configuration, tokenizer and weights, as transformers reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ArgumentError
from .core import DerivedTensor, PackedTensor, QuantizedWeight, StoredForms, from_torch, warn_user
from .extras import import_extra
from .gguf_file import FORMS, GgufFile, StoredBlocks, decoded, integers, read_gguf, write_header
from .meta import compute_buffers, model_on_meta
from .source import without_progress
from .untrusted import check_checkpoint, check_weights, loading

__all__ = ["GgufModel", "find_gguf", "load_gguf", "read_gguf_model"]

_ARCHITECTURES = ("gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen3")
"""Architectures whose weights and settings are compared with transformers' own models in the tests."""
_FACTORS = "rope_freqs.weight"
"""Numbers by which the frequencies of rotary embeddings are divided, as Llama 3.1 scales them."""
_WITHOUT_EFFECT = frozenset(
    {
        *("attention.key_length", "attention.value_length", "vocab_size", "rope.scaling.type", "rope.scaling.factor"),
        *("attention.sliding_window", "tensor_data_layout", "rope.dimension_count", "attn_logit_softcapping"),
        *("final_logit_softcapping", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    }
)
"""Settings that are read here, or that do not change a model of these architectures."""

_OWN_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "attention.key_length": "head_dim",
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    }
)
"""Setting to the name in the configuration, which a configuration without that name ignores."""
_LARGEST_GEMMA: Mapping[str, int] = MappingProxyType({"gemma2": 46, "gemma3": 62})
"""Architecture to the number of layers of its model of 27 billion parameters."""
_DEFAULT_BASE = 10_000.0


@dataclass(frozen=True)
class GgufWeight:
    """A weight of a model in a GGUF file.

    Attributes:
        path: The file.
        name: FQN of the weight in the model.
        stored: The tensor.
        rows: The rows of the tensor in the order of the model's weight; None for those of the file.
        values: The weight, if it is not the tensor with its rows in another order.
        keeps_integers: Whether a quantized model has the integers of the file.
    """

    path: Path
    name: str
    stored: StoredBlocks
    rows: npt.NDArray[np.int64] | None = None
    values: torch.Tensor | None = None
    keeps_integers: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of output and input features."""
        first, second = self.stored.shape
        return first, second

    @property
    def has_integers(self) -> bool:
        """Whether it is a matrix of integers with scales."""
        return self.values is None and self.stored.type_name in FORMS and len(self.stored.shape) == 2

    def initializer(self, name: str, dtype: torch.dtype) -> DerivedTensor:
        """The weight as an initializer, for a model that has it in an element type."""
        if self.has_integers and self.keeps_integers:
            return PackedTensor(name, self, from_torch(dtype))
        shape = self.stored.shape if self.values is None else tuple(self.values.shape)
        return DerivedTensor(name, (), partial(self.dequantized, dtype), from_torch(dtype), shape)

    def quantized(self, dtype: torch.dtype, *, codes: bool = True, is_permuted: bool = False) -> QuantizedWeight:
        """Read the integers; see ``PackedWeight``."""
        found = integers(self.stored, self.rows, codes=codes)
        offsets = None if found.offsets is None else found.offsets.to(dtype)
        return QuantizedWeight(found.codes, found.scales.to(dtype), None, found.bits, found.block_size, offsets)

    def order(self) -> torch.Tensor:
        """The input features, which are in their order."""
        return torch.arange(self.shape[1])

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """Compute the weight."""
        if self.values is not None:
            return self.values.to(dtype)
        found = decoded(self.stored)
        return (found if self.rows is None else found[torch.from_numpy(self.rows)]).to(dtype)


@dataclass(frozen=True)
class GgufModel:
    """A model in a GGUF file.

    Attributes:
        file: The file.
        config: The configuration of transformers.
        tokenizer: The tokenizer.
    """

    file: GgufFile
    config: Any
    tokenizer: Any

    @cached_property
    def weights(self) -> Mapping[str, GgufWeight]:
        """FQN to weight."""
        return MappingProxyType(_weights(self.file, self.config))

    def sources(self, *, keeps_integers: bool) -> Mapping[str, GgufWeight]:
        """The weights for a model with their integers, or without."""
        return {name: replace(each, keeps_integers=keeps_integers) for name, each in self.weights.items()}

    def quantization(self) -> StoredForms | None:
        """The forms of the integers; None without any."""
        forms = {name: FORMS[each.stored.type_name] for name, each in self.weights.items() if each.has_integers}
        return StoredForms("int4", embeddings="int8", forms=forms) if forms else None

    def load(self, model_class: Any, dtype: torch.dtype) -> tuple[Any, Mapping[str, Any]]:
        """Make the model with its weights as floating-point numbers."""
        state = {name: weight.dequantized(dtype) for name, weight in self.weights.items()}
        options = {"config": self.config, "dtype": dtype, "ignore_mismatched_sizes": True, "output_loading_info": True}
        with loading(self.file.path), without_progress():
            loaded, report = model_class.from_pretrained(None, state_dict=state, **options)
        self._scale_frequencies(loaded)
        return loaded.eval(), report

    def without_weights(self, model_class: Any, dtype: torch.dtype) -> Any:
        """Make the model with parameters on the meta device.

        Returns:
            The model; None if the file lacks weights, or a buffer has values that transformers does not compute again.
        """
        with loading(self.file.path):
            model = model_on_meta(self.config, model_class, dtype).eval()
        tied = set(model._tied_weights_keys or ()) if self.config.tie_word_embeddings else set()
        needed = {name: tuple(value.shape) for name, value in model.named_parameters() if name not in tied}
        found = {name: tuple(weight.stored.shape) for name, weight in self.weights.items()}
        if any(found.get(name) != shape for name, shape in needed.items()) or not compute_buffers(model):
            return None
        self._scale_frequencies(model)
        return model

    def _scale_frequencies(self, model: Any) -> None:
        """Divide the frequencies of rotary embeddings by the factors in the file."""
        if _FACTORS not in self.file.tensors:
            return
        factors = decoded(self.file.tensors[_FACTORS]).flatten()
        found = [
            buffer
            for name, buffer in model.named_buffers()
            if name.rpartition(".")[2] in ("inv_freq", "original_inv_freq") and buffer.numel() == factors.numel()
        ]
        if not found or not bool((factors > 0).all()):
            raise ArgumentError("model", f"{self.file.path} has factors for the frequencies of another model")
        for buffer in found:
            buffer.div_(factors.to(buffer.dtype))


def load_gguf(path: Path) -> tuple[Any, Any]:
    """Load a model in float32, and its tokenizer."""
    found = read_gguf_model(path)
    transformers = import_extra("transformers")
    model, report = found.load(transformers.AutoModelForCausalLM._model_mapping[type(found.config)], torch.float32)
    check_weights(path, report)
    return model, found.tokenizer


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that a path is, or that a directory without config.json has."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ArgumentError("model", f"{path} has several GGUF files: {names}", hint="pass the path of one of them")
    return files[0] if files else None


def read_gguf_model(path: Path) -> GgufModel:
    """Read a model without its weights."""
    import_extra("gguf")
    file = read_gguf(path)
    architecture = file.setting("general.architecture")
    if architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ArgumentError(
            "model",
            f"{path} has a model of the architecture {architecture!r}; those of GGUF files that are read are {known}",
            hint="pass the checkpoint of transformers that the file was made of",
        )
    parts = file.setting("split.count")
    if isinstance(parts, int) and parts > 1:
        raise ArgumentError(
            "model", f"{path} is one of {parts} parts of a model", hint="join them with llama-gguf-split --merge"
        )
    with without_progress():
        config = _config(file, architecture)
        transformers = import_extra("transformers")
        with loading(f"the tokenizer in {path}"):
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(
                path.absolute().parent, gguf_file=path.name, local_files_only=True
            )
    return GgufModel(file, config, tokenizer)


def _config(file: GgufFile, architecture: str) -> Any:
    """The configuration that transformers makes of the settings, completed by those that it does not read."""
    transformers = import_extra("transformers")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ArgumentError("model", f"{file.path} has no matrix token_embd.weight")
    own = {name: file.setting(f"{architecture}.{key}") for key, name in _OWN_SETTINGS.items()}
    options = {name: value for name, value in own.items() if value is not None}
    with TemporaryDirectory() as name:
        # transformers would read the vocabulary one string after the other, in seconds, and check nothing.
        write_header(file, Path(name) / "header.gguf", {f"{architecture}.vocab_size": embedding.shape[0]})
        with loading(file.path):
            config = transformers.AutoConfig.from_pretrained(
                name, gguf_file="header.gguf", local_files_only=True, vocab_size=embedding.shape[0], **options
            )
            _complete(config, file, architecture)
            config.architectures = [transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__]
            config.name_or_path = ""
            config.save_pretrained(name)
        check_checkpoint(Path(name))
    _warn_of_settings(file, architecture)
    return config


def _complete(config: Any, file: GgufFile, architecture: str) -> None:
    """Set the scales of Gemma's attention and of positions, which transformers does not read."""
    if architecture in _LARGEST_GEMMA:
        # The file does not have it; llama.cpp knows the largest model by the number of its layers.
        is_largest = config.num_hidden_layers == _LARGEST_GEMMA[architecture]
        config.query_pre_attn_scalar = (
            config.hidden_size // config.num_attention_heads if is_largest else config.head_dim
        )
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for name in ("rope.dimension_count", "attention.value_length"):
        found = file.setting(f"{architecture}.{name}")
        if found not in (None, head_size):
            raise ArgumentError("model", f"{file.path} has {architecture}.{name} {found}, but heads of {head_size}")
    rotary = config.rope_parameters or {}
    scaled = rotary.get("full_attention", rotary)
    if file.setting(f"{architecture}.rope.freq_base") is None and scaled.get("rope_theta") != _DEFAULT_BASE:
        raise ArgumentError("model", f"{file.path} has no {architecture}.rope.freq_base")
    kind = file.setting(f"{architecture}.rope.scaling.type") or "none"
    factor = file.setting(f"{architecture}.rope.scaling.factor")
    if kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return
    if kind != "linear":
        raise ArgumentError(
            "model",
            f"{file.path} scales positions in the way {kind!r}, which transformers does not read of GGUF files",
            hint="pass the checkpoint of transformers that the file was made of",
        )
    scaled = {**scaled, "rope_type": "linear", "factor": factor}
    config.rope_parameters = {**rotary, "full_attention": scaled} if "full_attention" in rotary else scaled


def _warn_of_settings(file: GgufFile, architecture: str) -> None:
    """Warn of settings that transformers does not read."""
    mapping = import_extra("transformers.modeling_gguf_pytorch_utils").GGUF_TO_TRANSFORMERS_MAPPING["config"]
    known = {*mapping.get(architecture, ()), *_WITHOUT_EFFECT}
    prefix = f"{architecture}."
    others = [key for key in file.settings if key.startswith(prefix) and key.removeprefix(prefix) not in known]
    if others:
        warn_user(f"{file.path} has settings that transformers does not read: {', '.join(others)}")


def _weights(file: GgufFile, config: Any) -> dict[str, GgufWeight]:
    transformers = import_extra("transformers")
    utilities = import_extra("transformers.modeling_gguf_pytorch_utils")
    architecture = file.setting("general.architecture")
    processor = utilities.TENSOR_PROCESSORS.get(architecture, utilities.TensorProcessor)(config=config.to_dict())
    with loading(file.path):
        model = model_on_meta(config, transformers.AutoModelForCausalLM, torch.float32)
        names = _names(model, architecture)
        unused = sorted(set(file.tensors) - set(names) - {_FACTORS})
        if unused:
            others = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            raise ArgumentError("model", f"{file.path} has tensors that transformers does not use: {unused[0]}{others}")
        return {
            names[name]: _weight(file.path, names[name], stored, processor)
            for name, stored in file.tensors.items()
            if name in names
        }


def _names(model: Any, architecture: str) -> dict[str, str]:
    """Name of a tensor in GGUF files to the FQN of the weight."""
    gguf = import_extra("gguf")
    key = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    known = gguf.get_tensor_name_map(key, model.config.num_hidden_layers)
    names = {}
    for fqn in model.state_dict():
        module, _, parameter = fqn.rpartition(".")
        found = known.get_name(module)
        if found is not None:
            names[f"{found}.{parameter}"] = fqn
    return names


def _weight(path: Path, name: str, stored: StoredBlocks, processor: Any) -> GgufWeight:
    """A weight, as transformers makes it of the tensor: it changes the order of rows, or the numbers."""
    weight = GgufWeight(path, name, stored)
    if weight.has_integers:
        count, columns = stored.shape
        rows = np.broadcast_to(np.arange(count, dtype=np.int32)[:, None], (count, columns))
        changed = processor.process(rows, stored.name).weights
        if changed is rows:
            return weight
        if changed.shape == rows.shape:
            order = np.array(changed[:, 0], dtype=np.int64)
            if np.array_equal(np.sort(order), np.arange(count)) and (changed == order[:, None]).all():
                return GgufWeight(path, name, stored, order)
    numbers = decoded(stored).numpy()
    changed = processor.process(numbers, stored.name).weights
    if changed is numbers:
        return weight
    return GgufWeight(path, name, stored, values=torch.from_numpy(np.array(changed)))
