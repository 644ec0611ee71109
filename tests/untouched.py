"""Everything that an export must not change: tensors, attributes, hooks and modes of the caller's objects, generators."""

from __future__ import annotations

import itertools
import random
import types
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parametrize

__all__ = ["State", "untouched"]

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class State:
    """The state of objects and of the process at one moment.

    Args:
        *roots: Models, inputs and other objects; everything that is reachable from them is compared.
    """

    def __init__(self, *roots: Any) -> None:
        self._roots = roots
        # Keeps the objects alive, so that their identities stay theirs.
        self._kept: list[Any] = []
        self._facts = dict(self._read())

    def changes(self) -> list[str]:
        """The differences of now from that moment, as text."""
        now = State(*self._roots)._facts
        names = dict.fromkeys((*self._facts, *now))
        return [
            f"{name}: {_short(self._facts.get(name, 'nothing'))} becomes {_short(now.get(name, 'nothing'))}"
            for name in names
            if self._facts.get(name, "nothing") != now.get(name, "nothing")
        ]

    def _read(self) -> Iterator[tuple[str, Any]]:
        yield "torch's generator", bytes(torch.get_rng_state().numpy())
        yield "Python's generator", random.getstate()
        yield "NumPy's generator", str(np.random.get_state(legacy=False))
        yield "the grad mode", torch.is_grad_enabled()
        yield "the inference mode", torch.is_inference_mode_enabled()
        yield "the default dtype", torch.get_default_dtype()
        yield "autocast", torch.is_autocast_enabled("cpu")
        yield "deterministic algorithms", torch.are_deterministic_algorithms_enabled()
        yield "parametrize", parametrize._cache_enabled
        seen: set[int] = set()
        for index, root in enumerate((*self._roots, parametrize._cache)):
            yield from self._visit(f"[{index}]", root, seen)

    def _visit(self, path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
        self._kept.append(value)
        if isinstance(value, int | float | complex | str | bytes | torch.dtype | torch.device | type(None)):
            yield path, repr(value)
            return
        yield path, (type(value).__name__, id(value))
        if id(value) in seen or isinstance(value, _OPAQUE):
            return
        seen.add(id(value))
        yield from ((f"{path}: {name}", fact) for name, fact in _content(value))
        for name, child in _children(value):
            yield from self._visit(f"{path}{name}", child, seen)


def _content(value: Any) -> Iterator[tuple[str, Any]]:
    """Facts about an object besides its parts."""
    if isinstance(value, torch.Tensor):
        yield "requires_grad", value.requires_grad
        yield "leaf", value.is_leaf
        yield "hooks", len(value._backward_hooks or ())
        yield "shape", (value.shape, value.dtype, value.device)
        if not value.is_inference():
            yield "version", value._version
        if value.layout == torch.strided and not value.is_meta and type(value) in (torch.Tensor, torch.nn.Parameter):
            yield "memory", (value.data_ptr(), value.stride())
            if not value.is_quantized:
                bits = value.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
                yield "values", bytes(bits.numpy())
    elif isinstance(value, np.ndarray):
        yield "values", value.tobytes() if value.dtype != object else repr(value)
    elif isinstance(value, set | frozenset):
        # Elements that were removed and added again may have another order.
        yield "values", sorted(map(repr, value))
    elif isinstance(value, bytearray | itertools.count):
        yield "values", repr(value)
    elif isinstance(value, random.Random):
        yield "state", value.getstate()
    elif isinstance(value, torch.Generator):
        yield "state", bytes(value.get_state().numpy())
    elif isinstance(value, np.random.Generator):
        yield "state", str(value.bit_generator.state)
    elif isinstance(value, torch.jit.ScriptModule):
        yield "training", getattr(value, "training", None)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an object, with the ends of their paths."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in list(value.items()))
        yield " keys", repr(list(value))
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{index}]", item) for index, item in enumerate(list(value)))
    if isinstance(value, torch.Tensor) and value.is_leaf:
        yield ".grad", value.grad
    yield from ((f".{name}", item) for name, item in list(getattr(value, "__dict__", {}).items()))
    for owner in type(value).__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _short(fact: Any) -> str:
    text = repr(fact)
    return text if len(text) <= 80 else f"{text[:77]}..."


@contextmanager
def untouched(*roots: Any) -> Iterator[None]:
    """Assert that the body, also one that raises, changes nothing.

    Args:
        *roots: Models, inputs and other objects.
    """
    state = State(*roots)
    try:
        yield
    finally:
        changes = state.changes()
        assert not changes, "\n".join(changes)
