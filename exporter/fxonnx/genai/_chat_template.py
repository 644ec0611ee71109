"""The chat template of a tokenizer: its own, another one, or none."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..errors import ArgumentError
from ._families import Family

__all__ = ["ChatTemplate", "with_chat_template"]

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
