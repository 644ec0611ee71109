"""Language models with their tokenizer and chat template, for onnxruntime-genai."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from jinja2 import TemplateError

from .. import QuantizeConfig
from ..errors import ArgumentError
from .core import read_packed_format
from .extras import import_extra
from .families.sentences import has_sentence_modules, model_directory, sentence_length
from .gguf import GgufModel, find_gguf, read_gguf_model
from .meta import runs, without_weights
from .source import check_object, checked_checkpoint, in_dtype, load_weights, read_config, use_generation_config
from .tasks import FAMILIES, Family, family_of
from .untrusted import check_checkpoint, check_weights, loading

__all__ = ["ChatTemplate", "LanguageModel", "load_language_model", "prompt_template", "with_chat_template"]

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

    ``check`` is called with the family before the weights are loaded. Without weights, a decoder's may stay in its
    directory, on the meta device.
    """
    transformers = import_extra("transformers", "genai")
    if isinstance(model, (str, os.PathLike)):
        gguf = find_gguf(Path(model))
        if gguf is not None:
            check("decoder")
            source = read_gguf_model(gguf)
            found = with_chat_template(source.tokenizer if tokenizer is None else _tokenizer(tokenizer), chat_template)
            return _from_gguf(transformers, source, found, dtype, with_weights=with_weights)
        return _from_directory(
            Path(model), tokenizer, dtype, is_embedding, chat_template, check, with_weights=with_weights
        )
    if hasattr(model, "get_base_model"):  # of PEFT; its adapters are modules of the base model
        model = model.get_base_model()
    check_object(model)
    if tokenizer is None:
        raise ArgumentError(
            "tokenizer", "a model object has no tokenizer", hint="pass tokenizer=, a tokenizer or its directory"
        )
    family = family_of(model.config, type(model).__name__, None, is_embedding)
    check(family)
    found = with_chat_template(_tokenizer(tokenizer), chat_template, family)
    model = in_dtype(model, dtype)
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


def _from_directory(
    directory: Path,
    tokenizer: Any,
    dtype: torch.dtype,
    is_embedding: bool,
    chat_template: ChatTemplate,
    check: Callable[[Family], None],
    *,
    with_weights: bool,
) -> LanguageModel:
    if has_sentence_modules(directory):
        check_checkpoint(directory)
    checkpoint = checked_checkpoint(model_directory(directory))
    config = read_config(checkpoint)
    family = family_of(config, next(iter(config.architectures or ()), ""), directory, is_embedding)
    check(family)
    found = with_chat_template(_tokenizer(checkpoint if tokenizer is None else tokenizer), chat_template, family)
    if tokenizer is None and family == "embedding":
        found.model_max_length = min(found.model_max_length, sentence_length(checkpoint))
    packed = read_packed_format(checkpoint, "model")
    loader = _loader(config, family, checkpoint)
    if not with_weights and family == "decoder" and packed is None:
        with loading(checkpoint):
            made = without_weights(checkpoint, config, loader, dtype)
        if made is not None and runs(made):
            with loading(checkpoint):
                use_generation_config(made, checkpoint)
            return LanguageModel(made, found, directory, family)
    loaded, report = load_weights(checkpoint, config, loader, dtype)
    # The pooler of BERT, which its other tasks lack, is not a part of embedding models.
    check_weights(checkpoint, report, ignored="pooler." if family == "embedding" else None)
    return LanguageModel(loaded, found, directory, family, packed is not None)


def _loader(config: Any, family: Family, directory: Path) -> Any:
    """The class of transformers that loads a model of a family."""
    transformers = import_extra("transformers")
    loader, encoders = getattr(transformers, FAMILIES[family].auto_class), transformers.AutoModelForTextEncoding
    if family == "embedding" and type(config) in encoders._model_mapping:
        return encoders  # AutoModel would add a decoder to the encoder of T5
    if family == "vision-language" and type(config) not in loader._model_mapping:
        loader = transformers.AutoModelForCausalLM  # of Phi-4
    if type(config) not in loader._model_mapping:
        problem = f"{directory} has a model of type {config.model_type!r}, which is not a language model"
        raise ArgumentError("model", problem, hint="export it with fxonnx.export")
    return loader


def _tokenizer(tokenizer: Any) -> Any:
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
        auto_class = import_extra("transformers").AutoTokenizer
        return auto_class.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


ChatTemplate: TypeAlias = str | os.PathLike[str] | Literal[False] | None


def with_chat_template(tokenizer: Any, chat_template: ChatTemplate, family: Family = "decoder") -> Any:
    """Return a tokenizer with a chat template; one that is given replaces its own in a copy."""
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
    if chat_template is not False and not FAMILIES[family].chats:
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


_CONTENT = "{Content}"
"""The place of a message in a prompt template of Foundry Local."""
_DATE = "26 Jul 2024"
"""The date that templates of Llama 3 fall back to; today's would make other files every day."""


def prompt_template(tokenizer: Any) -> dict[str, str] | None:
    """The prompt of one message as Foundry Local reads it; None if the chat template has no such form."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    chat = [{"role": "user", "content": _CONTENT}]
    try:
        prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, date_string=_DATE)
    except (ValueError, TypeError, TemplateError):
        return None
    return {"assistant": _CONTENT, "prompt": prompt} if prompt.count(_CONTENT) == 1 else None
