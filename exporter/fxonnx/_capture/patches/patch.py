"""Patches of torch: what one is, how it is applied, and the lock that exports hold while patches are in place."""

from __future__ import annotations

import builtins
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import ClassMethodDescriptorType
from typing import Any

import torch

from fxonnx_translations._torch_compat import DispatchKey, OpOverload, decomposition_table

__all__ = [
    "MISSING",
    "DecompositionPatch",
    "KernelPatch",
    "Patch",
    "ShapePatch",
    "ThreadDefault",
    "ValuePatch",
    "applied",
    "in_tracing_thread",
    "is_tracing",
    "one_at_a_time",
]


class _Missing:
    """The content of a place where nothing is."""

    def __repr__(self) -> str:
        return "MISSING"


class _Thread(threading.local):
    """Per thread: how many blocks with patches it is inside of."""

    depth: int = 0


MISSING = _Missing()
_LOCK = threading.RLock()
_thread = _Thread()


def is_tracing() -> bool:
    """Whether this thread is the one that the patches in place are for."""
    return _thread.depth > 0


# TorchDynamo evaluates the call instead of tracing it: a thread-local variable would be a graph break.
is_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the lock under which models are traced; may be nested.

    torch.export and make_fx keep global state of their own (the current tracer, ``builtins.max``, flags), so that
    exports of several threads take turns even where fxonnx itself patches nothing.
    """
    with _LOCK:
        yield


def in_tracing_thread(here: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is ``here`` in the tracing thread and ``elsewhere`` in all others."""

    def patched(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return here(*args, **kwargs)
        return elsewhere(*args, **kwargs)

    patched.__name__ = getattr(here, "__name__", "patched")
    return patched


@dataclass(frozen=True)
class Patch:
    """A function of torch, or of a library, replaced while a model is traced.

    Attributes:
        target: ``package.module:name`` or ``package.module:Class.name``.
        replacement: Called with the original function and its arguments, in the tracing thread only.
        why: What goes wrong without it.
        elsewhere: Likewise for other threads; by default they call the original.
        strict: Whether it also applies while TorchDynamo traces byte code.
        optional: Whether the module may be absent. It is patched if it is imported already.
        since: The first version of torch that has the target; by default all that are supported.
        before: The first version that no longer has it.
    """

    target: str
    replacement: Callable[..., Any]
    why: str
    elsewhere: Callable[..., Any] | None = None
    strict: bool = True
    optional: bool = False
    since: str = ""
    before: str = ""

    @property
    def applies(self) -> bool:
        """Whether this torch has the target, and its module is imported."""
        version = torch.__version__
        if (self.since and version < self.since) or (self.before and version >= self.before):
            return False
        return not self.optional or self.target.partition(":")[0] in sys.modules

    def read(self) -> Any:
        """The content of the place: descriptors as they are, ``MISSING`` where the value is inherited or built in."""
        owner, name = self._place()
        return vars(owner).get(name, MISSING)

    def write(self, value: Any) -> None:
        """Put back what ``read`` returned, or put a replacement there."""
        owner, name = self._place()
        if value is not MISSING:
            setattr(owner, name, value)
        elif name in vars(owner):
            delattr(owner, name)

    def replaced(self) -> Any:
        """The replacement of the present content.

        Raises:
            AttributeError: If there is no such function in this torch.
        """
        owner, name = self._place()
        raw = inspect.getattr_static(owner, name, None)
        if isinstance(raw, classmethod | staticmethod):
            return type(raw)(self._function(raw.__func__))
        if isinstance(raw, ClassMethodDescriptorType):
            return classmethod(self._function(lambda cls, *args, **kwargs: raw.__get__(None, cls)(*args, **kwargs)))
        if raw is None and inspect.ismodule(owner):
            return self._function(getattr(builtins, name))
        return self._function(getattr(owner, name))

    def _function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        elsewhere = original if self.elsewhere is None else partial(self.elsewhere, original)
        return in_tracing_thread(partial(self.replacement, original), elsewhere)

    def _place(self) -> tuple[Any, str]:
        module, _, path = self.target.partition(":")
        *owners, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        return owner, name


class KernelPatch(Patch):
    """A Python kernel for an operator, which tracing calls instead of decomposing it: ``aten::lstm.input``."""

    key = DispatchKey.CompositeImplicitAutograd

    def read(self) -> Any:
        """The Python kernel that the operator has."""
        return self._operator().py_kernels.get(self.key, MISSING)

    def write(self, value: Any) -> None:
        """Register a kernel, or remove it."""
        operator = self._operator()
        if value is MISSING:
            operator.py_kernels.pop(self.key, None)
        else:
            operator.py_kernels[self.key] = value
        # The operator remembers which kernel it resolved for a key.
        operator._dispatch_cache.clear()

    def replaced(self) -> Any:
        """The replacement of the present kernel."""
        operator = self._operator()
        return self._function(operator.py_kernels.get(self.key, partial(operator._op_dk, self.key)))

    def _operator(self) -> OpOverload[Any, Any]:
        namespace, _, name = self.target.partition("::")
        packet, _, overload = name.partition(".")
        found: OpOverload[Any, Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        return found


class ShapePatch(KernelPatch):
    """A shape function for an operator that has none for symbolic sizes."""

    key = DispatchKey.Meta


class DecompositionPatch(KernelPatch):
    """A decomposition that torch prefers to a kernel where sizes are symbolic."""

    def read(self) -> Any:
        """The present decomposition."""
        return decomposition_table.get(self._operator(), MISSING)

    def write(self, value: Any) -> None:
        """Register a decomposition, or remove it."""
        if value is MISSING:
            decomposition_table.pop(self._operator(), None)
        else:
            decomposition_table[self._operator()] = value

    def replaced(self) -> Any:
        """The replacement of the present decomposition."""
        return self._function(decomposition_table[self._operator()])


class ValuePatch(Patch):
    """An attribute. ``replacement`` gets its value and returns another one, which tells threads apart itself."""

    def replaced(self) -> Any:
        """The replacement of the present value."""
        owner, name = self._place()
        return self.replacement(getattr(owner, name))


class ThreadDefault:
    """A class attribute with a value of its own in the tracing thread; that of an instance takes precedence.

    Args:
        here: The value in the tracing thread.
        elsewhere: The value in other threads.
    """

    def __init__(self, here: Any, elsewhere: Any) -> None:
        self._here, self._elsewhere = here, elsewhere

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._here if is_tracing() else self._elsewhere


@contextmanager
def applied(patches: Iterable[Patch]) -> Iterator[None]:
    """Apply patches for this thread; every place has its content again afterwards, after an error as well.

    The body holds the lock. Blocks may be nested.
    """
    with one_at_a_time(), ExitStack() as stack:
        for patch in patches:
            if patch.applies:
                before = patch.read()
                stack.callback(patch.write, before)
                patch.write(patch.replaced())
        _thread.depth += 1
        stack.callback(_leave)
        yield


def _leave() -> None:
    _thread.depth -= 1
