"""Patch records, their application, and the lock that exports hold while patches are applied."""

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
from types import ClassMethodDescriptorType, ModuleType
from typing import Any

import torch

from fxonnx_translations._torch_compat import DispatchKey, OpOverload, decomposition_table

from ..departures import DepartureKind, record_departure

__all__ = [
    "MISSING",
    "DecompositionPatch",
    "FunctionPatch",
    "KernelPatch",
    "Patch",
    "ShapePatch",
    "ThreadDefault",
    "ValuePatch",
    "applied",
    "in_tracing_thread",
    "is_tracing",
    "loaded_namespaces",
    "not_tracing",
    "one_at_a_time",
]


class _Missing:
    """Marker for a target without a value of its own (inherited or builtin)."""

    def __repr__(self) -> str:
        return "MISSING"


class _Thread(threading.local):
    """Per thread: the nesting depth of contexts with patches."""

    depth: int = 0


MISSING = _Missing()
_LOCK = threading.RLock()
_thread = _Thread()


def is_tracing() -> bool:
    """Whether the applied patches are for this thread."""
    return _thread.depth > 0


# TorchDynamo evaluates the call instead of tracing it: a thread-local variable would be a graph break.
is_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextmanager
def not_tracing() -> Iterator[None]:
    """Run this thread inside the context as other threads run: applied patches and replaced functions pass through."""
    depth, _thread.depth = _thread.depth, 0
    try:
        yield
    finally:
        _thread.depth = depth


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the reentrant lock under which models are traced.

    torch.export and make_fx have global state of their own (the current tracer, ``builtins.max``, flags), so that
    exports of several threads must take turns even where fxonnx applies no patch.
    """
    with _LOCK:
        yield


def in_tracing_thread(here: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """Build a function that calls ``here`` in the tracing thread and ``elsewhere`` in other threads."""

    def patched(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return here(*args, **kwargs)
        return elsewhere(*args, **kwargs)

    patched.__name__ = getattr(here, "__name__", "patched")
    return patched


@dataclass(frozen=True)
class Patch:
    """Replacement of a function of torch, or of a library, while a model is traced.

    Attributes:
        target: ``package.module:name`` or ``package.module:Class.name``.
        replacement: Function that is called with the original function and its arguments, in the tracing thread only.
        why: The reason for the patch: the behaviour of torch without it.
        elsewhere: The replacement in other threads; by default they call the original.
        strict: Whether it is also applied in strict mode, in which TorchDynamo traces byte code.
        optional: Whether the module may be absent; it is patched only if it is already imported.
        departs: Whether the replacement computes by other means than the original, which the capture then proves.
        since: The first torch version with the target; by default all supported versions have it.
        before: The first torch version without the target.
    """

    target: str
    replacement: Callable[..., Any]
    why: str
    elsewhere: Callable[..., Any] | None = None
    strict: bool = True
    optional: bool = False
    departs: bool = False
    since: str = ""
    before: str = ""

    @property
    def applies(self) -> bool:
        """Whether this torch version has the target, and an optional module is imported and has it."""
        version = torch.__version__
        if (self.since and version < self.since) or (self.before and version >= self.before):
            return False
        return not self.optional or self._is_imported()

    def _is_imported(self) -> bool:
        module, _, path = self.target.partition(":")
        found: Any = sys.modules.get(module, MISSING)
        for name in path.split("."):
            found = getattr(found, name, MISSING)
        return found is not MISSING

    def read(self) -> Any:
        """Current value of the target: the descriptor itself, or ``MISSING`` if it is inherited or a builtin."""
        owner, name = self._owner_and_name()
        return vars(owner).get(name, MISSING)

    def write(self, value: Any) -> None:
        """Set the target to a replacement, or restore the value that ``read`` returned."""
        owner, name = self._owner_and_name()
        if value is not MISSING:
            setattr(owner, name, value)
        elif name in vars(owner):
            delattr(owner, name)

    def replaced(self) -> Any:
        """Build the replacement of the current value.

        Raises:
            AttributeError: If this torch version does not have the target.
        """
        owner, name = self._owner_and_name()
        raw = inspect.getattr_static(owner, name, None)
        if isinstance(raw, classmethod | staticmethod):
            return type(raw)(self._function(raw.__func__))
        if isinstance(raw, ClassMethodDescriptorType):
            return classmethod(self._function(lambda cls, *args, **kwargs: raw.__get__(None, cls)(*args, **kwargs)))
        if raw is None and inspect.ismodule(owner) and hasattr(builtins, name):
            return self._function(getattr(builtins, name))
        return self._function(getattr(owner, name))

    def _function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        elsewhere = original if self.elsewhere is None else partial(self.elsewhere, original)
        here = partial(self._departing if self.departs else self.replacement, original)
        patched = in_tracing_thread(here, elsewhere)
        # __torch_function__ identifies functions by their names.
        patched.__name__ = getattr(original, "__name__", patched.__name__)
        return patched

    def _departing(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        record_departure(DepartureKind.REPLACED, self.target.replace(":", "."))
        return self.replacement(original, *args, **kwargs)

    def _owner_and_name(self) -> tuple[Any, str]:
        module, _, path = self.target.partition(":")
        *owners, name = path.split(".")
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        return owner, name


class FunctionPatch(Patch):
    """Patch of a function that other modules import by its name, and call without its module."""

    def read(self) -> Any:
        """Current value of the function."""
        owner, name = self._owner_and_name()
        return getattr(owner, name)

    def write(self, value: Any) -> None:
        """Replace the current value in every module that has it under its name."""
        current = self.read()
        _, name = self._owner_and_name()
        for attributes in loaded_namespaces():
            if attributes.get(name) is current:
                attributes[name] = value


def loaded_namespaces() -> Iterator[dict[str, Any]]:
    """Attributes of all loaded modules, without the import that the first access to one of a lazy module causes."""
    for module in list(sys.modules.values()):
        kind = type(module)
        if kind is ModuleType:
            yield module.__dict__
        elif issubclass(kind, ModuleType):
            yield object.__getattribute__(module, "__dict__")


class KernelPatch(Patch):
    """Python kernel of an operator (``aten::lstm.input``), which tracing calls instead of a decomposition."""

    key = DispatchKey.CompositeImplicitAutograd

    def read(self) -> Any:
        """Current Python kernel of the operator, or ``MISSING``."""
        return self._operator().py_kernels.get(self.key, MISSING)

    def write(self, value: Any) -> None:
        """Register a kernel, or remove it."""
        operator = self._operator()
        if value is MISSING:
            operator.py_kernels.pop(self.key, None)
        else:
            operator.py_kernels[self.key] = value
        # The operator caches the kernel that it resolved for a key.
        operator._dispatch_cache.clear()

    def replaced(self) -> Any:
        """Build the replacement of the current kernel."""
        operator = self._operator()
        return self._function(operator.py_kernels.get(self.key, partial(operator._op_dk, self.key)))

    def _operator(self) -> OpOverload[Any, Any]:
        namespace, _, name = self.target.partition("::")
        packet, _, overload = name.partition(".")
        found: OpOverload[Any, Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        return found


class ShapePatch(KernelPatch):
    """Meta kernel of an operator whose own meta kernel does not support symbolic sizes."""

    key = DispatchKey.Meta


class DecompositionPatch(KernelPatch):
    """Decomposition of an operator, which torch prefers to a kernel if sizes are symbolic."""

    def read(self) -> Any:
        """Current decomposition of the operator, or ``MISSING``."""
        return decomposition_table.get(self._operator(), MISSING)

    def write(self, value: Any) -> None:
        """Register a decomposition, or remove it."""
        if value is MISSING:
            decomposition_table.pop(self._operator(), None)
        else:
            decomposition_table[self._operator()] = value

    def replaced(self) -> Any:
        """Build the replacement of the current decomposition."""
        return self._function(decomposition_table[self._operator()])


class ValuePatch(Patch):
    """Patch of a value. ``replacement`` maps it to a new value, which distinguishes threads itself."""

    def replaced(self) -> Any:
        """Build the replacement of the current value."""
        owner, name = self._owner_and_name()
        return self.replacement(getattr(owner, name))


class ThreadDefault:
    """Class attribute with a different value in the tracing thread; a value of the instance takes precedence.

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
    """Apply patches for this thread and hold the lock; restore all targets on exit, including exit by an exception.

    Contexts may be nested.
    """
    with one_at_a_time(), ExitStack() as stack:
        for patch in patches:
            if patch.applies:
                before = patch.read()
                stack.callback(patch.write, before)
                patch.write(patch.replaced())
        _thread.depth += 1
        stack.callback(_decrement_depth)
        yield


def _decrement_depth() -> None:
    _thread.depth -= 1
