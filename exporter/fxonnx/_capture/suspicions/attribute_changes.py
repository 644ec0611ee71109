"""Python attributes that forward changes: state that the captured program does not have."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxonnx_translations._torch_compat import (
    OpOverload,
    disable_current_modes,
    get_proxy_mode,
    get_proxy_slot,
    pytree,
)

from ..._context_values import activated, active
from ..._cost import bytes_of, export_seconds, forward_seconds
from ..._interrupts import interruptible
from ..._user_files import is_user_file
from ...errors import CaptureError, kind_of
from ..constraints.guard_recorder import SourceLine, source_line_of
from ..eager_runs import preserved_gradients, preserved_random_states
from ..inputs.example_inputs import BoundInputs
from ..inputs.preserve import Change, Snapshot, TensorValues, changed_attributes, preserve_model
from ..inputs.pytree_objects import slot_names
from .attribute_uses import SourceFiles, methods_of
from .process_state import ABSENT, GENERATORS, state_of

__all__ = ["AttributeChange", "draws_values", "noted_changes", "recorded_changes", "state_changes"]

# Weights up to this size are copied for two calls of the model.
_MOST_BYTES = 2**29
# Attributes without a value that receive one of weights alone are caches; two calls check this if one call takes less
# than this share of the time of the export.
_SHARE = 0.02


@dataclass(frozen=True)
class AttributeChange:
    """An attribute whose change in one call affects the next.

    Attributes:
        path: The attribute, ``encoder.steps``.
        old: Its value at the export, as text.
        new: Its value after a call, as text.
        line: The line that changes it; "" if it is not known.
        is_random: Whether it is a generator of random numbers that the call draws.
    """

    path: str
    old: str
    new: str
    line: str
    is_random: bool = False

    def __str__(self) -> str:
        change = "" if self.is_random else f": {self.old} becomes {self.new}"
        return f"{self.path!r}{change}" + (f" at {self.line}" if self.line else "")


@dataclass(frozen=True)
class _Named:
    """A change with its place in the model.

    Attributes:
        change: The change.
        path: The attribute, with the path of its module.
        name: The name of the attribute or variable that holds the value or the container.
    """

    change: Change
    path: str
    name: str

    @property
    def is_random(self) -> bool:
        """Whether it is a generator of random numbers."""
        return isinstance(self.change.owner, GENERATORS)

    def value(self) -> Any:
        """A copy of the current value."""
        owner, name, *_ = self.change
        if isinstance(owner, CellType):
            found = owner.cell_contents
        elif isinstance(owner, np.ndarray):
            found = owner.tolist()
        elif name is None:
            found = list(owner)
        elif isinstance(owner, dict):
            found = owner.get(name, ABSENT)
        elif name in slot_names(type(owner)):
            found = getattr(owner, name, ABSENT)
        else:
            found = vars(owner).get(name, ABSENT)
        return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, found)


class _Changes(list[Change]):
    """The changes of the last call of forward."""


def recorded_changes() -> AbstractContextManager[list[Change]]:
    """Record the changes of attributes by the last successful call of torch.export inside the context."""
    return activated(_Changes())


@contextmanager
def noted_changes(snapshot: Snapshot, inputs: Any) -> Iterator[None]:
    """Record the changes inside the context, a call of forward."""
    found = active(_Changes)
    if found is None:
        with snapshot.shown_marks():
            yield
        return
    before = {(id(change.owner), change.name): change.new for change in snapshot.changes()}
    states = {id(change.owner): change.new for change in snapshot.draws()}
    with snapshot.shown_marks():
        yield
    found[:] = [change for change in snapshot.draws() if states[id(change.owner)] != change.new]
    found += [
        change._replace(is_constant=_is_constant(change, inputs))
        for change in snapshot.changes()
        if before.get((id(change.owner), change.name), change) is not change.new or change.name is None
    ]


def _is_constant(change: Change, inputs: Any) -> bool:
    """Whether an attribute that had no value holds a tensor that is traced from weights and constants alone."""
    mode = get_proxy_mode()
    is_tensor = isinstance(change.new, torch.Tensor) and not isinstance(change.new, torch.nn.Parameter)
    if mode is None or not is_tensor or not (change.old is None or change.old is ABSENT):
        return False
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor | torch.SymInt)]
    values = [get_proxy_slot(leaf, mode.tracer, None) for leaf in (change.new, *leaves)]
    known = [getattr(value, "proxy", value) for value in values]
    if not all(isinstance(value, torch.fx.Proxy) for value in known):
        return False
    own, sources = known[0].node, {value.node for value in known[1:]}
    pending, seen = [own], {own}
    while pending:
        node = pending.pop()
        if node in sources or _may_vary(node) or any(map(_may_vary, node.users)):
            return False
        pending += [one for one in node.all_input_nodes if one not in seen]
        seen.update(node.all_input_nodes)
    return True


def _may_vary(node: torch.fx.Node) -> bool:
    """Whether an operator draws random values or writes to an operand, or is not one of torch's."""
    if node.op != "call_function":
        return False
    return not isinstance(node.target, OpOverload) or node.target._schema.is_mutable or _is_random(node)


def state_changes(
    model: torch.nn.Module, inputs: BoundInputs, program: ExportedProgram, changes: Sequence[Change]
) -> tuple[AttributeChange, ...]:
    """The changes that make a second call of a model differ from the first.

    Attributes that nothing reads, and caches that the first call fills, are not state. Two calls of the model in eager
    torch decide, for models whose weights can be copied cheaply.

    Raises:
        CaptureError: If the first call creates parameters or draws random values that later calls use.
    """
    named = list(_named(model, changes)) if changes else []
    if not named or (
        all(entry.change.is_constant for entry in named) and forward_seconds(program) > _SHARE * export_seconds(program)
    ):
        return ()
    files = SourceFiles(
        dict.fromkeys(type(owner) for owner in (*model.modules(), *(entry.change.owner for entry in named))),
        [*model.modules()],
    )
    if any(entry.is_random for entry in named) or _draws(program):
        _reject_created_parameters(model, named, files)
    # The code of a script is not in a source file.
    scripts = [script for module in model.modules() if (script := vars(module).get("_script")) is not None]
    of_scripts = {name for script in scripts for name in changed_attributes(script)}
    read = [entry for entry in named if entry.is_random or entry.name in of_scripts or files.reads(entry.name)]
    if not read:
        return ()
    found = _decide(model, inputs, read)
    if found is None:
        found = [entry for entry in read if not (entry.is_random or entry.change.old in (None, ABSENT))]
    elif not found and _draws(program) and _keeps_random_values(model, inputs):
        names = ", ".join(repr(entry.path) for entry in read)
        raise CaptureError(
            f"forward draws random values in the first call only and keeps them in {names}; "
            "the captured program draws them in every call",
            hint="run the model once before the export: model(*args)",
        )
    return tuple(
        AttributeChange(entry.path, "", "", _drawing_line(model, inputs, entry.change.owner), is_random=True)
        if entry.is_random
        else AttributeChange(
            entry.path,
            _text(entry.change.old),
            _text(entry.change.new),
            str(files.changing_line(entry.name, _methods(model, entry)) or ""),
        )
        for entry in found
    )


def _drawing_line(model: torch.nn.Module, inputs: BoundInputs, generator: Any) -> str:
    """The line of the first random number that a call of a model draws from a generator."""
    found: list[SourceLine] = []
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        code, last = frame.f_code, frame.f_lineno
        if found or not is_user_file(code.co_filename):
            return None

        def trace_line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if not found and state_of(generator) != state:
                found.append(source_line_of(code.co_filename, last, code.co_name))
            last = frame.f_lineno
            return trace_line

        return trace_line

    with _calls(model, inputs) as call:
        state = state_of(generator)
        sys.settrace(trace)
        try:
            call(0)
        finally:
            sys.settrace(before)
    return str(found[0]) if found else ""


def _named(model: torch.nn.Module, changes: Sequence[Change]) -> Iterator[_Named]:
    """The changes with their paths, except for torch's own attributes."""
    places = _places(model)
    for change in changes:
        owner, name, _, _, variable, _ = change
        path, attribute = places.get(id(owner), ("", variable))
        if isinstance(owner, GENERATORS):
            yield _Named(change, f"{path}{attribute}", attribute)
        elif isinstance(owner, torch.nn.Module):
            is_internal = name.startswith("_") and type(owner).__module__.startswith("torch.")
            if not is_internal:
                yield _Named(change, f"{path}{name}", name)
        elif attribute in _TABLES:
            yield _Named(change, f"{path}{name}", str(name))
        elif attribute and isinstance(owner, dict | list | set | deque | np.ndarray | bytearray):
            yield _Named(change, f"{path}{attribute}" + ("" if name is None else f"[{name!r}]"), attribute)
        elif attribute:
            yield _Named(change, f"{path}{attribute}.{name}", str(name))
        elif isinstance(owner, type):
            yield _Named(change, f"{owner.__name__}.{name}", str(name))
        elif name is not None:
            yield _Named(change, str(name), str(name))


_TABLES = ("_buffers", "_parameters", "_modules")


def _places(model: torch.nn.Module) -> Mapping[int, tuple[str, str]]:
    """``id`` of modules, and of the containers and objects in their attributes, to module path and attribute."""
    found: dict[int, tuple[str, str]] = {}

    def visit(value: Any, place: tuple[str, str], depth: int) -> None:
        if id(value) in found or isinstance(value, torch.Tensor | torch.nn.Module | type) or not depth:
            return
        found[id(value)] = place
        if isinstance(value, dict):
            items: Any = value.values()
        elif isinstance(value, list | tuple | set | deque):
            items = value
        else:
            items = getattr(value, "__dict__", {}).values()
        for item in items:
            visit(item, place, depth - 1)

    for name, module in model.named_modules():
        path = f"{name}." if name else ""
        found[id(module)] = (path, "")
        is_torch = type(module).__module__.startswith("torch.")
        for attribute, value in vars(module).items():
            if attribute in _TABLES:
                found[id(value)] = (path, attribute)
                found |= {id(one): (path, key) for key, one in value.items() if isinstance(one, torch.Tensor)}
            elif not (is_torch and attribute.startswith("_")):
                visit(value, (path, attribute), 5)
    return found


def _methods(model: torch.nn.Module, entry: _Named) -> list[CodeType]:
    """The code of the methods of the module that holds a changed attribute."""
    return methods_of(dict(model.named_modules()).get(entry.path.rpartition(".")[0], model))


def _reject_created_parameters(model: torch.nn.Module, named: Sequence[_Named], files: SourceFiles) -> None:
    """Refuse parameters that the first call creates, in a model that draws random values, which may be theirs."""
    for entry in named:
        new = entry.change.new
        is_created = isinstance(new, torch.nn.Parameter) or (
            isinstance(new, torch.nn.Module) and next(new.parameters(), None) is not None
        )
        if is_created:
            line = files.changing_line(entry.name, _methods(model, entry))
            raise CaptureError(
                f"forward creates the {'parameter' if isinstance(new, torch.nn.Parameter) else 'module'} "
                f"{entry.path!r} in the first call, whose weights the model does not have yet"
                + (f"\n  at: {line}" if line is not None else ""),
                hint="run the model once before the export: model(*args)",
            )


@contextmanager
def _calls(model: torch.nn.Module, inputs: BoundInputs) -> Iterator[Any]:
    """A function that calls the model in eager torch with the given seed of torch; weights and attributes are restored.

    The numbers that one call draws from Python and NumPy follow those of the call before it.
    """
    args, kwargs = inputs.table.objects or (inputs.args, dict(inputs.kwargs))
    tables: list[dict[str, Any]] = [
        table for module in model.modules() for table in (module._buffers, module._parameters)
    ]
    assigned = [{name: value for name, value in table.items() if value is not None} for table in tables]

    def call(seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            own_args, own_kwargs = copy.deepcopy((args, kwargs))
            with interruptible():
                result = model(*own_args, **own_kwargs)
        restore()
        return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, result)

    def restore() -> None:
        for table, entries in zip(tables, assigned, strict=True):
            table.update(entries)
        weights.restore()

    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    kept = preserve_model(model, leaves), preserved_gradients(model), preserved_random_states()
    with disable_current_modes(), torch.no_grad(), kept[0], kept[1], kept[2]:
        weights = TensorValues()
        weights.record((*model.parameters(), *model.buffers()))
        weights.copy((*model.parameters(), *model.buffers()))
        random.seed(0)
        np.random.seed(0)
        try:
            yield call
        finally:
            restore()


def _can_run(model: torch.nn.Module, inputs: BoundInputs) -> bool:
    """Whether two calls of a model are cheap enough and possible."""
    tensors = [*model.parameters(), *model.buffers()]
    plain = (torch.Tensor, torch.nn.Parameter)
    return (
        bytes_of(tensors) <= _MOST_BYTES
        and all(type(tensor) in plain and tensor.device.type == "cpu" for tensor in (*tensors, *inputs.tensors))
        and not (inputs.table.frozen or inputs.table.lists)
    )


def _decide(model: torch.nn.Module, inputs: BoundInputs, read: Sequence[_Named]) -> list[_Named] | None:
    """The changes that are state, after two calls in eager torch; None if the model cannot be called."""
    if not _can_run(model, inputs):
        return None
    try:
        return _compared(model, inputs, read)
    except Exception:  # noqa: BLE001 - the model runs in the capture only, or its second call fails
        return None


def _compared(model: torch.nn.Module, inputs: BoundInputs, read: Sequence[_Named]) -> list[_Named]:
    """The changes by which a second call differs from the first, or would with other inputs."""
    with _calls(model, inputs) as call:
        first = call(0)
        state = [entry for entry in read if not entry.is_random]
        values = [entry.value() for entry in state]
        second = call(0)
        found = [entry for entry, value in zip(state, values, strict=True) if not _equal(entry.value(), value)]
    if not _equal(first, second):
        drawn = [entry for entry in read if entry.is_random]
        return [*found, *drawn] if found else list(read)
    # The example may leave a value as it is: by its branch, or since it adds zero.
    for entry, value in zip(state, values, strict=True):
        if entry not in found and _is_read_from_data(entry.change):
            with _calls(model, inputs) as call:
                vars(entry.change.owner)[entry.change.name] = _another(entry.change.old)
                if not _equal(call(0), first) or not _equal(entry.value(), value):
                    found.append(entry)
    return found


def _another(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, torch.Tensor):
        return ~value if value.dtype == torch.bool else value + 1
    return not value if isinstance(value, bool) else value + 1


def _is_read_from_data(change: Change) -> bool:
    """Whether an attribute of an object holds another tensor, or in place of a number one that depends on tensors."""
    if isinstance(change.old, torch.Tensor) and isinstance(change.new, torch.Tensor):
        return not isinstance(change.owner, dict | CellType | type) and not change.is_constant
    is_number = type(change.old) in (int, float, bool) and not isinstance(change.owner, dict | CellType | type)
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return is_number and isinstance(change.new, symbols) and bool(free_unbacked_symbols(change.new))


def _keeps_random_values(model: torch.nn.Module, inputs: BoundInputs) -> bool:
    """Whether later calls draw no random values, although the first call does."""
    if not _can_run(model, inputs):
        return False
    with _calls(model, inputs) as call:
        first = call(0)
        if not _equal(call(1), call(2)):
            return False
    with _calls(model, inputs) as call:
        return not _equal(first, call(1))


def _draws(program: ExportedProgram) -> bool:
    """Whether a program draws random values."""
    return any(map(draws_values, program.graph.nodes))


def draws_values(node: torch.fx.Node) -> bool:
    """Whether a node draws random values: not if it is dropout in eval mode."""
    return isinstance(node.target, OpOverload) and _is_random(node) and not _is_inactive(node)


def _is_random(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_inactive(node: torch.fx.Node) -> bool:
    """Whether an operator is dropout in eval mode, or attention without dropout."""
    name = str(getattr(node.target, "__name__", ""))
    if "dropout" in name:
        return False in node.args
    return "attention" in name and not node.kwargs.get("dropout_p") and not any(node.args[4:5])


def _equal(one: Any, other: Any) -> bool:
    """Whether two results are equal; those that cannot be compared are."""
    leaves, spec = pytree.tree_flatten(one)
    others, other_spec = pytree.tree_flatten(other)
    if spec != other_spec:
        return False
    for left, right in zip(leaves, others, strict=True):
        if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
            if type(left) is not type(right):
                return False
            if left.shape != right.shape or not torch.allclose(left, right, equal_nan=True):
                return False
        elif isinstance(left, int | float | str | bool | bytes | complex) and left != right:
            return False
    return True


def _text(value: Any) -> str:
    """A short form of a value."""
    if value is ABSENT:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else kind_of(value)
