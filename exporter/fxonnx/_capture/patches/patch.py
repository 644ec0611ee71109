"""Patch records, their application, and the lock that exports hold while patches are applied."""

from __future__ import annotations

import builtins
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from types import ClassMethodDescriptorType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import torch
from packaging.version import Version

from fxonnx_translations._optional_names import is_missing
from fxonnx_translations._torch_compat import DispatchKey, ExportFunctions, OpOverload, TorchCall, decomposition_table

from ..._context_values import activated, active
from ..._turns import one_at_a_time, undone_in_forks
from ..function_transforms import computes_gradients
from ..suspicions.departures import DepartureKind, record_departure
from .installed import (
    ORIGINAL,
    MissingTarget,
    PatchKind,
    distribution_of,
    installed_version,
    is_newer,
    parameters_of,
    recorded_parameters,
    report_missing,
)

__all__ = [
    "CodePatch",
    "DecompositionPatch",
    "FunctionPatch",
    "GlobalPatch",
    "KernelPatch",
    "Patch",
    "PatchKind",
    "ShapePatch",
    "StandIn",
    "TorchFunctionPatch",
    "ValuePatch",
    "applied",
    "in_tracing_thread",
    "is_tracing",
    "loaded_namespaces",
    "not_tracing",
    "replaced_call",
    "written",
]


class _Missing:
    """Marker for a target without a value of its own (inherited or builtin)."""

    def __repr__(self) -> str:
        return "MISSING"


class _Thread(threading.local):
    """Per thread: the nesting depth of contexts with patches."""

    depth: int = 0


MISSING = _Missing()
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


def in_tracing_thread(here: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """Build a function that calls ``here`` in the tracing thread and ``elsewhere`` in other threads."""

    def patched(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return here(*args, **kwargs)
        return elsewhere(*args, **kwargs)

    patched.__name__ = getattr(here, "__name__", "patched")
    return patched


_HOLDERS = "__fxonnx_holders__"
"""Attribute of a replaced function: the namespaces with it, and the number of modules that were searched."""
_REPLACED = "__fxonnx_replaced__"
"""Attribute of the mode of torch.export: functions of torch to their replacements."""
_NONE: Mapping[Any, Any] = MappingProxyType({})
# Where a target or its owner does not exist, or has another form than in the tested versions.
_UNEXPECTED = (AttributeError, ImportError, KeyError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Patch:
    """Replacement of a function of torch, or of a library, while a model is traced.

    Attributes:
        target: ``package.module:name`` or ``package.module:Class.name``.
        replacement: Function that is called with the original function and its arguments, in the tracing thread only.
        why: The reason for the patch: the behaviour of torch without it.
        kind: The loss where the target is missing.
        elsewhere: The replacement in other threads; by default they call the original.
        strict: Whether it is also applied in strict mode, in which TorchDynamo traces byte code.
        optional: Whether the module may be absent; it is patched only if it is already imported.
        departs: Whether the replacement computes by other means than the original, which the capture then proves.
        needs: Private names of torch that the replacement uses; the target counts as missing without them.
        since: The first version of torch, or of the library, with the target; by default all supported ones have it.
        before: The first version without the target.
    """

    target: str
    replacement: Callable[..., Any]
    why: str
    kind: PatchKind = PatchKind.REACH
    elsewhere: Callable[..., Any] | None = None
    strict: bool = True
    optional: bool = False
    departs: bool = False
    needs: tuple[Any, ...] = ()
    since: str = ""
    before: str = ""

    @property
    def applies(self) -> bool:
        """Whether the installed version should have the target, and an optional module is imported.

        Tested versions of optional libraries need not have it: their models come and go.
        """
        if not self._is_in_version or not self.optional:
            return self._is_in_version
        is_imported = self.target.partition(":")[0] in sys.modules
        return is_imported and (self.missing is None or is_newer(distribution_of(self.target)))

    @cached_property
    def _is_in_version(self) -> bool:
        if not self.since and not self.before:
            return True
        found = installed_version(distribution_of(self.target))
        if found is None:
            return True
        release = found.release
        since, before = (Version(text).release if text else None for text in (self.since, self.before))
        return (since is None or release >= since) and (before is None or release < before)

    @cached_property
    def missing(self) -> MissingTarget | None:
        """The target as one that the installed version lacks, or has with other parameters than the tested versions."""
        absent = next(filter(is_missing, self.needs), None)
        if absent is not None:
            return MissingTarget(
                self.target, self.kind, self.why, f"is replaced with {absent.target}, which is missing"
            )
        try:
            found = self.parameters()
        except _UNEXPECTED:
            return MissingTarget(self.target, self.kind, self.why, "does not exist")
        recorded = recorded_parameters().get(self.target)
        if recorded is None or found in recorded or not is_newer(distribution_of(self.target)):
            return None
        return MissingTarget(self.target, self.kind, self.why, f"has other parameters, ({found})")

    def parameters(self) -> str:
        """The parameters of the target, "" if it has no signature."""
        owner, name = self._owner_and_name()
        raw = inspect.getattr_static(owner, name, MISSING)
        if raw is MISSING:
            raw = getattr(builtins if inspect.ismodule(owner) and hasattr(builtins, name) else owner, name)
        return parameters_of(raw)

    def read(self) -> Any:
        """Current value of the target: the descriptor itself, or ``MISSING`` if it is inherited or a builtin."""
        owner, name = self._place
        return vars(owner).get(name, MISSING)

    def write(self, value: Any) -> None:
        """Set the target to a replacement, or restore the value that ``read`` returned."""
        owner, name = self._place
        if value is not MISSING:
            setattr(owner, name, value)
        elif name in vars(owner):
            delattr(owner, name)

    def replaced(self) -> Any:
        """Build the replacement of the current value."""
        owner, name = self._place
        raw = vars(owner).get(name)
        if type(raw) is FunctionType:
            return self._function(raw)
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
        here = partial(self._called(), original)
        patched = in_tracing_thread(here, elsewhere)
        # __torch_function__ identifies functions by their names.
        patched.__name__ = getattr(original, "__name__", patched.__name__)
        vars(patched)[ORIGINAL] = original
        return patched

    def _called(self) -> Callable[..., Any]:
        """The function that is called with the original and its arguments in the tracing thread."""
        return self._departing if self.departs else self.replacement

    def _departing(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        record_departure(DepartureKind.REPLACED, self.target.replace(":", "."))
        return self.replacement(original, *args, **kwargs)

    @cached_property
    def _place(self) -> tuple[Any, str]:
        return self._owner_and_name()

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
        owner, name = self._place
        return getattr(owner, name)

    def write(self, value: Any) -> None:
        """Replace the current value in every module that has it under its name."""
        _, name = self._place
        current = self.read()
        known, count = vars(current).get(_HOLDERS, ((), 0)) if type(current) is FunctionType else ((), 0)
        # TorchDynamo replaces some functions of torch when it is imported; modules may have the earlier one.
        inner = getattr(current, "__wrapped__", current)
        # To restore, only the modules are searched that were imported since.
        found = [
            (each, held)
            for each in _namespaces_with(name, count)
            if (held := each.get(name)) is current or (held is inner and held is not None)
        ]
        if getattr(value, ORIGINAL, None) is current:
            vars(value)[_HOLDERS] = found, len(sys.modules)
        for attributes, _ in found:
            attributes[name] = value
        for attributes, before in known:
            if attributes.get(name) is current:
                attributes[name] = before


class TorchFunctionPatch(Patch):
    """Patch of a function of torch, also where the model holds the function itself: imported, in a table, a default.

    Such calls come to the mode in which torch.export traces the model; see ``replaced_call``.
    """

    def write(self, value: Any) -> None:
        """Set the target, and the function that the mode calls in its place."""
        super().write(value)
        table = vars(ExportFunctions).get(_REPLACED)
        if table is None:
            setattr(ExportFunctions, _REPLACED, table := {})
        original = getattr(value, ORIGINAL, None)
        if original is None:
            table.pop(value, None)
        else:
            table[original.__wrapped__] = value

    def _function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return super()._function(_direct(original))


@dataclass(frozen=True)
class _Direct:
    """The function that is called although the mode would call its replacement."""

    function: Callable[..., Any]


def _direct(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls the original function, although the mode would call its replacement."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        with activated(_Direct(function)):
            return function(*args, **kwargs)

    return called


def replaced_call(mode: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> TorchCall | None:
    """The call of the replacement of a function that the model holds; None for other functions.

    The mode of torch.export is off inside of its handler.
    """
    replacement = vars(ExportFunctions).get(_REPLACED, _NONE).get(function)
    direct = active(_Direct)
    if replacement is None or (direct is not None and direct.function is function):
        return None

    def call() -> Any:
        with mode:
            return replacement(*args, **kwargs)

    return call, (), {}


def loaded_namespaces(first: int = 0) -> list[dict[str, Any]]:
    """Attributes of the loaded modules, without the import that the first access to one of a lazy module causes.

    The first ones, in the order of their import, are omitted.
    """
    attributes_of = object.__getattribute__
    modules = list(sys.modules.values())[first:]
    return [attributes_of(module, "__dict__") for module in modules if issubclass(type(module), ModuleType)]


@dataclass(frozen=True)
class _Namespaces:
    """Attributes of the modules that have names of functions, by these names; how many modules were loaded."""

    having: Mapping[str, list[dict[str, Any]]]
    count: int


def _find_namespaces(names: Collection[str]) -> _Namespaces:
    """Search the loaded modules once, for all patches of functions."""
    found = _Namespaces({name: [] for name in names}, len(sys.modules))
    for each in loaded_namespaces() if names else ():
        for name in () if each.keys().isdisjoint(names) else each.keys() & names:
            found.having[name].append(each)
    return found


def _namespaces_with(name: str, first: int) -> list[dict[str, Any]]:
    """Attributes of loaded modules, at least of those that have a name; the first ones are omitted."""
    found = None if first else active(_Namespaces)
    return loaded_namespaces(first) if found is None else [*found.having[name], *loaded_namespaces(found.count)]


class KernelPatch(Patch):
    """Python kernel of an operator (``aten::lstm.input``), which tracing calls instead of a decomposition."""

    key = DispatchKey.CompositeImplicitAutograd

    def parameters(self) -> str:
        """The parameters of the operator."""
        return ", ".join(argument.name for argument in self._operator()._schema.arguments)

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

    def _called(self) -> Callable[..., Any]:
        called = super()._called()
        if self.key is not DispatchKey.CompositeImplicitAutograd:
            return called

        def kernel(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            # A kernel that computes shapes only has no gradients.
            return original(*args, **kwargs) if computes_gradients() else called(original, *args, **kwargs)

        return kernel

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

    def parameters(self) -> str:
        """The parameters of the decomposition."""
        return parameters_of(decomposition_table[self._operator()])

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

    def parameters(self) -> str:
        """ "", since a value has none."""
        super().parameters()
        return ""

    def replaced(self) -> Any:
        """Build the replacement of the current value."""
        owner, name = self._owner_and_name()
        return self.replacement(getattr(owner, name))


@dataclass(frozen=True)
class GlobalPatch(Patch):
    """Patch of a global name of user code (``int``), which the replacement itself becomes in its module.

    Attributes:
        namespace: The globals of the module.
    """

    namespace: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def applies(self) -> bool:
        """True, since every module can have every name."""
        return True

    def parameters(self) -> str:
        """ "", since the name may be new."""
        return ""

    def read(self) -> Any:
        """Current value of the name, or ``MISSING`` where it is a builtin."""
        return self.namespace.get(self.target, MISSING)

    def write(self, value: Any) -> None:
        """Set the name, or remove it."""
        if value is MISSING:
            del self.namespace[self.target]
        else:
            self.namespace[self.target] = value

    def replaced(self) -> Any:
        """The replacement."""
        return self.replacement


@dataclass(frozen=True)
class CodePatch(Patch):
    """Patch of a function of user code, wherever it is referenced: ``replacement`` returns the code that it gets.

    Attributes:
        function: The function.
    """

    function: Any = None

    @property
    def applies(self) -> bool:
        """True, since the function exists."""
        return True

    def parameters(self) -> str:
        """The parameters of the function."""
        return parameters_of(self.function)

    def read(self) -> Any:
        """Current code of the function."""
        return self.function.__code__

    def write(self, value: Any) -> None:
        """Set the code of the function."""
        self.function.__code__ = value

    def replaced(self) -> Any:
        """The code of the replacement."""
        return self.replacement()


class StandIn:
    """Replacement of a module or a class of torch with its attributes, except for the ones that a subclass defines."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


@contextmanager
def applied(patches: Iterable[Patch]) -> Iterator[None]:
    """Apply patches, as ``written`` does, for this thread: for others, they pass through until the exit."""
    with written(patches):
        _thread.depth += 1
        try:
            yield
        finally:
            _thread.depth -= 1


@contextmanager
def written(patches: Iterable[Patch]) -> Iterator[None]:
    """Write patches and hold the lock; restore all targets on exit, including exit by an exception.

    A patch whose target is missing is skipped, see ``installed.missing``. Contexts may be nested.

    Without the target of a patch for soundness, it raises an UntestedTorchError.
    """
    with one_at_a_time(), ExitStack() as stack:
        changed: list[tuple[Patch, Any]] = []
        stack.enter_context(undone_in_forks(partial(_restore_all, changed)))
        present = [patch for patch in patches if patch.applies]
        names = {patch.target.rpartition(":")[2] for patch in present if isinstance(patch, FunctionPatch)}
        with activated(_find_namespaces(names)):
            skipped = [one for one in (_apply(patch, stack, changed) for patch in present) if one]
        if skipped:
            report_missing(skipped)
        yield


def _apply(patch: Patch, stack: ExitStack, changed: list[tuple[Patch, Any]]) -> MissingTarget | None:
    """Apply a patch until the stack is closed, or return its target if it is missing.

    ``changed`` receives the patch, and the value of its target.
    """
    if patch.missing is not None:
        return patch.missing
    try:
        before = patch.read()
        changed.append((patch, before))
        stack.callback(_restore, patch, before)
        patch.write(patch.replaced())
    except _UNEXPECTED as error:
        return MissingTarget(
            patch.target, patch.kind, patch.why, f"cannot be replaced, {type(error).__name__}: {error}"
        )
    return None


def _restore(patch: Patch, before: Any) -> None:
    if patch.read() is not before:
        patch.write(before)


def _restore_all(changed: Sequence[tuple[Patch, Any]]) -> None:
    """Restore the targets of patches, the last one first."""
    for patch, before in reversed(changed):
        _restore(patch, before)
