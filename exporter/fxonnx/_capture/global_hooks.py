"""Hooks of all modules of the process, while a model is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fxonnx_translations._torch_compat import global_hooks

from ..errors import CaptureError
from .patches import is_tracing

__all__ = ["hooks_for_model_only", "without_global_hooks"]

# torch.export calls the model from modules of its own, whose inputs and outputs have other structures.
_WRAPPERS = ("torch.export.", "torch._export.", "torch._dynamo.", "torch._functorch.", "torch.fx.")


@contextmanager
def hooks_for_model_only(model: torch.nn.Module) -> Iterator[None]:
    """Call global forward hooks and pre-hooks for the modules of a model, and not for torch.export's.

    Raises:
        CaptureError: If there are such hooks and the model is a GraphModule.
    """
    if not any(global_hooks):
        yield
        return
    if isinstance(model, torch.fx.GraphModule):
        raise CaptureError(
            "global forward hooks are registered, which torch.export does not call for a GraphModule",
            hint="call remove() on the handles of the hooks before the export",
        )
    known = {id(module) for module in model.modules()}

    def limited(hook: Callable[..., Any]) -> Callable[..., Any]:
        def called(module: torch.nn.Module, *args: Any) -> Any:
            is_wrapper = type(module).__module__.startswith(_WRAPPERS) and id(module) not in known
            return None if is_wrapper and is_tracing() else hook(module, *args)

        return called

    with _replaced([{key: limited(hook) for key, hook in table.items()} for table in global_hooks]):
        yield


@contextmanager
def without_global_hooks() -> Iterator[None]:
    """Call no global hooks: a captured program has their operators already."""
    with _replaced([{} for _ in global_hooks]):
        yield


@contextmanager
def _replaced(tables: Sequence[dict[int, Any]]) -> Iterator[None]:
    before = [dict(table) for table in global_hooks]

    def fill(contents: Sequence[dict[int, Any]]) -> None:
        for table, hooks in zip(global_hooks, contents, strict=True):
            if table or hooks:
                table.clear()
                table.update(hooks)

    fill(tables)
    try:
        yield
    finally:
        fill(before)
