"""The process during exports: the turns of threads, changes that forks undo, and Python's garbage collector."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["one_at_a_time", "rare_collections", "undone_in_forks", "without_collections"]

_TRACING = (
    *("torch.compiler", "torch.export._trace", "torch.fx._lazy_graph_module", "torch.fx._symbolic_trace"),
    *("torch.fx.experimental.proxy_tensor", "torch.fx.traceback", "torch.nn.modules.module"),
)
"""Modules with variables that torch changes while it traces a model."""
_CONFIGURATIONS = (
    ("torch.fx.experimental._config", "backed_size_oblivious"),
    ("torch._dynamo.config", "fake_tensor_cache_enabled"),
    ("torch._dynamo.config", "automatic_dynamic_shapes"),
)


class _Turns:
    """The lock that exports hold while the process is changed for them, and the changes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner: int | None = None
        """The thread that holds the lock."""
        self.changes: list[tuple[int, Callable[[], None]]] = []
        """Threads, and functions that undo a change of theirs."""

    def begin_again(self) -> None:
        """Undo the changes of other threads, which a forked process does not have.

        The thread that forks may be the exporting one, from ``forward`` or a callback: it may go on in both processes.
        """
        thread = threading.get_ident()
        others = [undo for owner, undo in self.changes if owner != thread]
        self.changes = [one for one in self.changes if one[0] == thread]
        if self.owner != thread:
            self.lock, self.owner = threading.RLock(), None
        for undo in reversed(others):
            undo()


_TURNS = _Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TURNS.begin_again)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the reentrant lock under which models are traced.

    torch.export and make_fx have global state of their own (the current tracer, ``builtins.max``, flags), so that
    exports of several threads must take turns even where fxonnx applies no patch.
    """
    with _TURNS.lock:
        owner, _TURNS.owner = _TURNS.owner, threading.get_ident()
        try:
            if owner is None:
                with undone_in_forks(_reset_of_torch()):
                    yield
            else:
                yield
        finally:
            _TURNS.owner = owner


def _reset_of_torch() -> Callable[[], None]:
    """A function that ends the tracing of torch in a process that does not have the thread which traces."""
    modules = [sys.modules[name] for name in _TRACING if name in sys.modules]
    variables = [(vars(module), dict(vars(module))) for module in modules]
    hooks = [
        (table, dict(table))
        for name, table in vars(sys.modules["torch.nn.modules.module"]).items()
        if name.startswith("_global_") and isinstance(table, dict)
    ]
    # The modes of the process before torch dispatches.
    modes = vars(getattr(sys.modules["torch._ops"], "_mode_stack_state_for_pre_dispatch", threading.local()))
    stacks = {name: list(value) if isinstance(value, list) else value for name, value in modes.items()}
    configurations = [(sys.modules[name], key) for name, key in _CONFIGURATIONS if name in sys.modules]
    settings = [(module, key, getattr(module, key, None)) for module, key in configurations]

    def reset() -> None:
        patcher = getattr(sys.modules.get("torch.fx._symbolic_trace"), "CURRENT_PATCHER", None)
        if patcher is not None:
            patcher.revert_all_patches()
        for now, before in variables:
            now.update({name: value for name, value in before.items() if now.get(name) is not value})
        for table, entries in hooks:
            table.clear()
            table.update(entries)
        modes.update(stacks)
        for module, key, value in settings:
            setattr(module, key, value)

    return reset


@contextmanager
def undone_in_forks(undo: Callable[[], None]) -> Iterator[None]:
    """In a process that another thread forks inside the context, undo the changes of this thread.

    Args:
        undo: The function, which finds the change complete, incomplete or not made.
    """
    change = threading.get_ident(), undo
    _TURNS.changes.append(change)
    try:
        yield
    finally:
        _TURNS.changes.remove(change)


_THRESHOLDS = (50_000, 20, 1_000)
"""Young objects, young collections and middle ones until a collection of the next generation."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect young garbage less often in the body, and the garbage among all objects of the process practically never.

    In a new process these collections would be a third of the first export. Thresholds of the user that are higher, and
    a collector that is off, stay; of two exports in threads the first that ends restores them.
    """
    before = gc.get_threshold()
    raised = tuple(max(pair) for pair in zip(before, _THRESHOLDS, strict=True))
    if before[0] == 0 or raised == before:
        yield
        return
    gc.set_threshold(*raised)
    try:
        with undone_in_forks(lambda: gc.set_threshold(*before)):
            yield
    finally:
        if gc.get_threshold() == raised:
            gc.set_threshold(*before)


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect nothing in the body, an import, whose objects live as long as the process, and skip them afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:
                # Moves all objects to the oldest generation. Otherwise the next collections would search them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
