"""Language models with their tokenizer and chat template, for onnxruntime-genai."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from .. import QuantizeConfig
from ..errors import ArgumentError, did_you_mean, kind_of
from ..quantization.packed_weights import read_packed_format
from .extras import import_extra
from .families.sentences import has_sentence_modules, model_directory, sentence_length
from .gguf import GgufModel, find_gguf, read_gguf_model
from .meta import model_on_meta, runs, without_weights
from .source import check_quantization, check_unused, dequantized_checkpoint
from .tasks import AUTO_CLASSES, Family, family_of
from .untrusted import check_checkpoint, check_size, check_weights, loading, read_settings

__all__ = ["ChatTemplate", "LanguageModel", "load_language_model", "with_chat_template"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class LanguageModel:
    """A model of transformers in the dtype of the export.

    Attributes:
        model: The model in evaluation mode.
        tokenizer: Its tokenizer.
        directory: The directory that it was loaded from, if any.
        family: Its family.
        is_packed: Whether the directory has quantized weights, which the file is to have as well.
        gguf: The content of the GGUF file that it was loaded from, if any.
    """

    model: Any
    tokenizer: Any
    directory: Path | None
    family: Family
    is_packed: bool = False
    gguf: GgufModel | None = None

    @property
    def stored_weights(self) -> Any:
        """The argument ``weights`` of ``save`` for the weights in the file or directory."""
        return self.directory if self.gguf is None else self.gguf.sources(keeps_integers=self.is_packed)

    def stored_quantization(self) -> Any:
        """The argument ``quantize`` of ``export`` for the integers in the file or directory."""
        if self.gguf is not None:
            return self.gguf.quantization()
        return QuantizeConfig.from_checkpoint(self.directory or "")

    def is_in(self, directory: Path) -> bool:
        """Whether the model was loaded from a directory."""
        return self.directory is not None and self.directory.resolve() == directory.resolve()

    @property
    def config(self) -> Any:
        """Configuration of the language model."""
        return self.model.config.get_text_config(decoder=True)


def load_language_model(
    model: Any,
    tokenizer: Any,
    dtype: torch.dtype,
    is_embedding: bool,
    chat_template: ChatTemplate,
    check: Callable[[Family], None],
    *,
    with_weights: bool = True,
) -> LanguageModel:
    """Load a model, or copy it if it has another dtype or is in training mode.

    Args:
        model: A local directory, or a model of transformers, which is left unchanged.
        tokenizer: A tokenizer of transformers, or a directory; None for the one in the model's directory.
        dtype: The dtype to export.
        is_embedding: Whether the hidden states are to be pooled, whatever the directory specifies.
        chat_template: A chat template or a file in place of the tokenizer's, or False for none.
        check: Called with the family before the weights are loaded.
        with_weights: Load the weights. Otherwise those of a decoder may stay in its directory, on the meta device.

    Raises:
        ArgumentError: If the directory is not a checkpoint, or a tokenizer or its chat template is missing.
    """
    transformers = import_extra("transformers", "genai")
    if isinstance(model, (str, os.PathLike)):
        directory = Path(model)
        gguf = find_gguf(directory)
        if gguf is not None:
            source = read_gguf_model(gguf)
            found = source.tokenizer if tokenizer is None else _tokenizer(transformers, tokenizer)
            check("decoder")
            found = with_chat_template(found, chat_template, "decoder")
            return _from_gguf(transformers, source, found, dtype, with_weights=with_weights)
        if has_sentence_modules(directory):
            check_checkpoint(directory)
        checkpoint = _checkpoint(model_directory(directory))
        config = _config(transformers, checkpoint)
        family = family_of(config, next(iter(config.architectures or ()), ""), directory, is_embedding)
        check(family)
        found = _tokenizer(transformers, checkpoint if tokenizer is None else tokenizer)
        found = with_chat_template(found, chat_template, family)
        if tokenizer is None and family == "embedding":
            found.model_max_length = min(found.model_max_length, sentence_length(checkpoint))
        packed = read_packed_format(checkpoint, "model")
        if not with_weights and family == "decoder" and packed is None:
            with loading(checkpoint):
                made = without_weights(checkpoint, config, transformers.AutoModelForCausalLM, dtype)
            if made is not None and runs(made):
                made.generation_config = _generation_config(transformers, checkpoint, made.generation_config)
                return LanguageModel(made, found, directory, family)
        state = dequantized_checkpoint(checkpoint, config, dtype)
        loaded = _from_directory(transformers, checkpoint, config, family, dtype, state)
        return LanguageModel(loaded, found, directory, family, packed is not None)
    if hasattr(model, "get_base_model"):  # of PEFT; its adapters are modules of the base model
        model = model.get_base_model()
    if not isinstance(model, transformers.PreTrainedModel):
        hint = "fxonnx.export is for other models" if isinstance(model, torch.nn.Module) else 'write "path/to/model"'
        raise ArgumentError(
            "model", f"expected a directory or a model of transformers, got {kind_of(model)}", hint=hint
        )
    if tokenizer is None:
        raise ArgumentError(
            "tokenizer", "a model object has no tokenizer", hint="pass tokenizer=, a tokenizer or its directory"
        )
    family = family_of(model.config, type(model).__name__, None, is_embedding)
    check(family)
    check_quantization(model)
    found = with_chat_template(_tokenizer(transformers, tokenizer), chat_template, family)
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if model.training or dtypes != {dtype}:
        model = copy.deepcopy(model).eval().to(dtype)
    if family == "embedding" and model.get_output_embeddings() is not None:
        model = model.base_model
    return LanguageModel(model, found, None, family)


def _from_gguf(
    transformers: Any, source: GgufModel, tokenizer: Any, dtype: torch.dtype, *, with_weights: bool
) -> LanguageModel:
    """Load the model of a GGUF file, or make it without weights."""
    model_class = transformers.AutoModelForCausalLM._model_mapping[type(source.config)]
    is_packed = source.quantization() is not None
    made = None if with_weights else source.without_weights(model_class, dtype)
    if made is None or not runs(made):
        made, report = source.load(model_class, dtype)
        check_weights(source.file.path, report)
    return LanguageModel(made, tokenizer, None, "decoder", is_packed, source)


def _checkpoint(directory: Path) -> Path:
    if directory.is_file():
        raise ArgumentError("model", f"{directory} is a file", hint="pass a GGUF file, or the directory of the model")
    if not directory.is_dir():
        hint = did_you_mean(directory.name, (other.name for other in directory.parent.glob("*") if other.is_dir()))
        raise ArgumentError("model", f"directory {directory} does not exist", hint=hint)
    if not (directory / "config.json").is_file():
        raise ArgumentError(
            "model",
            f"{directory} has no config.json",
            hint="pass a directory that save_pretrained or a download of the model has written",
        )
    check_checkpoint(directory)
    return directory


def _config(transformers: Any, directory: Path) -> Any:
    try:
        # Unless it is told not to, transformers asks in a terminal whether to run code of the checkpoint.
        with loading(directory):
            return transformers.AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except ArgumentError as error:
        own = _own_code(directory)
        if own is None:
            raise
        raise ArgumentError(
            "model",
            f"{directory} has a model of type {own!r} with code of its own, which is not run",
            hint="load the model yourself with trust_remote_code=True and export it with fxonnx.export",
        ) from error


def _own_code(directory: Path) -> str | None:
    """The type of a model whose classes are files of the checkpoint; else None."""
    settings = read_settings(directory / "config.json")
    return str(settings.get("model_type")) if settings.get("auto_map") else None


def _from_directory(
    transformers: Any, directory: Path, config: Any, family: Family, dtype: torch.dtype, state: Any
) -> Any:
    auto_class = getattr(transformers, AUTO_CLASSES[family])
    encoders = transformers.AutoModelForTextEncoding
    if family == "embedding" and type(config) in encoders._model_mapping:
        # AutoModel would add a decoder to the encoder of T5.
        auto_class = encoders
    if type(config) not in auto_class._model_mapping:
        raise ArgumentError(
            "model",
            f"{directory} has a model of type {config.model_type!r}, which is not a language model",
            hint="export it with fxonnx.export",
        )
    logging = transformers.utils.logging
    shows_progress = logging.is_progress_bar_enabled()
    # It would also be shown where the output is not a terminal.
    logging.disable_progress_bar()
    options = {"config": config, "dtype": dtype, "ignore_mismatched_sizes": True, "output_loading_info": True}
    try:
        with loading(directory):
            check_size(directory, model_on_meta(config, auto_class, dtype))
            if state is None:
                loaded, report = auto_class.from_pretrained(directory, local_files_only=True, **options)
            else:
                model_class = auto_class._model_mapping[type(config)]
                loaded, report = model_class.from_pretrained(None, state_dict=state, **options)
                loaded.generation_config = _generation_config(transformers, directory, loaded.generation_config)
    finally:
        if shows_progress:
            logging.enable_progress_bar()
    check_unused(directory, report["unexpected_keys"])
    check_quantization(loaded)
    # The pooler of BERT, which its other tasks lack, is not a part of embedding models.
    check_weights(directory, report, ignored="pooler." if family == "embedding" else None)
    return loaded.eval()


def _generation_config(transformers: Any, directory: Path, default: Any) -> Any:
    if not (directory / "generation_config.json").is_file():
        return default
    with loading(directory):
        return transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)


def _tokenizer(transformers: Any, tokenizer: Any) -> Any:
    if not isinstance(tokenizer, (str, os.PathLike)):
        return tokenizer
    directory = Path(tokenizer)
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise ArgumentError(
            "tokenizer",
            f"{directory} has no tokenizer: none of {', '.join(_TOKENIZER_FILES)}",
            hint="pass tokenizer=, a tokenizer or its directory",
        )
    check_checkpoint(directory, "tokenizer")
    with loading(f"the tokenizer in {directory}", "tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


ChatTemplate: TypeAlias = str | os.PathLike[str] | Literal[False] | None

_CHATS = frozenset({"decoder", "vision-language"})
"""Families whose prompts may be chats."""


def with_chat_template(tokenizer: Any, chat_template: ChatTemplate, family: Family) -> Any:
    """Return a tokenizer with a chat template; one that is given replaces its own in a copy.

    Args:
        tokenizer: A tokenizer of transformers.
        chat_template: A template, a file with one, False for none, or None for the tokenizer's.
        family: The family of the model.

    Raises:
        ArgumentError: If a decoder-only model has no chat template, or the argument is not one.
    """
    own = getattr(tokenizer, "chat_template", None)
    if chat_template is None:
        if own is None and family == "decoder":
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise ArgumentError(
                "chat_template",
                f"the tokenizer {name} has no chat template",
                hint="pass chat_template=, a template or a file with one (--chat-template FILE), or "
                "chat_template=False (--no-chat-template) for a model that does not chat",
            )
        return tokenizer
    if chat_template is not False and family not in _CHATS:
        raise ArgumentError("chat_template", f"models of the family {family!r} do not chat")
    template = None if chat_template is False else _template(chat_template)
    if template == own:
        return tokenizer
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = template
    return tokenizer


def _template(given: str | os.PathLike[str]) -> str:
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError("chat_template", f"expected a template, a file or False, got {given!r}")
    if isinstance(given, str) and ("{{" in given or "{%" in given):
        return given
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError("chat_template", f"{path} is neither a template with {{{{ or {{% nor a file") from error
    if "{{" not in text and "{%" not in text:
        raise ArgumentError("chat_template", f"{path} has no template: it contains neither {{{{ nor {{%")
    return text
